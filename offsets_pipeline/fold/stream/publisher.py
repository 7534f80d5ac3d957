"""Publishing beside the folds of a stream: as often as settings say, on no more than a fifth of a core."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from offsets_pipeline.common.foreign_errors import in_one_line, may_pass
from offsets_pipeline.common.periodic import Periodic
from offsets_pipeline.errors import WriteConflict
from offsets_pipeline.fold.state.fold_progress import FoldProgress
from offsets_pipeline.fold.state.publishing import compact_facts, drop_replaced, publish
from offsets_pipeline.store.delta.schemas import CURRENT_OFFSETS, FOLD_PROGRESS

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsets_pipeline.common.clock import Clock
    from offsets_pipeline.common.config.sections import FoldSettings
    from offsets_pipeline.store.store import Store

_LARGE_ROWS = 1_000_000
REST = 4  # times as long as a publishing took, until the next one starts
_SHORTEST_REST_SECONDS = 0.05
_REST_SECONDS = 30.0  # for queries that began to read an incarnation before another one took over
_FINISHES = 20  # attempts at the end, beside other writers


class Publisher(Periodic[None]):
    """Publishes what is folded, in a thread; compacts facts, and drops those of replaced incarnations.

    Call `start` once, `after_fold` after each fold, `finish` when the last fold has ended well, and `close` always.
    Calls ``warn`` with one line for a failure that may pass, once until a publishing succeeds.
    """

    def __init__(self, store: Store, settings: FoldSettings, clock: Clock, warn: Callable[[str], object]) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._folded_at: float | None = None  # the first fold that is not published
        self._ended_at = time.monotonic()
        self._took = 0.0
        self._is_large = False
        self._replaced: tuple[dict[int, int], float] | None = None  # incarnations, and when they were first seen
        self._lock = threading.Lock()  # one publishing at a time
        super().__init__(
            self._publish_beside,
            lambda: (self._due_at() - time.monotonic()) * 1000,
            warn=warn,
            describe=lambda error: f"cannot publish {store.location}: {in_one_line(error)}; the next run tries again",
            may_pass=may_pass,
            name="publishing",
        )

    def after_fold(self, records: int) -> None:
        """Note a fold of this many records. Raises the error of the thread, unless a later publishing may succeed."""
        if records and self._folded_at is None:
            self._folded_at = time.monotonic()
        self.check()

    def finish(self) -> None:
        """Publish all that is folded. Raises as `publish`, WriteConflict if other writers came first too often."""
        for _ in range(_FINISHES):
            if self.is_stopped() or self._publish():
                return
        raise WriteConflict(
            f"{self._store.location} is not published to its end: other writers came first; "
            "the next fold publishes the rest"
        )

    def _publish_beside(self) -> None:
        try:
            self._publish()
        except Exception:
            self._folded_at = time.monotonic()  # the next run is as late as after a fold
            raise

    def _due_at(self) -> float:
        """When the next publishing starts: halfway to the time until which it has to end; in the end without a fold."""
        settings = self._settings
        within_ms = settings.publish_large_within_ms if self._is_large else settings.publish_within_ms
        since, wait_ms = self._folded_at, within_ms / 2
        if since is None:
            since, wait_ms = self._ended_at, settings.publish_large_within_ms
        return max(since + wait_ms / 1000, self._ended_at + max(REST * self._took, _SHORTEST_REST_SECONDS))

    def _publish(self) -> bool:
        """Publish; returns whether all that was folded is published."""
        with self._lock:
            folded_at, self._folded_at = self._folded_at, None
            started, done = time.monotonic(), False
            try:
                done = publish(self._store, self._clock)
                self._keep_small()
            finally:
                if not done and self._folded_at is None:
                    self._folded_at = folded_at or started
                self._ended_at = time.monotonic()
                self._took = self._ended_at - started
            return done

    def _keep_small(self) -> None:
        progress = FoldProgress.read(self._store.table(FOLD_PROGRESS.name))
        compact_facts(self._store, progress, self._settings.compact_files)
        if self._replaced is None or self._replaced[0] != progress.incarnations:
            self._replaced = progress.incarnations, time.monotonic()
        elif time.monotonic() - self._replaced[1] >= _REST_SECONDS:
            drop_replaced(self._store, progress)
        if self._store.properties.topic_kind.has_groups:
            rows = sum(file.rows for file in self._store.table(CURRENT_OFFSETS.name).snapshot().files())
            self._is_large = rows > _LARGE_ROWS
