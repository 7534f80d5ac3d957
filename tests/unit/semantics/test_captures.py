"""Recorded logs: compares the specification with the brokers' answers, and the engines with the specification.

Each capture goes through each engine once. The pipeline with Spark has its own run (tests/spark/test_captures.py).
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.coordinator.loading import Partitions
from offsets_pipeline.semantics import partition_state
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from tests.compare import compare, compared_offsets
from tests.folded_state import StateInMemory, assert_same
from tests.logs import (
    CAPTURE_NAMES,
    CAPTURES,
    LOST_BY_BROKER,
    capture_partitions,
    capture_rows,
    capture_semantics,
    oracle,
    segment_rows,
)
from tests.replays import Replayed, references, replayed_as_columns
from tests.unit.coordinator.states import table_of

if TYPE_CHECKING:
    import random

    from offsets_pipeline.semantics.log_row import LogRow
    from offsets_pipeline.semantics.partition_state import CommittedOffset, PartitionState

MODERN = [name for name in CAPTURE_NAMES if not capture_semantics(name).is_classic]
CLASSIC = [name for name in CAPTURE_NAMES if capture_semantics(name).is_classic]
Answer = dict[tuple[str, int], tuple[int | None, int | None, str | None]]


@cache
def specified(name: str) -> dict[int, PartitionState]:
    n = capture_partitions(name)
    semantics = capture_semantics(name)
    return {at: partition_state.replay(rows, at, n, semantics) for at, rows in capture_rows(name).items()}


def seen(name: str) -> dict[int, Replayed]:
    return {at: Replayed.of(state) for at, state in specified(name).items()}


# --- the specification against the brokers of 4.x


def failed(answer: dict[str, Any]) -> bool:
    """Whether the broker did not load the log partition of this group."""
    return "TimeoutException" in str(answer["describe"])


def offset_answers(name: str) -> dict[str, dict[str, Any]]:
    """The broker's answers about offsets. Offsets of share groups were not requested."""
    return {
        group_id: answer
        for group_id, answer in oracle(name)["groups"].items()
        if not failed(answer) and "offsets" in answer
    }


def as_answered(offset: CommittedOffset) -> tuple[int | None, int | None, str | None]:
    if offset.committed_offset < 0:  # a negative offset answers as none
        return None, None, None
    return offset.committed_offset, offset.leader_epoch, offset.metadata


def of_broker(offsets: list[dict[str, Any]]) -> Answer:
    return {
        (each["topic"], each["partition"]): (each["offset"], each.get("leader_epoch"), each.get("metadata"))
        for each in offsets
    }


def of_specification(found: dict[int, Replayed], group_id: str, *, require_stable: bool) -> Answer:
    return {
        identity[1:]: as_answered(offset)
        for state in found.values()
        for identity, offset in state.current.items()
        if identity[0] == group_id and not (require_stable and identity in state.unstable)
    }


def descriptions(name: str) -> dict[str, dict[str, Any]]:
    """The groups that the broker described field by field, and those it only described as classic ones."""
    found = {}
    for group_id, answer in oracle(name)["groups"].items():
        for description in (answer["describe"], answer.get("describe_classic")):
            if isinstance(description, dict) and "state" in description:
                found[group_id] = description
    return found


def test_there_are_recorded_brokers() -> None:
    assert len(MODERN) >= 18
    assert sum("offsets_require_stable" in answer for name in MODERN for answer in offset_answers(name).values()) >= 4
    assert sum(len(descriptions(name)) for name in MODERN) > 150


@pytest.mark.parametrize("name", MODERN)
def test_specification_lists_and_answers_as_the_broker(name: str) -> None:  # R1, R10-R14, R17
    groups, found = oracle(name)["groups"], seen(name)
    listed = {group_id: answer.get("list_type") for group_id, answer in groups.items() if answer["listed"]}
    types = {group_id: group.group_type for state in found.values() for group_id, group in state.groups.items()}
    if any(map(failed, groups.values())):  # a broker lists nothing of a log partition it did not load
        types = {
            group_id: each for group_id, each in types.items() if group_id in groups and not failed(groups[group_id])
        }
    assert types == listed
    for group_id, answer in offset_answers(name).items():
        assert of_specification(found, group_id, require_stable=False) == of_broker(answer["offsets"]), group_id
        stable = answer.get("offsets_require_stable", answer["offsets"])
        assert of_specification(found, group_id, require_stable=True) == of_broker(stable), group_id


@pytest.mark.parametrize("name", MODERN)
def test_specification_describes_groups_as_the_broker(name: str) -> None:  # R33, R34
    groups = {group_id: group for state in specified(name).values() for group_id, group in state.groups.items()}
    for group_id, answer in oracle(name)["groups"].items():
        if answer["listed"]:
            group = groups[group_id].description
            listed = answer["list_type"], answer["list_state"], answer["list_protocol_type"]
            assert (group.group_type, group.state, group.protocol_type) == listed, group_id
    for group_id, answer in descriptions(name).items():
        group = groups[group_id].description
        assert group.state == answer["state"], group_id
        assert (group.protocol or "") == answer.get("assignor", answer.get("protocol_data")), group_id
        assert group.group_epoch == answer.get("group_epoch"), group_id
        members = {member.member_id: member for member in group.members}
        assert members.keys() == {each["member_id"] for each in answer["members"]}, group_id
        for each in answer["members"]:
            member = members[each["member_id"]]
            told = each["client_id"], each["host"], each["instance_id"], each.get("member_epoch")
            assert (member.client_id, member.client_host, member.instance_id, member.member_epoch) == told, group_id
            assigned = each.get("assignment")
            if isinstance(assigned, list):
                assert len(member.assignment) == len(assigned), group_id
                named = [f"{held.topic}-{held.partition}" for held in member.assignment if held.topic is not None]
                assert not named or sorted(named) == sorted(assigned), group_id


# --- the specification against the brokers up to 3.9, which tell less


def exported(states: dict[int, PartitionState]) -> dict[str, Any]:
    """What `describe --all-groups --format json` prints of these states."""
    return {
        "groups": {
            group_id: {
                "type": group.description.group_type,
                "state": group.description.state,
                "protocol_type": group.description.protocol_type,
                "assignor": group.description.protocol or "",
                "group_epoch": None,
                "log_partition": at,
                "members": [
                    {
                        "member_id": member.member_id,
                        "instance_id": member.instance_id,
                        "client_id": member.client_id,
                        "host": member.client_host,
                        "assignment": [f"{held.topic}-{held.partition}" for held in member.assignment],
                    }
                    for member in group.description.members
                ],
                "offsets": [
                    {
                        "topic": where.topic,
                        "partition": where.partition,
                        "offset": offset.committed_offset,
                        "leader_epoch": offset.leader_epoch,
                        "metadata": offset.metadata,
                    }
                    for where, offset in state.offsets_of(group_id).items()
                ],
            }
            for at, state in states.items()
            for group_id, group in state.groups.items()
        }
    }


@pytest.mark.parametrize("name", CLASSIC)
def test_specification_answers_as_the_classic_coordinator(name: str) -> None:  # R10c, R12, R14, R33, R34
    assert compared_offsets(oracle(name)) > 0
    assert compare(exported(specified(name)), oracle(name)) == LOST_BY_BROKER.get(name, [])


def test_specification_answers_as_a_classic_coordinator_that_knows_no_consumer_groups() -> None:  # R6
    folder = CAPTURES.parent / "downgraded"
    answers = json.loads((folder / "answers.json").read_text())
    rows = segment_rows(folder)[0]
    assert {row.key[1] for row in rows if row.key is not None and row.control_type is None} >= {1, 2, 3, 5, 8}
    classic = CoordinatorSemantics.CLASSIC
    assert compare(exported({0: partition_state.replay(rows, 0, 1, classic)}), answers) == []
    assert compared_offsets(answers) > 3
    tables = StateInMemory(1, classic)
    tables.fold(rows)
    assert_same(tables, references(rows, 1, classic))


# --- the engines against the specification


@pytest.mark.parametrize("name", CAPTURE_NAMES)
def test_columnar_replay_at_once_and_in_steps_gives_the_specified_state(
    name: str, chance: random.Random
) -> None:  # R10-R16
    """In steps log partitions move on independently; a batch may begin with records of the last one, out of order."""
    parts, expected = capture_rows(name), seen(name)
    tables = StateInMemory(capture_partitions(name), capture_semantics(name))
    tables.fold([row for rows in parts.values() for row in rows])
    assert_same(tables, expected)
    done = dict.fromkeys(parts, 0)
    tables = StateInMemory(capture_partitions(name), capture_semantics(name))
    while any(done[at] < len(rows) for at, rows in parts.items()):
        batch: list[LogRow] = []
        for at, rows in parts.items():
            if chance.random() < 0.3:
                continue
            end = min(len(rows), done[at] + chance.randint(0, max(1, len(rows) // 6)))
            batch += rows[max(0, done[at] - chance.choice([0, 0, 5])) : end]
            done[at] = max(end, done[at])
        chance.shuffle(batch)
        tables.fold(batch, chunk_rows=chance.choice([3, 1000]) if len(batch) < 300 else 1000)
    assert_same(tables, expected)


@pytest.mark.parametrize("name", CAPTURE_NAMES)
def test_coordinator_loads_the_specified_state(name: str, monkeypatch: pytest.MonkeyPatch) -> None:  # R16, R28
    n = capture_partitions(name)
    monkeypatch.setattr("offsets_pipeline.coordinator.loading._COMPACT_AT_BYTES", 1)
    partitions = Partitions(n)
    loading = partitions.begin_load(range(n))
    for rows in capture_rows(name).values():
        loading.add(table_of(rows))
    loading.replay()
    partitions.publish(loading)
    for at, rows in capture_rows(name).items():
        assert partitions.state(at) == (partition_state.replay(rows, at, n) if name in CLASSIC else specified(name)[at])
        assert replayed_as_columns(rows, at, n, monkeypatch, capture_semantics(name)) == specified(name)[at]
