"""Publishing beside folds: when, what a failure does, and what else it keeps small. Without Spark."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.common.config.sections import FoldSettings
from offsets_pipeline.errors import DamagedTable, StorageFailed, WriteConflict
from offsets_pipeline.fold.state.fold import fold_log, reload_partitions
from offsets_pipeline.fold.state.merge_on_read import OFFSETS, RECORDS
from offsets_pipeline.fold.state.publishing import publish
from offsets_pipeline.fold.stream import folding as publisher_module
from offsets_pipeline.fold.stream.folding import Publisher
from tests.logs import LogPartition
from tests.published import assert_published
from tests.spark.stores import CLOCK, appended, assert_as_reference, log_of

if TYPE_CHECKING:
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.store.store import Store

AT_ONCE = FoldSettings(publish_within_ms=1, publish_large_within_ms=10**9)
LONGEST_SECONDS = 60


class Publishings:
    """Takes the place of `publish`: raises what a test wants, and tells the test when a publishing has ended."""

    def __init__(self) -> None:
        self.count = 0
        self.fails: list[Exception] = []
        self.is_overtaken = False
        self._ended = threading.Semaphore(0)

    def __call__(self, *arguments: Any) -> bool:  # noqa: ANN401
        self.count += 1
        try:
            if self.fails:
                raise self.fails.pop(0)
            return not self.is_overtaken and publish(*arguments)
        finally:
            self._ended.release()

    def wait(self) -> None:
        """Wait for the end of one publishing."""
        assert self._ended.acquire(timeout=LONGEST_SECONDS)


@pytest.fixture
def publishings(monkeypatch: pytest.MonkeyPatch) -> Publishings:
    """The publishings of this test."""
    found = Publishings()
    monkeypatch.setattr(publisher_module, "publish", found)
    return found


def fold_one(store: Store, settings: Settings, record_offset: int) -> None:
    """Append a record to a log partition, and fold it."""
    log = LogPartition(0, start=record_offset)
    log.commit(("h", "t", record_offset % 3), record_offset)
    appended(store.location, log.rows)
    assert fold_log(store, settings, CLOCK) == 1


def test_each_fold_is_published_beside_the_stream(store: Store, settings: Settings, publishings: Publishings) -> None:
    publisher = Publisher(store, AT_ONCE, CLOCK, pytest.fail)
    publisher.start()
    for record_offset in range(3):
        fold_one(store, settings, record_offset)
        publisher.after_fold(1)
        publishings.wait()
    publisher.close()
    assert publishings.count == 3
    assert_published(store.location, log_of(store.location), 2)
    assert len(log_of(store.location)) == 3


def test_publishing_starts_halfway_to_its_time_and_rests_four_times_as_long_as_it_took(
    store: Store, settings: Settings, publishings: Publishings, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, took = 1000.0, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(publisher_module, "_LARGE_ROWS", 1)
    whole = Publisher(store, FoldSettings(), CLOCK, pytest.fail)

    def due_in() -> float:
        left = whole._due_at() - now
        assert whole._left_ms() == left * 1000  # when its thread publishes
        return left

    def published(*arguments: Any) -> bool:  # noqa: ANN401
        nonlocal now
        now += took
        return publish(*arguments)

    monkeypatch.setattr(publisher_module, "publish", published)
    fold_one(store, settings, 0)
    assert due_in() == 60  # without a fold
    whole.after_fold(0)
    assert due_in() == 60
    now += 3
    whole.after_fold(1)
    now += 1
    whole.after_fold(1)  # the first one that is not published counts
    assert due_in() == 15 / 2 - 1
    whole.finish()
    fold_one(store, settings, 1)
    whole.after_fold(1)
    assert due_in() == 15 / 2  # one offset, as many as a small store may have
    took = 10
    whole.finish()
    whole.after_fold(1)
    assert due_in() == 4 * 10
    now += 100
    took = 0
    whole.finish()
    whole.after_fold(1)
    assert due_in() == 60 / 2  # now there are two offsets: a large store


def test_last_publishing_takes_all_that_is_folded_or_says_why_not(
    store: Store, settings: Settings, publishings: Publishings
) -> None:
    fold_one(store, settings, 0)
    fold_one(store, settings, 1)
    publishings.fails = [StorageFailed("out of reach")]
    publisher = Publisher(store, FoldSettings(), CLOCK, pytest.fail)
    with pytest.raises(StorageFailed, match="out of reach"):
        publisher.finish()
    publisher.finish()
    publisher.close()
    assert_published(store.location, log_of(store.location), 2)


def test_publishing_that_failed_counts_from_the_fold_that_is_not_published(
    store: Store, settings: Settings, publishings: Publishings, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    fold_one(store, settings, 0)
    publisher = Publisher(store, FoldSettings(publish_within_ms=15_000), CLOCK, pytest.fail)
    publisher.after_fold(1)
    now += 4
    publishings.fails = [StorageFailed("out of reach")]
    with pytest.raises(StorageFailed, match="out of reach"):
        publisher.finish()
    assert publisher._due_at() == 1000 + 15 / 2


def test_publishing_that_was_overtaken_counts_from_the_fold_before_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    publisher = Publisher(store, FoldSettings(publish_within_ms=200_000), CLOCK, pytest.fail)

    def overtaken(*_: object) -> bool:
        nonlocal now
        now += 1
        publisher.after_fold(1)
        return False

    monkeypatch.setattr(publisher_module, "publish", overtaken)
    publisher.after_fold(1)
    with pytest.raises(WriteConflict):
        publisher.finish()
    assert publisher._due_at() == 1000 + 200 / 2


def test_last_publishing_gives_up_where_other_writers_always_come_first(
    store: Store, settings: Settings, publishings: Publishings
) -> None:
    fold_one(store, settings, 0)
    publishings.is_overtaken = True
    with pytest.raises(WriteConflict, match=f"{store.location} is not published to its end: other writers came first"):
        Publisher(store, FoldSettings(), CLOCK, pytest.fail).finish()
    assert publishings.count > 1
    assert_as_reference(store.location, log_of(store.location))


def test_failure_that_may_pass_is_tried_again_beside_the_stream(
    store: Store, settings: Settings, publishings: Publishings
) -> None:
    fold_one(store, settings, 0)
    publishings.fails = [WriteConflict("overtaken")]
    warnings: list[str] = []
    publisher = Publisher(store, AT_ONCE, CLOCK, warnings.append)
    publisher.start()
    publisher.after_fold(1)
    publishings.wait()
    publishings.wait()  # without another fold
    publisher.close()
    assert warnings == [f"cannot publish {store.location}: overtaken; the next run tries again"]
    assert_published(store.location, log_of(store.location), 2)


def test_failure_that_does_not_pass_fails_the_next_fold(
    store: Store, settings: Settings, publishings: Publishings
) -> None:
    fold_one(store, settings, 0)
    publishings.fails = [DamagedTable("a file is missing"), DamagedTable("a file is missing")]
    publisher = Publisher(store, AT_ONCE, CLOCK, pytest.fail)
    publisher.start()
    publisher.after_fold(1)
    publishings.wait()
    publisher.close()
    with pytest.raises(DamagedTable, match="a file is missing"):
        publisher.after_fold(1)
    with pytest.raises(DamagedTable, match="a file is missing"):
        Publisher(store, AT_ONCE, CLOCK, pytest.fail).finish()


def test_facts_that_are_never_published_stay_few_files(store: Store, settings: Settings) -> None:
    log = LogPartition(0)
    for number in range(6):
        log.rows.clear()
        log.group(2, f"g{number}")
        appended(store.location, log.rows)
        assert fold_log(store, settings, CLOCK) == 1
    count = len(store.table(RECORDS.name).snapshot().files())
    Publisher(store, FoldSettings(compact_files=count), CLOCK, pytest.fail).finish()
    assert len(store.table(RECORDS.name).snapshot().files()) == count > 2
    Publisher(store, FoldSettings(compact_files=2), CLOCK, pytest.fail).finish()
    assert len(store.table(RECORDS.name).snapshot().files()) == 1
    assert_as_reference(store.location, log_of(store.location))


def test_facts_of_a_replaced_incarnation_go_when_no_reader_needs_them(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def incarnations() -> set[str]:
        return {file.partition["incarnation"] for file in store.table(OFFSETS.name).snapshot().files()}

    log = LogPartition(0)
    for partition in range(3):
        log.commit(("h", "t", partition), 1)
    log.delete(("h", "t", 0))
    appended(store.location, log.rows)
    fold_log(store, settings, CLOCK)
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    publisher = Publisher(store, FoldSettings(), CLOCK, pytest.fail)
    publisher.finish()
    reload_partitions(store, None, settings, CLOCK)
    for later in (0, 29):
        now += later
        publisher.finish()
        assert incarnations() == {"1", "2"}
    now += 1
    publisher.finish()
    assert incarnations() == {"2"}
    reload_partitions(store, None, settings, CLOCK)
    publisher.finish()
    assert incarnations() == {"2", "3"}  # the time counts anew
    assert_as_reference(store.location, log_of(store.location))
