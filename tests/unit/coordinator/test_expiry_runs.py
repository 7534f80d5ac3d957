"""Expiry runs: their appends, their reports, and failed appends (R21, R22)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.coordinator import expiration
from offsets_pipeline.coordinator.expiry_runs import expire_once, open_coordinator
from offsets_pipeline.coordinator.handlers import FetchedOffset
from offsets_pipeline.coordinator.requests import GroupMetadata
from offsets_pipeline.errors import CoordinatorNotAvailable, StorageFailed
from offsets_pipeline.kafka.record.decode import decode_key
from offsets_pipeline.semantics.partitioning import partition_for
from tests.replays import Replayed, replay
from tests.unit.coordinator.groups import stable
from tests.unit.coordinator.states import at
from tests.unit.coordinator.stores import NOW_MS, log_of, opened

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.coordinator.owned_log import PreparedAppend
    from offsets_pipeline.store.delta.snapshot import Commit


def test_expiry_appends_tombstones_and_the_group_s_own(store: Path) -> None:  # R21, R22
    clock = FixedClock(NOW_MS)
    with opened(store, clock, offsets_retention_minutes=1) as coordinator:
        partition = coordinator.partition_for("g")
        coordinator.commit_offsets("g", {("t", 0): 1, ("t", 1): 1})
        coordinator.store_group(stable("active"))
        clock.advance_ms(59_999)
        assert coordinator.expire(partition) == []
        assert [each.at_ms for each in coordinator.forecast("g")] == [NOW_MS + 60_000] * 2
        clock.advance_ms(1)
        (found,) = coordinator.expire(partition)
        assert (len(found.expired), found.is_removed) == (2, True)
        assert coordinator.expire(partition) == []
        assert coordinator.get_group("g") is None
        assert (coordinator.gauges().expired_offsets, coordinator.gauges().expired_groups) == (2, 1)
        rows = log_of(store)[partition]
        assert [(decode_key(row.key).record_type, row.value) for row in rows[-3:]] == [(1, None), (1, None), (2, None)]
        state = coordinator._core.partitions.state(partition)
        assert Replayed.of(state) == replay(rows, partition, 3)


def test_time_of_the_run_is_an_argument(store: Path) -> None:
    with opened(store, offsets_retention_minutes=1) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 1})
        assert coordinator.expire(coordinator.partition_for("g"), NOW_MS + 59_999) == []
        (found,) = coordinator.expire(coordinator.partition_for("g"), NOW_MS + 60_000)
        assert found.is_removed


def test_nothing_expires_beside_a_run(store: Path) -> None:
    with opened(store) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 1})
    with open_coordinator(str(store), Settings(), FixedClock(NOW_MS)):
        assert "offsets-housekeeping" not in {each.name for each in threading.enumerate()}


def test_run_aborts_the_transaction_of_a_process_that_was_killed(store: Path) -> None:  # R11, R20
    clock = FixedClock(NOW_MS)
    with opened(store, clock) as killed:
        killed.commit_offsets("g", {("t", 0): 1}, retention_time_ms=1)
        killed.begin_transaction(1, 0)
        killed.txn_commit_offsets(1, 0, "g", {("t", 0): 5})
    with opened(store, clock, transaction_max_timeout_ms=60_000) as coordinator:
        clock.advance_ms(59_999)
        assert expire_once(coordinator, str(store), clock).offsets == 0  # the open transaction holds it
        assert coordinator.fetch_offsets("g", [at()], require_stable=True)[at()].error is not None
        clock.advance_ms(1)
        assert expire_once(coordinator, str(store), clock).offsets == 1
        assert coordinator.fetch_offsets("g", [at()], require_stable=True)[at()] == FetchedOffset(None)
        assert coordinator.abort_overdue_transactions() == []


def test_run_that_cannot_abort_a_transaction_expires_offsets(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> list[int]:
        raise StorageFailed("disk away")

    clock = FixedClock(NOW_MS)
    with opened(store, clock) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 1}, retention_time_ms=1)
        monkeypatch.setattr(coordinator, "abort_overdue_transactions", fail)
        clock.advance_ms(1)
        run = expire_once(coordinator, str(store), clock)
    assert (run.offsets, run.failed) == (1, [])
    assert (
        f"cannot abort overdue transactions of {store}: disk away; the next run tries again" in capsys.readouterr().err
    )


def test_partition_that_fails_is_reported_and_tried_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # R22
    with opened(store, offsets_retention_minutes=1) as coordinator:
        for group_id in ("a", "b", "c"):
            coordinator.commit_offsets(group_id, {("t", 0): 1})
        write = coordinator._core.log.write

        def failing(append: PreparedAppend, *, durable: bool) -> list[Commit]:
            if 1 in append.ends:
                raise OSError("disk full")
            return write(append, durable=durable)

        monkeypatch.setattr(coordinator._core.log, "write", failing)
        reports = coordinator.expire_loaded(NOW_MS + 60_000)
        assert [(each.log_partition, len(each.groups), type(each.error)) for each in reports] == [
            (0, 1, type(None)),
            (1, 0, CoordinatorNotAvailable),
            (2, 1, type(None)),
        ]
        assert len(coordinator.list_groups()) == 1
        monkeypatch.undo()
        assert sum(len(each.groups) for each in coordinator.expire_loaded(NOW_MS + 60_000)) == 1
        assert coordinator.list_groups() == []


def test_housekeeping_warns_of_a_failed_expiry_until_the_coordinator_closes(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # R22
    with opened(store, offsets_retention_minutes=1) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 1})
        monkeypatch.setattr(coordinator._core.log, "write", failing_write)
        coordinator._keep_expired(NOW_MS + 60_000)
        (warning,) = caplog.messages
        assert "cannot expire all offsets of log partition" in warning
        assert "disk full" in warning
    caplog.clear()
    coordinator._keep_expired(NOW_MS + 60_000)
    assert caplog.messages == []


def failing_write(append: PreparedAppend, *, durable: bool) -> list[Commit]:
    raise OSError("disk full")


def test_retention_time_of_a_commit_counts_from_the_commit(store: Path) -> None:  # R19
    with opened(store, offsets_retention_minutes=1) as coordinator:
        partition = coordinator.partition_for("g")
        coordinator.commit_offsets("g", {("t", 0): 1}, retention_time_ms=5_000)
        coordinator.commit_offsets("g", {("t", 1): 1}, retention_time_ms=600_000)
        coordinator.commit_offsets("g", {("t", 2): 1})
        assert coordinator.expire(partition, NOW_MS + 4_999) == []
        for at_ms, expected in ((NOW_MS + 5_000, 0), (NOW_MS + 60_000, 2), (NOW_MS + 600_000, 1)):
            assert coordinator.expire(partition, at_ms - 1) == []
            (found,) = coordinator.expire(partition, at_ms)
            assert [each.where for each in found.expired] == [at("t", expected)]
            assert found.is_removed == (expected == 1)  # the last of them


def test_commit_puts_the_time_off_and_so_does_being_active(store: Path) -> None:  # R18, R19
    clock = FixedClock(NOW_MS)
    with opened(store, clock, offsets_retention_minutes=1) as coordinator:
        partition = coordinator.partition_for("g")
        coordinator.commit_offsets("g", {("t", 0): 1})
        clock.advance_ms(59_999)
        coordinator.commit_offsets("g", {("t", 0): 1})
        assert coordinator.expire(partition, NOW_MS + 60_000) == []
        coordinator.store_group(stable("g", "t"))
        assert coordinator.expire(partition, 2**62) == []
        clock.advance_ms(60_000)
        coordinator.store_group(GroupMetadata("g", "consumer", 4))  # its members have left
        emptied_ms = clock.now_ms()
        assert coordinator.expire(partition, emptied_ms + 59_999) == []
        (found,) = coordinator.expire(partition, emptied_ms + 60_000)
        assert found.is_removed


def test_many_offsets_expire_in_several_appends(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # R22
    monkeypatch.setattr(expiration, "_MAX_OFFSETS", 4)
    groups = [group_id for group_id in (f"g{number}" for number in range(60)) if partition_for(group_id, 3) == 1][:9]
    with opened(store, offsets_retention_minutes=1) as coordinator:
        for group_id in groups:
            coordinator.commit_offsets(group_id, {("t", 0): 1, ("t", 1): 1})
        before = coordinator.gauges().appends
        found = coordinator.expire(1, NOW_MS + 60_000)
        assert [(each.group_id, len(each.expired), each.is_removed) for each in found] == [
            (group_id, 2, True) for group_id in groups
        ]
        assert coordinator.gauges().appends - before == 5  # two groups of three in each
        assert (coordinator.gauges().expired_offsets, coordinator.gauges().expired_groups) == (18, 9)
        assert coordinator.list_groups() == []


def test_offsets_expired_before_a_failure_are_reported(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # R22
    monkeypatch.setattr(expiration, "_MAX_OFFSETS", 1)
    groups = [group_id for group_id in (f"g{number}" for number in range(60)) if partition_for(group_id, 3) == 1][:3]
    with opened(store, offsets_retention_minutes=1) as coordinator:
        for group_id in groups:
            coordinator.commit_offsets(group_id, {("t", 0): 1})
        write = coordinator._core.log.write
        written: list[PreparedAppend] = []

        def failing(append: PreparedAppend, *, durable: bool) -> list[Commit]:
            if written:
                raise OSError("disk full")
            written.append(append)
            return write(append, durable=durable)

        monkeypatch.setattr(coordinator._core.log, "write", failing)
        report = coordinator.try_to_expire(1, NOW_MS + 60_000)
        assert [each.group_id for each in report.groups] == groups[:1]
        assert "disk full; it was not written" in str(report.error)
        with pytest.raises(CoordinatorNotAvailable, match="disk full; it was not written"):
            coordinator.expire(1, NOW_MS + 60_000)
        monkeypatch.undo()
        report = coordinator.try_to_expire(1, NOW_MS + 60_000)
        assert ([each.group_id for each in report.groups], report.error) == (groups[1:], None)
        assert coordinator.gauges().expired_groups == 3


def test_gauges_count_what_is_held_and_what_expired(store: Path) -> None:
    with opened(store, offsets_retention_minutes=1) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 1, ("t", 1): 1}, retention_time_ms=1)
        coordinator.commit_offsets("g", {("t", 1): 2})
        coordinator.commit_offsets("h", {("t", 0): 1})
        gauges = coordinator.gauges()
        assert (gauges.groups, gauges.offsets, gauges.commits, gauges.committed_offsets) == (2, 3, 3, 4)
        assert (gauges.expired_offsets, gauges.expired_groups) == (0, 0)
        assert gauges.load_ms.keys() == {0, 1, 2}
        assert all(took >= 0 for took in gauges.load_ms.values())
        coordinator.expire_loaded(NOW_MS + 1)
        gauges = coordinator.gauges()
        assert (gauges.groups, gauges.offsets, gauges.expired_offsets, gauges.expired_groups) == (2, 2, 1, 0)
        coordinator.expire_loaded(NOW_MS + 60_000)
        gauges = coordinator.gauges()
        assert (gauges.groups, gauges.offsets, gauges.expired_offsets, gauges.expired_groups) == (0, 0, 3, 2)
        coordinator.unload_partition(0)
        assert coordinator.gauges().load_ms.keys() == {1, 2}
