"""Loads that do not wait: callbacks, and cancellation by `close` (R28)."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.coordinator.loading import LoadStatus
from offsets_pipeline.errors import CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator
from tests.unit.coordinator.groups import stable
from tests.unit.coordinator.states import at
from tests.unit.coordinator.stores import opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from offsets_pipeline.coordinator.coordinator import Coordinator

_SECONDS = 10


class HeldLoad:
    """A log whose loads wait after each part of the log until `go_on` is set."""

    def __init__(self, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reading, self.go_on = threading.Event(), threading.Event()
        load = coordinator._core.log.load

        def held(*arguments: object) -> Iterator[pa.Table]:
            for rows in load(*arguments):  # type: ignore[arg-type]
                self.reading.set()
                assert self.go_on.wait(_SECONDS)
                yield rows

        monkeypatch.setattr(coordinator._core.log, "load", held)


class Told:
    """What the callbacks of loads were called with."""

    def __init__(self) -> None:
        self.groups: list[tuple[str, str]] = []
        self.partitions: list[tuple[int, type[Exception] | None]] = []
        self.order: list[object] = []

    def group(self, group_id: str, description: object) -> None:
        self.groups.append((group_id, description.state))  # type: ignore[attr-defined]
        self.order.append(group_id)

    def partition(self, log_partition: int, error: Exception | None) -> None:
        self.partitions.append((log_partition, None if error is None else type(error)))
        self.order.append(log_partition)


@pytest.fixture
def told() -> Told:
    return Told()


def test_a_load_that_does_not_wait_calls_back_for_each_group_and_for_the_partition(
    coordinator: Coordinator, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator.commit_offsets("a", {("t", 0): 1})
    coordinator.store_group(stable("d"))
    number = coordinator.partition_for("a")
    assert coordinator.partition_for("d") == number
    held = HeldLoad(coordinator, monkeypatch)
    future = coordinator.load_partition(
        number, wait=False, on_group_loaded=told.group, on_partition_loaded=told.partition
    )
    assert held.reading.wait(_SECONDS)
    assert (coordinator.status(number), future.done(), told.order) == (LoadStatus.LOADING, False, [])
    with pytest.raises(CoordinatorLoadInProgress):
        coordinator.fetch_offsets("a")
    held.go_on.set()
    assert future.result(_SECONDS) == [number]
    assert coordinator.status(number) is LoadStatus.LOADED
    assert sorted(told.groups) == [("a", "Empty"), ("d", "Stable")]
    assert told.order[-1] == number
    assert told.partitions == [(number, None)]
    assert coordinator.fetch_offsets("a")[at()].offset == 1


def test_callbacks_of_a_load_that_waits_have_run_when_it_returns(coordinator: Coordinator, told: Told) -> None:
    coordinator.commit_offsets("a", {("t", 0): 1})
    loaded = coordinator.load_partition(*range(3), on_group_loaded=told.group, on_partition_loaded=told.partition)
    assert loaded.result() == [0, 1, 2]
    assert told.groups == [("a", "Empty")]
    assert told.partitions == [(0, None), (1, None), (2, None)]


def test_a_callback_may_call_the_coordinator_and_fail(
    coordinator: Coordinator, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator.commit_offsets("a", {("t", 0): 1})
    number = coordinator.partition_for("a")
    seen: list[object] = []

    def group(group_id: str, _: object) -> None:
        seen.append(coordinator.fetch_offsets(group_id)[at()].offset)
        raise ValueError("of the callback")

    future = coordinator.load_partition(number, wait=False, on_group_loaded=group, on_partition_loaded=told.partition)
    assert future.result(_SECONDS) == [number]
    assert (seen, told.partitions) == ([1], [(number, None)])
    assert "a callback after the load of group 'a' failed" in caplog.text


def test_close_cancels_a_load_and_those_behind_it(
    coordinator: Coordinator, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator.commit_offsets("a", {("t", 0): 1})
    held = HeldLoad(coordinator, monkeypatch)
    replayed: list[object] = []
    monkeypatch.setattr("offsets_pipeline.coordinator.loading.replay_table", lambda *of: replayed.append(of))
    loads = [coordinator.load_partition(n, wait=False, on_partition_loaded=told.partition) for n in range(3)]
    assert held.reading.wait(_SECONDS)
    closing = threading.Thread(target=coordinator.close)
    closing.start()
    assert coordinator._core.closed.wait(_SECONDS)
    held.go_on.set()
    closing.join(_SECONDS)
    assert not closing.is_alive()
    for load in loads:
        with pytest.raises(CoordinatorNotAvailable, match="the coordinator is closed"):
            load.result(0)
    assert told.partitions == [(n, CoordinatorNotAvailable) for n in range(3)]
    assert replayed == []
    assert [coordinator.status(n) for n in range(3)] == [LoadStatus.LOADED] * 3  # the states before
    with pytest.raises(CoordinatorNotAvailable):
        coordinator.load_partition(0, wait=False)
    coordinator.close()


def test_close_by_a_callback_ends(store: Path) -> None:
    coordinator = opened(store, partitions=[])
    future = coordinator.load_partition(0, wait=False, on_partition_loaded=lambda *_: coordinator.close())
    assert future.result(_SECONDS) == [0]
    with pytest.raises(CoordinatorNotAvailable):
        coordinator.list_groups()


def test_a_load_behind_another_may_be_cancelled(
    coordinator: Coordinator, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator.commit_offsets("a", {("t", 0): 1})
    held = HeldLoad(coordinator, monkeypatch)
    first, second = (coordinator.load_partition(n, wait=False, on_partition_loaded=told.partition) for n in (0, 1))
    assert held.reading.wait(_SECONDS)
    assert coordinator.status(1) is LoadStatus.LOADING
    assert second.cancel()
    assert coordinator.status(1) is LoadStatus.LOADED
    held.go_on.set()
    assert first.result(_SECONDS) == [0]
    with pytest.raises(CancelledError):
        second.result(0)
    assert told.partitions == [(0, None)]


def test_a_partition_that_is_unloaded_meanwhile_is_not_loaded(
    coordinator: Coordinator, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator.commit_offsets("a", {("t", 0): 1})
    held = HeldLoad(coordinator, monkeypatch)
    future = coordinator.load_partition(0, 1, wait=False, on_partition_loaded=told.partition)
    assert held.reading.wait(_SECONDS)
    coordinator.unload_partition(1)
    held.go_on.set()
    assert future.result(_SECONDS) == [0]
    assert told.partitions == [(0, None), (1, NotCoordinator)]
    assert coordinator.status(1) is LoadStatus.UNLOADED


@pytest.mark.parametrize("wait", [True, False])
def test_a_load_that_fails_tells_the_callback(
    coordinator: Coordinator,
    told: Told,
    monkeypatch: pytest.MonkeyPatch,
    wait: bool,
) -> None:
    def broken(*_: object) -> Iterator[pa.Table]:
        raise OSError("gone")

    monkeypatch.setattr(coordinator._core.log, "load", broken)
    with pytest.raises(OSError, match="gone"):
        coordinator.load_partition(0, wait=wait, on_partition_loaded=told.partition).result(_SECONDS)
    assert told.partitions == [(0, OSError)]
    assert coordinator.status(0) is LoadStatus.LOADED  # the state before
