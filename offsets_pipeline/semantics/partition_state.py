"""The row-wise replay of one log partition: the specification of R10-R17, and what a coordinator holds in memory.

`PartitionState.replay` takes one record after the other, as a broker does when it loads a log partition. Only a replay
changes a state, so a state never shows what the log lacks. Each rule is implemented in one method, named in its
comment. Tests hold the columnar replay, reloads and cleaned logs to this module. Which coordinator it reproduces is a
parameter (`CoordinatorSemantics`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.kafka.record.corrupt import CorruptRecord, UnknownRecordType
from offsets_pipeline.kafka.record.decode import DecodedKey, decode_value
from offsets_pipeline.kafka.record.wire import NO_TOPIC_ID
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.semantics.group_description import EMPTY, GroupDescription, describe_group
from offsets_pipeline.semantics.group_types import (
    CLASSIC,
    GROUP_REMOVING_TYPES,
    GROUP_TYPE_OF_RECORD_TYPE,
    OFFSET_COMMIT_TYPES,
    SHARE,
    decode_known_key,
    named_topics,
    record_key_of,
)
from offsets_pipeline.semantics.log_row import ABORT, COMMIT, LogRow
from offsets_pipeline.semantics.partitioning import is_misplaced

if TYPE_CHECKING:
    from offsets_pipeline.kafka.record.schema import Fields


class TopicPartition(NamedTuple):
    """A partition of a topic; with the group id it identifies an offset (R9). Its text is that of Kafka: orders-0."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class CommittedOffset(NamedTuple):
    """A value of an offset commit, and the record offset that decides between two of them (R10). Times in ms."""

    record_offset: int
    committed_offset: int
    leader_epoch: int | None
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None
    topic_id: str | None


@dataclass(slots=True)
class Group:
    """A group that exists (R14). ``records`` holds raw values by record type and record key."""

    group_type: str
    records: dict[tuple[int, str], bytes] = field(default_factory=dict)
    _description: GroupDescription | None = field(default=None, compare=False, repr=False)

    @property
    def description(self) -> GroupDescription:
        """State, members, epochs (R33, R34); computed once until a record changes."""
        if self._description is None:
            self._description = describe_group(self.group_type, self.records)
        return self._description

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""
        return self.description.state == EMPTY

    @property
    def is_simple(self) -> bool:
        """Whether offsets alone make the group: it has no records of its own (R14)."""
        return self.group_type == CLASSIC and not self.records

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member subscribes to the topic. True if the subscription of a member is unknown (R18)."""
        topics = self.description.subscribed_topics
        return topics is None or topic in topics

    def put(self, name: tuple[int, str], value: bytes) -> None:
        """Set the value of a record."""
        self.records[name] = value
        self._description = None

    def drop(self, name: tuple[int, str]) -> None:
        """Remove a record; does nothing if the group has no such record (R13)."""
        self.records.pop(name, None)
        self._description = None


Offsets = dict[TopicPartition, CommittedOffset]
_NO_OFFSETS: Mapping[TopicPartition, CommittedOffset] = {}


@dataclass
class PartitionState:
    """One log partition up to ``end``, the first record offset that is not replayed.

    ``offsets`` holds the visible offsets by group. ``pending`` holds the commits of open transactions by producer id
    and group (R11). ``open_transactions`` holds by group the producers with an open transaction that committed for
    the group, also if a tombstone removed all of these commits.
    """

    log_partition: int
    offsets_partitions: int
    end: int = 0
    offsets: dict[str, Offsets] = field(default_factory=dict)
    pending: dict[int, dict[str, Offsets]] = field(default_factory=dict)
    open_transactions: dict[str, set[int]] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    topic_names: dict[str, str] = field(default_factory=dict)
    quarantined: dict[int, str] = field(default_factory=dict)
    unknown_records: int = 0
    semantics: CoordinatorSemantics = MODERN

    # --- the replay

    def replay(self, row: LogRow) -> None:
        """Apply the next record."""
        if not self._is_next(row.record_offset):
            return
        if row.control_type is not None:
            self._end_transaction(row.producer_id, row.control_type)
            return
        try:
            self._apply(row)
        except UnknownRecordType:
            self.unknown_records += 1  # R6
        except CorruptRecord as corrupt:
            self.quarantined[row.record_offset] = str(corrupt)  # R6: the replay ignores it

    def replay_commit(
        self, group_id: str, where: TopicPartition, offset: CommittedOffset, producer_id: int | None
    ) -> None:
        """`replay` of an offset commit that is decoded already."""
        if self._is_next(offset.record_offset):
            self._commit(group_id, where, offset, producer_id)

    def replay_tombstone(
        self, record_offset: int, group_id: str, where: TopicPartition, producer_id: int | None
    ) -> None:
        """`replay` of a tombstone of an offset whose key is decoded already."""
        if self._is_next(record_offset):
            self._delete(group_id, where, producer_id)

    def _is_next(self, record_offset: int) -> bool:
        if record_offset < self.end:
            return False  # R15: replayed before
        self.end = record_offset + 1
        return True

    def _end_transaction(self, producer_id: int | None, control_type: str) -> None:
        if producer_id is None or control_type not in (COMMIT, ABORT):
            return
        for group_id, offsets in self.pending.pop(producer_id, {}).items():  # R11: by producer id alone
            self.open_transactions[group_id].discard(producer_id)
            if not self.open_transactions[group_id]:
                del self.open_transactions[group_id]
            if control_type == COMMIT:
                for where, offset in offsets.items():
                    self._keep_highest(group_id, where, offset)
            self._keep_while_held(group_id)

    def _apply(self, row: LogRow) -> None:
        key = decode_known_key(row.key, self.semantics)
        value = None if row.value is None else decode_value(key.record_type, row.value).fields  # R6: of type 9 too
        if key.record_type in OFFSET_COMMIT_TYPES:
            where = TopicPartition(key.fields["topic"], key.fields["partition"])
            if value is None:
                self._delete(key.group_id, where, row.producer_id)
            else:
                self._commit(key.group_id, where, _committed(row.record_offset, value), row.producer_id)
        elif key.record_type in GROUP_TYPE_OF_RECORD_TYPE:
            for topic_id, topic in named_topics(key.record_type, value):
                self._learn_name(topic_id, topic)
            self._apply_group_record(key, row.value)

    def _commit(self, group_id: str, where: TopicPartition, offset: CommittedOffset, producer_id: int | None) -> None:
        if offset.topic_id is not None:
            self._learn_name(offset.topic_id, where.topic)
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

    def _delete(self, group_id: str, where: TopicPartition, producer_id: int | None) -> None:
        is_classic = self.semantics.is_classic
        if not is_classic or producer_id is None:
            offsets = self.offsets.get(group_id)
            if offsets is not None:
                offsets.pop(where, None)  # R13
                if not offsets:
                    del self.offsets[group_id]
        for producer in self.open_transactions.get(group_id, ()):
            if not is_classic or producer == producer_id:  # R12: `classic` leaves other transactions alone
                self.pending[producer].get(group_id, {}).pop(where, None)
        self._keep_while_held(group_id)

    def _keep_while_held(self, group_id: str) -> None:
        """R14, `classic`: a group without metadata exists while it has a visible or pending offset."""
        if not self.semantics.is_classic:
            return
        group = self.groups.get(group_id)
        holds = group_id in self.offsets or any(True for _ in self.pending_of(group_id))
        if group is None and holds:
            self.groups[group_id] = Group(CLASSIC)
        elif group is not None and group.is_simple and not holds:
            del self.groups[group_id]

    def _apply_group_record(self, key: DecodedKey, value: bytes | None) -> None:
        group_id, name = key.group_id, (key.record_type, record_key_of(key))
        group = self.groups.get(group_id)
        if value is None:
            if key.record_type in GROUP_REMOVING_TYPES:
                self.groups.pop(group_id, None)  # R14
                self._keep_while_held(group_id)
            elif group is not None:
                group.drop(name)
            return
        group_type = GROUP_TYPE_OF_RECORD_TYPE[key.record_type]
        if group is None or group.group_type != group_type:
            # R14: it creates its group or replaces a simple one. No broker writes a value of one type for a group of
            # another type; if a log has one, the newer value wins.
            group = self.groups[group_id] = Group(group_type)
        group.put(name, value)

    def _learn_name(self, topic_id: str, topic: str) -> None:
        self.topic_names[topic_id] = min(topic, self.topic_names.get(topic_id, topic))  # R35

    # --- what the state answers

    def group(self, group_id: str) -> Group | None:
        """The group, or None if it does not exist or is misplaced (R1, R14)."""
        group = self.groups.get(group_id)
        return None if group is None or self.is_misplaced(group_id) else group

    def is_misplaced(self, group_id: str) -> bool:
        """Whether the group answers nothing here, because it belongs to another log partition (R1)."""
        return is_misplaced(group_id, self.log_partition, self.offsets_partitions, self.semantics)

    def group_with_offsets(self, group_id: str) -> Group | None:
        """The group, or None if a fetch of its offsets finds no group: a share group has no offsets (R14)."""
        group = self.group(group_id)
        return None if group is None or group.group_type == SHARE else group

    def offsets_of(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """The visible offsets of a group; none while the group does not exist (R14)."""
        return _NO_OFFSETS if self.group(group_id) is None else self.offsets.get(group_id, _NO_OFFSETS)

    def is_pending(self, group_id: str, where: TopicPartition) -> bool:
        """Whether an open transaction holds a commit for the offset (R17)."""
        return any(
            where in self.pending[producer_id].get(group_id, _NO_OFFSETS)
            for producer_id in self.open_transactions.get(group_id, ())
        )

    def pending_of(self, group_id: str) -> Iterator[TopicPartition]:
        """The partitions with a pending commit of the group, once for each open transaction."""
        for producer_id in self.open_transactions.get(group_id, ()):
            yield from self.pending[producer_id].get(group_id, _NO_OFFSETS)


def replay(
    rows: Iterable[LogRow],
    log_partition: int,
    offsets_partitions: int,
    semantics: CoordinatorSemantics = MODERN,
) -> PartitionState:
    """The state after the rows of one log partition, given in record-offset order from the start of the log (R16)."""
    state = PartitionState(log_partition, offsets_partitions, semantics=semantics)
    for row in rows:
        state.replay(row)
    return state


def _committed(record_offset: int, value: Fields) -> CommittedOffset:
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
