"""Where the classic coordinator of brokers up to 3.9 differs, in both replays and in retention (R1, R10c, R12 ...)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.semantics import partition_state
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from offsets_pipeline.semantics.group_types import CLASSIC as CLASSIC_GROUP
from offsets_pipeline.semantics.group_types import CONSUMER
from offsets_pipeline.semantics.partition_state import TopicPartition
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.semantics.retention import forecast, holdings_of
from tests.folded_state import StateInMemory, assert_same
from tests.logs import LogPartition, group_key
from tests.replays import references, replayed_as_columns

if TYPE_CHECKING:
    from offsets_pipeline.semantics.partition_state import PartitionState

CLASSIC = CoordinatorSemantics.CLASSIC
MODERN = CoordinatorSemantics.MODERN
OF_G = ("g", "t", 0)
RETENTION_MS = 1_000


def replayed(log: LogPartition, semantics: CoordinatorSemantics = CLASSIC) -> PartitionState:
    """The specification's state, which the columnar replay is found to give, too."""
    for rows in (log.rows, log.rows[::-1]):
        tables = StateInMemory(1, semantics)
        tables.fold(rows)
        assert_same(tables, references(log.rows, 1, semantics))
    return partition_state.replay(log.rows, 0, 1, semantics)


def committed(state: PartitionState) -> dict[int, int]:
    """The committed offsets of group g by partition of topic t."""
    return {where.partition: offset.committed_offset for where, offset in state.offsets_of("g").items()}


@pytest.fixture
def log() -> LogPartition:
    return LogPartition()


def test_commit_brings_back_an_offset_that_a_tombstone_deleted_before(log: LogPartition) -> None:  # R12
    log.commit(OF_G, 1)
    log.commit(OF_G, 2, producer_id=7)
    log.delete(OF_G)
    assert committed(replayed(log)) == {}
    log.end_commit(7)
    assert committed(replayed(log)) == {0: 2}
    assert committed(replayed(log, MODERN)) == {}
    log.delete(OF_G)
    assert committed(replayed(log)) == {}


@pytest.mark.parametrize("first", [7, 8])
def test_of_offsets_brought_back_the_higher_record_offset_wins(log: LogPartition, first: int) -> None:  # R10c
    log.commit(OF_G, 1, producer_id=7)
    log.commit(OF_G, 2, producer_id=8)
    log.delete(OF_G)
    log.end_commit(first)
    log.end_commit(15 - first)
    assert committed(replayed(log)) == {0: 2}


def test_offset_brought_back_does_not_win_over_a_commit_after_the_tombstone(log: LogPartition) -> None:  # R10c
    log.commit(OF_G, 1, producer_id=7)
    log.delete(OF_G)
    log.commit(OF_G, 2)
    log.end_commit(7)
    assert committed(replayed(log)) == {0: 2}


def test_tombstone_in_a_transaction_takes_back_its_own_commit_alone(log: LogPartition) -> None:  # R12
    log.commit(OF_G, 1)
    log.commit(OF_G, 2, producer_id=7)
    log.commit(OF_G, 3, producer_id=8)
    log.delete(OF_G, producer_id=7)
    assert committed(replayed(log)) == {0: 1}
    log.end_commit(7)
    assert committed(replayed(log)) == {0: 1}
    log.end_commit(8)
    assert committed(replayed(log)) == {0: 3}


def test_group_without_metadata_is_gone_with_its_last_offset(log: LogPartition) -> None:  # R14
    log.commit(OF_G, 1)
    log.commit(("h", "t", 0), 1, producer_id=7)
    assert replayed(log).groups.keys() == {"g", "h"}
    log.delete(OF_G)
    log.end_abort(7)
    assert replayed(log).groups == {}
    assert replayed(log, MODERN).groups.keys() == {"g", "h"}


def test_offsets_that_a_group_tombstone_left_behind_make_a_simple_group(log: LogPartition) -> None:  # R14
    log.commit(OF_G, 1)
    log.group(2, "g", protocol_type="consumer")
    log.group_tombstone(2, "g")
    state = replayed(log)
    assert state.groups["g"].group_type == CLASSIC_GROUP
    assert committed(state) == {0: 1}
    assert replayed(log, MODERN).groups == {}


def test_records_of_newer_groups_are_unknown_even_damaged_ones(log: LogPartition) -> None:  # R6
    log.commit(OF_G, 1)
    log.group(3, "g", epoch=1)
    log.record(group_key(5, "h", "m")[:4], b"?")
    state = replayed(log)
    assert (state.unknown_records, state.quarantined, list(state.groups)) == (2, {}, ["g"])
    assert (state.groups["g"].group_type, committed(state)) == (CLASSIC_GROUP, {0: 1})
    assert replayed(log, MODERN).groups["g"].group_type == CONSUMER


def test_group_with_metadata_stays_without_offsets(log: LogPartition) -> None:  # R14
    log.group(2, "g", protocol_type="consumer")
    log.commit(OF_G, 1)
    log.delete(OF_G)
    assert replayed(log).groups.keys() == {"g"}


def test_misplaced_group_answers_like_any_other() -> None:  # R1
    log = LogPartition(1 - partition_for("g", 2))
    log.commit(OF_G, 1)
    for semantics, answered in ((CLASSIC, {0: 1}), (MODERN, {})):
        assert committed(partition_state.replay(log.rows, log.log_partition, 2, semantics)) == answered
        tables = StateInMemory(2, semantics)
        tables.fold(log.rows)
        assert_same(tables, references(log.rows, 2, semantics))


def test_a_pending_commit_keeps_its_group_but_not_its_offset(log: LogPartition) -> None:  # R20
    """As brokers of 2.8 to 3.9 expire, whose own classes ran over such logs; 4.2 keeps the offset."""
    log.group(2, "g", protocol_type="consumer", generation=1)
    log.commit(OF_G, 1, commit_timestamp=0)
    log.commit(OF_G, 2, producer_id=7, commit_timestamp=0)
    for semantics, expired in ((CLASSIC, [TopicPartition("t", 0)]), (MODERN, [])):
        held = holdings_of(replayed(log, semantics), "g")
        assert held is not None
        found = forecast(held, RETENTION_MS, semantics)
        assert [each.where for each in found.expiries if each.is_due(RETENTION_MS)] == expired
        assert not found.is_removed(RETENTION_MS)


def test_group_without_a_generation_gets_no_tombstone_of_its_own(log: LogPartition) -> None:  # R21
    log.commit(OF_G, 1, commit_timestamp=0)
    log.group(2, "h", protocol_type="consumer", generation=1)
    log.group(2, "i", protocol_type="consumer", generation=0)
    of_classic = {"g": False, "h": True}
    for semantics, removed in ((CLASSIC, of_classic), (MODERN, dict.fromkeys("ghi", True))):
        state = replayed(log, semantics)
        held = {group_id: holdings_of(state, group_id) for group_id in state.groups}
        found = {
            group_id: forecast(each, RETENTION_MS, semantics).expired(RETENTION_MS)
            for group_id, each in held.items()
            if each is not None
        }
        assert {group_id: each.is_removed for group_id, each in found.items() if each is not None} == removed
        assert found["g"] is not None
        assert [each.where for each in found["g"].expired] == [TopicPartition("t", 0)]


def test_commits_decoded_together_replay_as_records(log: LogPartition, monkeypatch: pytest.MonkeyPatch) -> None:
    log.commit(OF_G, 1, producer_id=7)
    log.delete(OF_G)
    log.commit(OF_G, 3, producer_id=8)
    log.delete(OF_G, producer_id=8)
    log.end_commit(7)
    log.end_commit(8)
    expected = replayed(log)
    assert replayed_as_columns(log.rows, 0, 1, monkeypatch, CLASSIC) == expected
    assert replayed_as_columns(log.rows * 2, 0, 1, monkeypatch, CLASSIC) == expected  # R15
