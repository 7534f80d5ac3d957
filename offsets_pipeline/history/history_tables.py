"""The views of history as Arrow tables, read when asked for. No Spark."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from offsets_pipeline.history.decoded_log import decoded_log
from offsets_pipeline.history.deletion_causes import Retention
from offsets_pipeline.history.history_schemas import HISTORY_VIEWS, LOG_RECORDS
from offsets_pipeline.history.log_history import COLUMNS, LogHistory
from offsets_pipeline.history.partition_history import HistoryOptions, PartitionHistory, Shown
from offsets_pipeline.semantics.log_row import of_groups
from offsets_pipeline.semantics.transactions import ABORTED, COMMITTED, OPEN, endings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from offsets_pipeline.history.log_history import Completeness
    from offsets_pipeline.record.records import Int64s
    from offsets_pipeline.store_snapshot import LogIncarnation, StoreSnapshot

_OUTCOMES = {COMMITTED: "committed", ABORTED: "aborted", OPEN: "open"}
_TRANSACTIONS = ("log_partition", "record_offset", "producer_id", "control_type")
_NO_OUTCOMES = np.zeros(0, dtype=np.int64), pa.array([], pa.string())
_PENDING_ROWS = 50_000  # rows of a view that wait before they are yielded


@dataclass(frozen=True)
class HistoryTable:
    """One view of history. It reads the log when `batches` or `read` is called."""

    name: str
    history: LogHistory
    retention: Retention
    group_ids: tuple[str, ...] | None
    partitions: tuple[int, ...] | None = None

    @property
    def schema(self) -> pa.Schema:
        """The view's columns."""
        return HISTORY_VIEWS[self.name].arrow_schema()

    def batches(self) -> pa.RecordBatchReader:
        """The view's rows, in no particular order. Raises DamagedTable, UnsupportedTable while rows are read."""
        if self.name == LOG_RECORDS.name:
            tables = _records(self.history, self.group_ids, self.partitions)
        else:
            tables = (found[self.name] for found in _replayed(self))
        rows = (batch for table in tables for batch in table.to_batches())
        return pa.RecordBatchReader.from_batches(self.schema, rows)

    def read(self) -> pa.Table:
        """All rows, in the order of log partition, log incarnation and record offset."""
        return _in_order(self.batches().read_all())


def history_tables(
    store: str | StoreSnapshot,
    *,
    retention: Retention | None = None,
    group_ids: Collection[str] | None = None,
    partitions: Collection[int] | None = None,
) -> dict[str, HistoryTable]:
    """Return the views log_records, offset_history, group_history and deleted_offsets by name; none is read yet.

    Args:
        store: the store's folder, or a snapshot of it.
        retention: the coordinator's settings of retention, if they are known: they decide some causes of deletions.
        group_ids: these groups only. Then only their log partitions are read.
        partitions: these log partitions only.

    Raises NoSuchStore, NotAStore, StoreMismatch, DamagedTable, UnsupportedTable as `LogHistory`.
    """
    history = store if isinstance(store, LogHistory) else LogHistory(store)
    groups = None if group_ids is None else tuple(dict.fromkeys(group_ids))
    of = history, retention or Retention(), groups, None if partitions is None else tuple(partitions)
    return {name: HistoryTable(name, *of) for name in HISTORY_VIEWS}


def read_views(
    store: str | StoreSnapshot,
    views: Collection[str],
    *,
    retention: Retention | None = None,
    group_ids: Collection[str] | None = None,
    partitions: Collection[int] | None = None,
) -> dict[str, pa.Table]:
    """Return the rows of several views by name, in order, from one replay of the log. Raises as `history_tables`."""
    tables = history_tables(store, retention=retention, group_ids=group_ids, partitions=partitions)
    found = {name: [tables[name].schema.empty_table()] for name in views if name != LOG_RECORDS.name}
    of_log = tables[LOG_RECORDS.name]
    for replayed in _replayed(of_log) if found else ():
        for name, parts in found.items():
            parts.append(replayed[name])
    rows = {name: _in_order(pa.concat_tables(parts)) for name, parts in found.items()}
    return rows | ({of_log.name: of_log.read()} if of_log.name in views else {})


def _replayed(table: HistoryTable) -> Iterator[dict[str, pa.Table]]:
    return histories(table.history, table.retention, table.group_ids, partitions=table.partitions)


def _in_order(rows: pa.Table) -> pa.Table:
    order = ("log_partition", "log_incarnation", "record_offset")
    return rows.sort_by([(name, "ascending") for name in order])


def histories(
    history: LogHistory,
    retention: Retention,
    group_ids: Collection[str] | None,
    *,
    partitions: Collection[int] | None = None,
    repeats: bool = False,
    completeness: dict[tuple[int, int], Completeness] | None = None,
) -> Iterator[dict[str, pa.Table]]:
    """Yield rows of offset_history, group_history and deleted_offsets, some at a time, by the view's name.

    ``partitions``: these log partitions only. ``repeats``: show what a later log incarnation has again, too.
    ``completeness`` gets an entry for each log incarnation and log partition that was read.
    """
    options = HistoryOptions.of(history, retention, group_ids)
    shown: dict[int, Shown] = defaultdict(set)
    shows_all = repeats or not options.has_incarnations
    for incarnation in history.incarnations:
        replayed: dict[int, PartitionHistory] = {}
        waiting_rows = 0
        homes = partitions_of(history, incarnation, group_ids, partitions)
        for partition, rows in history.read(incarnation, partitions=homes).runs():
            if partition not in replayed:
                earlier = None if shows_all else shown[partition]
                replayed[partition] = PartitionHistory(options, partition, incarnation.number, earlier)
            replayed[partition].add(rows)
            if completeness is not None:
                at = incarnation.number, partition
                if at not in completeness:
                    completeness[at] = history.completeness(incarnation, partition)
                completeness[at].add(rows)
            waiting_rows += rows.num_rows
            if group_ids is None and waiting_rows >= _PENDING_ROWS:
                waiting_rows = 0
                yield from (each.take() for each in replayed.values())
        for each in replayed.values():
            each.finish()
            yield each.take()


def partitions_of(
    history: LogHistory,
    incarnation: LogIncarnation,
    group_ids: Collection[str] | None,
    partitions: Collection[int] | None,
) -> Collection[int] | None:
    """The log partitions to read for groups (R1), of ``partitions``; None: all."""
    homes = history.homes(group_ids, incarnation)
    if homes is None or partitions is None:
        return partitions if homes is None else homes
    return set(homes) & set(partitions)


def _records(
    history: LogHistory, group_ids: Collection[str] | None, partitions: Collection[int] | None
) -> Iterator[pa.Table]:
    for incarnation in history.incarnations:
        homes = partitions_of(history, incarnation, group_ids, partitions)
        outcomes = _outcomes(history, incarnation, homes)
        log = history.read(incarnation, partitions=homes, columns=(*COLUMNS, "log_incarnation"))
        for partition, rows in log.runs():
            known = _with_outcome(rows, *outcomes.get(partition, _NO_OUTCOMES))
            if group_ids is not None:
                known = of_groups(known, group_ids)
            yield decoded_log(known)


def _outcomes(
    history: LogHistory, incarnation: LogIncarnation, partitions: Collection[int] | None
) -> dict[int, tuple[Int64s, pa.Array]]:
    """By log partition, the record offsets of records of transactions, and what became of each (R11)."""
    found: dict[int, list[pa.Table]] = defaultdict(list)
    for partition, rows in history.read(incarnation, partitions=partitions, columns=_TRANSACTIONS).runs():
        of_transactions = rows.filter(rows["producer_id"].is_valid())
        if of_transactions.num_rows:
            found[partition].append(of_transactions)
    outcomes = {}
    for partition, parts in found.items():
        rows = pa.concat_tables(parts).combine_chunks()
        outcome = pa.array([_OUTCOMES[each] for each in endings(rows).outcome.tolist()], pa.string())
        is_data = rows["control_type"].is_null()
        outcomes[partition] = (
            rows["record_offset"].filter(is_data).to_numpy(),
            outcome.filter(is_data.combine_chunks()),
        )
    return outcomes


def _with_outcome(rows: pa.Table, offsets: Int64s, outcome: pa.Array) -> pa.Table:
    """The rows with the column outcome; null for records outside of transactions."""
    offset = rows["record_offset"].to_numpy()
    row = np.searchsorted(offsets, offset)
    is_inside = row < len(offsets)
    is_inside[is_inside] = offsets[row[is_inside]] == offset[is_inside]
    return rows.append_column("outcome", outcome.take(pa.array(row, mask=~is_inside)))
