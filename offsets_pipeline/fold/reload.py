"""Rebuilding the state of log partitions from their log (R16), beside a running stream."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from offsets_pipeline.errors import InvalidPartitionCount, WriteConflict
from offsets_pipeline.fold.dataframes import fold, fold_log, log_rows
from offsets_pipeline.fold.epoch_writer import EpochWriter
from offsets_pipeline.fold.replay_writer import FilesReplayWriter, FoundState, RowsReplayWriter, StateMovedError
from offsets_pipeline.fold.state import FoldedState
from offsets_pipeline.fold.state_files import write_state_files
from offsets_pipeline.fold.summary import summarise
from offsets_pipeline.log.epochs import counting_epoch, folded_epoch
from offsets_pipeline.retry import with_retries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config import Settings
    from offsets_pipeline.fold.summary import Summary
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
    folded = switch_epoch_if_due(store, settings, clock)
    if folded is not None:  # all log partitions at once: state of two epochs would be of no log
        return folded
    if partitions is None:
        found = FoundState.of(store)  # before the log is read
        if found is not None:
            with found, suppress(StateMovedError):
                return _replay_by_files(store, found, settings, clock)
    try:
        return _replay_by_rows(store, partitions, folded_epoch(store), settings, clock)
    except StateMovedError as moved:
        raise WriteConflict("another epoch of the log took over beside a replay") from moved


def _replay_by_files(store: Store, found: FoundState, settings: Settings, clock: Clock) -> int:
    """Replay the whole log so that the tasks write the files of the state."""
    epoch = counting_epoch(store)
    write_state = partial(
        write_state_files,
        folders=found.folders,
        offsets_partitions=store.properties.offsets_partitions,
        log_epoch=epoch,
    )
    return put_in_place(
        fold_log(store, None, epoch, write_state),
        settings,
        lambda effects, summary: FilesReplayWriter(store, effects, settings.fold, clock, epoch).write(summary, found),
    )


def _replay_by_rows(store: Store, partitions: list[int] | None, epoch: int, settings: Settings, clock: Clock) -> int:
    whole = partitions is None
    return put_in_place(
        fold_log(store, partitions, epoch),
        settings,
        lambda effects, summary: RowsReplayWriter(store, effects, settings.fold, clock, epoch).write(
            summary, whole=whole
        ),
    )


def switch_epoch_if_due(store: Store, settings: Settings, clock: Clock) -> int | None:
    """Let an epoch take over that counts and is not folded yet, as `switch_epoch` does; None: there is none."""
    if folded_epoch(store) >= counting_epoch(store):
        return None
    state = FoldedState(store)
    epoch = counting_epoch(store)
    return switch_epoch(store, state, epoch, settings, clock) if state.log_epoch < epoch else None


def switch_epoch(store: Store, state: FoldedState, epoch: int, settings: Settings, clock: Clock) -> int:
    """Fold the epoch that counts beside the state of an older one, then let it take that one's place at one stroke.

    ``state`` is that of the older one, as it was before the log is read. Returns the number of records folded. Raises
    WriteConflict where others wrote to the state since then.
    """
    return put_in_place(
        fold_log(store, None, epoch),
        settings,
        lambda effects, summary: EpochWriter(store, effects, settings.fold, clock, epoch).write(summary, state),
        also_of_nothing=True,
    )


def put_in_place(
    effects: DataFrame,
    settings: Settings,
    write: Callable[[DataFrame, Summary], None],
    *,
    also_of_nothing: bool = False,
) -> int:
    """Let what a replay brings be written, if it is anything; returns the number of records replayed."""
    effects = effects.persist()
    try:
        summary = summarise(effects, settings)
        if summary.records or also_of_nothing:
            write(effects, summary)
        return summary.records
    finally:
        effects.unpersist()
