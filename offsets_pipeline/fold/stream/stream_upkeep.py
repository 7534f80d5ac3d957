"""Upkeep of a store beside the stream that folds its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import inheritable_thread_target

from offsets_pipeline.common.clock import MS_OF_HOUR
from offsets_pipeline.common.foreign_errors import in_one_line
from offsets_pipeline.common.periodic import Periodic
from offsets_pipeline.fold.maintenance import maintain_store

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from offsets_pipeline.common.clock import Clock
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.fold.maintenance import Upkeep
    from offsets_pipeline.store.store import Store

_CLOSE_SECONDS = 10.0


class StreamUpkeep(Periodic[None]):
    """Compacts small files of a store, removes old ones and cleans the log, in a thread, every `upkeep_interval_ms`.

    It cleans once per `history_hours`, so the log has between one and two times as much history, unless
    `clean_in_stream` is false. A run that fails only calls ``warn``, and the next run tries again. ``on_upkeep`` is
    called after each run that changed anything.

    `close` ends the run in progress after its present step, and waits ten seconds at most. A run that takes longer goes
    on until the process ends: a kill does it no harm.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        settings: Settings,
        on_upkeep: Callable[[Sequence[Upkeep]], object],
        warn: Callable[[str], object],
        stopped: threading.Event | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._on_upkeep = on_upkeep
        self._cleaned_at_ms: int | None = None
        self._dropped_since_ms: dict[str, dict[str, int]] = {}
        super().__init__(
            self._maintain,
            settings.fold.upkeep_interval_ms,
            clock.now_ms,
            at_once=False,
            warn=warn,
            describe=lambda error: f"upkeep of {store.location} failed: {in_one_line(error)}; the next run tries again",
            stopped=stopped,
            name="upkeep",
            wrapped=self._with_session,
            close_seconds=_CLOSE_SECONDS,
        )

    def _with_session(self, target: Callable[[], None]) -> Callable[[], None]:
        inherits: Callable[[], None] = inheritable_thread_target(self._store.spark)(target)
        return inherits

    def _maintain(self) -> None:
        now_ms = self._clock.now_ms()
        cleans = self._must_clean(now_ms)
        try:
            done = maintain_store(
                *(self._store, self._clock, self._settings),
                publishes=False,
                cleans=cleans,
                is_stopping=self.is_stopped,
                dropped_since_ms=self._dropped_since_ms,
            )
        except Exception:
            if self.is_stopped():  # Spark ends under a cleaning
                return
            raise
        if cleans:
            self._cleaned_at_ms = now_ms
        if any((each.files_before, each.bytes_before) != (each.files, each.bytes) or each.removed for each in done):
            self._on_upkeep(done)

    def _must_clean(self, now_ms: int) -> bool:
        if not self._settings.fold.clean_in_stream or not self._settings.log.history_hours:
            return False
        history_ms = self._settings.log.history_hours * MS_OF_HOUR
        return self._cleaned_at_ms is None or now_ms - self._cleaned_at_ms >= history_ms
