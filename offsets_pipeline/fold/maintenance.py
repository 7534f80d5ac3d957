"""Upkeep of a store: cleans the log if the settings ask for it, compacts its tables and vacuums them.

A vacuum removes files that a table dropped longer ago than its `delta.deletedFileRetentionDuration`. Streams and
coordinators may run meanwhile: a compaction changes no row, and a fold whose commits are gone reads the log's files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.common.clock import MS_OF_HOUR, Clock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.errors import StorageFailed, WriteConflict
from offsets_pipeline.fold.state.fold_progress import FoldProgress
from offsets_pipeline.fold.state.publishing import compact_facts, drop_replaced, publish
from offsets_pipeline.ingest.topic_positions.sample_table import remove_old_samples
from offsets_pipeline.store.delta.data_file import COMPRESSION
from offsets_pipeline.store.delta.schemas import FOLD_PROGRESS, LATER_TABLES, LOG, STATE, TOPIC_OFFSETS
from offsets_pipeline.store.delta.upkeep import compact, live, never, vacuum
from offsets_pipeline.store.log.clean import clean_log
from offsets_pipeline.store.log.file_writer import rewritten

if TYPE_CHECKING:
    from offsets_pipeline.store.delta.table_folder import TableFolder
    from offsets_pipeline.store.store import Store


class Upkeep(NamedTuple):
    """A table's live files and their bytes, before and after; ``removed`` is the number of vacuumed files.

    ``on_disk`` is the number of all files in the table's folder, with those of its Delta log.
    """

    table: str
    files_before: int
    bytes_before: int
    files: int
    bytes: int
    removed: int
    on_disk: int


def maintain_store(
    store: Store,
    clock: Clock,
    settings: Settings = Settings(),  # noqa: B008 - immutable
    *,
    publishes: bool = True,
    cleans: bool = True,
    is_stopping: Callable[[], bool] = never,
    dropped_since_ms: dict[str, dict[str, int]] | None = None,
) -> list[Upkeep]:
    """Compact and vacuum every table of the store; returns the upkeep of each.

    A conflict of a compaction with another writer is no error. Only a cleaning of the log starts Spark jobs. Files are
    removed even if others cannot be written.

    Args:
        store: the store.
        clock: the present time.
        settings: the program's settings: codec, and how long records and samples are kept.
        publishes: whether to publish first what is folded; a stream does so itself.
        cleans: whether to clean the log, if `history_hours` is set.
        is_stopping: whether to end early, between two steps.
        dropped_since_ms: for `vacuum`, by table.

    Raises:
        CannotClean: the log cannot be cleaned.
        WriteConflict: other writers that rewrite the log committed first too often.
        NotAStore: the store has got another format.
        StorageFailed: after the files of all tables are removed.
    """
    store.require_format()
    before: list[tuple[TableFolder, tuple[int, int]]] = []
    for each in (*store.tables, *LATER_TABLES):
        if is_stopping():
            return []
        if each not in LATER_TABLES or store.table(each.name).exists():
            before.append((store.table(each.name), live(store.table(each.name))))
    failures: list[StorageFailed] = []
    if publishes:  # if a stream does so at the same time, it or the next run does the rest
        with _noted(failures):
            publish(store, clock)
            progress = FoldProgress.read(store.table(FOLD_PROGRESS.name))
            compact_facts(store, progress)
            drop_replaced(store, progress)
    done = []
    for folder, live_before in before:
        if is_stopping():
            break
        changed = publishes
        with _noted(failures):
            changed |= _rewrite(store, folder, clock, settings, is_stopping, cleans=cleans)
        after = live(folder) if changed else live_before  # else other writers alone made the difference
        since_ms = None if dropped_since_ms is None else dropped_since_ms.setdefault(folder.table.name, {})
        vacuumed = vacuum(folder, is_stopping, since_ms, clock.now_ms())
        done.append(Upkeep(folder.table.name, *live_before, *after, *vacuumed))
    if failures:
        raise failures[0]
    return done


@contextmanager
def _noted(failures: list[StorageFailed]) -> Iterator[None]:
    """Context manager: note what cannot be written, and go on, since removing files makes room on a full disk."""
    try:
        yield
    except StorageFailed as error:
        failures.append(error)


def _rewrite(
    store: Store,
    folder: TableFolder,
    clock: Clock,
    settings: Settings,
    is_stopping: Callable[[], bool],
    *,
    cleans: bool,
) -> bool:
    """Remove a table's old rows and compact it; returns whether anything changed."""
    table, changed = folder.table, False
    if table is LOG and cleans and settings.log.history_hours:
        older_than_ms = settings.log.history_hours * MS_OF_HOUR
        changed |= clean_log(store, settings, clock, older_than_ms=older_than_ms).removed > 0
    elif table is TOPIC_OFFSETS:
        changed |= _expire_samples(folder, clock, settings.lag.sample_retention_hours)
    if table.name not in STATE:
        rewrite = partial(rewritten, folder, settings.log.codec(COMPRESSION)) if table is LOG else None
        changed |= compact(folder, rewrite, is_stopping) > 0
    return changed


def _expire_samples(folder: TableFolder, clock: Clock, retention_hours: int) -> bool:
    """Remove old samples of positions (0: keep all); returns whether there were any."""
    if not retention_hours:
        return False
    try:
        return remove_old_samples(folder, clock.now_ms() - retention_hours * MS_OF_HOUR) > 0
    except WriteConflict:  # a compaction beside this run came first: the next run removes them
        return False
