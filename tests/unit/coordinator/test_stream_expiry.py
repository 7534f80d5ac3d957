"""Retention of a stream, without the stream: times of runs, and failed runs (R22)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.common.config.sections import CoordinatorSettings, FoldSettings
from offsets_pipeline.coordinator import expiry_runs
from offsets_pipeline.coordinator.expiry_runs import StreamExpiry
from offsets_pipeline.coordinator.owned_log import OwnedLog
from offsets_pipeline.coordinator.registry import FOLDER
from offsets_pipeline.errors import StorageFailed, UnsafeStorage
from offsets_pipeline.fold.stream import folding
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.properties import MIRRORED, OWNED, StoreProperties
from offsets_pipeline.store.store import Store
from tests.places import copied, remove_place
from tests.unit.coordinator.stores import NOW_MS, log_of, opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from offsets_pipeline.coordinator.coordinator import Coordinator

DEADLINE_SECONDS = 60
INTERVAL_MS = 20  # of the test's clock, and of the looks at it
HOUR_MS = 3_600_000


class Running:
    """A StreamExpiry with its reports; `expired` and `warned` each wait for the next one."""

    def __init__(self, store: Path, clock: FixedClock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs: list[tuple[int, int]] = []
        self.warnings: list[str] = []
        self._said = threading.Condition()
        settings = Settings(coordinator=CoordinatorSettings(offsets_retention_check_interval_ms=INTERVAL_MS))
        monkeypatch.setattr(expiry_runs, "warn", lambda text: self._note(self.warnings, text))
        self.expiry = StreamExpiry(str(store), settings, clock, lambda *counts: self._note(self.runs, counts))

    def _note(self, of: list, each: object) -> None:  # type: ignore[type-arg]
        with self._said:
            of.append(each)
            self._said.notify()

    def wait(self, *, runs: int, warnings: int) -> None:
        with self._said:
            said = self._said.wait_for(
                lambda: (len(self.runs), len(self.warnings)) == (runs, warnings), DEADLINE_SECONDS
            )
        assert said, (self.runs, self.warnings)


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock(NOW_MS)


@pytest.fixture
def running(store: Path, clock: FixedClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """Of a store with one group of two offsets, whose time is over an hour after NOW_MS."""
    with opened(store) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 1, ("t", 1): 1}, retention_time_ms=HOUR_MS)
    running = Running(store, clock, monkeypatch)
    yield running
    running.expiry.close()
    assert not (store / FOLDER).exists()


@pytest.mark.parametrize(
    ("kind", "topic_kind", "is_on", "expires"),
    [
        (OWNED, TopicKind.CONSUMER_OFFSETS, True, True),
        (OWNED, TopicKind.CONSUMER_OFFSETS, False, False),
        (OWNED, TopicKind.CONNECT_OFFSETS, True, False),
        (MIRRORED, TopicKind.CONSUMER_OFFSETS, True, False),
    ],
)
def test_only_streams_of_owned_groups_expire_offsets(
    tmp_path: Path, clock: FixedClock, kind: str, topic_kind: TopicKind, is_on: bool, expires: bool
) -> None:  # R4
    store = Store(cast("SparkSession", None), str(tmp_path), StoreProperties(kind, 1, topic_kind=topic_kind))
    settings = Settings(fold=FoldSettings(expire_in_stream=is_on))
    expiry = folding.Folding(store, settings, clock)._expiry
    assert (expiry is not None) == expires


def records_of(store: Path) -> int:
    return sum(map(len, log_of(store).values()))


def test_offsets_expire_when_the_clock_says_so(store: Path, clock: FixedClock, running: Running) -> None:
    running.expiry.start()
    clock.advance_ms(HOUR_MS)
    running.wait(runs=1, warnings=0)
    with opened(store) as coordinator:  # another process goes on meanwhile
        coordinator.commit_offsets("h", {("t", 0): 1}, retention_time_ms=2 * HOUR_MS)
    clock.advance_ms(HOUR_MS)
    running.wait(runs=2, warnings=0)
    assert running.runs == [(2, 1), (1, 1)]
    assert records_of(store) == 3 + 5  # each offset and each group has its tombstone


def test_one_run_expires_what_is_due(store: Path, clock: FixedClock, running: Running) -> None:
    clock.advance_ms(HOUR_MS - 1)
    running.expiry.run_once()
    assert (running.runs, records_of(store)) == ([], 2)
    clock.advance_ms(1)
    running.expiry.run_once()
    assert (running.runs, records_of(store)) == ([(2, 1)], 5)


def test_append_that_fails_is_warned_of_and_the_next_run_tries_again(
    store: Path, clock: FixedClock, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.advance_ms(HOUR_MS)
    with monkeypatch.context() as patch:
        patch.setattr(OwnedLog, "write", _disk_full)
        running.expiry.start()
        running.wait(runs=0, warnings=1)
    assert records_of(store) == 2
    clock.advance_ms(INTERVAL_MS)
    running.wait(runs=1, warnings=1)
    assert records_of(store) == 5
    (said,) = running.warnings
    assert "disk full; it was not written; its offsets stay until the next run, which tries again" in said


def _disk_full(*_: object, **__: object) -> None:
    raise OSError("disk full")


def test_store_out_of_reach_is_warned_of_and_the_next_run_tries_again(
    store: Path, clock: FixedClock, running: Running
) -> None:
    clock.advance_ms(HOUR_MS)
    away = copied(store, store.with_name("away"))
    remove_place(store)
    running.expiry.start()
    running.wait(runs=0, warnings=1)
    copied(away, store)
    clock.advance_ms(INTERVAL_MS)
    running.wait(runs=1, warnings=1)
    (said,) = running.warnings
    assert said.startswith(f"cannot expire offsets of {store}: ")
    assert said.endswith("; the next run tries again")


def test_the_run_after_one_that_failed_opens_the_log_again(
    clock: FixedClock, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    expire_once = expiry_runs.expire_once
    used: list[Coordinator] = []

    def expire(coordinator: Coordinator, *rest: Any) -> expiry_runs.ExpiryRun:  # noqa: ANN401
        used.append(coordinator)
        if len(used) == 1:
            raise StorageFailed("it is away")
        return expire_once(coordinator, *rest)

    monkeypatch.setattr(expiry_runs, "expire_once", expire)
    running.expiry.start()
    running.wait(runs=0, warnings=1)
    clock.advance_ms(HOUR_MS)
    running.wait(runs=1, warnings=1)
    assert used[0] is not used[1]


def test_storage_that_is_not_safe_is_warned_of_once(
    clock: FixedClock, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UnsafeStorage("two writers could both succeed: put the store elsewhere")

    monkeypatch.setattr("offsets_pipeline.store.delta.table_folder.storage_of", refuse)
    running.expiry.start()
    thread = running.expiry._thread
    assert thread is not None
    thread.join(DEADLINE_SECONDS)  # it ends by itself
    assert not thread.is_alive()
    assert running.warnings == [
        "this stream does not expire offsets: two writers could both succeed: put the store elsewhere"
    ]
