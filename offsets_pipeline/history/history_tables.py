"""The views of history as Arrow tables, read when asked for. No Spark."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from offsets_pipeline.history.decoded_log import decoded_log
from offsets_pipeline.history.deletion_causes import Causes, Retention
from offsets_pipeline.history.history_schemas import HISTORY_VIEWS, LOG_RECORDS
from offsets_pipeline.history.log_history import COLUMNS, LogHistory
from offsets_pipeline.history.of_groups import of_groups
from offsets_pipeline.history.partition_history import PartitionHistory, Shown
from offsets_pipeline.semantics.transactions import ABORTED, COMMITTED, OPEN, endings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from offsets_pipeline.history.completeness import Completeness
    from offsets_pipeline.store_snapshot import LogIncarnation

_OUTCOMES = {COMMITTED: "committed", ABORTED: "aborted", OPEN: "open"}
_TRANSACTIONS = ("log_partition", "record_offset", "producer_id", "control_type")
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
        tables = (
            _records(self.history, self.group_ids, self.partitions)
            if self.name == LOG_RECORDS.name
            else (
                found[self.name]
                for found in histories(self.history, self.retention, self.group_ids, partitions=self.partitions)
            )
        )
        rows = (batch for table in tables for batch in table.to_batches())
        return pa.RecordBatchReader.from_batches(self.schema, rows)

    def read(self) -> pa.Table:
        """All rows, in the order of log partition, log incarnation and record offset."""
        return _in_order(self.batches().read_all())


def history_tables(
    store: str | LogHistory,
    *,
    retention: Retention | None = None,
    group_ids: Collection[str] | None = None,
    partitions: Collection[int] | None = None,
) -> dict[str, HistoryTable]:
    """Return the views log_records, offset_history, group_history and deleted_offsets by name; none is read yet.

    Args:
        store: the store's folder, or its log as it was opened.
        retention: the coordinator's settings of retention, if they are known: they decide some causes of deletions.
        group_ids: these groups only. Then only their log partitions are read.
        partitions: these log partitions only.

    Raises NoSuchStore, NotAStore, StoreMismatch, DamagedTable, UnsupportedTable as `LogHistory`.
    """
    history = LogHistory(store) if isinstance(store, str) else store
    groups = None if group_ids is None else tuple(dict.fromkeys(group_ids))
    of = history, retention or Retention(), groups, None if partitions is None else tuple(partitions)
    return {name: HistoryTable(name, *of) for name in HISTORY_VIEWS}


def together(
    history: LogHistory,
    retention: Retention,
    views: Collection[str],
    *,
    group_ids: Collection[str] | None = None,
    partitions: Collection[int] | None = None,
) -> dict[str, pa.Table]:
    """Return the rows of several views but log_records, in order, from one replay of the log. Raises as `read`."""
    found: dict[str, list[pa.Table]] = {name: [HISTORY_VIEWS[name].arrow_schema().empty_table()] for name in views}
    for tables in histories(history, retention, group_ids, partitions=partitions):
        for name in views:
            found[name].append(tables[name])
    return {name: _in_order(pa.concat_tables(parts)) for name, parts in found.items()}


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
    causes = Causes(history.semantics, retention, kind=history.properties.kind)
    names = history.topic_names()
    shown: dict[int, Shown] | None = None if repeats or len(history.incarnations) == 1 else defaultdict(set)
    for incarnation in history.incarnations:
        watched: dict[int, PartitionHistory] = {}
        waiting = 0
        homes = partitions_of(history, incarnation, group_ids, partitions)
        for partition, rows in history.read(incarnation, partitions=homes).runs():
            if partition not in watched:
                watched[partition] = PartitionHistory(
                    partition,
                    incarnation.number,
                    incarnation.offsets_partitions,
                    history.semantics,
                    causes,
                    group_ids=group_ids,
                    topic_names=names,
                    shown=None if shown is None else shown[partition],
                )
            watched[partition].add(rows)
            if completeness is not None:
                place = incarnation.number, partition
                if place not in completeness:
                    completeness[place] = history.completeness(incarnation, partition)
                completeness[place].add(rows)
            waiting += rows.num_rows
            if group_ids is None and waiting >= _PENDING_ROWS:
                waiting = 0
                yield from (each.take() for each in watched.values())
        for each in watched.values():
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
            known = with_outcome(rows, *outcomes[partition]) if partition in outcomes else _without_outcome(rows)
            if group_ids is not None:
                known = of_groups(known, group_ids)
            yield decoded_log(known)


def _outcomes(
    history: LogHistory, incarnation: LogIncarnation, partitions: Collection[int] | None
) -> dict[int, tuple[np.ndarray[tuple[int], np.dtype[np.int64]], pa.Array]]:
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


def with_outcome(rows: pa.Table, offsets: np.ndarray[tuple[int], np.dtype[np.int64]], outcome: pa.Array) -> pa.Table:
    """The rows with the column outcome; null for records outside of transactions."""
    offset = rows["record_offset"].to_numpy()
    place = np.searchsorted(offsets, offset)
    inside = place < len(offsets)
    inside[inside] = offsets[place[inside]] == offset[inside]
    return rows.append_column("outcome", outcome.take(pa.array(place, mask=~inside)))


def _without_outcome(rows: pa.Table) -> pa.Table:
    return rows.append_column("outcome", pa.nulls(rows.num_rows, pa.string()))
