"""Rebuilding the state of log partitions from their log (R16), beside a running stream."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from pyspark import inheritable_thread_target

from offsets_pipeline.errors import InvalidPartitionCount
from offsets_pipeline.file_commit import FileCommit
from offsets_pipeline.fold.dataframes import fold, fold_log, log_rows
from offsets_pipeline.fold.replay_writer import FilesReplayWriter, ReplayWriter, RowsReplayWriter, StateMovedError
from offsets_pipeline.fold.state_files import begin_commits, write_state_files
from offsets_pipeline.fold.summary import summarise
from offsets_pipeline.retry import with_retries

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config import Settings
    from offsets_pipeline.store import Store


def reload_partitions(store: Store, partitions: Iterable[int] | None, settings: Settings, clock: Clock) -> int:
    """Replay these log partitions (None: all) from their start and put the result in place of their state.

    Returns the number of records replayed. Safe beside a running stream: what that folds meanwhile lies above the
    replayed end and is kept, and so is its progress.

    Raises InvalidPartitionCount for a log partition that the log does not have, UndecodableRecord where the
    settings say so, WriteConflict where other writers came first too often.
    """
    chosen = None if partitions is None else sorted(set(partitions))
    count = store.properties.offsets_partitions
    for partition in chosen or []:
        if not 0 <= partition < count:
            raise InvalidPartitionCount(
                f"there is no log partition {partition} in {store.location}: its log has {count}, 0 to {count - 1}"
            )
    return with_retries(lambda: _reload_once(store, chosen, settings, clock), "a reload", settings.fold)


def replayed(store: Store, rows: DataFrame) -> DataFrame:
    """The effects of replaying rows of the table `log` from the log's start."""
    return fold(log_rows(rows), store.properties.offsets_partitions, {})


def _reload_once(store: Store, partitions: list[int] | None, settings: Settings, clock: Clock) -> int:
    commits = begin_commits(store) if partitions is None else None  # before the log is read
    if commits is not None:
        look = inheritable_thread_target(store.spark)(FileCommit.look)
        with ThreadPoolExecutor() as threads, suppress(StateMovedError):
            looking = threads.map(look, commits.values())  # while the tasks replay
            records = _replay_once(store, None, settings, clock, commits)
            list(looking)
            return records
    return _replay_once(store, partitions, settings, clock)


def _replay_once(
    store: Store,
    partitions: list[int] | None,
    settings: Settings,
    clock: Clock,
    commits: Mapping[str, FileCommit] | None = None,
) -> int:
    """Replay, with ``commits`` so that the tasks write the files of the state for them."""
    in_tasks = None
    if commits is not None:
        folders = {name: commit.folder for name, commit in commits.items()}
        in_tasks = partial(write_state_files, folders=folders, offsets_partitions=store.properties.offsets_partitions)
    effects = fold_log(store, partitions, in_tasks).persist()
    try:
        summary = summarise(effects, settings)
        if summary.records:
            ends = {each.log_partition: each.folded_to for each in summary.progress}
            writer: ReplayWriter
            if commits is None:
                whole = partitions is None
                writer = RowsReplayWriter(store, effects, settings.fold, clock, ends, whole=whole)
            else:
                writer = FilesReplayWriter(store, effects, settings.fold, clock, ends, commits)
            writer.write(summary)
        return summary.records
    finally:
        effects.unpersist()
