"""Folds the rest of the log for one question, into tables in memory.

Uses the replay and the writer of changes that the stream uses. The store stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa

from offsets_pipeline.common.arrow_values import conformed
from offsets_pipeline.fold.state.changes import ReplayStart, StateWriter
from offsets_pipeline.fold.state.fold_progress import progressed
from offsets_pipeline.fold.state.stored_rows import StoredRows
from offsets_pipeline.store.delta.data_file import DataFile
from offsets_pipeline.store.delta.schemas import LOG
from offsets_pipeline.store.log.log_reader import LogReader
from offsets_pipeline.store.log.log_scan import LogRange

if TYPE_CHECKING:
    from offsets_pipeline.fold.state.current import CurrentState
    from offsets_pipeline.store.delta.schemas import Table

_NO_PARTITION: Mapping[str, str] = MappingProxyType({})


class FactsInMemory:
    """Facts of one table that a question folded: takes the place of a `TableFolder`, and keeps files in memory."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._tables = [pa.Table.from_batches([], table.arrow_schema())]

    @property
    def rows(self) -> pa.Table:
        """All rows, with the columns of the table."""
        return pa.concat_tables(self._tables)

    def write_file(self, rows: pa.Table, partition: Mapping[str, str] = _NO_PARTITION) -> DataFile:
        """Keep the rows of a file."""
        self._tables.append(conformed(rows, self._table.arrow_schema(), partition))
        return DataFile("", 0, rows.num_rows, partition=partition)


def fold_rest(state: CurrentState, chosen: Collection[int], files: Sequence[DataFile]) -> CurrentState:
    """Return the state after a fold of the rest of these log partitions, from ``files`` of the log.

    The fold continues the state's tables. A log partition whose incarnation is UNSTORED_INCARNATION is folded from the
    start of the log. Raises as `TableFolder.open_file`.
    """
    start = {at: state.progress[at] for at in chosen}
    replay = ReplayStart(state.offsets_partitions, state.semantics, kind=state.properties.topic_kind).continued(start)
    tables = {each.name: FactsInMemory(each.table) for each in replay.tables}
    incarnations = {at: each.incarnation for at, each in start.items()}
    known = StoredRows.of(map(state.table, replay.known), incarnations)
    log_range = LogRange(replay.folded_to, log_incarnation=state.log_incarnation)
    reader = LogReader(state.table(LOG.name).table_folder, log_range, replay.schema, replay.compact)
    changes = StateWriter(replay, tables, incarnations, known).changes(reader.read(files))
    return replace(
        state,
        progress={**state.progress, **progressed(start, changes.partitions, 0)},
        folded={name: each.rows for name, each in tables.items()},
        topics=dict(sorted(changes.topics, reverse=True)),  # of an id the first of its names
    )
