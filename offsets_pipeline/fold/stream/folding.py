"""The folds of a streaming query, and the work beside them: publishing, upkeep, and expiry in an owned store.

`follow` folds what the streaming query of a topic appends.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from offsets_pipeline.coordinator.expiry_runs import StreamExpiry
from offsets_pipeline.errors import OffsetsError
from offsets_pipeline.fold.state.fold import fold_log, next_fold, reload_partitions
from offsets_pipeline.fold.state.fold_progress import FoldProgress
from offsets_pipeline.fold.stream.publisher import Publisher
from offsets_pipeline.fold.stream.stream_upkeep import StreamUpkeep
from offsets_pipeline.store.delta.properties import OWNED
from offsets_pipeline.store.delta.schemas import FOLD_PROGRESS, LOG, LOG_PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from offsets_pipeline.common.clock import Clock
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.fold.maintenance import Upkeep
    from offsets_pipeline.fold.state.fold import NextFold
    from offsets_pipeline.ingest.topic.topic_ingest import TopicIngest
    from offsets_pipeline.store.log.append import Append
    from offsets_pipeline.store.store import Store


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
        self._warn = warn
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
            folded = fold_log(store, self.settings, self._clock, self._warn, append)
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
