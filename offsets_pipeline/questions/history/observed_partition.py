"""Replays one log partition row by row, and writes down what each record changes.

`PartitionState` applies the rules; this class only watches it. So history has the same rules as the coordinator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from offsets_pipeline.questions.history.deletion_evidence import GroupDeletion, LostTombstone
from offsets_pipeline.questions.history.partition_owners import PartitionOwners
from offsets_pipeline.semantics.answering import DEAD
from offsets_pipeline.semantics.effects import COMMIT_RECORD_TYPE
from offsets_pipeline.semantics.group_facts import state_columns
from offsets_pipeline.semantics.group_types import GROUP_REMOVING_TYPES
from offsets_pipeline.semantics.log_row import ABORT
from offsets_pipeline.semantics.partition_state import CommittedOffset, Group, PartitionState, TopicPartition
from offsets_pipeline.semantics.table_replay import replay_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from offsets_pipeline.kafka.record.decode import DecodedKey
    from offsets_pipeline.questions.history.deletion_evidence import GroupWrites, LostCommits, TopicHolders
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics


class _Origin(NamedTuple):
    """Who could have made a pending commit, and when."""

    owner: tuple[str, str | None, str | None]
    record_ms: int | None


class _GroupRow(NamedTuple):
    """The columns of GROUP_HISTORY that describe a group, and its members."""

    columns: dict[str, Any]
    members: frozenset[str]


_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_GONE: dict[str, Any] = {"state": DEAD, "member_count": 0}


class ObservedPartition(PartitionState):
    """The state of one log partition of one log incarnation, and what its records changed.

    ``commits`` and ``changes`` are rows of OFFSET_HISTORY and GROUP_HISTORY, with times in ms and without log partition
    and log incarnation. The caller empties these lists, ``deletions`` and ``lost``.
    """

    def __init__(
        self,
        log_partition: int,
        offsets_partitions: int,
        semantics: CoordinatorSemantics,
        writes: GroupWrites,
        lost: LostCommits,
        holders: TopicHolders | None = None,
        topic_names: Mapping[str, str] | None = None,
    ) -> None:
        """Watch one log partition.

        ``lost`` knows the gaps of the log partition, also among the records that are left out here. ``holders`` gets
        all commits; None: another pass feeds it. ``topic_names``: names from outside of the log.
        """
        super().__init__(log_partition, offsets_partitions, semantics=semantics)
        self.commits: list[dict[str, Any]] = []
        self.changes: list[dict[str, Any]] = []
        self.deletions: list[GroupDeletion] = []
        self.lost: list[LostTombstone] = []
        self._writes = writes
        self._lost = lost
        self._holders = holders
        self._owners = PartitionOwners(topic_names or {})
        self._origins: dict[int, _Origin] = {}
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
        self._lost.note_record(group_id, where, self._offset)
        if offset.topic_id is not None:
            self._owners.name(group_id, offset.topic_id, where.topic)
        self._is_new = group_id not in self.groups
        if self._is_new:
            self._owners.forget(group_id)
        if producer_id is not None:
            self._origins[offset.record_offset] = _Origin(self._owner(group_id, where, offset), self._now_ms)
        elif self._holders is not None:
            self._holders.hold(group_id, where, offset.record_offset, self._now_ms)
        super()._commit(group_id, where, offset, producer_id)
        if self._is_new:
            self._note_group(group_id, COMMIT_RECORD_TYPE)
        self._is_new = False

    def _keep_highest(self, group_id: str, where: TopicPartition, offset: CommittedOffset) -> None:
        held = self.offsets.get(group_id, {}).get(where)
        is_hidden = self._is_new or group_id not in self.groups  # R14: the group was removed, and its offsets with it
        super()._keep_highest(group_id, where, offset)
        origin = self._origins.pop(offset.record_offset, None)
        if origin is None:
            origin = _Origin(self._owner(group_id, where, offset), self._now_ms)
        superseded = held is not None and held.record_offset > offset.record_offset
        previous = None if held is None or superseded or is_hidden else held.committed_offset
        delta = 0 if previous is None else offset.committed_offset - previous
        member_id, client_id, client_host = origin.owner
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
                "record_timestamp": origin.record_ms,
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
        if self._lost.note_record(group_id, where, self._offset) and not any(held):
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
            deletion.others = self._writes.others(deletion.write, group_id)
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

    def _owner(
        self, group_id: str, where: TopicPartition, offset: CommittedOffset
    ) -> tuple[str, str | None, str | None]:
        return self._owners.of(group_id, self.groups.get(group_id), where, offset.topic_id)

    def _note_removed(self, group_id: str, group: Group | None, record_type: int) -> None:
        if group is not None and group_id not in self.groups and group_id in self._last_rows:
            self._changed(group_id, "removed", record_type, _GroupRow(dict(_GONE), frozenset()))
            del self._last_rows[group_id]
            self._owners.forget(group_id)

    def _note_group(self, group_id: str, record_type: int) -> None:
        description = self.groups[group_id].description
        now = _GroupRow(
            {**state_columns(description), "member_count": len(description.members)},
            frozenset(member.member_id for member in description.members),
        )
        before = self._last_rows.get(group_id)
        if now != before:
            self._changed(group_id, _event(before, now), record_type, now)
            self._last_rows[group_id] = now

    def _changed(self, group_id: str, event: str, record_type: int, now: _GroupRow) -> None:
        before = self._last_rows.get(group_id)
        members = frozenset[str]() if before is None else before.members
        self.changes.append(
            now.columns
            | {
                "group_id": group_id,
                "event": event,
                "joined": sorted(now.members - members),
                "left": sorted(members - now.members),
                "record_type": record_type,
                "record_timestamp": self._now_ms,
                "record_offset": self._offset,
            }
        )


def _event(before: _GroupRow | None, now: _GroupRow) -> str:
    if before is None:
        return "created"
    joined, left = now.members - before.members, before.members - now.members
    if joined or left:
        return "members" if joined and left else "joined" if joined else "left"
    if now.columns["generation"] != before.columns["generation"]:
        return "generation"
    epochs = ("group_epoch", "assignment_epoch")
    return "epoch" if any(now.columns[name] != before.columns[name] for name in epochs) else "state"
