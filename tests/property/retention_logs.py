"""Random owned logs with groups of every sort and times close together, and R18-R21 asked of the reference replay."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from offsets_pipeline.record.consumer_protocol import decode_subscription
from offsets_pipeline.semantics.group_types import CLASSIC, CONSUMER, SHARE, STREAMS
from offsets_pipeline.semantics.partitioning import partition_for
from tests.logs import Identity, LogPartition, group_key, group_value
from tests.unit.coordinator.groups import subscription

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

    from offsets_pipeline.semantics.log_row import LogRow
    from offsets_pipeline.semantics.specification import CommittedOffset, Group, ReferenceState

PARTITIONS = 3
RETENTION_MS = 60_000
TOPICS = ["t", "u", "v"]
FIRST_MS = 1_700_000_000_000
#: Times of commits and of groups are of so many neighbouring milliseconds: many lie on a boundary of each other's.
SPAN_MS = 4


def random_log(chosen: random.Random, groups: int) -> list[LogRow]:
    """The rows of all log partitions, each in order."""
    logs = [LogPartition(number) for number in range(PARTITIONS)]
    for number in range(groups):
        group_id = f"group-{number}"
        home = partition_for(group_id, PARTITIONS)
        log = logs[home if chosen.random() < 0.95 else (home + 1) % PARTITIONS]  # some are misplaced (R1)
        if chosen.random() < 0.7:
            _describe(chosen, log, group_id)
        for _ in range(chosen.randrange(8)):
            _commit(chosen, log, group_id, number)
        if chosen.random() < 0.3:
            _describe(chosen, log, group_id)
        if chosen.random() < 0.5:
            log.marker(1_000 + number, chosen.choice(["COMMIT", "ABORT"]))
        if chosen.random() < 0.1:
            log.group_tombstone(2, group_id)  # offsets stay behind (R14)
    return [row for log in logs for row in log.rows]


def _commit(chosen: random.Random, log: LogPartition, group_id: str, number: int) -> None:
    if chosen.random() < 0.1:
        log.delete((group_id, "t", chosen.randrange(2)))
        return
    version = chosen.choice([0, 1, 1, 3, 4])
    own = {"expire_timestamp": chosen.choice([None, _time(chosen) + RETENTION_MS])} if version == 1 else {}
    producer_id = 1_000 + number if chosen.random() < 0.3 else None
    identity = (group_id, chosen.choice(TOPICS), chosen.randrange(2))
    log.commit(
        identity,
        chosen.randrange(100),
        producer_id,
        key_version=min(version, 1),
        version=version,
        commit_timestamp=_time(chosen),
        **own,
    )


def _time(chosen: random.Random) -> int:
    return FIRST_MS + chosen.randrange(SPAN_MS)


def _topics(chosen: random.Random) -> list[str]:
    return chosen.sample(TOPICS, chosen.randrange(3))


def _describe(chosen: random.Random, log: LogPartition, group_id: str) -> None:
    kind = chosen.choice([CLASSIC, CLASSIC, CLASSIC, CONSUMER, CONSUMER, SHARE, STREAMS])
    if kind == CLASSIC:
        _describe_classic(chosen, log, group_id)
    elif kind == CONSUMER:
        for member in chosen.sample("mn", chosen.randrange(3)):
            regex = chosen.choice([None, None, "x.*", "y.*"])
            log.group(5, group_id, member, subscribed_topic_names=_topics(chosen), subscribed_topic_regex=regex)
        log.group(3, group_id, epoch=1)
        log.group(16, group_id, "x.*", topics=_topics(chosen))
    elif kind == SHARE:
        log.group(11, group_id, epoch=1)
    else:
        log.group(17, group_id, epoch=1)
        part: dict[str, Any] = {
            "subtopology_id": "1",
            "source_topics": _topics(chosen),
            "source_topic_regex": [],
            "state_changelog_topics": [],
            "repartition_sink_topics": [],
            "repartition_source_topics": [],
            "copartition_groups": [],
        }
        log.group(23, group_id, epoch=1, subtopologies=[part])
        if chosen.random() < 0.5:
            log.group(19, group_id, "m")


def _describe_classic(chosen: random.Random, log: LogPartition, group_id: str) -> None:
    fields: dict[str, Any] = {
        "protocol_type": chosen.choice(["consumer", "consumer", "consumer", "connect", ""]),
        "current_state_timestamp": chosen.choice([None, _time(chosen)]),
    }
    if fields["protocol_type"] and chosen.random() < 0.6:
        sent = [subscription(*_topics(chosen)), subscription(*_topics(chosen)), b"?"]
        members = [_member(name, chosen.choice(sent)) for name in chosen.sample("mn", chosen.randrange(1, 3))]
        fields |= {"protocol": "range", "leader": "m", "generation": 1, "members": members}
    log.record(group_key(2, group_id), group_value(2, 3, **fields))


def _member(member_id: str, sent: bytes) -> dict[str, Any]:
    return {
        "member_id": member_id,
        "group_instance_id": None,
        "client_id": "",
        "client_host": "",
        "rebalance_timeout": 1,
        "session_timeout": 1,
        "subscription": sent,
        "assignment": b"",
    }


@dataclass
class Verdict:
    """Offsets that expire now, groups that go, and offsets whose time is over and that open transactions keep."""

    offsets: set[Identity] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    held: set[Identity] = field(default_factory=set)


def by_the_rules(states: Iterable[ReferenceState], now_ms: int) -> Verdict:
    """R18-R21 read off the decoded records."""
    verdict = Verdict()
    for state in states:
        for group_id, group in state.groups.items():
            if not state.answers(group_id):
                continue
            held = {identity for identity in state.offsets if identity[0] == group_id}
            pending = {identity for identity in state.unstable() if identity[0] == group_id}
            over = {
                identity
                for identity in held
                if _may_expire(group, identity[1]) and _is_over(group, state.offsets[identity], now_ms)
            }
            verdict.offsets |= over - pending
            verdict.held |= over & pending  # R20
            if over == held and not pending and group.kind != SHARE and not _members(group):  # R21
                verdict.groups.add(group_id)
    return verdict


def _is_over(group: Group, offset: CommittedOffset, now_ms: int) -> bool:
    """R19."""
    if offset.expire_timestamp_ms is not None:
        return now_ms >= offset.expire_timestamp_ms
    since = _empty_since(group)
    return now_ms - (offset.commit_timestamp_ms if since is None else since) >= RETENTION_MS


def _may_expire(group: Group, topic: str) -> bool:
    value, members = group.records.get((2, "")), _members(group)
    if group.kind == CLASSIC:
        if value is None or not value["protocol_type"] or not members:
            return True  # R18c, R18a
        if value["protocol_type"] != "consumer":
            return False
        sent = [decode_subscription("consumer", each["subscription"]) for each in members]
        return all(each is not None and topic not in each.fields["topics"] for each in sent)  # R18b
    if group.kind == CONSUMER:
        named = {each for member in members for each in member["subscribed_topic_names"]}
        for regex in {member["subscribed_topic_regex"] for member in members}:
            named.update(group.records.get((16, regex), {"topics": []})["topics"])
        return topic not in named  # R18d
    if group.kind == STREAMS:
        parts = group.records.get((23, ""), {"subtopologies": []})["subtopologies"]
        return not members or all(topic not in part["source_topics"] for part in parts)  # R18d
    return False


def _members(group: Group) -> list[dict[str, Any]]:
    if group.kind == CLASSIC:
        return list(group.records.get((2, ""), {"members": []})["members"])
    types = {CONSUMER: 5, SHARE: 10, STREAMS: 19}
    return [value for (record_type, _), value in group.records.items() if record_type == types[group.kind]]


def _empty_since(group: Group) -> int | None:
    """Since when the log says that a group of case (a) is empty."""
    value = group.records.get((2, ""))
    if value is None or not value["protocol_type"] or value["members"]:
        return None
    since: int | None = value["current_state_timestamp"]
    return since
