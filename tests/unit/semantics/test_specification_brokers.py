"""The replay in plain Python against what the brokers of 4.x answered about the same log."""

from __future__ import annotations

from typing import Any

import pytest

from offsets_pipeline.semantics.specification import CommittedOffset, ReferenceState, replay
from tests.logs import CAPTURE_NAMES, capture_partitions, capture_rows, oracle

MODERN = [name for name in CAPTURE_NAMES if name.startswith("4.")]
Answer = dict[tuple[str, int], tuple[int | None, int | None, str | None]]


def states(name: str) -> list[ReferenceState]:
    n = capture_partitions(name)
    return [replay(rows, log_partition, n) for log_partition, rows in capture_rows(name).items()]


def failed(answer: dict[str, Any]) -> bool:
    """Whether the broker did not load the log partition of this group."""
    return "TimeoutException" in str(answer["describe"])


def answers(name: str) -> dict[str, dict[str, Any]]:
    """What the broker answered about offsets; nobody asked it about those of share groups."""
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


def of_reference(found: list[ReferenceState], group_id: str, *, require_stable: bool) -> Answer:
    return {
        identity[1:]: as_answered(offset)
        for state in found
        for identity, offset in state.current_offsets().items()
        if identity[0] == group_id and not (require_stable and identity in state.unstable())
    }


def test_there_are_recorded_brokers() -> None:
    assert len(MODERN) >= 18


@pytest.mark.parametrize("name", MODERN)
def test_groups_are_those_the_broker_lists(name: str) -> None:  # R1, R14
    groups = oracle(name)["groups"]
    listed = {group_id: answer.get("list_type") for group_id, answer in groups.items() if answer["listed"]}
    found = {group_id: group.kind for state in states(name) for group_id, group in state.groups.items()}
    if any(map(failed, groups.values())):  # a broker lists nothing of a log partition it did not load
        found = {
            group_id: kind for group_id, kind in found.items() if group_id in groups and not failed(groups[group_id])
        }
    assert found == listed


@pytest.mark.parametrize("name", MODERN)
def test_offsets_are_those_the_broker_answers(name: str) -> None:  # R10-R14
    found = states(name)
    for group_id, answer in answers(name).items():
        assert of_reference(found, group_id, require_stable=False) == of_broker(answer["offsets"]), group_id


@pytest.mark.parametrize("name", MODERN)
def test_stable_offsets_are_those_the_broker_answers(name: str) -> None:  # R17
    found = states(name)
    for group_id, answer in answers(name).items():
        stable = answer.get("offsets_require_stable", answer["offsets"])
        assert of_reference(found, group_id, require_stable=True) == of_broker(stable), group_id


def test_some_answer_depends_on_stability() -> None:
    assert sum("offsets_require_stable" in answer for name in MODERN for answer in answers(name).values()) >= 4
