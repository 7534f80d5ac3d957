"""Folds the log at once for a stream that is far behind, or that has read records which the state lacks.

Delta's streaming source reads the files of each commit that the stream has not read, also if `offsets maintain` has
compacted these files since. Its time depends on the number of commits: 3,000 commits of 10 records take longer than a
million records of one commit.

A progress of folds that lost its last commit, or was copied before the checkpoint, lacks records that the stream will
not read again. Their rows are facts already, but their pending commits were lost with the progress.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from offsets_pipeline.delta.schemas import FOLD_PROGRESS, LOG, LOG_PARTITIONS
from offsets_pipeline.errors import OffsetsError
from offsets_pipeline.foreign_errors import first_line
from offsets_pipeline.log.append import LATE
from offsets_pipeline.log.stream_checkpoint import StreamCheckpoint
from offsets_pipeline.state.fold import fold_log
from offsets_pipeline.state.fold_progress import FoldProgress
from offsets_pipeline.state.unfolded import UnfoldedLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config import Settings
    from offsets_pipeline.store import Store

_LOG = logging.getLogger(__name__)

#: Unread commits from which on a stream is far behind.
FAR_BEHIND = 100


def catch_up(
    store: Store,
    checkpoint: str,
    settings: Settings,
    clock: Clock,
    on_fold: Iterable[Callable[[int], object]] = (),
    warn: Callable[[str], None] | None = None,
) -> bool:
    """Fold the files of the log if the stream is far behind, and let it continue behind them; returns whether it did.

    Folds them also if the state lacks records that the stream has read.

    The stream has to read the commits if late records are among them: `fold_batch` replays their log partitions. Call
    this before the query starts. It may die at any point: the state comes first, and after a crash the stream reads
    folded records again (R15). ``on_fold`` are called with the number of records folded.

    Raises as `fold_log`.
    """
    log = store.table(LOG.name)
    stream = StreamCheckpoint(checkpoint)
    unread = stream.unread_version()
    snapshot = log.snapshot()  # before the fold, which then has all of its records
    if unread is None:
        return False
    if _lacks_records(store, unread):
        _fold(store, settings, clock, on_fold, warn)
    if snapshot.version + 1 - unread < FAR_BEHIND:
        return False
    try:
        late = log.snapshot(max(unread - 1, 0)).transaction(LATE)
    except OffsetsError as error:  # the log keeps its old versions only for a time
        _LOG.warning("the stream reads each commit of %s since version %d: %s", log.folder, unread, first_line(error))
        return False
    if late != snapshot.transaction(LATE):
        return False
    _fold(store, settings, clock, on_fold, warn)
    stream.advance(snapshot.version + 1)
    return True


def _lacks_records(store: Store, unread: int) -> bool:
    """Whether the state lacks records of versions of the log before this one; False if these are no longer kept."""
    progress = FoldProgress.read(store.table(FOLD_PROGRESS.name))
    try:
        read = UnfoldedLog(
            store.table(LOG.name).snapshot(unread - 1), store.table(LOG_PARTITIONS.name).snapshot(), store.properties
        )
    except OffsetsError:
        return False
    missing, _ = read.unfolded(progress.partitions)
    return bool(missing) or progress.partitions.keys() != set(range(read.offsets_partitions))


def _fold(
    store: Store,
    settings: Settings,
    clock: Clock,
    on_fold: Iterable[Callable[[int], object]],
    warn: Callable[[str], None] | None,
) -> None:
    folded = fold_log(store, settings, clock, warn)
    for each in on_fold:
        each(folded)
