"""The stream over an owned store expires its offsets, and folds the tombstones (R18-R22)."""

from __future__ import annotations

from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.common.config.sections import CoordinatorSettings, FoldSettings
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.expiry_runs import expire_once
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.coordinator.registry import FOLDER
from offsets_pipeline.fold.stream.fold_stream import FoldStream, start_fold
from offsets_pipeline.fold.stream.folding import Folding
from offsets_pipeline.questions.query.describe import describe_groups
from offsets_pipeline.questions.query.state_reader import StateReader
from tests.logs import LogPartition, commit_key, group_key
from tests.places import copied
from tests.spark.stores import appended, assert_as_reference, log_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offsets_pipeline.common.config import Settings
    from tests.spark.stores import Workbench

# they take Spark: that the stream folds what it expires is what is tested
pytestmark = [pytest.mark.streaming, pytest.mark.slow]

DEADLINE_SECONDS = 240
NOW_MS, HOUR_MS, WEEK_MS = 1_795_000_000_000, 3_600_000, 7 * 24 * 3_600_000
PARTITIONS = 3


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with "goes", whose two offsets expire at NOW_MS + HOUR_MS, and "stays", whose one does after a week."""
    location = tmp_path_factory.mktemp("owned") / "store"
    OwnedStore.create(location, PARTITIONS)
    with coordinator_of(location, FixedClock(NOW_MS)) as coordinator:
        coordinator.commit_offsets("goes", {("t", 0): 1, ("t", 1): 2}, retention_time_ms=HOUR_MS)
        coordinator.commit_offsets("stays", {("t", 0): 3})
    return location


@pytest.fixture
def store(committed: Path, place: Path) -> Path:
    return copied(committed, place / "store")


def coordinator_of(location: Path, clock: FixedClock) -> Coordinator:
    return Coordinator.open(location, clock=clock, housekeeping=False)


def fold(bench: Workbench, location: Path, at_ms: int, settings: Settings | None = None) -> list[tuple[int, int]]:
    """Fold the log at this time; returns the expired offsets."""
    expired: list[tuple[int, int]] = []
    Folding(
        bench.open(location),
        settings or bench.settings,
        FixedClock(at_ms),
        on_expiry=lambda *counts: expired.append(counts),
    ).fold_to_end()
    return expired


def described(location: Path) -> set[tuple[str, str, int, int]]:
    """Group, topic, partition and offset from `describe`, also for groups without offsets."""
    groups = describe_groups(StateReader(str(location), at_most=0))
    assert all(group.offsets for group in groups.values())
    return {(name, each.topic, each.partition, each.offset) for name, group in groups.items() for each in group.offsets}


BOTH = {("goes", "t", 0, 1), ("goes", "t", 1, 2), ("stays", "t", 0, 3)}
STAYS = {("stays", "t", 0, 3)}


def test_offset_whose_time_is_over_leaves_log_and_state_in_one_run(workbench: Workbench, store: Path) -> None:
    assert fold(workbench, store, NOW_MS + HOUR_MS - 1) == []
    before = log_of(store)
    assert len(before) == 3
    assert described(store) == BOTH
    off = replace(workbench.settings, fold=FoldSettings(expire_in_stream=False))
    assert fold(workbench, store, NOW_MS + 2 * WEEK_MS, off) == []
    assert log_of(store) == before

    by_the_job = copied(store, store.with_name("by-the-job"))
    clock = FixedClock(NOW_MS + HOUR_MS)
    with coordinator_of(by_the_job, clock) as coordinator:
        assert expire_once(coordinator, str(by_the_job), clock).offsets == 2

    assert fold(workbench, store, NOW_MS + HOUR_MS) == [(2, 1)]
    assert described(store) == STAYS
    new = [row for row in log_of(store) if row not in before]
    at = OwnedStore.open(store).partition_for("goes")
    assert {(row.log_partition, row.key, row.value) for row in new} == {
        (at, commit_key("goes", "t", 0), None),
        (at, commit_key("goes", "t", 1), None),
        (at, group_key(2, "goes"), None),
    }
    assert log_of(store) == log_of(by_the_job)
    tombstones = [row for row in rows_of(store, "log") if row["value"] is None]
    assert {row["record_timestamp"] for row in tombstones} == {(NOW_MS + HOUR_MS) * 1000}
    assert_as_reference(store, log_of(store))
    assert not (store / FOLDER).exists()


def test_stream_over_a_mirrored_store_appends_nothing(
    workbench: Workbench, empty: Callable[[int], Path], place: Path
) -> None:  # R4
    location, log = copied(empty(1), place / "store"), LogPartition()
    log.commit(("g", "t", 0), 1)
    appended(location, log.rows)
    assert fold(workbench, location, NOW_MS + 1000 * WEEK_MS) == []
    assert log_of(location) == log.rows
    assert described(location) == {("g", "t", 0, 1)}
    assert not (location / FOLDER).exists()


def test_running_stream_expires_beside_a_coordinator(workbench: Workbench, store: Path) -> None:
    clock = FixedClock(NOW_MS)
    settings = replace(
        workbench.settings,
        fold=FoldSettings(trigger_interval_ms=200),
        coordinator=CoordinatorSettings(offsets_retention_check_interval_ms=100),
    )
    folded, expired = [0], [0]
    reached = {3: Event(), 6: Event(), 9: Event()}

    def on_fold(records: int) -> None:
        folded[0] += records
        for count, event in reached.items():
            if folded[0] >= count:
                event.set()

    def on_expiry(offsets: int, _: int) -> None:
        expired[0] += offsets

    def started() -> FoldStream:
        return start_fold(Folding(workbench.open(store), settings, clock, on_fold=on_fold, on_expiry=on_expiry))

    with coordinator_of(store, clock) as coordinator:
        stream = started()
        try:
            assert reached[3].wait(DEADLINE_SECONDS)
            assert described(store) == BOTH
            clock.advance_ms(HOUR_MS)
            assert reached[6].wait(DEADLINE_SECONDS)
            assert described(store) == STAYS
            assert set(coordinator.fetch_all_offsets()) == {"stays"}
            coordinator.commit_offsets("goes", {("t", 0): 7}, retention_time_ms=HOUR_MS)
            clock.advance_ms(HOUR_MS)
            assert reached[9].wait(DEADLINE_SECONDS)
        finally:
            stream.stop()
        stream.await_end()
        assert expired == [3]
        assert described(store) == STAYS
        assert not (store / FOLDER).exists()
    assert len(log_of(store)) == 9
    assert_as_reference(store, log_of(store))
