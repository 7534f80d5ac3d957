"""R18-R21 over the row-wise replay, and logs with times so close that many are exactly at a limit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from offsets_pipeline.kafka.record.consumer_protocol import decode_subscription
from offsets_pipeline.semantics.group_types import CLASSIC, CONSUMER, SHARE, STREAMS
from tests.random_logs import Shape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offsets_pipeline.semantics.partition_state import CommittedOffset
    from tests.logs import Identity
    from tests.replays import DecodedGroup, Replayed

PARTITIONS = 3
RETENTION_MS = 60_000
FIRST_MS = 1_700_000_000_000
#: Times of commits and of groups are of so many neighbouring milliseconds.
SPAN_MS = 4
STEPS = 400
SHAPE = Shape(
    steps={
        "commit": 24,
        "tombstone": 3,
        "marker": 14,
        "classic": 5,
        "consumer": 3,
        "leave": 3,
        "remove": 1,
        "share": 1,
        "streams": 2,
    },
    groups=[f"group-{number}" for number in range(60)],
    topics=["t", "u", "v"],
    producers=range(1_000, 1_020),
    times_ms=range(FIRST_MS, FIRST_MS + SPAN_MS),
    expire_times_ms=range(FIRST_MS + RETENTION_MS, FIRST_MS + RETENTION_MS + SPAN_MS),
    log_partitions=PARTITIONS,
    strays=0.05,
)


@dataclass
class Verdict:
    """Offsets that expire now, groups that go, and offsets whose time is over and that open transactions keep."""

    offsets: set[Identity] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    held: set[Identity] = field(default_factory=set)


def by_the_rules(states: Iterable[Replayed], now_ms: int) -> Verdict:
    """R18-R21 read off the decoded records."""
    verdict = Verdict()
    for state in states:
        for group_id, group in state.groups.items():
            if not state.answers(group_id):
                continue
            held = {identity for identity in state.offsets if identity[0] == group_id}
            pending = {identity for identity in state.unstable if identity[0] == group_id}
            over = {
                identity
                for identity in held
                if _may_expire(group, identity[1]) and _is_over(group, state.offsets[identity], now_ms)
            }
            verdict.offsets |= over - pending
            verdict.held |= over & pending  # R20
            if over == held and not pending and group.group_type != SHARE and not _members(group):  # R21
                verdict.groups.add(group_id)
    return verdict


def _is_over(group: DecodedGroup, offset: CommittedOffset, now_ms: int) -> bool:
    """R19."""
    if offset.expire_timestamp_ms is not None:
        return now_ms >= offset.expire_timestamp_ms
    since = _empty_since(group)
    return now_ms - (offset.commit_timestamp_ms if since is None else since) >= RETENTION_MS


def _may_expire(group: DecodedGroup, topic: str) -> bool:
    value, members = group.records.get((2, "")), _members(group)
    if group.group_type == CLASSIC:
        if value is None or not value["protocol_type"] or not members:
            return True  # R18c, R18a
        if value["protocol_type"] != "consumer":
            return False
        sent = [decode_subscription("consumer", each["subscription"]) for each in members]
        return all(each is not None and topic not in each.fields["topics"] for each in sent)  # R18b
    if group.group_type == CONSUMER:
        named = {each for member in members for each in member["subscribed_topic_names"]}
        for regex in {member["subscribed_topic_regex"] for member in members}:
            named.update(group.records.get((16, regex), {"topics": []})["topics"])
        return topic not in named  # R18d
    if group.group_type == STREAMS:
        parts = group.records.get((23, ""), {"subtopologies": []})["subtopologies"]
        return not members or all(topic not in part["source_topics"] for part in parts)  # R18d
    return False


def _members(group: DecodedGroup) -> list[dict[str, Any]]:
    if group.group_type == CLASSIC:
        return list(group.records.get((2, ""), {"members": []})["members"])
    types = {CONSUMER: 5, SHARE: 10, STREAMS: 19}
    return [value for (record_type, _), value in group.records.items() if record_type == types[group.group_type]]


def _empty_since(group: DecodedGroup) -> int | None:
    """Since when the log says that a group of case (a) is empty."""
    value = group.records.get((2, ""))
    if value is None or not value["protocol_type"] or value["members"]:
        return None
    since: int | None = value["current_state_timestamp"]
    return since
