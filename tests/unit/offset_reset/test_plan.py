"""Planning a reset, by hand from the rules of kafka-consumer-groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.errors import InvalidReset, NoSuchGroup, OffsetsError, UnknownTopicOrPartition
from offsets_pipeline.ingest.topic_positions.positions import Position, Positions, TimedOffset
from offsets_pipeline.repair.offset_reset.plan import (
    MAX_OFFSET,
    FromFile,
    GroupOffsets,
    Plain,
    Scenario,
    ShiftBy,
    ToOffset,
    ToTime,
    plan_reset,
)
from offsets_pipeline.semantics.partition_state import TopicPartition

if TYPE_CHECKING:
    from offsets_pipeline.repair.offset_reset.plan import ResetPlan

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
# t-1 has lost its first hundred records; u-0 is empty
KNOWN = Positions("a.csv", {T0: Position(0, 50), T1: Position(100, 200), U0: Position(7, 7)})
IDLE = {"g": GroupOffsets("Empty", {T0: 20, T1: 150})}
NOT_COMPARED = (
    "the new offsets are not checked against the offsets of the partitions; "
    "add --bootstrap-server or --positions, which give the first and last offsets of partitions"
)


def new_offsets(plan: ResetPlan) -> dict[tuple[str, str, int], int]:
    return {(each.group_id, *each.where): each.new_offset for each in plan.offsets}


@pytest.mark.parametrize(
    ("scenario", "t0", "t1"),
    [
        (Plain.TO_EARLIEST, 0, 100),
        (Plain.TO_LATEST, 50, 200),
        (Plain.TO_CURRENT, 20, 150),
        (ToOffset(50), 50, 100),  # the end is an offset to read from
        (ToOffset(51), 50, 100),
        (ToOffset(99), 50, 100),
        (ToOffset(100), 50, 100),
        (ToOffset(101), 50, 101),
        (ToOffset(200), 50, 200),
        (ToOffset(201), 50, 200),
        (ToOffset(-1), 0, 100),
        (ShiftBy(30), 50, 180),
        (ShiftBy(31), 50, 181),
        (ShiftBy(51), 50, 200),
        (ShiftBy(-20), 0, 130),
        (ShiftBy(-21), 0, 129),
        (ShiftBy(-51), 0, 100),
        (ShiftBy(0), 20, 150),
        (FromFile({"g": {T0: 51, T1: 99}}), 50, 100),
        (FromFile({"g": {T0: 50, T1: 100}}), 50, 100),
    ],
)
def test_offsets_are_held_within_what_the_partition_has(scenario: Scenario, t0: int, t1: int) -> None:
    plan = plan_reset(IDLE, scenario, None, KNOWN)
    assert new_offsets(plan) == {("g", "t", 0): t0, ("g", "t", 1): t1}
    assert [each.current_offset for each in plan.offsets] == [20, 150]


def test_each_offset_that_is_moved_into_the_partition_is_warned_of() -> None:
    assert plan_reset(IDLE, ToOffset(75), None, KNOWN).warnings == [
        "t-0: 75 is higher than the latest offset; using 50",
        "t-1: 75 is lower than the earliest offset; using 100",
    ]
    for scenario in (ShiftBy(30), ShiftBy(-20)):  # up to the end, down to the first record
        assert plan_reset(IDLE, scenario, None, KNOWN).warnings == []
    # as often as it is so
    two = {name: GroupOffsets("Empty", {T0: 1}) for name in "ab"}
    assert len(plan_reset(two, ToOffset(51), None, KNOWN).warnings) == 1


def test_without_positions_offsets_are_not_checked_and_a_warning_says_so() -> None:
    plan = plan_reset(IDLE, ShiftBy(-21), None, None)
    assert new_offsets(plan) == {("g", "t", 0): 0, ("g", "t", 1): 129}
    assert plan.warnings == ["t-0: -1 is lower than the earliest offset; using 0", NOT_COMPARED]
    for scenario, offset in ((ToOffset(MAX_OFFSET), MAX_OFFSET), (ToOffset(MAX_OFFSET + 1), MAX_OFFSET)):
        assert new_offsets(plan_reset(IDLE, scenario, None, None))["g", "t", 0] == offset
    file = FromFile({"g": {U0: 3}})
    assert (new_offsets(plan_reset(IDLE, file, None, None)), plan_reset(IDLE, file, None, None).warnings) == (
        {("g", "u", 0): 3},
        [NOT_COMPARED],
    )
    assert plan_reset(IDLE, Plain.TO_CURRENT, None, None).warnings == []  # they stay what they are


def test_current_is_the_committed_offset_or_else_the_latest() -> None:
    behind = {"g": GroupOffsets("Empty", {T1: 5})}
    plan = plan_reset(behind, Plain.TO_CURRENT, [("t", None), ("u", (0,))], KNOWN)
    assert new_offsets(plan) == {("g", "t", 0): 50, ("g", "t", 1): 5, ("g", "u", 0): 7}
    assert plan.warnings == []


def test_topics_are_all_that_is_committed_or_all_their_partitions_or_some() -> None:
    places = {
        None: [T0, T1],
        (("t", None),): [T0, T1],
        (("t", (1,)), ("u", None)): [T1, U0],
        (("t", (1, 0, 1)), ("t", None)): [T0, T1],
    }
    for topics, where in places.items():
        assert [each.where for each in plan_reset(IDLE, Plain.TO_EARLIEST, topics, KNOWN).offsets] == where
    # without positions a topic's partitions are those that the group has committed
    plan = plan_reset(IDLE, ToOffset(1), [("t", None), ("v", (3,))], None)
    assert new_offsets(plan) == {("g", "t", 0): 1, ("g", "t", 1): 1, ("g", "v", 3): 1}


def test_a_group_that_does_not_exist_is_planned_where_topics_are_named() -> None:
    unknown = {"new": GroupOffsets(None, {})}
    assert new_offsets(plan_reset(unknown, Plain.TO_EARLIEST, [("t", None)], KNOWN)) == {
        ("new", "t", 0): 0,
        ("new", "t", 1): 100,
    }
    with pytest.raises(NoSuchGroup, match=r"^no group 'new'; check the name, or name topics to create the group$"):
        plan_reset(unknown, Plain.TO_EARLIEST, None, KNOWN)


def test_groups_with_members_are_left_out_and_named_with_their_states() -> None:
    states = ("Stable", "Empty", "Assigning", "Reconciling", "NotReady", None)
    groups = {f"g{number}": GroupOffsets(state, {T0: 5}) for number, state in enumerate(states)}
    plan = plan_reset(groups, ToOffset(9), [("t", (0,))], KNOWN)
    assert new_offsets(plan) == {("g1", "t", 0): 9, ("g5", "t", 0): 9}
    assert plan.active == {"g0": "Stable", "g2": "Assigning", "g3": "Reconciling", "g4": "NotReady"}
    # nothing is planned for them, so nothing is wrong with it
    assert plan_reset({"g": GroupOffsets("Stable", {})}, ShiftBy(1), [("no", None)], None).active == {"g": "Stable"}


def test_an_empty_group_without_offsets_has_nothing_to_reset() -> None:
    plan = plan_reset(
        {"g": GroupOffsets("Empty", {}), "h": GroupOffsets("Empty", {T0: 1})}, Plain.TO_EARLIEST, None, KNOWN
    )
    assert new_offsets(plan) == {("h", "t", 0): 0}
    assert plan.warnings == ["group 'g' has no committed offset: nothing to reset"]


# the first records at or after 1000 and 2000; none is as young as 3000
TIMED = Positions(
    "a.csv",
    {
        T0: Position(0, 50, (TimedOffset(1000, 10), TimedOffset(2000, 30), TimedOffset(3000, None))),
        T1: Position(100, 200, (TimedOffset(1000, 110), TimedOffset(2000, 110), TimedOffset(3000, 199))),
    },
)


@pytest.mark.parametrize(
    ("time_ms", "t0", "t1", "warnings"),
    [
        (1000, 10, 110, []),
        # between two times: nothing at or after it lies before the offset of the earlier one
        (
            1001,
            10,
            110,
            [
                (
                    "t-0: a.csv has no offset for 1970-01-01T00:00:01.001Z; using 10, "
                    "the offset for 1970-01-01T00:00:01.000Z"
                )
            ],
        ),
        (
            1999,
            10,
            110,
            [
                (
                    "t-0: a.csv has no offset for 1970-01-01T00:00:01.999Z; using 10, "
                    "the offset for 1970-01-01T00:00:01.000Z"
                )
            ],
        ),
        (2000, 30, 110, []),
        (3000, 50, 199, ["t-0 has no record at or after 1970-01-01T00:00:03.000Z; using the latest offset, 50"]),
        (
            3001,
            50,
            199,
            [
                "t-0 has no record at or after 1970-01-01T00:00:03.001Z; using the latest offset, 50",
                (
                    "t-1: a.csv has no offset for 1970-01-01T00:00:03.001Z; using 199, "
                    "the offset for 1970-01-01T00:00:03.000Z"
                ),
            ],
        ),
    ],
)
def test_time_gives_the_first_record_at_or_after_it_else_the_latest(
    time_ms: int, t0: int, t1: int, warnings: list[str]
) -> None:
    plan = plan_reset(IDLE, ToTime(time_ms), None, TIMED)
    assert new_offsets(plan) == {("g", "t", 0): t0, ("g", "t", 1): t1}
    assert plan.warnings == warnings


@pytest.mark.parametrize(
    ("scenario", "topics", "positions", "error", "said"),
    [
        (
            Plain.TO_EARLIEST,
            None,
            None,
            InvalidReset,
            "cannot reset t-0 of group 'g': the scenario needs offsets of the partition; add --",
        ),
        (Plain.TO_LATEST, None, None, InvalidReset, "cannot reset t-0 of group 'g'"),
        (ToTime(5), None, None, InvalidReset, "cannot reset t-0 of group 'g'"),
        (Plain.TO_CURRENT, [("t", (2,))], None, InvalidReset, "cannot reset t-2 of group 'g'"),
        (
            ShiftBy(1),
            [("t", (2,))],
            None,
            InvalidReset,
            "cannot shift t-2: group 'g' has no committed offset for it",
        ),
        (ShiftBy(1), [("u", None)], KNOWN, InvalidReset, "cannot shift u-0: group 'g' has no committed offset"),
        (
            ToTime(999),
            None,
            TIMED,
            InvalidReset,
            "a.csv has no offset of t-0 for 1970-01-01T00:00:00.999Z or an",
        ),
        (ToTime(5), None, KNOWN, InvalidReset, "a.csv has no offset of t-0 for 1970-01-01T00:00:00.005Z"),
        (ToOffset(1), [("v", None)], KNOWN, UnknownTopicOrPartition, "a.csv has no topic 'v'"),
        (ToOffset(1), [("t", (0, 2))], KNOWN, UnknownTopicOrPartition, "a.csv has no partition t-2"),
        (Plain.TO_CURRENT, [("t", (2,))], KNOWN, UnknownTopicOrPartition, "a.csv has no partition t-2"),
        (
            FromFile({"g": {TopicPartition("t", 2): 1}}),
            None,
            KNOWN,
            UnknownTopicOrPartition,
            "a.csv has no partition t-2",
        ),
        (
            ToOffset(1),
            [("t", None), ("v", None)],
            None,
            InvalidReset,
            "no offset is committed for topic 'v'; name its par",
        ),
        (ToOffset(1), [("t", (2**31,))], None, UnknownTopicOrPartition, "2147483648 is not a partition of topic 't'"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    scenario: Scenario,
    topics: list[tuple[str, tuple[int, ...] | None]] | None,
    positions: Positions | None,
    error: type[OffsetsError],
    said: str,
) -> None:
    with pytest.raises(error) as raised:
        plan_reset(IDLE, scenario, topics, positions)
    assert type(raised.value) is error
    assert str(raised.value).startswith(said)
