"""The views of history as Arrow tables. No Spark."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from offsets_pipeline.questions.history.decoded_log import decoded_log
from offsets_pipeline.questions.history.history_schemas import HISTORY_VIEWS, LOG_RECORDS
from offsets_pipeline.questions.history.log_history import COLUMNS, LogHistory
from offsets_pipeline.questions.history.partition_history import HistoryOptions, PartitionHistory, Shown
from offsets_pipeline.semantics.log_row import of_groups
from offsets_pipeline.semantics.transactions import ABORTED, COMMITTED, OPEN, endings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from offsets_pipeline.kafka.record.records import Int64s
    from offsets_pipeline.questions.history.log_history import Completeness
    from offsets_pipeline.semantics.retention import Retention
    from offsets_pipeline.store.store_snapshot import LogIncarnation, StoreSnapshot

_OUTCOMES = {COMMITTED: "committed", ABORTED: "aborted", OPEN: "open"}
_TRANSACTIONS = ("log_partition", "record_offset", "producer_id", "control_type")
_NO_OUTCOMES = np.zeros(0, dtype=np.int64), pa.array([], pa.string())
_PENDING_ROWS = 50_000  # rows of a view that wait before they are yielded


def read_views(
    store: str | StoreSnapshot,
    views: Collection[str],
    *,
    retention: Retention | None = None,
    group_ids: Collection[str] | None = None,
    partitions: Collection[int] | None = None,
) -> dict[str, pa.Table]:
    """Return the rows of views of history by name, in the order of log partition, log incarnation and record offset.

    Args:
        store: the store's folder, or a snapshot of it.
        views: log_records, offset_history, group_history or deleted_offsets. The last three are read in one replay.
        retention: the coordinator's settings of retention, which decide some causes of deletions. None: as the store
            notes them.
        group_ids: these groups only. Then only their log partitions are read.
        partitions: these log partitions only.

    Raises NoSuchStore, NotAStore, StoreMismatch, DamagedTable, UnsupportedTable as `LogHistory`.
    """
    history = store if isinstance(store, LogHistory) else LogHistory(store)
    found = {name: [HISTORY_VIEWS[name].arrow_schema().empty_table()] for name in views}
    if LOG_RECORDS.name in found:
        found[LOG_RECORDS.name] += _records(history, group_ids, partitions)
    replayed_views = found.keys() - {LOG_RECORDS.name}
    if replayed_views:
        known = retention or history.retention
        for replayed in histories(history, known, group_ids, partitions=partitions):
            for name in replayed_views:
                found[name].append(replayed[name])
    order = [(name, "ascending") for name in ("log_partition", "log_incarnation", "record_offset")]
    return {name: pa.concat_tables(tables).sort_by(order) for name, tables in found.items()}


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

    ``partitions``: these log partitions only. ``repeats``: include events that an earlier log incarnation has, too.
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
