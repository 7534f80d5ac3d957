"""What one log partition holds in memory: the modern coordinator's replay, a record at a time (R10-R17).

It changes by replay alone, so it never shows what is not in the log. The tests compare it with `specification.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.record.corrupt import CorruptRecord, UnknownRecordType
from offsets_pipeline.record.decode import decode_key, decode_value
from offsets_pipeline.record.wire import NO_TOPIC_ID
from offsets_pipeline.semantics.group_description import EMPTY, GroupDescription, describe_group
from offsets_pipeline.semantics.group_types import (
    CLASSIC,
    GROUP_METADATA,
    GROUP_REMOVING_TYPES,
    GROUP_TYPE_OF_RECORD_TYPE,
    OFFSET_COMMIT_TYPES,
    SHARE,
    record_key_of,
)
from offsets_pipeline.semantics.log_row import ABORT, COMMIT
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.semantics.subscriptions import subscribed_topics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from offsets_pipeline.record.decode import DecodedKey
    from offsets_pipeline.record.schema import Fields
    from offsets_pipeline.semantics.log_row import LogRow


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class CommittedOffset(NamedTuple):
    """A committed offset, and the record offset that decides between two of them (R10). Times in milliseconds."""

    record_offset: int
    committed_offset: int
    leader_epoch: int | None
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None
    topic_id: str | None


Offsets = dict[TopicPartition, CommittedOffset]
_NONE: Mapping[TopicPartition, CommittedOffset] = {}


@dataclass(slots=True)
class Group:
    """A group that exists: its kind, and the last value of each of its records, raw."""

    kind: str
    records: dict[tuple[int, str], bytes] = field(default_factory=dict)
    _described: GroupDescription | None = None
    _topics: tuple[frozenset[str] | None] | None = None

    @property
    def description(self) -> GroupDescription:
        """State, members, epochs (R33, R34); made when first asked for."""
        if self._described is None:
            self._described = describe_group(self.kind, self.records)
        return self._described

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return self.description.state == EMPTY

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member subscribes to the topic, or may do so: the subscription of a consumer is not known (R18)."""
        if self._topics is None:
            self._topics = (subscribed_topics(self.kind, self.description, self.records),)
        topics = self._topics[0]
        return topics is None or topic in topics

    def knows_its_topics(self) -> bool:
        """Whether the subscription of its members is known (R18)."""
        self.is_subscribed_to("")
        assert self._topics is not None  # noqa: S101 - it was asked for just now
        return self._topics[0] is not None

    def put(self, name: tuple[int, str], value: bytes) -> None:
        """Take the new value of one of its records."""
        self.records[name] = value
        self._described = self._topics = None

    def drop(self, name: tuple[int, str]) -> None:
        """Take a tombstone of one of its records."""
        self.records.pop(name, None)
        self._described = self._topics = None


@dataclass
class PartitionState:
    """One log partition as of ``end``, the first record offset that is not replayed.

    ``pending`` holds the commits of open transactions by producer id (R11), ``open_transactions`` by group the
    producers that have committed for it in a transaction which is still open, even if nothing of that is left.
    """

    log_partition: int
    offsets_partitions: int
    end: int = 0
    groups: dict[str, Group] = field(default_factory=dict)
    offsets: dict[str, Offsets] = field(default_factory=dict)
    pending: dict[int, dict[str, Offsets]] = field(default_factory=dict)
    open_transactions: dict[str, set[int]] = field(default_factory=dict)
    quarantined: dict[int, str] = field(default_factory=dict)
    unknown_records: int = 0

    def group(self, group_id: str) -> Group | None:
        """The group, if it exists and answers here (R1, R14)."""
        group = self.groups.get(group_id)
        if group is None or partition_for(group_id, self.offsets_partitions) != self.log_partition:
            return None
        return group

    def group_with_offsets(self, group_id: str) -> Group | None:
        """The group, if a fetch of offsets finds it: a share group has none (R14)."""
        group = self.group(group_id)
        return None if group is None or group.kind == SHARE else group

    def offsets_of(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """The visible offsets of a group; none while it does not exist (R14)."""
        return _NONE if self.group(group_id) is None else self.offsets.get(group_id, _NONE)

    def is_pending(self, group_id: str, where: TopicPartition) -> bool:
        """Whether an open transaction holds a commit for it (R17)."""
        return any(
            where in self.pending.get(producer_id, {}).get(group_id, _NONE)
            for producer_id in self.open_transactions.get(group_id, ())
        )

    def pending_of(self, group_id: str) -> Iterator[TopicPartition]:
        """What open transactions hold for a group; twice what two of them hold."""
        for producer_id in self.open_transactions.get(group_id, ()):
            yield from self.pending.get(producer_id, {}).get(group_id, _NONE)

    def replay(self, row: LogRow) -> None:
        """Take the next record; one that was taken before changes nothing (R15)."""
        if row.record_offset < self.end:
            return
        self.end = row.record_offset + 1
        if row.control_type is not None:
            self._end_transaction(row)
            return
        try:
            self._apply(row)
        except UnknownRecordType:
            self.unknown_records += 1  # R6
        except CorruptRecord as corrupt:
            self.quarantined[row.record_offset] = str(corrupt)  # R6: for the replay it does not exist

    def replay_commit(
        self, group_id: str, where: TopicPartition, offset: CommittedOffset, producer_id: int | None
    ) -> None:
        """`replay` of an offset commit that was decoded before."""
        if offset.record_offset < self.end:
            return
        self.end = offset.record_offset + 1
        self._commit(group_id, where, offset, producer_id)

    def replay_tombstone(self, record_offset: int, group_id: str, where: TopicPartition) -> None:
        """`replay` of a tombstone of an offset whose key was decoded before."""
        if record_offset < self.end:
            return
        self.end = record_offset + 1
        self._delete(group_id, where)

    def _end_transaction(self, row: LogRow) -> None:
        if row.producer_id is None or row.control_type not in (COMMIT, ABORT):
            return
        pending = self.pending.pop(row.producer_id, {})  # R11: by producer id alone
        for producers in self.open_transactions.values():
            producers.discard(row.producer_id)
        self.open_transactions = {name: producers for name, producers in self.open_transactions.items() if producers}
        if row.control_type == COMMIT:
            for group_id, offsets in pending.items():
                for where, offset in offsets.items():
                    self._keep_highest(group_id, where, offset)

    def _apply(self, row: LogRow) -> None:
        key = decode_key(row.key)
        # also of type 9, which makes no group (R6)
        value = None if row.value is None else decode_value(key.record_type, row.value).fields
        if key.record_type in OFFSET_COMMIT_TYPES:
            group_id, where = key.group_id, TopicPartition(key.fields["topic"], key.fields["partition"])
            if value is None:
                self._delete(group_id, where)
            else:
                self._commit(group_id, where, _offset(row.record_offset, value), row.producer_id)
        elif key.record_type in GROUP_TYPE_OF_RECORD_TYPE:
            self._apply_group_record(key, row.value)

    def _commit(self, group_id: str, where: TopicPartition, offset: CommittedOffset, producer_id: int | None) -> None:
        if group_id not in self.groups:
            self.groups[group_id] = Group(CLASSIC)  # R14: a simple group, also by a pending commit
        if producer_id is None:
            self._keep_highest(group_id, where, offset)
        else:
            self.pending.setdefault(producer_id, {}).setdefault(group_id, {})[where] = offset  # R11
            self.open_transactions.setdefault(group_id, set()).add(producer_id)

    def _keep_highest(self, group_id: str, where: TopicPartition, offset: CommittedOffset) -> None:
        offsets = self.offsets.setdefault(group_id, {})
        held = offsets.get(where)
        if held is None or held.record_offset < offset.record_offset:
            offsets[where] = offset  # R10

    def _delete(self, group_id: str, where: TopicPartition) -> None:
        offsets = self.offsets.get(group_id)
        if offsets is not None:
            offsets.pop(where, None)  # R13
            if not offsets:
                del self.offsets[group_id]
        for producer_id in self.open_transactions.get(group_id, ()):
            of_group = self.pending.get(producer_id, {}).get(group_id)
            if of_group is not None:
                of_group.pop(where, None)  # R12

    def _apply_group_record(self, key: DecodedKey, value: bytes | None) -> None:
        group_id, name = key.group_id, (key.record_type, record_key_of(key))
        group = self.groups.get(group_id)
        if value is None:
            if key.record_type in GROUP_REMOVING_TYPES:
                self.groups.pop(group_id, None)  # R14
            elif group is not None:
                group.drop(name)
            return
        kind = GROUP_TYPE_OF_RECORD_TYPE[key.record_type]
        if group is None or group.kind != kind or key.record_type == GROUP_METADATA:
            # R14: it creates its group or replaces a simple one, and a classic value is the whole group
            group = self.groups[group_id] = Group(kind)
        group.put(name, value)


def _offset(record_offset: int, value: Fields) -> CommittedOffset:
    topic_id = value.get("topic_id")
    return CommittedOffset(
        record_offset,
        value["offset"],
        value.get("leader_epoch"),
        value["metadata"],
        value["commit_timestamp"],
        value.get("expire_timestamp"),
        None if topic_id == NO_TOPIC_ID else topic_id,
    )
