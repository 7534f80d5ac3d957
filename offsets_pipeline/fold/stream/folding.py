"""The folds of a streaming query, and the work beside them: publishing, upkeep, and expiry in an owned store.

Publishing takes no more than a fifth of a core. `follow` folds what the streaming query of a topic appends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pyspark import inheritable_thread_target

from offsets_pipeline.common.clock import MS_OF_HOUR, Clock
from offsets_pipeline.common.foreign_errors import in_one_line, may_pass
from offsets_pipeline.common.periodic import Periodic
from offsets_pipeline.coordinator.expiry_runs import StreamExpiry
from offsets_pipeline.errors import OffsetsError, WriteConflict
from offsets_pipeline.fold.maintenance import Upkeep, maintain_store
from offsets_pipeline.fold.state.fold import fold_log, next_fold, reload_partitions
from offsets_pipeline.fold.state.fold_progress import FoldProgress
from offsets_pipeline.fold.state.publishing import compact_facts, drop_replaced, publish
from offsets_pipeline.store.delta.properties import OWNED
from offsets_pipeline.store.delta.schemas import CURRENT_OFFSETS, FOLD_PROGRESS, LOG, LOG_PARTITIONS

if TYPE_CHECKING:
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.common.config.sections import FoldSettings
    from offsets_pipeline.fold.state.changes import NextFold
    from offsets_pipeline.ingest.topic.topic_ingest import TopicIngest
    from offsets_pipeline.store.log.append import Append
    from offsets_pipeline.store.store import Store

_CLOSE_SECONDS = 10.0
_LARGE_ROWS = 1_000_000
REST = 4  # times as long as a publishing took, until the next one starts
_SHORTEST_REST_SECONDS = 0.05
_REST_SECONDS = 30.0  # for queries that began to read an incarnation before another one took over
_FINISHES = 20  # attempts at the end, beside other writers


def nothing(*_: object) -> None:
    """Do nothing: the default of callbacks."""


class Folding:
    """Folds a store's log: call `fold` after each append, `finish` when the last fold has ended well, `close` always.

    Or call `fold_to_end` alone.

    Args:
        store: The store.
        settings: All settings.
        clock: The current time.
        on_fold: Called with the number of records of each fold.
        on_expiry: Called with the numbers of offsets and groups that a run expired.
        on_upkeep: Called with the upkeep of each table, after a run that changed anything.
        warn: Called with one line for each fold that put records into quarantine (R6), and for failures that may pass.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        clock: Clock,
        *,
        on_fold: Callable[[int], object] = nothing,
        on_expiry: Callable[[int, int], None] | None = None,
        on_upkeep: Callable[[Sequence[Upkeep]], object] = nothing,
        warn: Callable[[str], None] = nothing,
    ) -> None:
        self.store = store
        self.settings = settings
        self._clock = clock
        self._on_fold = on_fold
        self.warn = warn
        self._publisher = Publisher(store, settings.fold, clock, warn)
        # else a broker expires offsets (R4), or the settings disable it
        expires = store.properties.kind == OWNED and store.properties.topic_kind.has_groups
        expires &= settings.fold.expire_in_stream
        self._expiry = StreamExpiry(store.folder(), settings, clock, on_expiry) if expires else None
        has_upkeep = settings.fold.upkeep_interval_ms > 0
        self._upkeep = StreamUpkeep(store, clock, settings, on_upkeep, warn) if has_upkeep else None
        self._lock = threading.Lock()
        self._versions: tuple[int, ...] = ()

    def start(self) -> None:
        """Start the threads of the work beside the folds."""
        self._publisher.start()
        for each in (self._expiry, self._upkeep):
            if each is not None:
                each.start()

    def fold_to_end(self) -> None:
        """Fold the log up to its present end, and publish it; an owned store first expires offsets.

        Raises as `fold` and `finish`.
        """
        try:
            if self._expiry is not None:
                self._expiry.run_once()  # then the fold has the tombstones
            self.fold(self.store)
            self.finish()
        finally:
            self.close()

    def fold(self, store: Store, append: Append | None = None) -> None:
        """Fold the log, or take what was folded of an append; does nothing if the log is as it was at the last fold.

        ``store`` has the session of the caller. Raises as `fold_log`, and the error of a publishing that does not pass.
        """
        with self._lock:
            # of `log_partitions` too: its rows decide which incarnation of the log counts
            versions = tuple(store.version(table.name) for table in (LOG, LOG_PARTITIONS))
            if versions == self._versions:
                return
            folded = fold_log(store, self.settings, self._clock, self.warn, append)
            # a fold of one append leaves later ones of other processes to the next call
            self._versions = versions if append is None or versions[0] == append.version else ()
            self._publisher.after_fold(folded)
        if folded:
            self._on_fold(folded)

    def next_fold(self, store: Store, log_incarnation: int) -> NextFold | None:
        """See `offsets_pipeline.fold.state.fold.next_fold`; ``store`` has the session of the caller.

        None also if the state is damaged: records come into the log, and the fold after it raises the error.
        """
        with suppress(OffsetsError):
            return next_fold(store, self.settings, self._clock, log_incarnation)
        return None

    def finish(self) -> None:
        """Publish all that is folded. Raises as `Publisher.finish`."""
        self._publisher.finish()

    def close(self) -> None:
        """End the threads."""
        for each in (self._expiry, self._upkeep):
            if each is not None:
                each.close()
        self._publisher.close()


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


def follow(
    ingest: TopicIngest,
    settings: Settings,
    clock: Clock,
    *,
    available_now: bool = False,
    on_fold: Callable[[int], object] = nothing,
    on_upkeep: Callable[[Sequence[Upkeep]], object] = nothing,
    warn: Callable[[str], None] = nothing,
) -> int:
    """Read and fold until ``ingest.stop``, or with ``available_now`` until the end of the topic.

    Call ``ingest.prepare`` first. The callbacks are those of `Folding`. Returns the number of records added to the log.
    Raises as ``ingest.run`` and `Folding.fold`.
    """
    store = ingest.store
    semantics = store.properties.coordinator_semantics
    if FoldProgress.read(store.table(FOLD_PROGRESS.name)).semantics not in (None, semantics):  # the broker was upgraded
        reload_partitions(store, None, settings, clock, semantics)
    folding = Folding(store, settings, clock, on_fold=on_fold, on_upkeep=on_upkeep, warn=warn)
    try:
        folding.fold(store)  # what an earlier process has appended
        if not available_now:
            folding.start()
        added = ingest.run(available_now=available_now, folding=folding)
        folding.fold(store)
        folding.finish()
    finally:
        folding.close()
    return added


# --- publishing


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
                if not done:  # a fold may have come meanwhile
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
