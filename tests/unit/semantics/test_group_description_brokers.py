"""Groups as described from the log against what the brokers of 4.x answered about them."""

from __future__ import annotations

from typing import Any

import pytest

from offsets_pipeline.semantics.group_description import GroupDescription, describe_group
from tests.logs import CAPTURE_NAMES, capture_partitions, capture_rows, oracle
from tests.unit.fold.state_tables import StateTables

MODERN = [name for name in CAPTURE_NAMES if name.startswith("4.")]


def described(name: str) -> dict[str, GroupDescription]:
    tables = StateTables(capture_partitions(name))
    tables.fold([row for rows in capture_rows(name).values() for row in rows])
    return {group_id: describe_group(*group) for (_, group_id), group in tables.groups().items()}


def answers(name: str) -> dict[str, dict[str, Any]]:
    """The groups that the broker described field by field, and those it only described as classic ones."""
    found = {}
    for group_id, answer in oracle(name)["groups"].items():
        for description in (answer["describe"], answer.get("describe_classic")):
            if isinstance(description, dict) and "state" in description:
                found[group_id] = description
    return found


@pytest.mark.parametrize("name", MODERN)
def test_states_and_protocol_types_are_those_the_broker_lists(name: str) -> None:  # R33, R34
    found = described(name)
    for group_id, answer in oracle(name)["groups"].items():
        if answer["listed"]:
            group = found[group_id]
            listed = answer["list_type"], answer["list_state"], answer["list_protocol_type"]
            assert (group.group_type, group.state, group.protocol_type) == listed, group_id


@pytest.mark.parametrize("name", MODERN)
def test_descriptions_are_those_the_broker_gives(name: str) -> None:  # R33, R34
    found = described(name)
    for group_id, answer in answers(name).items():
        group = found[group_id]
        assert group.state == answer["state"], group_id
        assert (group.protocol or "") == answer.get("assignor", answer.get("protocol_data")), group_id
        assert group.group_epoch == answer.get("group_epoch"), group_id
        expected = {each["member_id"]: (each["client_id"], each["host"]) for each in answer["members"]}
        assert {each.member_id: (each.client_id, each.client_host) for each in group.members} == expected, group_id


@pytest.mark.parametrize("name", MODERN)
def test_members_are_those_the_broker_gives(name: str) -> None:  # R34
    found = described(name)
    for group_id, answer in answers(name).items():
        members = {member.member_id: member for member in found[group_id].members}
        for each in answer["members"]:
            member = members[each["member_id"]]
            assert member.instance_id == each["instance_id"], group_id
            assert member.member_epoch == each.get("member_epoch"), group_id
            assigned = each.get("assignment")
            if isinstance(assigned, list):
                assert len(member.assignment) == len(assigned), group_id
                named = [f"{held.topic}-{held.partition}" for held in member.assignment if held.topic is not None]
                assert not named or sorted(named) == sorted(assigned), group_id


def test_brokers_described_many_groups() -> None:
    assert sum(len(answers(name)) for name in MODERN) > 150
