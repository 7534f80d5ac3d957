"""Retention (R18-R21): which offsets expire, when, and by which rule; which groups go with them.

Pure: everything comes in as arguments, the time too. So it answers as well for a mirrored log, whose broker does the
expiring, what would expire and when.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.coordinator.records import group_tombstones, offset_tombstone
from offsets_pipeline.coordinator.requests import Outcome
from offsets_pipeline.fold.group_kinds import CLASSIC, CONSUMER, STREAMS
from offsets_pipeline.fold.groups import EMPTY, STABLE
from offsets_pipeline.record.consumer_protocol import CONSUMER_PROTOCOL_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offsets_pipeline.coordinator.log import Record
    from offsets_pipeline.coordinator.state import CommittedOffset, Group, PartitionState, TopicPartition

MS_PER_MINUTE = 60_000


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


class Expiry(NamedTuple):
    """When an offset expires (ms), None while ``rule`` says that it does not."""

    group_id: str
    where: TopicPartition
    at_ms: int | None
    rule: Rule


@dataclass(frozen=True, slots=True)
class ExpiredGroup:
    """What a run takes of one group."""

    group_id: str
    expired: list[Expiry]
    is_removed: bool


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


def expires_at_ms(offset: CommittedOffset, rule: Rule, state_timestamp_ms: int | None, retention_ms: int) -> int:
    """The first moment at which an offset that may expire has expired (R19)."""
    if offset.expire_timestamp_ms is not None:
        return offset.expire_timestamp_ms
    if rule is Rule.EMPTY_GROUP and state_timestamp_ms is not None:
        return state_timestamp_ms + retention_ms
    return offset.commit_timestamp_ms + retention_ms


def forecast(state: PartitionState, group_id: str, retention_ms: int) -> Iterator[Expiry]:
    """When each offset of a group expires if nothing more comes in, and by which rule; nothing of no group."""
    group = state.group(group_id)
    if group is None:
        return
    for where, offset in state.offsets_of(group_id).items():
        rule = rule_of(group, where.topic)
        if rule.lets_expire and state.is_pending(group_id, where):
            rule = Rule.PENDING
        at_ms = expires_at_ms(offset, rule, group.description.state_timestamp_ms, retention_ms)
        yield Expiry(group_id, where, at_ms if rule.lets_expire else None, rule)


def expired(state: PartitionState, now_ms: int, retention_ms: int) -> Iterator[ExpiredGroup]:
    """What expires in a log partition now: offsets, and groups that hold nothing any more (R21)."""
    for group_id, group in state.groups.items():
        if state.group(group_id) is None:
            continue  # R1: it lies in another log partition than it belongs to
        expiries = list(forecast(state, group_id, retention_ms))
        due = [each for each in expiries if each.at_ms is not None and now_ms >= each.at_ms]
        is_removed = (
            len(due) == len(expiries)
            and group.kind in {CLASSIC, CONSUMER, STREAMS}  # what a share group holds lies elsewhere
            and group.is_empty
            and next(state.pending_of(group_id), None) is None  # R20; nothing is left of what was deleted (R12)
        )
        if due or is_removed:
            yield ExpiredGroup(group_id, due, is_removed)


def expire(state: PartitionState, now_ms: int, retention_ms: int) -> Outcome[list[ExpiredGroup]]:
    """The tombstones of what expires in a log partition now (R22)."""
    found = list(expired(state, now_ms, retention_ms))
    records: list[Record] = []
    for each in found:
        records += [offset_tombstone(state.log_partition, each.group_id, expiry.where) for expiry in each.expired]
        if each.is_removed:
            records += group_tombstones(state.log_partition, each.group_id, state.groups[each.group_id])
    return Outcome(records, found)
