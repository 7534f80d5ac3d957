"""Storing, listing, describing and deleting groups, and deleting offsets (R14, R24, R26)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.coordinator.coordinator import ListedGroup
from offsets_pipeline.coordinator.requests import ClassicMember, GroupMetadata, MemberOfGroup
from offsets_pipeline.errors import (
    GroupSubscribedToTopic,
    InvalidCommitOffsetSize,
    InvalidGroupId,
    NonEmptyGroup,
    NoSuchGroup,
)
from offsets_pipeline.kafka.record.decode import decode_key, decode_value
from offsets_pipeline.semantics.group_description import GroupDescription
from tests.unit.coordinator.groups import emptied_kip848, of_kip848, share_group, stable
from tests.unit.coordinator.states import at
from tests.unit.coordinator.stores import NOW_MS, log_of, references_of

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.coordinator.coordinator import Coordinator


def last_records(store: Path, count: int) -> list[tuple[int, bool]]:
    """Type of the last records of the one log partition that has any, and whether they are tombstones."""
    (rows,) = log_of(store).values()
    return [(decode_key(row.key).record_type, row.value is None) for row in rows[-count:]]


def test_a_stored_group_is_described_from_the_log(coordinator: Coordinator, store: Path) -> None:  # R7, R33, R34
    coordinator.store_group(stable("g", "t", "u"))
    group = coordinator.get_group("g")
    assert group is not None
    assert (group.state, group.protocol_type, group.protocol, group.leader) == ("Stable", "consumer", "range", "m")
    assert (group.generation, group.state_timestamp_ms) == (3, NOW_MS)
    assert [(each.member_id, each.instance_id, each.subscribed_topics) for each in group.members] == [
        ("m", None, ["t", "u"]),
        ("s", "i", ["t", "u"]),
    ]
    ((row,),) = log_of(store).values()
    assert row.value is not None
    assert decode_value(2, row.value).version == 3


def test_a_group_is_added_once(coordinator: Coordinator) -> None:
    assert coordinator.add_group(GroupMetadata("g", "consumer"))
    assert not coordinator.add_group(stable())
    group = coordinator.get_group("g")
    assert group is not None
    assert (group.state, group.protocol_type, group.generation) == ("Empty", "consumer", 0)
    coordinator.store_group(stable())
    assert coordinator.describe_groups(["g"])["g"].state == "Stable"  # type: ignore[union-attr]


def test_a_group_of_another_kind_is_replaced_when_it_is_empty(coordinator: Coordinator, store: Path) -> None:
    of_kip848(store, "g")
    with pytest.raises(NonEmptyGroup, match="consumer group with members"):
        coordinator.store_group(stable())
    emptied_kip848(store, "g")
    coordinator.store_group(stable())
    assert last_records(store, 3) == [(6, True), (3, True), (2, False)]
    (state,) = references_of(store, 3).values()
    assert state.groups["g"].group_type == "Classic"


def test_a_member_that_no_record_can_hold_is_refused(coordinator: Coordinator) -> None:
    with pytest.raises(InvalidCommitOffsetSize, match="group 'g'"):
        coordinator.store_group(GroupMetadata("g", members=(ClassicMember("m" * 32_768),)))
    assert coordinator.get_group("g") is None


def test_groups_are_listed_by_state_and_type(coordinator: Coordinator, store: Path) -> None:
    coordinator.commit_offsets("simple", {("t", 0): 1})
    coordinator.store_group(stable("active"))
    of_kip848(store, "new")
    share_group(store, "shared")
    listings = [
        ListedGroup("active", "Classic", "Stable", "consumer"),
        ListedGroup("new", "Consumer", "Stable", "consumer"),
        ListedGroup("shared", "Share", "Empty", "share"),
        ListedGroup("simple", "Classic", "Empty", ""),
    ]
    assert coordinator.list_groups() == listings
    assert coordinator.list_groups(states=["Stable"]) == coordinator.list_groups(states=["sTABLE"]) == listings[:2]
    assert coordinator.list_groups(types=["share"]) == listings[2:3]
    assert coordinator.list_groups(types=["Classic"], protocol_types=["consumer"]) == listings[:1]


def test_each_group_is_described_independently(coordinator: Coordinator) -> None:
    coordinator.commit_offsets("g", {("t", 0): 1})
    answers = coordinator.describe_groups(["g", "nobody", None])  # type: ignore[list-item]
    assert answers["g"] == GroupDescription("Classic", "Empty", "")
    assert isinstance(answers["nobody"], NoSuchGroup)
    assert isinstance(answers[None], InvalidGroupId)  # type: ignore[index]


def test_a_group_is_deleted_with_its_offsets_pending_ones_too(coordinator: Coordinator, store: Path) -> None:  # R26
    coordinator.commit_offsets("g", {("t", 0): 1, ("t", 1): 1})
    coordinator.begin_transaction(7, 0)
    coordinator.txn_commit_offsets(7, 0, "g", {("t", 1): 2, ("t", 2): 2})
    assert coordinator.remove_group("g") == 3
    coordinator.end_transaction(7, 0, commit=True)
    assert coordinator.get_group("g") is None
    assert coordinator.fetch_offsets("g", [("t", 2)])[at("t", 2)].offset is None
    state = references_of(store, 3)[coordinator.partition_for("g")]
    assert state.groups == {}
    assert state.offsets == {}


def test_a_deleted_group_has_tombstones_of_all_that_it_was(coordinator: Coordinator, store: Path) -> None:
    of_kip848(store, "g")
    coordinator.commit_offsets("g", {("t", 0): 1}, member=MemberOfGroup("m", 5))
    with pytest.raises(NonEmptyGroup) as refused:
        coordinator.remove_group("g")
    assert refused.value.kafka_name == "NON_EMPTY_GROUP"
    emptied_kip848(store, "g")
    coordinator.remove_group("g")
    assert last_records(store, 3) == [(1, True), (6, True), (3, True)]
    assert coordinator.list_groups() == []


def test_groups_are_deleted_each_on_its_own(coordinator: Coordinator) -> None:
    for group_id in ("a", "b"):
        coordinator.commit_offsets(group_id, {("t", 0): 1})
    coordinator.store_group(stable("active"))
    answers = coordinator.delete_groups(["a", "active", "nobody", None, "b"])  # type: ignore[list-item]
    assert answers.pop("a") is None
    assert answers.pop("b") is None
    assert {group_id: type(error) for group_id, error in answers.items()} == {
        "active": NonEmptyGroup,
        "nobody": NoSuchGroup,
        None: InvalidGroupId,
    }
    assert [each.group_id for each in coordinator.list_groups()] == ["active"]


def test_offsets_are_deleted_but_those_of_topics_that_are_subscribed_to(coordinator: Coordinator) -> None:  # R26
    coordinator.store_group(stable("g", "t"))
    coordinator.commit_offsets("g", {("t", 0): 1, ("u", 0): 1, ("u", 1): 1}, member=MemberOfGroup("m", 3))
    with pytest.raises(GroupSubscribedToTopic, match="subscribes to t; 1 other offsets were deleted") as refused:
        coordinator.delete_offsets("g", [("t", 0), ("u", 0), ("u", 7)])
    assert refused.value.kafka_name == "GROUP_SUBSCRIBED_TO_TOPIC"
    assert coordinator.fetch_offsets("g").keys() == {at("t", 0), at("u", 1)}
    assert coordinator.delete_offsets("g", [("u", 1), ("u", 1)]) == 1
    assert coordinator.delete_offsets("g", [("u", 1)]) == 0


def test_subscription_that_is_not_known_keeps_all_offsets(coordinator: Coordinator) -> None:
    group = stable("g")
    opaque = ClassicMember("m", subscription=b"?")
    coordinator.store_group(GroupMetadata("g", "consumer", 3, "range", "m", (*group.members[1:], opaque)))
    coordinator.commit_offsets("g", {("u", 0): 1}, member=MemberOfGroup("m", 3))
    with pytest.raises(GroupSubscribedToTopic):
        coordinator.delete_offsets("g", [("u", 0)])


def test_a_regular_expression_subscribes_to_what_it_found(coordinator: Coordinator, store: Path) -> None:
    of_kip848(store, "g", topics=("t",))
    coordinator.commit_offsets("g", {("u", 0): 1}, member=MemberOfGroup("m", 5))
    with pytest.raises(GroupSubscribedToTopic):
        coordinator.delete_offsets("g", [("t", 0)])
    assert coordinator.delete_offsets("g", [("u", 0)]) == 1


def test_pending_offset_is_deleted_too(coordinator: Coordinator) -> None:  # R12
    coordinator.begin_transaction(7, 0)
    coordinator.txn_commit_offsets(7, 0, "g", {("t", 0): 2})
    assert coordinator.delete_offsets("g", [("t", 0)]) == 1
    coordinator.end_transaction(7, 0, commit=True)
    assert coordinator.fetch_offsets("g") == {}
