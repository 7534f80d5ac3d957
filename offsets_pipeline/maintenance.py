"""Upkeep of a store: cleans the log if the settings ask for it, compacts its tables and vacuums them.

A vacuum removes files that a table dropped longer ago than its `delta.deletedFileRetentionDuration`. Streams and
coordinators may run meanwhile: a compaction changes no row, and a vacuum keeps files that a stream has yet to read.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.clock import MS_OF_HOUR
from offsets_pipeline.delta import COMPRESSION
from offsets_pipeline.delta.schemas import FOLD_PROGRESS, LATER_TABLES, LOG, STATE, TOPIC_OFFSETS
from offsets_pipeline.delta.upkeep import compact, kept_ms, live, never, vacuum
from offsets_pipeline.errors import NoSuchCheckpoint, WriteConflict
from offsets_pipeline.log.clean import clean_log
from offsets_pipeline.log.file_compaction import rewritten
from offsets_pipeline.log.stream_checkpoint import StreamCheckpoint
from offsets_pipeline.state.fold_progress import FoldProgress
from offsets_pipeline.state.merge_on_read import state_tables_of
from offsets_pipeline.state.publishing import compact_facts, drop_replaced, publish
from offsets_pipeline.store import absolute
from offsets_pipeline.topic_positions.sample_table import remove_old_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config import Settings
    from offsets_pipeline.delta import TableFolder
    from offsets_pipeline.delta.schemas import Table
    from offsets_pipeline.store import Store

_MARGIN_MS = 60_000  # clocks of several machines differ


class Upkeep(NamedTuple):
    """A table's live files and their bytes, before and after; ``removed`` is the number of vacuumed files."""

    table: str
    files_before: int
    bytes_before: int
    files: int
    bytes: int
    removed: int


def maintain_store(
    store: Store, clock: Clock, checkpoints: Collection[str] = (), *, settings: Settings | None = None
) -> list[Upkeep]:
    """Compact and vacuum every table of the store; returns the upkeep of each.

    Cleans the log first if `history_hours` is set.

    Args:
        store: the store.
        clock: the present time.
        checkpoints: checkpoint folders outside of the store, of streams that read the log; those inside are known.
        settings: the program's settings; without them the log is not cleaned, and samples are kept.

    Raises:
        NoSuchCheckpoint: one of ``checkpoints`` is not the checkpoint of a stream over the log.
        CannotClean: the log cannot be cleaned.
        WriteConflict: other writers that rewrite the log committed first too often.
        NotAStore: the store has got another format.
    """
    store.require_format()
    unread = _first_unread_version([*store.checkpoints(), *map(absolute, checkpoints)], required=checkpoints)
    before = {table.name: live(store.table(table.name)) for table in _tables(store)}
    _publish(store, clock)
    compression = COMPRESSION if settings is None else settings.log.codec(COMPRESSION)
    done = []
    for table in _tables(store):
        folder = store.table(table.name)
        if table is LOG:
            _clean(store, clock, settings)
        elif table is TOPIC_OFFSETS:
            _expire_samples(folder, clock, 0 if settings is None else settings.lag.sample_retention_hours)
        if table.name not in STATE:
            _compact(folder, compression, never)
        removed = _vacuum(folder, clock, unread if table is LOG else None, never)
        done.append(Upkeep(table.name, *before[table.name], *live(folder), removed))
    return done


def maintain_beside_fold(
    store: Store,
    clock: Clock,
    checkpoint: str | None,
    is_stopping: Callable[[], bool],
    settings: Settings | None = None,
    sample_retention_hours: int = 0,
    compression: str = COMPRESSION,
) -> list[Upkeep]:
    """Do `maintain_store` without publishing, which the stream does; returns the upkeep.

    ``checkpoint`` is that of the stream, if it is outside of the store. Ends early if ``is_stopping``. With
    ``settings`` it cleans the log if `history_hours` is set. Only that starts Spark jobs. Keeps samples of positions
    for ``sample_retention_hours``; 0: all. ``compression``: Parquet's codec of the log's files.

    Raises the errors of the storage and of damaged tables, NotAStore if the store has got another format; of a cleaning
    CannotClean and WriteConflict. A conflict of a compaction with another writer is no error.
    """
    store.require_format()
    own = [] if checkpoint is None else [absolute(checkpoint)]
    unread = _first_unread_version([*store.checkpoints(), *own])
    done = []
    for table in _tables(store):
        if is_stopping():
            break
        folder = store.table(table.name)
        before = live(folder)
        cleaned = (table is LOG and _clean(store, clock, settings)) or (
            table is TOPIC_OFFSETS and _expire_samples(folder, clock, sample_retention_hours)
        )
        replaced = 0 if table.name in STATE else _compact(folder, compression, is_stopping)
        after = live(folder) if replaced or cleaned else before  # else other writers alone made the difference
        removed = _vacuum(folder, clock, unread if table is LOG else None, is_stopping)
        done.append(Upkeep(table.name, *before, *after, removed))
    return done


def _clean(store: Store, clock: Clock, settings: Settings | None) -> bool:
    """Clean the log if the settings ask for it; returns whether that removed records."""
    if settings is None or not settings.log.history_hours:
        return False
    return clean_log(store, settings, clock, older_than_ms=settings.log.history_hours * MS_OF_HOUR).removed > 0


def _expire_samples(folder: TableFolder, clock: Clock, retention_hours: int) -> bool:
    """Remove old samples of positions (0: keep all); returns whether there were any."""
    if not retention_hours:
        return False
    try:
        return remove_old_samples(folder, clock.now_ms() - retention_hours * MS_OF_HOUR) > 0
    except WriteConflict:  # a compaction beside this run came first: the next run removes them
        return False


def _tables(store: Store) -> list[Table]:
    """The tables of the store, also those that it got later."""
    return [*store.tables, *(each for each in LATER_TABLES if store.has_later(each))]


def _compact(folder: TableFolder, compression: str, is_stopping: Callable[[], bool]) -> int:
    """Compact a table's small files, those of the log with this codec; returns how many were replaced."""
    return compact(folder, partial(rewritten, folder, compression) if folder.table is LOG else None, is_stopping)


def _publish(store: Store, clock: Clock) -> None:
    """Publish what is folded, compact the other facts, and drop those of replaced incarnations.

    If a stream does so at the same time, it or the next run does the rest.
    """
    publish(store, clock)
    progress = FoldProgress.read(store.table(FOLD_PROGRESS.name))
    for table in state_tables_of(store.properties.topic_kind):
        if table.published is None:
            compact_facts(store, table, progress)
    drop_replaced(store, progress)


def _vacuum(folder: TableFolder, clock: Clock, unread: int | None, is_stopping: Callable[[], bool]) -> int:
    """Remove files that the table dropped longer ago than its retention; returns how many.

    Removes none if a stream has yet to read a version older than the retention. ``unread`` is the first such version.
    """
    since_ms = None if unread is None else folder.committed_ms(unread)
    # The table drops a version's files after its commit. Vacuum keeps them if the commit is younger than the retention.
    if since_ms is not None and clock.now_ms() - since_ms + _MARGIN_MS > kept_ms(folder):
        return 0
    return vacuum(folder, is_stopping)


# --- streams that read the log


def require_checkpoints(folders: Collection[str]) -> None:
    """Raise NoSuchCheckpoint if one of these folders is not the checkpoint of a stream over a log."""
    _first_unread_version(map(absolute, folders), required=folders)


def _first_unread_version(folders: Iterable[str], required: Collection[str] = ()) -> int | None:
    """The first version of the log that one of the streams with these checkpoints has not read; None without streams.

    Raises NoSuchCheckpoint if one of ``required`` is not the checkpoint of a stream.
    """
    versions = {folder: StreamCheckpoint(folder).unread_version() for folder in folders}
    for folder in required:
        if versions[absolute(folder)] is None:
            raise NoSuchCheckpoint(f"{folder} is not the checkpoint of a stream over the log; name the folder of one")
    return min((each for each in versions.values() if each is not None), default=None)
