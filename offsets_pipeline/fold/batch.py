"""Folding new rows of the log into the state: what a batch of the stream does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from offsets_pipeline.fold.dataframes import carried_rows, fold, log_rows
from offsets_pipeline.fold.few import FewWriter, fold_few
from offsets_pipeline.fold.fold_writer import FoldWriter
from offsets_pipeline.fold.reload import reload_partitions, switch_epoch
from offsets_pipeline.fold.state import FoldedState
from offsets_pipeline.fold.summary import summarise
from offsets_pipeline.log.epochs import counting_epoch
from offsets_pipeline.retry import with_retries
from offsets_pipeline.semantics.effects import QUARANTINE

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config import Settings
    from offsets_pipeline.fold.summary import Summary
    from offsets_pipeline.store import Store


def fold_batch(
    store: Store, rows: DataFrame, settings: Settings, clock: Clock, warn: Callable[[str], None] | None = None
) -> int:
    """Fold rows of the table `log`, each log partition from where its last fold ended; returns how many were new.

    The rows must hold, of each log partition, everything that was appended since the last fold; rows from before
    that do no harm (R15). Rows that were appended behind others, and were not there when those were folded, make
    their log partition be replayed from its start. ``warn`` gets a line where records went into quarantine (R6).

    Raises UndecodableRecord where the settings say so, WriteConflict where other writers came first too often.
    """
    return with_retries(lambda: _fold_once(store, rows, settings, clock, warn), "the fold of a batch", settings.fold)


def _fold_once(
    store: Store, rows: DataFrame, settings: Settings, clock: Clock, warn: Callable[[str], None] | None
) -> int:
    state = FoldedState(store)
    epoch = counting_epoch(store)
    if state.log_epoch < epoch:
        return switch_epoch(store, state, epoch, settings, clock)  # of the log as it is now: these rows, too
    # Those of another epoch wait until it counts; then all of it is folded.
    rows = rows.where(F.col("log_epoch") == state.log_epoch)
    few = fold_few(store, rows, state, settings.fold.driver_rows)
    if few is not None:
        summary = summarise(few, settings)
        if summary.records:
            FewWriter(store, few, settings.fold, clock, state.log_epoch).write(summary, state)
    else:
        summary = _fold_in_tasks(store, rows, state, settings, clock)
    if summary.corrupt is not None and warn is not None:
        warn(
            f"{summary.rows[QUARANTINE]} of {summary.records} records went into quarantine ({summary.corrupt}): see "
            "the table quarantine of the store"
        )
    if summary.behind:
        reload_partitions(store, summary.behind, settings, clock)
    return summary.records


def _fold_in_tasks(store: Store, rows: DataFrame, state: FoldedState, settings: Settings, clock: Clock) -> Summary:
    effects = fold(
        log_rows(rows).unionByName(carried_rows(state.rows)), store.properties.offsets_partitions, state.folded_to
    ).persist()
    try:
        summary = summarise(effects, settings)
        if summary.records:
            FoldWriter(store, effects, settings.fold, clock, state.log_epoch).write(summary, state)
        return summary
    finally:
        effects.unpersist()
