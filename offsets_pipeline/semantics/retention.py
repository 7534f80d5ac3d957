"""Retention (R18-R21): which offsets expire, when, and by which rule; which groups go with them.

`forecast` decides for a coordinator's state and for state tables. A run expires the part of the forecast that is due.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from offsets_pipeline.record.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from offsets_pipeline.semantics.group_description import EMPTY, STABLE
from offsets_pipeline.semantics.group_types import CLASSIC, CONSUMER, STREAMS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from offsets_pipeline.semantics.partition_state import Group, PartitionState, TopicPartition

MS_PER_MINUTE = 60_000
_AT_ONCE = -(2**63)


class Rule(Enum):
    """Why an offset may expire, or why it may not."""

    EMPTY_GROUP = "R18a: its group has a protocol and no members"
    NOT_SUBSCRIBED_CLASSIC = "R18b: no member of its group subscribes to the topic"
    SIMPLE_GROUP = "R18c: its group has no protocol"
    NOT_SUBSCRIBED = "R18d: no member of its group subscribes to the topic"
    SUBSCRIBED = "R18: its group subscribes to the topic, or may do so"
    ACTIVE_GROUP = "R18: its group is active"
    PENDING = "R20: an open transaction holds a commit for it"

    @property
    def lets_expire(self) -> bool:
        """Whether offsets under it may expire."""
        return self not in {Rule.SUBSCRIBED, Rule.ACTIVE_GROUP, Rule.PENDING}


class Basis(Enum):
    """What the time of an offset is counted from (R19)."""

    COMMIT = "retention counts from its commit"
    EMPTIED = "retention counts from when its group became empty"
    OWN = "its commit named the time"


class Expiry(NamedTuple):
    """When the time of an offset is over (ms), and by which rule.

    ``at_ms`` and ``basis`` are None where R18 lets it never expire. Under PENDING its time runs, and it stays.
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
        """Whether its time is over, be it held back or not."""
        return self.at_ms is not None and now_ms >= self.at_ms  # R19


class Committed(Protocol):
    """What decides of a committed offset when it expires, in milliseconds (R19)."""

    @property
    def commit_timestamp_ms(self) -> int:
        """When it was committed."""

    @property
    def expire_timestamp_ms(self) -> int | None:
        """When it expires, where its commit says so."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """A group that exists, and all of what it holds that decides about retention.

    ``pending`` is what open transactions hold commits for, but for what was deleted since (R12).
    """

    group_id: str
    group: Group
    offsets: Mapping[TopicPartition, Committed]
    pending: Collection[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class ExpiredGroup:
    """What a run takes of one group."""

    group_id: str
    expired: list[Expiry]
    is_removed: bool


@dataclass(frozen=True, slots=True)
class GroupForecast:
    """What becomes of a group and its offsets if nothing more comes in.

    ``may_go``: it is a group that a run removes once it holds nothing (R21); ``has_open_transaction`` keeps it (R20).
    """

    group_id: str
    expiries: list[Expiry]
    may_go: bool
    has_open_transaction: bool

    @property
    def emptied_at_ms(self) -> int | None:
        """When the time of the last of its offsets is over, long ago where it holds none; None where one stays."""
        latest = _AT_ONCE
        for each in self.expiries:
            if each.at_ms is None or not each.rule.lets_expire:
                return None
            latest = max(latest, each.at_ms)
        return latest

    def expired(self, now_ms: int) -> ExpiredGroup | None:
        """What a run takes of it now; None for nothing."""
        due = [each for each in self.expiries if each.is_due(now_ms)]
        is_removed = self.is_removed(now_ms)
        return ExpiredGroup(self.group_id, due, is_removed) if due or is_removed else None

    def is_removed(self, now_ms: int) -> bool:
        """Whether a run removes the group now (R20, R21)."""
        return not self.has_open_transaction and self.is_emptied(now_ms)

    def is_emptied(self, now_ms: int) -> bool:
        """Whether a run would remove the group now but for an open transaction."""
        emptied_at_ms = self.emptied_at_ms
        return self.may_go and emptied_at_ms is not None and now_ms >= emptied_at_ms


def rule_of(group: Group, topic: str) -> Rule:
    """What decides about the offsets that a group holds for a topic (R18)."""
    description = group.description
    if group.kind == CLASSIC:
        if not description.protocol_type:
            return Rule.SIMPLE_GROUP
        if description.state == EMPTY:
            return Rule.EMPTY_GROUP
        if description.protocol_type != CONSUMER_PROTOCOL_TYPE or description.state != STABLE:
            return Rule.ACTIVE_GROUP
        return Rule.SUBSCRIBED if group.is_subscribed_to(topic) else Rule.NOT_SUBSCRIBED_CLASSIC
    if group.kind in {CONSUMER, STREAMS}:
        return Rule.SUBSCRIBED if group.is_subscribed_to(topic) else Rule.NOT_SUBSCRIBED
    return Rule.ACTIVE_GROUP


def forecast(held: Holdings, retention_ms: int) -> GroupForecast:
    """When each offset of a group expires, and whether the group goes, if nothing more comes in (R18-R21)."""
    group = held.group
    return GroupForecast(
        held.group_id,
        [_expiry(held, where, offset, retention_ms) for where, offset in held.offsets.items()],
        # what a share group holds lies elsewhere
        may_go=group.kind in {CLASSIC, CONSUMER, STREAMS} and group.is_empty,
        has_open_transaction=bool(held.pending),
    )


def holdings_of(state: PartitionState, group_id: str) -> Holdings | None:
    """What a group holds; None where there is no such group, or it lies in another log partition than it should."""
    group = state.group(group_id)
    if group is None:
        return None
    return Holdings(
        group_id,
        group,
        state.offsets_of(group_id),
        frozenset(state.pending_of(group_id)),
    )


def _expiry(held: Holdings, where: TopicPartition, offset: Committed, retention_ms: int) -> Expiry:
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
    if where in held.pending:
        rule = Rule.PENDING
    return Expiry(held.group_id, where, at_ms, rule, basis)
