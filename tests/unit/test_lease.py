"""Leases: one process does a work on a store, the others wait or say which process it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.common.config.sections import LogSettings
from offsets_pipeline.common.periodic import Periodic
from offsets_pipeline.errors import LeaseHeld, LeaseLost, StorageFailed
from offsets_pipeline.store.delta.schemas import LEASES
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.lease import END, FOLD, INGEST_TOPIC, WAIT, Lease, is_running

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOW_MS, DURATION_MS, DAY_MS = 1_772_366_400_000, 60_000, 86_400_000
NOW = "2026-03-01T12:00:00.000Z"
SHORT_MS = 1_000  # for tests in which the duration passes
RUNNING = os.getppid()  # id of a process that runs


class Process:
    """A process that may hold the lease of a store: by default one that runs."""

    def __init__(
        self, store: Path, clock_ms: int = NOW_MS, *tasks: str, duration_ms: int = DURATION_MS, **own: object
    ) -> None:
        self.clock = FixedClock(clock_ms)
        self.warnings: list[str] = []
        settings = Settings(log=LogSettings(lease_duration_ms=duration_ms))
        self.lease = Lease(str(store), "follow", tasks or (FOLD,), settings, self.clock, self.warnings.append)
        self.lease._own |= {"host": "other", "process_id": RUNNING} | own


def rows(store: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = TableFolder(f"{store}/leases", LEASES).snapshot().rows().to_pylist()
    return found


def refused(process: Process) -> str:
    """The error that says which other process holds the lease."""
    with pytest.raises(LeaseHeld) as error, process.lease.held(END):
        raise AssertionError("it holds the lease")
    return str(error.value)


def ended_process(how: str, request: pytest.FixtureRequest) -> int:
    """Id of a process that has ended."""
    if how == "with the id of this one":
        return os.getpid()
    process = subprocess.Popen([sys.executable, "-c", ""])
    if how == "not waited for":
        request.addfinalizer(process.wait)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:
        process.wait()
    return process.pid


def test_second_process_ends_with_the_name_of_the_holder(place: Path) -> None:
    first, second = Process(place, NOW_MS, INGEST_TOPIC, FOLD), Process(place, NOW_MS + 30_000)
    with first.lease.held(END) as is_held:
        assert is_held
        assert not first.lease.has_waited
        assert {(row["task"], row["command"]) for row in rows(place)} == {
            (INGEST_TOPIC, "follow"),
            (FOLD, "follow"),
        }
        error = refused(second)
    said = f"process {RUNNING} on other runs `offsets follow` on this store since {NOW}"
    assert error == (f"cannot follow {place}: {said}; stop that process, or wait for its end: --if-held wait")
    assert rows(place) == []
    with second.lease.held(END) as is_held:
        assert is_held


def test_tasks_are_leased_one_by_one(place: Path) -> None:
    """A cluster runs ingest-topic and fold as two jobs on one store."""
    with Process(place, NOW_MS, INGEST_TOPIC).lease.held(END), Process(place, NOW_MS, FOLD).lease.held(END):
        assert {row["task"] for row in rows(place)} == {INGEST_TOPIC, FOLD}
        refused(Process(place, NOW_MS, INGEST_TOPIC, FOLD))


def test_waiting_process_says_so_once_and_goes_on_when_the_holder_ends(place: Path) -> None:
    first, second = Process(place), Process(place)
    waiting, took = threading.Event(), threading.Event()

    def warn(text: str) -> None:
        second.warnings.append(text)
        waiting.set()

    second.lease._warn = warn

    def wait() -> None:
        with second.lease.held(WAIT) as is_held:
            if is_held:
                took.set()

    with ThreadPoolExecutor(1) as threads:
        with first.lease.held(END):
            done = threads.submit(wait)
            assert waiting.wait(30)
            assert not took.is_set()
        done.result()
    assert took.is_set()
    assert second.lease.has_waited
    said = f"process {RUNNING} on other runs `offsets follow` on this store since {NOW}"
    assert second.warnings == [f"{said}: waiting for its end; {place} has one such process"]


def test_waiting_process_ends_when_it_is_stopped(place: Path) -> None:
    first, second, stopped = Process(place), Process(place), threading.Event()
    second.lease._warn = lambda _: stopped.set()
    with first.lease.held(END):
        held = rows(place)
        with second.lease.held(WAIT, stopped) as is_held:
            assert not is_held
        assert rows(place) == held


def test_process_that_is_looked_for_gets_no_signal() -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, _: got.append(number))
    try:
        assert is_running(os.getpid())
    finally:
        signal.signal(signal.SIGHUP, before)
    assert got == []


@pytest.mark.parametrize("ended", ["with the id of this one", "no more there", "not waited for"])
def test_killed_process_of_the_same_machine_is_replaced_at_once(
    place: Path, ended: str, request: pytest.FixtureRequest
) -> None:
    """A container gives each of its lives the same process id, and its first process may wait for no other's end."""
    process_id = ended_process(ended, request)
    assert is_running(process_id) == (process_id == os.getpid())
    killed = Process(place, host="here", process_id=process_id)
    Process(place).lease._table.create()
    assert killed.lease._claim(lambda _: False) is None
    with Process(place, host="here", process_id=os.getppid()).lease.held(END) as is_held:
        assert is_held
        (row,) = rows(place)
        assert row["process_id"] == os.getppid()  # which runs
        refused(Process(place, host="here"))


def test_killed_process_of_another_machine_is_replaced_when_its_lease_has_lapsed(
    place: Path, request: pytest.FixtureRequest
) -> None:
    first = Process(place, host="elsewhere", process_id=ended_process("no more there", request))  # on this machine
    first.lease._table.create()
    assert first.lease._claim(lambda _: False) is None
    refused(Process(place, NOW_MS + DURATION_MS))
    first.clock.advance_ms(30_000)
    first.lease._renew()
    assert NOW in refused(Process(place, NOW_MS + 90_000))
    with Process(place, NOW_MS + 90_001).lease.held(END) as is_held:
        assert is_held


@pytest.mark.parametrize("wrong_ms", [-DAY_MS, DAY_MS])
def test_clock_that_is_a_day_wrong_does_not_keep_a_lease_for_a_day(place: Path, wrong_ms: int) -> None:
    first = Process(place, NOW_MS + wrong_ms, duration_ms=SHORT_MS)
    first.lease._table.create()
    assert first.lease._claim(lambda _: False) is None
    with Process(place).lease.held(WAIT) as is_held:
        assert is_held


def test_holder_that_was_suspended_ends_and_says_which_process_took_over(place: Path) -> None:
    first, second, stopped = Process(place, duration_ms=SHORT_MS), Process(place), threading.Event()
    second.lease._own |= {"process_id": 4712}

    def work() -> None:
        with first.lease.held(END):
            assert second.lease._claim(lambda _: True) is None  # as after the duration
            first.lease.when_lost(stopped.set)
            assert stopped.wait(30)
            again = threading.Event()
            first.lease.when_lost(again.set)
            assert again.is_set()

    with pytest.raises(LeaseLost) as lost:
        work()
    said = f"process 4712 on other runs `offsets follow` on this store since {NOW}"
    assert str(lost.value) == (
        f"follow of {place} ends: {said}, for this process had not renewed its lease for 1000 ms; start it again "
        "with --if-held wait"
    )
    assert [row["process_id"] for row in rows(place)] == [4712]  # not released by the other


def test_failure_because_of_another_process_names_that_process(place: Path) -> None:
    first, second = Process(place), Process(place)

    def work(process: Process, reason: str, beside: Process | None = None) -> None:
        with process.lease.held(END):
            if beside is not None:
                assert beside.lease._claim(lambda _: True) is None
            raise StorageFailed(reason)

    with pytest.raises(LeaseLost, match=f"process {RUNNING} on other runs"):
        work(first, "another stream wrote the checkpoint", beside=second)
    with pytest.raises(StorageFailed, match="the disk is full"):
        work(Process(place, NOW_MS + DAY_MS), "the disk is full")


def test_a_lease_is_renewed_three_times_within_its_duration(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    intervals_ms: list[int] = []

    def periodic(run: Callable[[], None], interval_ms: int, **options: Any) -> Periodic[None]:  # noqa: ANN401
        assert (options["at_once"], options["rests"]) == (False, True)
        intervals_ms.append(interval_ms)
        return Periodic(run, interval_ms, **options)

    monkeypatch.setattr("offsets_pipeline.store.lease.Periodic", periodic)
    with Process(place).lease.held(END):
        assert intervals_ms == [DURATION_MS // 3]


def test_storage_that_fails_does_not_end_the_holder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, tried = Process(place, duration_ms=SHORT_MS), threading.Semaphore(0)

    def fail(*_: object, **__: object) -> None:
        tried.release()
        raise StorageFailed("the storage is away")

    with first.lease.held(END), monkeypatch.context() as context:
        context.setattr(first.lease._table, "commit", fail)
        for _ in range(2):
            assert tried.acquire(timeout=30)
    assert first.warnings == [f"cannot renew the lease of {place}: the storage is away; trying again"]


def test_a_lease_that_cannot_be_released_is_that_of_a_process_that_has_ended(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: dict[str, Any] = {"host": "here", "process_id": os.getpid()}
    first = Process(place, **here)

    def fail(*_: object, **__: object) -> None:
        raise StorageFailed("the storage is away")

    with first.lease.held(END):
        refused(Process(place, **here))  # of another command in this process
        monkeypatch.setattr(first.lease._table, "commit", fail)
    assert first.warnings == [f"cannot release the lease of {place}: the storage is away; it lapses by itself"]
    assert len(rows(place)) == 1
    gets_it = False
    with suppress(LeaseHeld), Process(place, **here).lease.held(END) as is_held:
        gets_it = is_held
    assert gets_it


def test_of_many_processes_that_start_at_once_one_gets_the_lease(place: Path) -> None:
    processes = [Process(place, process_id=number) for number in range(8)]
    all_tried = threading.Barrier(len(processes))

    def start(process: Process) -> bool:
        try:
            with process.lease.held(END) as is_held:
                all_tried.wait(60)
                return is_held
        except LeaseHeld:
            all_tried.wait(60)
            return False

    with ThreadPoolExecutor(len(processes)) as threads:
        assert sum(threads.map(start, processes)) == 1
