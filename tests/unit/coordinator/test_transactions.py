"""Transactions of the coordinator (R10, R11, R17)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.coordinator.requests import MemberOfGroup
from tests.unit.coordinator.groups import of_kip848, stable
from tests.unit.coordinator.states import refusal
from tests.unit.coordinator.stores import NOW_MS, log_of, opened, references_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from offsets_pipeline.coordinator.coordinator import Coordinator


@pytest.fixture
def other(store: Path, coordinator: Coordinator) -> Iterator[Coordinator]:
    """Another coordinator of the same store."""
    with opened(store) as other:
        yield other


def offsets(coordinator: Coordinator, group_id: str = "g") -> dict[int, int | None]:
    return {where.partition: each.offset for where, each in coordinator.fetch_offsets(group_id).items()}


def refusals(coordinator: Coordinator, producer_id: int, epoch: int) -> list[str]:
    """Kafka's names of the errors of a commit, of an end with COMMIT, of one with ABORT and of a beginning."""
    ends = [refusal(coordinator.end_transaction, producer_id, epoch, commit=each) for each in (True, False)]
    commit = refusal(coordinator.txn_commit_offsets, producer_id, epoch, "g", {("t", 0): 1})
    return [commit, *ends, refusal(coordinator.begin_transaction, producer_id, epoch)]


def markers(store: Path) -> list[tuple[int, int | None, str]]:
    return sorted(
        (partition, row.producer_id, row.control_type)
        for partition, rows in log_of(store).items()
        for row in rows
        if row.control_type is not None
    )


def test_offsets_of_a_transaction_show_when_it_commits(coordinator: Coordinator, store: Path) -> None:
    coordinator.commit_offsets("g", {("t", 0): 1})
    coordinator.begin_transaction(7, 0)
    coordinator.txn_commit_offsets(7, 0, "g", {("t", 0): 2, ("t", 1): 2})
    assert offsets(coordinator) == {0: 1}
    coordinator.end_transaction(7, 0, commit=True)
    assert offsets(coordinator) == {0: 2, 1: 2}
    (state,) = (each for each in references_of(store, 3).values() if each.offsets)
    assert {identity[2]: offset.committed_offset for identity, offset in state.current.items()} == {
        0: 2,
        1: 2,
    }


def test_offsets_of_an_aborted_transaction_never_show(coordinator: Coordinator) -> None:
    coordinator.begin_transaction(7, 0)
    coordinator.txn_commit_offsets(7, 0, "g", {("t", 0): 2})
    coordinator.end_transaction(7, 0, commit=False)
    assert offsets(coordinator) == {}
    assert coordinator.get_group("g") is not None  # R14


def test_the_higher_record_offset_wins_whichever_marker_comes_first(coordinator: Coordinator) -> None:  # R10
    coordinator.begin_transaction(7, 0)
    coordinator.begin_transaction(8, 0)
    coordinator.txn_commit_offsets(7, 0, "g", {("t", 0): 1})
    coordinator.txn_commit_offsets(8, 0, "g", {("t", 0): 2})
    coordinator.end_transaction(8, 0, commit=True)
    coordinator.end_transaction(7, 0, commit=True)
    assert offsets(coordinator) == {0: 2}


def test_a_transaction_over_several_log_partitions_ends_in_one_append(coordinator: Coordinator, store: Path) -> None:
    groups = ["a", "b", "c"]
    assert {coordinator.partition_for(each) for each in groups} == {0, 1, 2}
    coordinator.begin_transaction(7, 0)
    for group_id in groups:
        coordinator.txn_commit_offsets(7, 0, group_id, {("t", 0): 5})
    before = coordinator.gauges().appends
    coordinator.end_transaction(7, 0, commit=True)
    assert coordinator.gauges().appends == before + 1
    assert [offsets(coordinator, each) for each in groups] == [{0: 5}] * 3
    assert [each for each in markers(store) if each[2] == "COMMIT"] == [(n, 7, "COMMIT") for n in range(3)]


def test_transaction_begun_in_another_process_continues_here(coordinator: Coordinator, other: Coordinator) -> None:
    coordinator.begin_transaction(7, 0)
    coordinator.txn_commit_offsets(7, 0, "g", {("t", 0): 1})
    other.txn_commit_offsets(7, 0, "g", {("t", 1): 1})
    other.end_transaction(7, 0, commit=True)
    assert offsets(coordinator) == {0: 1, 1: 1}


def test_an_older_epoch_is_fenced_and_what_it_had_open_aborted(coordinator: Coordinator, other: Coordinator) -> None:
    coordinator.begin_transaction(7, 0)
    coordinator.txn_commit_offsets(7, 0, "g", {("t", 0): 1})
    other.begin_transaction(7, 1)
    assert coordinator.fetch_offsets("g", [("t", 0)], require_stable=True)[("t", 0)].error is None  # type: ignore[index]
    assert refusals(coordinator, 7, 0) == ["INVALID_PRODUCER_EPOCH"] * 4
    other.txn_commit_offsets(7, 1, "g", {("t", 0): 3})
    other.end_transaction(7, 1, commit=True)
    assert offsets(coordinator) == {0: 3}


def test_an_older_epoch_without_records_is_fenced_everywhere_too(
    coordinator: Coordinator, other: Coordinator, store: Path
) -> None:
    coordinator.begin_transaction(7, 0)
    other.begin_transaction(7, 1)  # nothing is in the log yet but the epochs
    assert markers(store) == [(1, 7, "ABORT"), (1, 7, "ABORT")]
    with opened(store) as third:
        for each in (coordinator, third):
            assert refusals(each, 7, 0) == ["INVALID_PRODUCER_EPOCH"] * 4


def test_a_known_epoch_begins_without_an_append(coordinator: Coordinator) -> None:
    for offset in range(3):
        coordinator.begin_transaction(7, 4)
        coordinator.txn_commit_offsets(7, 4, "g", {("t", 0): offset})
        coordinator.end_transaction(7, 4, commit=True)
    assert coordinator.gauges().appends == 1 + 2 * 3


def test_a_producer_has_one_transaction_at_a_time(coordinator: Coordinator, other: Coordinator) -> None:
    coordinator.begin_transaction(7, 0)
    assert refusal(coordinator.begin_transaction, 7, 0) == "CONCURRENT_TRANSACTIONS"
    coordinator.txn_commit_offsets(7, 0, "g", {("t", 0): 1})
    assert refusal(other.begin_transaction, 7, 0) == "CONCURRENT_TRANSACTIONS"
    assert refusal(other.begin_transaction, 7, 1) == ""  # aborts that of the older epoch
    assert refusals(coordinator, 7, 0) == ["INVALID_PRODUCER_EPOCH"] * 4


def test_nothing_joins_a_transaction_that_is_ending(coordinator: Coordinator) -> None:
    coordinator.begin_transaction(7, 0)
    coordinator._transactions._ending.add(7)  # as while its markers are written
    assert refusals(coordinator, 7, 0) == ["CONCURRENT_TRANSACTIONS"] * 4
    coordinator._transactions._ending.discard(7)
    coordinator.end_transaction(7, 0, commit=True)


def test_without_a_beginning_there_is_nothing_to_commit_to_or_to_end(coordinator: Coordinator) -> None:
    coordinator.begin_transaction(7, 0)
    coordinator.end_transaction(7, 0, commit=True)  # of nothing
    coordinator.end_transaction(7, 0, commit=True)  # asked again: it is so
    assert refusals(coordinator, 7, 0) == ["INVALID_TXN_STATE", "", "INVALID_TXN_STATE", ""]
    for producer in ((7, 1), (9, 0)):
        assert refusals(coordinator, *producer) == [*["INVALID_TXN_STATE"] * 3, ""]


def test_producers_and_timeouts_have_bounds(coordinator: Coordinator) -> None:
    refused: list[tuple[Any, Any]] = [(7, -1), (7, 32_767), (-1, 0), (2**63, 0), (3.5, 0), (3, True)]
    for each in refused:
        assert refusal(coordinator.begin_transaction, *each) == "INVALID_PRODUCER_EPOCH"
    for producer in ((0, 0), (7, 32_766), (2**63 - 1, 0)):
        assert refusal(coordinator.begin_transaction, *producer) == ""
    timeouts = [
        refusal(coordinator.begin_transaction, 10 + each, 0, transaction_timeout_ms=each)
        for each in (0, 900_001, 1, 900_000)
    ]
    assert timeouts == ["INVALID_TRANSACTION_TIMEOUT"] * 2 + [""] * 2


def test_one_that_hangs_is_aborted_and_its_producer_fenced(store: Path) -> None:
    clock = FixedClock(NOW_MS)
    with opened(store, clock) as coordinator:
        coordinator.begin_transaction(7, 0)
        coordinator.end_transaction(7, 0, commit=True)  # later requests to end it are for the next one
        coordinator.begin_transaction(7, 0, transaction_timeout_ms=1_000)
        coordinator.txn_commit_offsets(7, 0, "g", {("t", 0): 1})
        coordinator.begin_transaction(8, 3)
        clock.advance_ms(999)
        assert coordinator.abort_overdue_transactions() == []
        clock.advance_ms(1)
        assert coordinator.abort_overdue_transactions() == [7]
        assert coordinator.abort_overdue_transactions() == []
        assert refusals(coordinator, 7, 0) == ["INVALID_PRODUCER_EPOCH"] * 4
        coordinator.txn_commit_offsets(8, 3, "g", {("t", 0): 9})  # the other one goes on
        coordinator.end_transaction(8, 3, commit=True)
        coordinator.begin_transaction(7, 1)
        assert offsets(coordinator) == {0: 9}


def test_one_that_its_process_left_open_is_aborted_after_the_longest_time_there_is(store: Path) -> None:
    clock = FixedClock(NOW_MS)
    with opened(store, clock) as gone:
        gone.begin_transaction(7, 0)
        gone.txn_commit_offsets(7, 0, "g", {("t", 0): 1})
    with opened(store, clock, transaction_max_timeout_ms=100_000) as coordinator:
        clock.advance_ms(99_999)
        assert coordinator.abort_overdue_transactions() == []
        clock.advance_ms(1)
        assert coordinator.abort_overdue_transactions() == [7]
        assert not coordinator._core.partitions.state(coordinator.partition_for("g")).pending
        assert refusals(coordinator, 7, 0) == ["INVALID_PRODUCER_EPOCH"] * 4


def test_the_last_epoch_that_a_producer_can_have_is_fenced_too(store: Path) -> None:
    clock = FixedClock(NOW_MS)
    with opened(store, clock) as coordinator, opened(store, clock, transaction_max_timeout_ms=1_000) as other:
        coordinator.begin_transaction(7, 32_766)
        coordinator.txn_commit_offsets(7, 32_766, "g", {("t", 0): 1})
        clock.advance_ms(1_000)
        assert other.abort_overdue_transactions() == [7]
        assert refusals(coordinator, 7, 32_766) == ["INVALID_PRODUCER_EPOCH"] * 4


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_transaction_that_ended_in_the_log_has_not_the_other_end(
    coordinator: Coordinator, other: Coordinator, *, is_commit: bool
) -> None:
    """As after an end whose answer was lost: the coordinator that began the transaction does not know of it."""
    coordinator.begin_transaction(7, 0)
    coordinator.txn_commit_offsets(7, 0, "g", {("t", 0): 1})
    other.end_transaction(7, 0, commit=is_commit)
    assert refusal(coordinator.txn_commit_offsets, 7, 0, "g", {("t", 1): 1}) == "INVALID_TXN_STATE"
    assert refusal(coordinator.end_transaction, 7, 0, commit=not is_commit) == "INVALID_TXN_STATE"
    assert refusal(coordinator.end_transaction, 7, 0, commit=is_commit) == ""
    assert offsets(coordinator) == ({0: 1} if is_commit else {})
    coordinator.begin_transaction(7, 0)
    coordinator.txn_commit_offsets(7, 0, "g", {("t", 0): 2})
    coordinator.end_transaction(7, 0, commit=True)
    assert offsets(coordinator) == {0: 2}


def test_a_transaction_that_ended_in_the_log_is_not_overdue(store: Path) -> None:
    clock = FixedClock(NOW_MS)
    with opened(store, clock) as coordinator, opened(store, clock) as other:
        coordinator.begin_transaction(7, 0)
        coordinator.txn_commit_offsets(7, 0, "g", {("t", 0): 1})
        other.end_transaction(7, 0, commit=True)
        clock.advance_ms(900_000)
        assert coordinator.abort_overdue_transactions() == []


def test_members_are_checked_in_a_transaction_too(coordinator: Coordinator, store: Path) -> None:  # R25
    coordinator.store_group(stable())
    of_kip848(store, "c")
    coordinator.begin_transaction(7, 0)
    coordinator.txn_commit_offsets(7, 0, "g", {("t", 0): 1}, member=MemberOfGroup("m", 3))
    coordinator.txn_commit_offsets(7, 0, "g", {("t", 1): 1})  # older clients name no member
    coordinator.txn_commit_offsets(7, 0, "c", {("t", 1): 1})
    for group_id, member in (
        ("g", MemberOfGroup("m", 2)),
        ("c", MemberOfGroup("m", 4)),
        ("new", MemberOfGroup("m", 0)),
    ):
        found = refusal(coordinator.txn_commit_offsets, 7, 0, group_id, {("t", 0): 1}, member=member)
        assert found == "ILLEGAL_GENERATION"
    coordinator.end_transaction(7, 0, commit=True)
    assert offsets(coordinator) == {0: 1, 1: 1}
