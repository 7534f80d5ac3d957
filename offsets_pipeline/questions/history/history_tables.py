"""The views of history as Arrow tables, from the log of a store and from the rows of one log partition. No Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.common.arrow_values import array_of
from offsets_pipeline.kafka.record.commit_columns import CommitColumns
from offsets_pipeline.kafka.record.wire import encode_utf8
from offsets_pipeline.questions.history.decoded_log import decoded_log
from offsets_pipeline.questions.history.deletion_causes import Cause, Causes
from offsets_pipeline.questions.history.deletion_evidence import GroupDeletion, LostTombstone, TopicHolders
from offsets_pipeline.questions.history.history_schemas import (
    DELETED_OFFSETS,
    GROUP_HISTORY,
    HISTORY_VIEWS,
    LOG_RECORDS,
    OFFSET_HISTORY,
)
from offsets_pipeline.questions.history.log_history import COLUMNS, Completeness, LogHistory
from offsets_pipeline.questions.history.observed_partition import ObservedPartition
from offsets_pipeline.semantics.compaction import are_commits
from offsets_pipeline.semantics.effects import in_milliseconds, timestamps
from offsets_pipeline.semantics.log_row import codes_of, of_groups
from offsets_pipeline.semantics.partition_state import CommittedOffset, TopicPartition
from offsets_pipeline.semantics.transactions import OPEN, endings
from offsets_pipeline.store.log.ordered_log import OrderedLog

if TYPE_CHECKING:
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
    from offsets_pipeline.semantics.partition_state import PartitionState
    from offsets_pipeline.semantics.retention import Retention
    from offsets_pipeline.store.delta.schemas import Table
    from offsets_pipeline.store.store_snapshot import StoreSnapshot

_OUTCOMES = array_of(["open", "aborted", "committed"])  # in the order of OPEN, ABORTED and COMMITTED
_TRANSACTIONS = ("log_partition", "record_offset", "producer_id", "control_type")
_PENDING_ROWS = 50_000  # rows of a view that wait before they are yielded
_EVIDENCE = ["record_offset", "record_timestamp", "key", "value", "producer_id", "control_type", "write"]

#: By view, the columns that an event has in common with the same event in a later incarnation of the log. A topic that
#: was created again has other events at the same record offsets.
_IDENTITY = {
    OFFSET_HISTORY.name: ("group_id", "topic", "partition", "record_offset", "commit_timestamp"),
    GROUP_HISTORY.name: ("group_id", "record_offset", "record_timestamp", "record_type"),
    DELETED_OFFSETS.name: ("group_id", "topic", "partition", "record_offset", "deleted_timestamp"),
}
#: Events of one log partition that an incarnation of the log has shown.
Shown = set[tuple[Any, ...]]


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
    states: list[PartitionState] | None = None,
) -> Iterator[dict[str, pa.Table]]:
    """Yield rows of offset_history, group_history and deleted_offsets, some at a time, by the view's name.

    ``partitions``: these log partitions only. ``repeats``: include events that an earlier log incarnation has, too.
    ``completeness`` gets an entry for each log incarnation and log partition that was read, ``states`` the last state
    of each log partition in the newest incarnation.
    """
    options = HistoryOptions.of(history, retention, group_ids)
    shown: dict[int, Shown] = defaultdict(set)
    for incarnation in history.incarnations:
        replayed: dict[int, PartitionHistory] = {}
        waiting_rows = 0
        homes = history.homes(group_ids, incarnation, partitions)
        for partition, rows in OrderedLog(history.log, incarnation.number, None, homes, columns=COLUMNS).runs():
            if partition not in replayed:
                earlier = None if repeats else shown[partition]
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
        if states is not None:
            states[:] = [each.state for each in replayed.values()]
        for each in replayed.values():
            each.finish()
            yield each.take()


def _records(
    history: LogHistory, group_ids: Collection[str] | None, partitions: Collection[int] | None
) -> Iterator[pa.Table]:
    for incarnation in history.incarnations:
        homes = history.homes(group_ids, incarnation, partitions)
        markers: dict[int, list[pa.Table]] = defaultdict(list)
        for partition, rows in OrderedLog(history.log, incarnation.number, None, homes, columns=_TRANSACTIONS).runs():
            markers[partition].append(rows.filter(rows["control_type"].is_valid()))
        columns = (*COLUMNS, "log_incarnation")
        for partition, rows in OrderedLog(history.log, incarnation.number, None, homes, columns=columns).runs():
            known = _with_outcome(rows, markers[partition])
            yield decoded_log(known if group_ids is None else of_groups(known, group_ids))


def _with_outcome(rows: pa.Table, markers: list[pa.Table]) -> pa.Table:
    """The rows with the column outcome (R11), by all markers of the log partition; null outside of transactions."""
    of_transactions = pc.and_(rows["producer_id"].is_valid(), rows["control_type"].is_null())
    outcome = endings(pa.concat_tables([rows.select(_TRANSACTIONS), *markers]).combine_chunks()).outcome
    known = _OUTCOMES.take(pa.array(outcome[: rows.num_rows] - OPEN))
    return rows.append_column("outcome", pc.if_else(of_transactions, known, None))


@dataclass(frozen=True)
class HistoryOptions:
    """What the histories of all log partitions of a store have in common; picklable.

    ``offsets_partitions`` is R1's n by log incarnation, ``semantics`` the coordinator that the replay reproduces, and
    ``topic_names`` has names of topic ids from outside of the log. ``group_ids``: only these groups; rows of others are
    only looked at for evidence.
    """

    offsets_partitions: Mapping[int, int]
    semantics: CoordinatorSemantics
    causes: Causes
    topic_names: Mapping[str, str]
    group_ids: Collection[str] | None = None

    @classmethod
    def of(cls, history: LogHistory, retention: Retention, group_ids: Collection[str] | None = None) -> HistoryOptions:
        """The options for a store and its coordinator's settings of retention."""
        return cls(
            {each.number: each.offsets_partitions for each in history.incarnations},
            history.semantics,
            Causes(history.semantics, retention, kind=history.properties.kind),
            history.topic_names(),
            group_ids,
        )


class PartitionHistory:
    """Replays a log partition in one incarnation of the log, and returns rows of the views.

    ``state`` is the state of the log partition after the rows so far.
    """

    def __init__(
        self, options: HistoryOptions, log_partition: int, log_incarnation: int, shown: Shown | None = None
    ) -> None:
        """``shown`` has the events of earlier incarnations, which are left out, and gets new ones. None: show all."""
        self._log_incarnation = log_incarnation
        self._causes = options.causes
        self._group_ids = options.group_ids
        self._evidence: list[pa.Table] = []
        self.state = ObservedPartition(options, log_partition, log_incarnation)
        self._shown = shown if len(options.offsets_partitions) > 1 else None
        self._begun: set[tuple[str, str]] = set()

    def add(self, rows: pa.Table) -> None:
        """Take the next rows, in record-offset order, with the columns of `log_history.COLUMNS`."""
        self.state.lost_commits.look_for_gaps(rows)
        rows = self.state.writes.numbered(rows)
        if self._group_ids is not None:
            self._evidence.append(rows.select(_EVIDENCE))
            rows = of_groups(rows, self._group_ids)
        if rows.num_rows:
            self.state.observe(rows)

    def finish(self) -> None:
        """No more rows come: decide about the last deletions."""
        self.state.finish()
        if self._group_ids is not None:
            self._look_at_others()

    def take(self) -> dict[str, pa.Table]:
        """The rows of the views since the last call, by the view's name."""
        state = self.state
        decided = [each for each in state.deletions if not each.undecided]
        deleted = [
            _deletion_row(each, where, each.deleted.get(where, each.removed_at), cause, each.offsets[where])
            for each in decided
            for where, cause in self._causes.of(each).items()
        ]
        deleted += [
            _deletion_row(each, each.where, each.record_offset, self._causes.of_lost(each)) for each in state.lost
        ]
        rows = (OFFSET_HISTORY, state.commits), (GROUP_HISTORY, state.changes), (DELETED_OFFSETS, deleted)
        found = {view.name: self._table(view, of_view) for view, of_view in rows}
        state.commits, state.changes, state.lost = [], [], []
        state.deletions = [each for each in state.deletions if each.undecided]
        return found

    # --- evidence of other groups, where only some groups are replayed

    def _look_at_others(self) -> None:
        """Replay the plain commits of the topics of deleted offsets, of all groups."""
        waiting = sorted(self.state.deletions, key=lambda each: each.record_offset)
        topics = {topic for deletion in waiting for topic in deletion.topics}
        holders = TopicHolders()
        for rows in self._evidence if waiting else ():
            for offset, at_ms, write, identity, is_tombstone, topic_id in _commits_of(rows, topics):
                while waiting and waiting[0].record_offset < offset and waiting[0].write != write:
                    holders.wait_for(waiting.pop(0))
                if is_tombstone:
                    holders.release(*identity, at_ms)
                else:
                    holders.hold(*identity, offset, at_ms, topic_id)
        for deletion in waiting:
            holders.wait_for(deletion)
        holders.finish()

    # --- rows

    def _table(self, view: Table, rows: Iterable[dict[str, Any]]) -> pa.Table:
        known = []
        for row in rows:
            if self._shown is not None:
                event = (view.name, *(row[name] for name in _IDENTITY[view.name]))
                if event in self._shown:
                    continue
                self._shown.add(event)
            group_id = row["group_id"]
            begins = self._log_incarnation > 0 and (view.name, group_id) not in self._begun
            self._begun.add((view.name, group_id))
            row |= {
                "log_partition": self.state.log_partition,
                "log_incarnation": self._log_incarnation,
                "begins_incarnation": begins,
                "misplaced": self.state.is_misplaced(group_id),
            }
            known.append(row)
        return pa.Table.from_arrays(
            [_column([row.get(each.name) for row in known], each.type) for each in view.arrow_schema()],
            schema=view.arrow_schema(),
        )


def _deletion_row(
    deletion: GroupDeletion | LostTombstone,
    where: TopicPartition,
    record_offset: int | None,
    cause: Cause,
    offset: CommittedOffset | None = None,
) -> dict[str, Any]:
    return {
        "group_id": deletion.group_id,
        "topic": where.topic,
        "partition": where.partition,
        "deleted_timestamp": deletion.time_ms,
        "cause": cause.name,
        "reason": cause.reason,
        "candidates": cause.candidates,
        "committed_offset": offset and offset.committed_offset,
        "commit_timestamp": offset and offset.commit_timestamp_ms,
        "commit_record_offset": offset and offset.record_offset,
        "record_offset": record_offset,
    }


def _column(values: list[Any], type_: pa.DataType) -> pa.Array:
    return timestamps(pa.array(values, pa.int64())) if pa.types.is_timestamp(type_) else pa.array(values, type_)


def _commits_of(
    rows: pa.Table, topics: Collection[str]
) -> Iterable[tuple[int, int | None, int, tuple[str, TopicPartition], bool, str | None]]:
    """Plain commits and tombstones of these topics.

    Of each: record offset, time (ms), write, group and topic partition, whether it is a tombstone, and the topic id.
    """
    keys = rows["key"].combine_chunks()
    mask = are_commits(keys)
    contains = np.zeros(len(keys), dtype=np.bool_)
    for topic in topics:
        found = pc.match_substring(keys, encode_utf8(topic))
        contains |= pc.fill_null(found, fill_value=False).to_numpy(zero_copy_only=False)
    plain = pc.or_(rows["producer_id"].is_null(), rows["value"].is_null()).to_numpy()
    is_data = rows["control_type"].is_null().to_numpy()
    rows = rows.filter(pa.array(mask & contains & plain & is_data))
    commits = CommitColumns(rows["key"].combine_chunks(), rows["value"].combine_chunks())
    rows, commits = rows.filter(pa.array(commits.valid)), commits.take(np.flatnonzero(commits.valid))
    code = codes_of(rows["key"])
    each_key = commits.take(np.unique(code, return_index=True)[1])
    places = map(TopicPartition, each_key.topics().to_pylist(), each_key.partition.tolist())
    identities = list(zip(each_key.group_ids().to_pylist(), places, strict=True))
    columns = in_milliseconds(rows.select(["record_offset", "record_timestamp", "write"])).columns
    commit = code.tolist(), commits.tombstone.tolist(), commits.topic_ids().to_pylist()
    for *at, number, is_tombstone, topic_id in zip(*(each.to_pylist() for each in columns), *commit, strict=True):
        if identities[number][1].topic in topics:
            yield (*at, identities[number], is_tombstone, topic_id)
