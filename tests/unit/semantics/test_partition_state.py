"""The coordinator's replay against the reference replay, and against what brokers answered."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offsets_pipeline.semantics.partition_state import PartitionState
from offsets_pipeline.semantics.specification import replay
from tests.logs import CAPTURE_NAMES, LogPartition, capture_partitions, capture_rows, oracle
from tests.property.coordinator_logs import coordinator_logs
from tests.property.random_logs import Log, logs
from tests.unit.coordinator.states import as_reference, at, of_reference, replayed, replayed_as_columns

MODERN = [name for name in CAPTURE_NAMES if name.startswith("4.")]
FIXED = settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)


@FIXED
@given(logs(log_partitions=2, max_records=40))
def test_any_log_replays_to_what_the_reference_says(log: Log) -> None:  # R10-R14
    for partition, rows in log.partitions.items():
        assert as_reference(replayed(rows, partition, 2)) == of_reference(replay(rows, partition, 2))


@FIXED
@given(logs(log_partitions=2, max_records=40))
def test_any_log_replays_to_the_same_by_columns(log: Log) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for partition, rows in log.partitions.items():
            state = replayed_as_columns(rows, partition, 2, patch)
            assert as_reference(state) == of_reference(replay(rows, partition, 2))


@FIXED
@given(coordinator_logs(), st.data())
def test_records_that_come_again_change_nothing(rows: list[Any], data: st.DataObject) -> None:  # R15, R16
    state = PartitionState(0, 1)
    done = 0
    while done < len(rows):
        again = data.draw(st.integers(0, done))
        done = data.draw(st.integers(done + 1, len(rows)))
        for row in rows[again:done]:
            state.replay(row)
        assert as_reference(state) == of_reference(replay(rows[:done], 0, 1))


@pytest.mark.parametrize("name", MODERN)
def test_recorded_log_replays_to_what_the_reference_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n = capture_partitions(name)
    for partition, rows in capture_rows(name).items():
        expected = of_reference(replay(rows, partition, n))
        assert as_reference(replayed(rows, partition, n)) == expected
        assert as_reference(replayed_as_columns(rows, partition, n, monkeypatch)) == expected


@pytest.mark.parametrize("name", MODERN)
def test_groups_are_described_as_the_broker_did(name: str) -> None:  # R33, R34
    n = capture_partitions(name)
    states = {partition: replayed(rows, partition, n) for partition, rows in capture_rows(name).items()}
    described = {group_id: group.description for state in states.values() for group_id, group in state.groups.items()}
    for group_id, answer in oracle(name)["groups"].items():
        if answer["listed"]:
            group = described[group_id]
            listed = answer["list_type"], answer["list_state"], answer["list_protocol_type"]
            assert (group.group_type, group.state, group.protocol_type) == listed, group_id


def test_open_transaction_is_known_of_its_group_until_its_marker() -> None:
    log = LogPartition()
    log.commit(("g", "t", 0), 1, producer_id=7)
    log.delete(("g", "t", 0))
    state = replayed(log.rows, 0, 1)
    assert not state.is_pending("g", at())  # R12
    assert state.open_transactions == {"g": {7}}
    log.end_abort(7)
    assert replayed(log.rows, 0, 1).open_transactions == {}
