"""Replays one log partition row by row, and writes down what each record changes.

`PartitionState` applies the rules; this class only watches it. So history has the same rules as the coordinator.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from offsets_pipeline.kafka.record.decode import DecodedKey, decode_value
from offsets_pipeline.kafka.record.message_types import RecordType
from offsets_pipeline.questions.history.deletion_evidence import (
    GroupDeletion,
    GroupWrites,
    LostCommits,
    LostTombstone,
    TopicHolders,
)
from offsets_pipeline.semantics.answering import DEAD
from offsets_pipeline.semantics.effects import COMMIT_RECORD_TYPE
from offsets_pipeline.semantics.group_description import AssignedPartition, Member, task_partitions
from offsets_pipeline.semantics.group_facts import state_columns
from offsets_pipeline.semantics.group_types import GROUP_REMOVING_TYPES
from offsets_pipeline.semantics.log_row import ABORT
from offsets_pipeline.semantics.partition_state import CommittedOffset, Group, PartitionState, TopicPartition
from offsets_pipeline.semantics.table_replay import replay_table

if TYPE_CHECKING:
    import pyarrow as pa

    from offsets_pipeline.questions.history.history_tables import HistoryOptions

#: No member, or several members, could have made the commit.
UNKNOWN = "unknown"
#: Member id, client id and host.
Owner = tuple[str, str | None, str | None]
_UNKNOWN: Owner = (UNKNOWN, None, None)

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
#: The columns of GROUP_HISTORY that describe a group, and ``members``, the set of its member ids, which is no column.
_GroupRow = dict[str, Any]
_GONE: _GroupRow = {"state": DEAD, "member_count": 0, "members": frozenset()}


class ObservedPartition(PartitionState):
    """The state of one log partition of one log incarnation, and what its records changed.

    ``commits`` and ``changes`` are rows of OFFSET_HISTORY and GROUP_HISTORY, with times in ms and without log partition
    and log incarnation. The caller empties these lists, ``deletions`` and ``lost``. It hands all rows of the log
    partition to ``writes`` and ``lost_commits``, also those that it leaves out here. If it leaves out any, another pass
    looks at the holders of topics.
    """

    def __init__(self, options: HistoryOptions, log_partition: int, log_incarnation: int) -> None:
        counts = options.offsets_partitions
        offsets_partitions = counts.get(log_incarnation, counts[max(counts)])
        super().__init__(log_partition, offsets_partitions, semantics=options.semantics)
        self.commits: list[dict[str, Any]] = []
        self.changes: list[dict[str, Any]] = []
        self.deletions: list[GroupDeletion] = []
        self.lost: list[LostTombstone] = []
        self.writes = GroupWrites(keep_all=options.group_ids is not None)
        self.lost_commits = LostCommits()
        self._holders = TopicHolders() if options.group_ids is None else None
        self._owners = PartitionOwners(options.topic_names)
        #: Who could have made each pending commit, and when, by record offset.
        self._origins: dict[int, tuple[Owner, int | None]] = {}
        self._last_rows: dict[str, _GroupRow] = {}
        self._changed_ms: dict[str, int | None] = {}
        self._open: dict[str, GroupDeletion] = {}  # of the current write, by group
        self._removed: dict[str, GroupDeletion] = {}  # the next record tells whether the groups were converted
        self._rows: Iterator[tuple[int | None, int, str]] = iter(())
        self._now_ms: int | None = None
        self._write = -1
        self._source = ""
        self._offset = -1
        self._ending: int | None = None  # producer whose transaction a marker commits now
        self._is_new = False

    def observe(self, rows: pa.Table) -> None:
        """Replay rows, with the columns of `LogRow`, record_timestamp, source and write (`GroupWrites`)."""
        times = (None if at is None else at // 1000 for at in rows["record_timestamp"].cast("int64").to_pylist())
        self._rows = zip(times, rows["write"].to_pylist(), rows["source"].to_pylist(), strict=True)
        replay_table(self, rows)

    def finish(self) -> None:
        """Close deletions that wait for more records: there are none."""
        self._close_write()
        for deletion in self._removed.values():
            self._report(deletion)
        self._removed.clear()
        if self._holders is not None:
            self._holders.finish()

    # --- each record

    def _is_next(self, record_offset: int) -> bool:
        self._now_ms, write, self._source = next(self._rows)
        self._offset = record_offset
        if write != self._write:
            self._close_write()
            self._write = write
        return super()._is_next(record_offset)

    def _commit(self, group_id: str, where: TopicPartition, offset: CommittedOffset, producer_id: int | None) -> None:
        self._follow(group_id, converts=False)
        self.lost_commits.note_record(group_id, where, self._offset)
        if offset.topic_id is not None:
            self._owners.name(group_id, offset.topic_id, where.topic)
        self._is_new = group_id not in self.groups
        if self._is_new:
            self._owners.forget(group_id)
        if producer_id is not None:
            self._origins[offset.record_offset] = self._owner(group_id, where, offset), self._now_ms
        elif self._holders is not None:
            self._holders.hold(group_id, where, offset.record_offset, self._now_ms, offset.topic_id)
        super()._commit(group_id, where, offset, producer_id)
        if self._is_new:
            self._note_group(group_id, COMMIT_RECORD_TYPE)
        self._is_new = False

    def _keep_highest(self, group_id: str, where: TopicPartition, offset: CommittedOffset) -> None:
        held = self.offsets.get(group_id, {}).get(where)
        is_hidden = self._is_new or group_id not in self.groups  # R14: the group was removed, and its offsets with it
        super()._keep_highest(group_id, where, offset)
        origin = self._origins.pop(offset.record_offset, None)
        (member_id, client_id, client_host), record_ms = origin or (self._owner(group_id, where, offset), self._now_ms)
        superseded = held is not None and held.record_offset > offset.record_offset
        previous = None if held is None or superseded or is_hidden else held.committed_offset
        delta = 0 if previous is None else offset.committed_offset - previous
        self.commits.append(
            {
                "group_id": group_id,
                "topic": where.topic,
                "partition": where.partition,
                "commit_timestamp": offset.commit_timestamp_ms,
                "committed_offset": offset.committed_offset,
                "previous_offset": previous,
                "delta": None if previous is None or not _INT64_MIN <= delta <= _INT64_MAX else delta,
                "is_rewind": delta < 0,
                "superseded": superseded,
                "committed_by": member_id,
                "client_id": client_id,
                "client_host": client_host,
                "leader_epoch": offset.leader_epoch,
                "metadata": offset.metadata,
                "expire_timestamp": offset.expire_timestamp_ms,
                "topic_id": offset.topic_id,
                "producer_id": self._ending,
                "visible_offset": self._offset,
                "visible_timestamp": self._now_ms,
                "record_timestamp": record_ms,
                "record_offset": offset.record_offset,
            }
        )

    def _end_transaction(self, producer_id: int | None, control_type: str) -> None:
        for group_id, offsets in ({} if producer_id is None else self.pending.get(producer_id, {})).items():
            self._changed_ms[group_id] = self._now_ms
            if control_type == ABORT:
                for offset in offsets.values():
                    self._origins.pop(offset.record_offset, None)
        self._ending = producer_id
        super()._end_transaction(producer_id, control_type)
        self._ending = None

    def _delete(self, group_id: str, where: TopicPartition, producer_id: int | None) -> None:
        group = self.groups.get(group_id)
        held = self._held(group_id, where)
        deletion = self._deletion(group_id, group) if group is not None and any(held) else None
        if self.lost_commits.note_record(group_id, where, self._offset) and not any(held):
            self.lost.append(LostTombstone(group_id, where, self._offset, self._now_ms, self._source))
        if self._holders is not None:
            self._holders.release(group_id, where, self._now_ms)
        super()._delete(group_id, where, producer_id)
        left = self._held(group_id, where)
        if deletion is not None and left != held and not left[0]:  # R12, `classic`: the visible one may stay
            deletion.deleted[where] = self._offset
            deletion.sources[where] = self._source
        self._note_removed(group_id, group, COMMIT_RECORD_TYPE)

    def _apply_group_record(self, key: DecodedKey, value: bytes | None) -> None:
        group_id = key.group_id
        group = self.groups.get(group_id)
        if value is not None:
            self._follow(group_id, converts=True)
            self._changed_ms[group_id] = self._now_ms
        elif key.record_type in GROUP_REMOVING_TYPES and group is not None:
            self._deletion(group_id, group).removed_at = self._offset
        elif group is not None:
            self._deletion(group_id, group)
        super()._apply_group_record(key, value)
        self._owners.forget(group_id)
        if group_id in self._open and group_id not in self.groups:
            self._open[group_id].hides_offsets = True  # `classic`: they make a simple group, and are not hidden
        self._note_removed(group_id, group, key.record_type)
        if group_id in self.groups:
            self._note_group(group_id, key.record_type)

    # --- deletions

    def _held(self, group_id: str, where: TopicPartition) -> tuple[bool, bool]:
        """Whether the group has a visible and a pending offset."""
        return where in self.offsets.get(group_id, {}), self.is_pending(group_id, where)

    def _deletion(self, group_id: str, group: Group) -> GroupDeletion:
        """The deletion of this group in the current write; the first tombstone sees the group as it was."""
        found = self._open.get(group_id)
        if found is None:
            earlier = self._removed.pop(group_id, None)
            if earlier is not None:
                self._report(earlier)
            found = self._open[group_id] = GroupDeletion(
                group_id,
                self._now_ms,
                self._offset,
                self._write,
                Group(group.group_type, dict(group.records)),
                dict(self.offsets.get(group_id, {})),
                frozenset(self.pending_of(group_id)),
                changed_ms=self._changed_ms.get(group_id),
            )
        return found

    def _close_write(self) -> None:
        for group_id, deletion in self._open.items():
            if self._holders is not None:
                self._holders.wait_for(deletion)
            deletion.others = self.writes.others(deletion.write, group_id)
            if deletion.removed_at is not None:
                self._removed[group_id] = deletion
            elif deletion.deleted:
                self._report(deletion)
        self._open.clear()

    def _follow(self, group_id: str, *, converts: bool) -> None:
        """A record with a value follows a removal of its group. Written together, both convert the group's type."""
        deletion = self._removed.pop(group_id, None)
        if deletion is None:
            return
        if converts and self._now_ms is not None and deletion.time_ms == self._now_ms and not deletion.deleted:
            return
        self._report(deletion)

    def _report(self, deletion: GroupDeletion) -> None:
        if deletion.offsets:
            self.deletions.append(deletion)

    # --- groups

    def _owner(self, group_id: str, where: TopicPartition, offset: CommittedOffset) -> Owner:
        return self._owners.of(group_id, self.groups.get(group_id), where, offset.topic_id)

    def _note_removed(self, group_id: str, group: Group | None, record_type: int) -> None:
        if group is not None and group_id not in self.groups and group_id in self._last_rows:
            self._changed(group_id, "removed", record_type, _GONE)
            del self._last_rows[group_id]
            self._owners.forget(group_id)

    def _note_group(self, group_id: str, record_type: int) -> None:
        description = self.groups[group_id].description
        members = frozenset(member.member_id for member in description.members)
        now = {**state_columns(description), "member_count": len(description.members), "members": members}
        before = self._last_rows.get(group_id)
        if now != before:
            self._changed(group_id, _event(before, now), record_type, now)
            self._last_rows[group_id] = now

    def _changed(self, group_id: str, event: str, record_type: int, now: _GroupRow) -> None:
        before = self._last_rows.get(group_id, _GONE)
        self.changes.append(
            now
            | {
                "group_id": group_id,
                "event": event,
                "joined": sorted(now["members"] - before["members"]),
                "left": sorted(before["members"] - now["members"]),
                "members": None,  # no column: a row that waits would keep the ids of all members
                "record_type": record_type,
                "record_timestamp": self._now_ms,
                "record_offset": self._offset,
            }
        )


def _event(before: _GroupRow | None, now: _GroupRow) -> str:
    if before is None:
        return "created"
    joined, left = now["members"] - before["members"], before["members"] - now["members"]
    if joined or left:
        return "members" if joined and left else "joined" if joined else "left"
    if now["generation"] != before["generation"]:
        return "generation"
    return "epoch" if any(now[name] != before[name] for name in ("group_epoch", "assignment_epoch")) else "state"


class PartitionOwners:
    """Which member of a group could have committed an offset: the one that its partition is assigned to.

    Every member may commit every offset, and so may an administrator while the group is empty. So a member is named
    only if the partition is assigned to it alone. A member that still has to revoke a partition counts as well.
    """

    def __init__(self, topic_names: Mapping[str, str]) -> None:
        self._ids: dict[str, set[str]] = defaultdict(set)  # of a topic
        self._ids_of_group: dict[tuple[str, str], set[str]] = defaultdict(set)  # by group and topic
        self._assigned: dict[str, dict[tuple[str, int], list[Member]]] = {}
        for topic_id, topic in topic_names.items():
            self._ids[topic].add(topic_id)

    def name(self, group_id: str, topic_id: str, topic: str) -> None:
        """Learn a topic id from a commit of the group (R35). Other groups do not use it: they may be left out."""
        self._ids_of_group[group_id, topic].add(topic_id)

    def forget(self, group_id: str) -> None:
        """The group changed."""
        self._assigned.pop(group_id, None)

    def of(self, group_id: str, group: Group | None, where: TopicPartition, topic_id: str | None) -> Owner:
        """The owner of a partition; UNKNOWN instead of a guess.

        ``topic_id`` is the commit's, if it has one. Without it all ids that the topic ever had count.
        """
        if group is None:
            return _UNKNOWN
        assigned = self._assigned.get(group_id)
        if assigned is None:
            assigned = self._assigned[group_id] = _assigned(group)
        ids = self._ids.get(where.topic, set()) | self._ids_of_group.get((group_id, where.topic), set())
        topics = {where.topic} | (ids if topic_id is None else {topic_id})
        found = {member.member_id: member for topic in topics for member in assigned.get((topic, where.partition), ())}
        if len(found) != 1:
            return _UNKNOWN
        (member,) = found.values()
        return member.member_id, member.client_id, member.client_host


def _assigned(group: Group) -> dict[tuple[str, int], list[Member]]:
    """The members by topic (name or id) and partition."""
    found: dict[tuple[str, int], list[Member]] = defaultdict(list)
    for member in group.description.members:
        for each in [*member.assignment, *_to_be_revoked(group, member.member_id)]:
            found[each.topic or each.topic_id or "", each.partition].append(member)
    return found


def _to_be_revoked(group: Group, member_id: str) -> list[AssignedPartition]:
    def value(record_type: RecordType, record_key: str) -> Mapping[str, Any] | None:
        found = group.records.get((record_type, record_key))
        return None if found is None else decode_value(record_type, found).fields

    consumer = value(RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT, member_id) or {}
    streams = value(RecordType.STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT, member_id) or {}
    by_topic_id = [
        AssignedPartition(None, topic["topic_id"], partition)
        for topic in consumer.get("partitions_pending_revocation") or ()
        for partition in topic["partitions"]
    ]
    tasks = streams.get("active_tasks_pending_revocation") or ()
    return by_topic_id + task_partitions(tasks, value(RecordType.STREAMS_GROUP_TOPOLOGY, ""))
