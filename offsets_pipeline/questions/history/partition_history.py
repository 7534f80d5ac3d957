"""Rows of the views of history from the rows of one log partition, in one incarnation of the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.kafka.record.commit_columns import CommitColumns
from offsets_pipeline.kafka.record.wire import encode_utf8
from offsets_pipeline.questions.history.deletion_causes import Causes
from offsets_pipeline.questions.history.deletion_evidence import GroupWrites, LostCommits, TopicHolders
from offsets_pipeline.questions.history.history_schemas import DELETED_OFFSETS, GROUP_HISTORY, OFFSET_HISTORY
from offsets_pipeline.questions.history.observed_partition import ObservedPartition
from offsets_pipeline.semantics.compaction import are_commits
from offsets_pipeline.semantics.effects import timestamps
from offsets_pipeline.semantics.log_row import codes_of, of_groups
from offsets_pipeline.semantics.partition_state import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from offsets_pipeline.questions.history.deletion_causes import Cause
    from offsets_pipeline.questions.history.deletion_evidence import GroupDeletion, LostTombstone
    from offsets_pipeline.questions.history.log_history import LogHistory
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
    from offsets_pipeline.semantics.partition_state import CommittedOffset
    from offsets_pipeline.semantics.retention import Retention
    from offsets_pipeline.store.delta.schemas import Table

_EVIDENCE = ["record_offset", "record_timestamp", "key", "value", "producer_id", "control_type", "write"]

#: By view, the columns that an event has in common with the same event in a later incarnation of the log.
_IDENTITY = {
    OFFSET_HISTORY.name: ("group_id", "topic", "partition", "record_offset", "commit_timestamp"),
    GROUP_HISTORY.name: ("group_id", "record_offset", "record_type"),
    DELETED_OFFSETS.name: ("group_id", "topic", "partition", "record_offset"),
}
#: Events of one log partition that an incarnation of the log has shown.
Shown = set[tuple[Any, ...]]


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

    @property
    def has_incarnations(self) -> bool:
        """Whether the log has several incarnations."""
        return len(self.offsets_partitions) > 1


class PartitionHistory:
    """Replays a log partition in one incarnation of the log, and returns rows of the views."""

    def __init__(
        self, options: HistoryOptions, log_partition: int, log_incarnation: int, shown: Shown | None = None
    ) -> None:
        """``shown`` has the events of earlier incarnations, which are left out, and gets new ones. None: show all."""
        self._log_incarnation = log_incarnation
        self._causes = options.causes
        self._group_ids = group_ids = options.group_ids
        self._writes = GroupWrites(keep_all=group_ids is not None)
        self._lost = LostCommits()
        self._evidence: list[pa.Table] = []
        counts = options.offsets_partitions
        self._state = ObservedPartition(
            log_partition,
            counts.get(log_incarnation, counts[max(counts)]),
            options.semantics,
            self._writes,
            self._lost,
            TopicHolders() if group_ids is None else None,
            options.topic_names,
        )
        self._shown = shown
        self._begun: set[tuple[str, str]] = set()

    def add(self, rows: pa.Table) -> None:
        """Take the next rows, in record-offset order, with the columns of `log_history.COLUMNS`."""
        self._lost.look_for_gaps(rows)
        rows = self._writes.numbered(rows)
        if self._group_ids is not None:
            self._evidence.append(rows.select(_EVIDENCE))
            rows = of_groups(rows, self._group_ids)
        if rows.num_rows:
            self._state.observe(rows)

    def finish(self) -> None:
        """No more rows come: decide about the last deletions."""
        self._state.finish()
        if self._group_ids is not None:
            self._look_at_others()

    def take(self) -> dict[str, pa.Table]:
        """The rows of the views since the last call, by the view's name."""
        state = self._state
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
        waiting = sorted(self._state.deletions, key=lambda each: each.record_offset)
        topics = {topic for deletion in waiting for topic in deletion.topics}
        holders = TopicHolders()
        for rows in self._evidence if waiting else ():
            for offset, at_us, write, identity, is_tombstone in _commits_of(rows, topics):
                while waiting and waiting[0].record_offset < offset and waiting[0].write != write:
                    holders.wait_for(waiting.pop(0))
                at_ms = None if at_us is None else at_us // 1000
                if is_tombstone:
                    holders.release(*identity, at_ms)
                else:
                    holders.hold(*identity, offset, at_ms)
        for deletion in waiting:
            holders.wait_for(deletion)
        holders.finish()

    # --- rows

    def _is_shown(self, view: Table, row: Mapping[str, Any]) -> bool:
        if self._shown is None:
            return False
        event = (view.name, *(row[name] for name in _IDENTITY[view.name]))
        is_shown = event in self._shown
        self._shown.add(event)
        return is_shown

    def _table(self, view: Table, rows: Iterable[dict[str, Any]]) -> pa.Table:
        known = []
        for row in rows:
            if self._is_shown(view, row):
                continue
            group_id = row["group_id"]
            begins = self._log_incarnation > 0 and (view.name, group_id) not in self._begun
            self._begun.add((view.name, group_id))
            row |= {
                "log_partition": self._state.log_partition,
                "log_incarnation": self._log_incarnation,
                "begins_incarnation": begins,
                "misplaced": self._state.is_misplaced(group_id),
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
) -> Iterable[tuple[int, int | None, int, tuple[str, TopicPartition], bool]]:
    """Plain commits and tombstones of these topics.

    Of each: record offset, time (us), write, group and topic partition, and whether it is a tombstone.
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
    for offset, at_us, write, number, is_tombstone in zip(
        rows["record_offset"].to_pylist(),
        rows["record_timestamp"].cast(pa.int64()).to_pylist(),
        rows["write"].to_pylist(),
        code.tolist(),
        commits.tombstone.tolist(),
        strict=True,
    ):
        if identities[number][1].topic in topics:
            yield offset, at_us, write, identities[number], is_tombstone
