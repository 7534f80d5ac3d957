"""Timeouts and subscriptions of members, against the records as Kafka's own dump tool decoded them (`dump.txt`)."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from offsets_pipeline.semantics import partition_state
from tests.logs import CAPTURES, capture_partitions, capture_rows, capture_semantics

#: Captures with members, whose dump tool writes each key and value as JSON.
NAMES = ["3.9.2-classic", "4.0.0-kip848", "4.2.0-classic", "4.2.0-connect-running", "4.2.0-kip848", "4.2.0-share"]
_RECORD = re.compile(r"^\| offset: .* key: (\{.*\}) payload: (.*)$", re.MULTILINE)
Told = tuple[int | None, int | None, list[str] | None, str | None]


def last_values(name: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    """The last value of each key of a group's records by (type, group, rest of the key); a tombstone removes it."""
    values: dict[tuple[str, str, str], dict[str, Any]] = {}
    for key_text, payload in _RECORD.findall((CAPTURES / name / "dump.txt").read_text(encoding="utf-8")):
        key = json.loads(key_text)
        data = key["data"]
        group = data.get("groupId", data.get("group"))
        place = (key["type"], group, data.get("memberId", data.get("regularExpression", "")))
        if key["type"] in {"0", "1"}:
            continue
        if payload in {"<DELETE>", "null"}:
            values.pop(place, None)
        else:
            values[place] = json.loads(payload)["data"]
    return values


def told_of_members(name: str) -> dict[tuple[str, str], Told]:
    """Session timeout, rebalance timeout, subscribed topics and regular expression by (group, member)."""
    values = last_values(name)
    found: dict[tuple[str, str], Told] = {}
    for (record_type, group, member), value in values.items():
        if record_type == "2":
            for each in value["members"]:
                topics = each["subscription"]["topics"] if value["protocolType"] == "consumer" else None
                found[group, each["memberId"]] = each["sessionTimeout"], each["rebalanceTimeout"], topics, None
        elif record_type == "5":
            classic, regex = value["classicMemberMetadata"], value["subscribedTopicRegex"] or None
            matching = values.get(("16", group, regex or ""), {"topics": []})["topics"]
            session_timeout = None if classic is None else classic["sessionTimeoutMs"]
            topics = sorted({*(value["subscribedTopicNames"] or ()), *matching})
            found[group, member] = session_timeout, value["rebalanceTimeoutMs"], topics, regex
        elif record_type == "10":
            found[group, member] = None, None, value["subscribedTopicNames"], None
        elif record_type == "19":
            parts = values["23", group, ""]["subtopologies"]
            repartition = {each["name"] for part in parts for each in part["repartitionSourceTopics"]}
            topics = sorted({topic for part in parts for topic in part["sourceTopics"]} | repartition)
            found[group, member] = None, value["rebalanceTimeoutMs"], topics, None
    return found


@pytest.mark.parametrize("name", NAMES)
def test_session_timeout_and_subscription_are_those_of_the_records(name: str) -> None:  # R34
    n, semantics = capture_partitions(name), capture_semantics(name)
    found = {
        (group_id, member.member_id): (
            member.session_timeout_ms,
            member.rebalance_timeout_ms,
            None if member.subscribed_topics is None else sorted(member.subscribed_topics),
            member.subscribed_regex,
        )
        for at, rows in capture_rows(name).items()
        for group_id, group in partition_state.replay(rows, at, n, semantics).groups.items()
        for member in group.description.members
    }
    told = told_of_members(name)
    assert len(found) > 2
    assert {place: told[place] for place in found} == found


def test_captures_hold_every_way_to_subscribe() -> None:
    told = [each for name in NAMES for each in told_of_members(name).values()]
    assert {session_timeout for session_timeout, *_ in told} >= {None, 45_000}
    assert any(regex is not None and topics for _, _, topics, regex in told)
    assert any(topics and len(topics) > 1 for _, _, topics, _ in told)
