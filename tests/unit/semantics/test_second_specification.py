"""The two specifications of the rules agree, on recorded logs and on random ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.kafka.record.schema import UNKNOWN_TAGGED_FIELDS
from offsets_pipeline.semantics import partition_state
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from tests.logs import CAPTURE_NAMES, NO_TOPIC_ID, LogPartition, capture_partitions, capture_rows, capture_semantics
from tests.random_logs import ANY, IN_SEGMENTS, LEGAL, NARROW, Shape, random_log, several
from tests.replays import Replayed
from tests.second_specification import CLASSIC, Record, State, state_of

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from offsets_pipeline.semantics.log_row import LogRow
    from offsets_pipeline.semantics.partition_state import Group as FirstGroup
    from offsets_pipeline.semantics.partition_state import PartitionState
    from tests.second_specification import Group

SHAPES = {"any": ANY, "legal": LEGAL, "narrow": NARROW, "in segments": IN_SEGMENTS, "several": several(3)}
QUICK_LOGS, LONG_LOGS = 60, 1_000  # of each shape and semantics
MOST_STEPS = 60
IDENTITY = ("g", "t", 0)

each_semantics = pytest.mark.parametrize("semantics", list(CoordinatorSemantics))
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())


@pytest.mark.parametrize("name", CAPTURE_NAMES)
def test_recorded_logs(name: str) -> None:
    for log_partition, rows in capture_rows(name).items():
        compare(rows, log_partition, capture_partitions(name), capture_semantics(name))


@each_semantics
@each_shape
def test_random_logs(shape: Shape, semantics: CoordinatorSemantics, chance: random.Random) -> None:
    compare_random_logs(QUICK_LOGS, shape, semantics, chance)


@pytest.mark.long
@each_semantics
@each_shape
def test_many_random_logs(shape: Shape, semantics: CoordinatorSemantics, chance: random.Random) -> None:
    compare_random_logs(LONG_LOGS, shape, semantics, chance)


@pytest.mark.parametrize("named", [[None, None], ["range", None], ["range", "uniform"], ["range", "range", "uniform"]])
def test_assignors(named: list[str | None]) -> None:  # R34; random members name none
    log = LogPartition()
    for number, assignor in enumerate(named):
        log.group(5, "g", f"m{number}", server_assignor=assignor)
    compare(log.rows, 0, 1, CoordinatorSemantics.MODERN)


@each_semantics
def test_commit_of_a_transaction_after_tombstones(semantics: CoordinatorSemantics) -> None:  # R10c, R12
    log = LogPartition()
    log.commit(IDENTITY, 1, 7)
    log.commit(IDENTITY, 2)
    log.delete(IDENTITY)
    log.commit(IDENTITY, 3, 8)
    log.delete(IDENTITY, 8)
    log.end_commit(8)
    log.end_commit(7)
    compare(log.rows, 0, 1, semantics)
    offsets = state_of(log.rows, 0, 1, semantics).offsets
    assert [record.at for record in offsets.values()] == ([0] if semantics.is_classic else [])


def compare_random_logs(count: int, shape: Shape, semantics: CoordinatorSemantics, chance: random.Random) -> None:
    for _ in range(count):
        log = random_log(chance, chance.randint(1, MOST_STEPS), shape)
        for log_partition, rows in log.partitions.items():
            compare(rows, log_partition, shape.log_partitions, semantics)


def compare(
    rows: Sequence[LogRow], log_partition: int, offsets_partitions: int, semantics: CoordinatorSemantics
) -> None:
    """Fails if the two specifications differ about a log partition."""
    first = of_first(partition_state.replay(rows, log_partition, offsets_partitions, semantics))
    second = of_second(state_of(rows, log_partition, offsets_partitions, semantics))
    for what, found in first.items():
        assert second[what] == found, what
    assert first.keys() == second.keys()


def of_first(state: PartitionState) -> dict[str, Any]:
    """What both specifications know, from the first."""
    replayed = Replayed.of(state)
    return {
        "offsets": {identity: tuple(each) for identity, each in replayed.offsets.items()},
        "answered": {
            identity: tuple(each)
            for identity, each in replayed.current.items()
            if each.committed_offset >= 0  # R38
        },
        "pending": {
            producer_id: {identity: tuple(each) for identity, each in offsets.items()}
            for producer_id, offsets in replayed.pending.items()
            if offsets
        },
        "unstable": replayed.unstable,
        "records": {
            group_id: (group.group_type.lower(), _without_unknown_tags(group.records))
            for group_id, group in replayed.groups.items()
        },
        "descriptions": {group_id: _first_description(group) for group_id, group in state.groups.items()},
        "misplaced": {group_id for group_id in state.groups if state.is_misplaced(group_id)},
        "quarantined": set(replayed.quarantined),
        "unknown records": replayed.unknown_records,
        "topic names": replayed.topic_names,
    }


def of_second(state: State) -> dict[str, Any]:
    """What both specifications know, from the second."""
    return {
        "offsets": {identity: _commit(record) for identity, record in state.offsets.items()},
        "answered": {identity: _commit(record) for identity, record in state.answered.items()},
        "pending": {
            producer_id: {identity: _commit(record) for identity, record in offsets.items()}
            for producer_id, offsets in state.pending.items()
        },
        "unstable": state.unstable,
        "records": {group_id: (group.group_type, group.records) for group_id, group in state.groups.items()},
        "descriptions": {group_id: _second_description(group) for group_id, group in state.groups.items()},
        "misplaced": state.misplaced,
        "quarantined": state.quarantined,
        "unknown records": state.unknown_records,
        "topic names": state.topic_names,
    }


def _commit(record: Record) -> tuple[Any, ...]:
    value = record.value or {}
    topic_id = None if value["topic_id"] == NO_TOPIC_ID else value["topic_id"]
    names = ("offset", "leader_epoch", "metadata", "commit_timestamp", "expire_timestamp")
    return (record.at, *(value[name] for name in names), topic_id)


def _first_description(group: FirstGroup) -> tuple[Any, ...]:
    found = group.description
    members = {
        each.member_id: (
            each.client_id,
            each.client_host,
            [(assigned.topic or assigned.topic_id, assigned.partition) for assigned in each.assignment],
        )
        for each in found.members
    }
    if group.group_type.lower() == CLASSIC:  # the bytes of an assignment are compared as a record
        members = {name: (client_id, host, []) for name, (client_id, host, _) in members.items()}
    return found.state, found.protocol_type, found.group_epoch, found.assignment_epoch, found.protocol, members


def _second_description(group: Group) -> tuple[Any, ...]:
    found = group.describe()
    members = {
        name: (client_id, host, [] if group.group_type == CLASSIC else assignment)
        for name, (client_id, host, assignment) in found.members.items()
    }
    return found.state, found.protocol_type, found.epoch, found.assignment_epoch, found.assignor, members


def _without_unknown_tags(value: Any) -> Any:  # noqa: ANN401 - any field of a record
    if isinstance(value, dict):
        return {name: _without_unknown_tags(each) for name, each in value.items() if name != UNKNOWN_TAGGED_FIELDS}
    return [_without_unknown_tags(each) for each in value] if isinstance(value, list) else value
