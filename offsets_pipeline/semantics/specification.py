"""The replay of one log partition in plain Python: the specification that every engine is tested against.

It goes through the records one by one, as a broker does when it loads the partition, and it is written to be
read next to the rules, not to be fast.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from offsets_pipeline.record.corrupt import CorruptRecord, UnknownRecordType
from offsets_pipeline.record.decode import decode_key, decode_value
from offsets_pipeline.record.wire import NO_TOPIC_ID
from offsets_pipeline.semantics.group_types import (
    CLASSIC,
    GROUP_METADATA,
    GROUP_REMOVING_TYPES,
    GROUP_TYPE_OF_RECORD_TYPE,
    OFFSET_COMMIT_TYPES,
    SHARE,
    record_key_of,
)
from offsets_pipeline.semantics.log_row import COMMIT, LogRow
from offsets_pipeline.semantics.partitioning import partition_for

if TYPE_CHECKING:
    from collections.abc import Iterable

Identity = tuple[str, str, int]  # R9: (group_id, topic, partition)
RecordKey = tuple[int, str]  # (record type, member id or regular expression, or "")

#: The lists of a group record's value that tell the names of topic ids (R35), by record type.
_NAMING_LISTS = {4: ("topics",), 15: ("initializing_topics", "initialized_topics", "deleting_topics")}


@dataclass(frozen=True)
class CommittedOffset:
    """A value of an offset commit, and the record offset that decides between two of them (R10)."""

    record_offset: int
    committed_offset: int
    leader_epoch: int | None
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None
    topic_id: str | None


@dataclass
class Group:
    """A group that exists: its kind and the last value of each of its records, decoded."""

    kind: str
    records: dict[RecordKey, dict[str, Any]] = field(default_factory=dict)


@dataclass
class ReferenceState:
    """What a broker would hold in memory for one log partition."""

    log_partition: int
    offsets_partitions: int
    offsets: dict[Identity, CommittedOffset] = field(default_factory=dict)
    pending: dict[int, dict[Identity, CommittedOffset]] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    topic_names: dict[str, str] = field(default_factory=dict)
    quarantined: dict[int, str] = field(default_factory=dict)
    unknown_records: int = 0
    folded_to: int = 0

    def answers(self, group_id: str) -> bool:
        """Whether questions about this group reach this log partition, and the group exists (R1, R14)."""
        return group_id in self.groups and partition_for(group_id, self.offsets_partitions) == self.log_partition

    def current_offsets(self) -> dict[Identity, CommittedOffset]:
        """What a fetch of all offsets answers: nothing for a group that does not exist, lies elsewhere, or shares."""
        return {identity: offset for identity, offset in self.offsets.items() if self._has_offsets(identity[0])}

    def unstable(self) -> set[Identity]:
        """The identities for which a read of stable offsets gets UNSTABLE_OFFSET_COMMIT (R17)."""
        return {identity for offsets in self.pending.values() for identity in offsets if self._has_offsets(identity[0])}

    def _has_offsets(self, group_id: str) -> bool:
        return self.answers(group_id) and self.groups[group_id].kind != SHARE  # R14


def replay(rows: Iterable[LogRow], log_partition: int, offsets_partitions: int) -> ReferenceState:
    """Replay the rows of one log partition, given in record-offset order, from the start of the log (R16)."""
    state = ReferenceState(log_partition, offsets_partitions)
    for row in rows:
        if row.record_offset < state.folded_to:
            continue  # R15: delivered before
        state.folded_to = row.record_offset + 1
        if row.control_type is not None:
            _end_transaction(state, row)
            continue
        try:
            _apply(state, row)
        except UnknownRecordType:
            state.unknown_records += 1  # R6
        except CorruptRecord as corrupt:
            state.quarantined[row.record_offset] = str(corrupt)  # R6: for the replay it does not exist
    return state


def _end_transaction(state: ReferenceState, row: LogRow) -> None:
    if row.producer_id is None or row.control_type not in (COMMIT, "ABORT"):
        return
    pending = state.pending.pop(row.producer_id, {})  # R11: by producer id alone
    if row.control_type == COMMIT:
        for identity, offset in pending.items():
            _keep_highest(state, identity, offset)


def _apply(state: ReferenceState, row: LogRow) -> None:
    key = decode_key(row.key)
    if key.record_type in OFFSET_COMMIT_TYPES:
        identity = (key.fields["group"], key.fields["topic"], key.fields["partition"])
        if row.value is None:
            _delete_offset(state, identity)
        else:
            _commit_offset(state, row, identity, decode_value(key.record_type, row.value).fields)
        return
    value = None if row.value is None else decode_value(key.record_type, row.value).fields  # R6: of type 9 too
    if key.record_type in GROUP_TYPE_OF_RECORD_TYPE:
        _apply_group_record(state, key.record_type, key.group_id, record_key_of(key), value)


def _learn_name(state: ReferenceState, topic_id: str, topic: str) -> None:
    """R35: whatever becomes of the record; of two names of one id, which no broker writes, the lesser counts."""
    state.topic_names[topic_id] = min(topic, state.topic_names.get(topic_id, topic))


def _delete_offset(state: ReferenceState, identity: Identity) -> None:
    state.offsets.pop(identity, None)  # R13
    for pending in state.pending.values():
        pending.pop(identity, None)  # R12


def _commit_offset(state: ReferenceState, row: LogRow, identity: Identity, value: dict[str, Any]) -> None:
    offset = CommittedOffset(
        record_offset=row.record_offset,
        committed_offset=value["offset"],
        leader_epoch=value.get("leader_epoch"),
        metadata=value["metadata"],
        commit_timestamp_ms=value["commit_timestamp"],
        expire_timestamp_ms=value.get("expire_timestamp"),
        topic_id=None if value.get("topic_id") == NO_TOPIC_ID else value.get("topic_id"),
    )
    if offset.topic_id is not None:
        _learn_name(state, offset.topic_id, identity[1])
    state.groups.setdefault(identity[0], Group(CLASSIC))  # R14: a simple group, also by a pending commit
    if row.producer_id is None:
        _keep_highest(state, identity, offset)
    else:
        state.pending.setdefault(row.producer_id, {})[identity] = offset  # R11


def _keep_highest(state: ReferenceState, identity: Identity, offset: CommittedOffset) -> None:
    held = state.offsets.get(identity)
    if held is None or held.record_offset < offset.record_offset:
        state.offsets[identity] = offset  # R10


def _apply_group_record(
    state: ReferenceState, record_type: int, group_id: str, member_or_regex: str, value: dict[str, Any] | None
) -> None:
    group = state.groups.get(group_id)
    if value is None:
        if record_type in GROUP_REMOVING_TYPES:
            state.groups.pop(group_id, None)  # R14
        elif group is not None:
            group.records.pop((record_type, member_or_regex), None)
        return
    for topics in (value.get(name) for name in _NAMING_LISTS.get(record_type, ())):
        for topic in topics or ():
            _learn_name(state, topic["topic_id"], topic["topic_name"])
    kind = GROUP_TYPE_OF_RECORD_TYPE[record_type]
    if group is None or group.kind != kind or record_type == GROUP_METADATA:
        # R14: it creates its group or replaces a simple one, and a classic value is the whole group. That a value
        # of one kind meets a group of another never happens in a broker's log: the newer one wins.
        group = state.groups[group_id] = Group(kind)
    group.records[(record_type, member_or_regex)] = value
