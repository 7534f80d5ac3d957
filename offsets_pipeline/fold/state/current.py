"""The state as of the end of the log: the state tables, and what a fold of the rest of the log adds to them.

A question does not wait for the stream. It folds what the stream has not folded yet, by the replay and the writer of
changes that the stream uses, into Arrow tables in memory. The rows that count are then those of both
(merge_on_read.py), for facts about the state are commutative (docs/adr/0028). The store itself stays as it is.

The number of records that a question folds is bounded. Log partitions that have more answer as of their last fold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from offsets_pipeline.fold.state.fold_progress import (
    UNSTORED_INCARNATION,
    PartitionProgress,
    log_commit_of,
    progress_of,
)
from offsets_pipeline.fold.state.merge_on_read import StateTable, named_rows
from offsets_pipeline.fold.state.stored_rows import StoredRows
from offsets_pipeline.fold.state.unfolded import unfolded_records
from offsets_pipeline.store.delta.data_file import ALL_ROWS, FOLDED
from offsets_pipeline.store.delta.schemas import FOLD_PROGRESS, LOG, LOG_PARTITIONS
from offsets_pipeline.store.store_snapshot import log_incarnations

if TYPE_CHECKING:
    import pyarrow as pa

    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
    from offsets_pipeline.store.delta.data_file import Only
    from offsets_pipeline.store.delta.properties import StoreProperties
    from offsets_pipeline.store.delta.snapshot import Snapshot


@dataclass(frozen=True)
class CurrentState:
    """The state as of the end of the log, for one question.

    ``table`` returns the version of a table that the question reads. ``stored`` is the progress of the store's state
    tables, ``progress`` that of this state, by log partition. ``unfolded`` counts the records of log partitions that
    this state lacks. ``folded`` has the facts that the question folded, by state table, and ``topics`` the names of
    topic ids that their records have (R35).
    """

    table: Callable[[str], Snapshot]
    properties: StoreProperties
    log_incarnation: int
    semantics: CoordinatorSemantics
    stored: Mapping[int, PartitionProgress]
    progress: Mapping[int, PartitionProgress]
    unfolded: Mapping[int, int] = field(default_factory=dict)
    folded: Mapping[str, pa.Table] = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)

    @property
    def offsets_partitions(self) -> int:
        """The number of log partitions, R1's n."""
        return len(self.progress)

    def facts(self, table: StateTable) -> str:
        """SQL condition for the facts of a table that count.

        If the table has a published one, facts later than this state do not count: a fold that has not ended wrote
        them, and the question may have read its other tables before.
        """
        named = named_rows({at: each.incarnation for at, each in self.progress.items()})
        if table.published is None:
            return named
        ends = " ".join(f"WHEN {at} THEN {each.folded_to}" for at, each in self.progress.items())
        return f"{named} AND folded_to <= CASE log_partition {ends} END"

    def published(self) -> list[int]:
        """The log partitions whose published rows count: those of the stored incarnations.

        The question replays the others from their start.
        """
        return [at for at, each in self.progress.items() if each.incarnation != UNSTORED_INCARNATION]

    def newest(self, table: StateTable, columns: Sequence[str], only: Only = ALL_ROWS) -> pa.Table:
        """Return columns of the rows of a table that count, in no order.

        ``only`` restricts the rows to values of columns of the key.
        """
        rows = StoredRows.of(map(self.table, table.names), {at: each.incarnation for at, each in self.progress.items()})
        # as `facts` says it in SQL
        ends = {at: each.folded_to for at, each in self.progress.items()} if table.published else None
        return rows.newest(table, columns, only, ends=ends, more=self.folded.get(table.name))


def current_state(table: Callable[[str], Snapshot], properties: StoreProperties, at_most: int) -> CurrentState:
    """The state as of the end of the log.

    Args:
        table: Returns the version of a table that the question reads.
        properties: Those of the store.
        at_most: Largest number of records to fold. Log partitions with few of them come first.

    Raises NoSuchTable for a store without state tables, and as `TableFolder.open_file`.
    """
    folded = table(FOLD_PROGRESS.name)
    stored = progress_of(folded)
    log, current = table(LOG.name), log_incarnations(table(LOG_PARTITIONS.name).rows(), properties)[-1]
    semantics = next((each.semantics for each in stored.values()), properties.coordinator_semantics)
    unstored = {
        at: PartitionProgress(at, current.number, UNSTORED_INCARNATION, semantics)
        for at in range(current.offsets_partitions)
    }
    is_other_log = bool(stored) and (
        stored.keys() != unstored.keys()
        or any(each.log_incarnation < current.number for each in stored.values())
        # the log was restored or copied alone
        or not log.has_rows_of(folded.transaction(FOLDED), log_commit_of(stored))
    )
    start = unstored if is_other_log or not stored else stored
    missing, behind, files = unfolded_records(log, current.number, start, folded if start is stored else None)
    chosen = _within(missing, at_most)
    unfolded = {at: number for at, number in missing.items() if at not in chosen}
    progress = {at: unstored[at] if at in behind & chosen else each for at, each in start.items()}
    state = CurrentState(table, properties, current.number, semantics, stored, progress, unfolded)
    if is_other_log and unfolded:
        return replace(state, progress=stored)
    if not chosen:
        return state
    # most questions have nothing to fold, and do without the replay's modules
    from offsets_pipeline.fold.state.fold_rest import fold_rest  # noqa: PLC0415

    return fold_rest(state, chosen, files)


def _within(missing: Mapping[int, int], at_most: int) -> set[int]:
    """The log partitions to fold: those with few missing records, up to ``at_most`` in all."""
    in_order = sorted(missing, key=missing.__getitem__)
    held = accumulate(missing[at] for at in in_order)
    return {at for at, number in zip(in_order, held, strict=True) if number <= at_most}
