"""The views of history as Arrow tables. No Spark."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.questions.history.decoded_log import decoded_log
from offsets_pipeline.questions.history.history_schemas import HISTORY_VIEWS, LOG_RECORDS
from offsets_pipeline.questions.history.log_history import COLUMNS, LogHistory
from offsets_pipeline.questions.history.partition_history import HistoryOptions, PartitionHistory, Shown
from offsets_pipeline.semantics.log_row import of_groups
from offsets_pipeline.semantics.transactions import OPEN, endings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from offsets_pipeline.questions.history.log_history import Completeness
    from offsets_pipeline.semantics.retention import Retention
    from offsets_pipeline.store.store_snapshot import StoreSnapshot

_OUTCOMES = pa.array(["open", "aborted", "committed"])  # in the order of OPEN, ABORTED and COMMITTED
_TRANSACTIONS = ("log_partition", "record_offset", "producer_id", "control_type")
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
        homes = history.homes(group_ids, incarnation, partitions)
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


def _records(
    history: LogHistory, group_ids: Collection[str] | None, partitions: Collection[int] | None
) -> Iterator[pa.Table]:
    for incarnation in history.incarnations:
        homes = history.homes(group_ids, incarnation, partitions)
        markers: dict[int, list[pa.Table]] = defaultdict(list)
        for partition, rows in history.read(incarnation, partitions=homes, columns=_TRANSACTIONS).runs():
            markers[partition].append(rows.filter(rows["control_type"].is_valid()))
        log = history.read(incarnation, partitions=homes, columns=(*COLUMNS, "log_incarnation"))
        for partition, rows in log.runs():
            known = _with_outcome(rows, markers[partition])
            yield decoded_log(known if group_ids is None else of_groups(known, group_ids))


def _with_outcome(rows: pa.Table, markers: list[pa.Table]) -> pa.Table:
    """The rows with the column outcome (R11), by all markers of the log partition; null outside of transactions."""
    of_transactions = pc.and_(rows["producer_id"].is_valid(), rows["control_type"].is_null())
    outcome = endings(pa.concat_tables([rows.select(_TRANSACTIONS), *markers]).combine_chunks()).outcome
    known = _OUTCOMES.take(pa.array(outcome[: rows.num_rows] - OPEN))
    return rows.append_column("outcome", pc.if_else(of_transactions, known, None))
