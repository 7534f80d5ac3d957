"""Retention (R18-R21): which offsets expire, when and by which rule, and which groups are removed.

`forecast` decides for a coordinator's state and for state tables. A run expires the part of the forecast that is due.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.kafka.record.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from offsets_pipeline.kafka.record.decode import decode_value
from offsets_pipeline.kafka.record.message_types import RecordType
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.semantics.group_description import EMPTY
from offsets_pipeline.semantics.group_types import CLASSIC, CONSUMER, STREAMS

if TYPE_CHECKING:
    from offsets_pipeline.semantics.partition_state import CommittedOffset, Group, PartitionState, TopicPartition

MS_PER_MINUTE = 60_000
_AT_ONCE = -(2**63)
#: Explains the numbers of rules to a user.
RULES = "R18: what may expire. R20: what stays. R21: which groups go. (docs/semantics.md)"


@dataclass(frozen=True)
class Retention:
    """The coordinator's `offsets.retention.minutes` and `offsets.retention.check.interval.ms`, in milliseconds.

    The defaults are Kafka's. ``is_known``: the values are the coordinator's. ``read_at_ms``: when `follow` first read
    them from the brokers; None if it did not. Equal values are equal, whenever they were read.
    """

    retention_ms: int = 10_080 * MS_PER_MINUTE
    check_interval_ms: int = 600_000
    is_known: bool = False
    read_at_ms: int | None = field(default=None, compare=False)


class Rule(Enum):
    """The reason why an offset may expire, or may not."""

    EMPTY_GROUP = "R18a: its group has a protocol and no members"
    NOT_SUBSCRIBED_CLASSIC = "R18b: no member of its group subscribes to the topic"
    SIMPLE_GROUP = "R18c: its group has no protocol"
    NOT_SUBSCRIBED = "R18d: no member of its group subscribes to the topic"
    SUBSCRIBED = "R18: its group subscribes to the topic, or may do so"
    ACTIVE_GROUP = "R18: its group is active"
    PENDING = "R20: an open transaction holds a commit for it"

    @property
    def lets_expire(self) -> bool:
        """Whether offsets under the rule may expire."""
        return self not in {Rule.SUBSCRIBED, Rule.ACTIVE_GROUP, Rule.PENDING}


class Basis(Enum):
    """The start of the retention time of an offset (R19)."""

    COMMIT = "retention counts from its commit"
    EMPTIED = "retention counts from when its group became empty"
    OWN = "its commit named the time"


class Expiry(NamedTuple):
    """The time at which an offset expires (ms), and the rule.

    ``at_ms`` and ``basis`` are None if R18 lets the offset never expire. An offset with the rule PENDING stays after
    ``at_ms``.
    """

    group_id: str
    where: TopicPartition
    at_ms: int | None
    rule: Rule
    basis: Basis | None

    def is_due(self, now_ms: int) -> bool:
        """Whether it expires now."""
        return self.rule.lets_expire and self.is_over(now_ms)

    def is_over(self, now_ms: int) -> bool:
        """Whether the offset's time is over, even if an open transaction keeps the offset."""
        return self.at_ms is not None and now_ms >= self.at_ms  # R19


class Times(NamedTuple):
    """The fields of a `CommittedOffset` that decide when it expires (R19), in milliseconds."""

    commit_timestamp_ms: int
    expire_timestamp_ms: int | None


@dataclass(frozen=True, slots=True)
class RetentionInputs:
    """A group that exists, with its offsets.

    ``pending`` holds the partitions with a pending commit that no tombstone removed (R12).
    """

    group_id: str
    group: Group
    offsets: Mapping[TopicPartition, CommittedOffset | Times]
    pending: Collection[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class ExpiredGroup:
    """The offsets of one group that a run expires, and whether it removes the group."""

    group_id: str
    expired: list[Expiry]
    is_removed: bool


@dataclass(frozen=True, slots=True)
class GroupForecast:
    """The future of a group and its offsets if the log gets no more records.

    ``may_go``: a run removes the group when it has no offsets (R21), unless ``has_open_transaction`` (R20). Under
    `classic` it does not remove a group without a generation: that one is gone with its last offset.
    """

    group_id: str
    expiries: list[Expiry]
    may_go: bool
    has_open_transaction: bool

    @property
    def emptied_at_ms(self) -> int | None:
        """Time at which the last offset expires; _AT_ONCE if there are no offsets, None if an offset stays."""
        latest = _AT_ONCE
        for each in self.expiries:
            if each.at_ms is None or not each.rule.lets_expire:
                return None
            latest = max(latest, each.at_ms)
        return latest

    def expired(self, now_ms: int) -> ExpiredGroup | None:
        """Return the offsets that a run expires now; None if there are none and the group stays."""
        due = [each for each in self.expiries if each.is_due(now_ms)]
        is_removed = self.is_removed(now_ms)
        return ExpiredGroup(self.group_id, due, is_removed) if due or is_removed else None

    def is_removed(self, now_ms: int) -> bool:
        """Whether a run removes the group now (R20, R21)."""
        return not self.has_open_transaction and self.is_emptied(now_ms)

    def is_emptied(self, now_ms: int) -> bool:
        """Whether all offsets are expired, so that only an open transaction can keep the group."""
        emptied_at_ms = self.emptied_at_ms
        return self.may_go and emptied_at_ms is not None and now_ms >= emptied_at_ms


def rule_of(group: Group, topic: str) -> Rule:
    """The rule for the offsets of a group in a topic (R18)."""
    description = group.description
    if group.group_type == CLASSIC:
        if not description.protocol_type:
            return Rule.SIMPLE_GROUP
        if description.state == EMPTY:
            return Rule.EMPTY_GROUP
        if description.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return Rule.ACTIVE_GROUP  # R33: with members it is Stable
        return Rule.SUBSCRIBED if group.is_subscribed_to(topic) else Rule.NOT_SUBSCRIBED_CLASSIC
    if group.group_type in {CONSUMER, STREAMS}:
        return Rule.SUBSCRIBED if group.is_subscribed_to(topic) else Rule.NOT_SUBSCRIBED
    return Rule.ACTIVE_GROUP


def forecast(held: RetentionInputs, retention_ms: int, semantics: CoordinatorSemantics = MODERN) -> GroupForecast:
    """Forecast the expiry of a group's offsets and of the group, if the log gets no more records (R18-R21)."""
    group = held.group
    keeping = replace(held, pending=()) if semantics.is_classic else held  # R20
    return GroupForecast(
        held.group_id,
        [_expiry(keeping, where, offset, retention_ms) for where, offset in held.offsets.items()],
        # the state of a share group is in another topic
        may_go=group.group_type in {CLASSIC, CONSUMER, STREAMS} and group.is_empty and gets_tombstone(group, semantics),
        has_open_transaction=bool(held.pending),
    )


def gets_tombstone(group: Group, semantics: CoordinatorSemantics) -> bool:
    """Whether a coordinator that removes the group writes its tombstone: `classic` not without a generation (R21)."""
    return not semantics.is_classic or group.group_type != CLASSIC or (group.description.generation or 0) > 0


def outlives_its_offsets(group: Group) -> bool:
    """Whether a run leaves the emptied group to a later one: a plugin of the broker holds its topology (R21)."""
    value = group.records.get((RecordType.STREAMS_GROUP_METADATA, ""))
    if value is None:
        return False
    fields = decode_value(RecordType.STREAMS_GROUP_METADATA, value).fields
    return fields["stored_description_topology_epoch"] is not None


def holdings_of(state: PartitionState, group_id: str) -> RetentionInputs | None:
    """The group with its offsets; None if it does not exist or belongs to another log partition (R1)."""
    group = state.group(group_id)
    if group is None:
        return None
    return RetentionInputs(
        group_id,
        group,
        state.offsets_of(group_id),
        frozenset(state.pending_of(group_id)),
    )


def _expiry(held: RetentionInputs, where: TopicPartition, offset: CommittedOffset | Times, retention_ms: int) -> Expiry:
    rule = rule_of(held.group, where.topic)
    if not rule.lets_expire:
        return Expiry(held.group_id, where, None, rule, None)
    emptied_ms = held.group.description.state_timestamp_ms
    if offset.expire_timestamp_ms is not None:
        at_ms, basis = offset.expire_timestamp_ms, Basis.OWN
    elif rule is Rule.EMPTY_GROUP and emptied_ms is not None:
        at_ms, basis = emptied_ms + retention_ms, Basis.EMPTIED
    else:
        at_ms, basis = offset.commit_timestamp_ms + retention_ms, Basis.COMMIT
    if where in held.pending:  # R20
        rule = Rule.PENDING
    return Expiry(held.group_id, where, at_ms, rule, basis)
