"""Folds of a streaming query and the work around them, without the query and without Spark."""

from __future__ import annotations

import pickle
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.errors import UndecodableRecord
from offsets_pipeline.fold.state.fold import fold_log
from offsets_pipeline.fold.stream.folding import Folding
from offsets_pipeline.fold.stream.follow import follow
from offsets_pipeline.fold.stream.log_version_source import FORMAT, LogVersionReader, LogVersionSource, log_versions
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from offsets_pipeline.store.delta.schemas import LOG, LOG_PARTITIONS
from tests.folded_stores import new_store, opened
from tests.logs import LogPartition
from tests.spark.stores import CLOCK, appended
from tests.unit.coordinator.stores import NOW_MS
from tests.unit.coordinator.stores import opened as opened_coordinator
from tests.unit.state.state_files import progress_of, published

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.store.store import Store

WEEK_MS = 7 * 24 * 3_600_000  # Kafka keeps offsets so long


def append_commit(store: Store, record_offset: int) -> None:
    """Append a commit of `h`, a group of log partition 0; its committed offset is its record offset."""
    log = LogPartition(0, start=record_offset)
    log.commit(("h", "t", 0), record_offset)
    appended(store.location, log.rows)


class TwoAppends:
    """In place of the query that reads a topic: appends two records, and folds the first one."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.publishes_beside = False

    def run(self, *, available_now: bool, folding: Folding) -> int:
        assert not available_now or "publishing" not in self._threads()
        self.publishes_beside = "publishing" in self._threads()
        append_commit(self.store, 1)
        folding.fold(self.store)
        append_commit(self.store, 2)
        return 2

    def _threads(self) -> set[str]:
        return {each.name for each in threading.enumerate()}


@pytest.mark.parametrize("available_now", [True, False])
def test_follow_folds_what_was_there_and_what_it_reads_and_publishes_all(
    store: Store, settings: Settings, *, available_now: bool
) -> None:
    append_commit(store, 0)
    ingest: Any = TwoAppends(store)
    folds: list[int] = []
    quiet = replace(settings, fold=replace(settings.fold, upkeep_interval_ms=0))
    assert follow(ingest, quiet, CLOCK, available_now=available_now, on_fold=folds.append) == 2
    assert folds == [1, 1, 1]
    assert ingest.publishes_beside is not available_now
    assert "publishing" not in ingest._threads()
    assert published(store.location) == [("t0", 2, 2)]


def test_follow_replays_the_state_of_another_coordinator(place: Path, settings: Settings) -> None:
    store = new_store(place, 2)
    append_commit(store, 0)
    Folding(store, settings, CLOCK).fold(store)
    ingest: Any = TwoAppends(store.with_semantics(CoordinatorSemantics.CLASSIC))
    for _ in range(2):  # the second time the state is already that of the store
        follow(ingest, settings, CLOCK, available_now=True)
        assert (progress_of(store).semantics, progress_of(store).incarnations) == ("classic", {0: 2, 1: 2})


def test_only_folds_with_records_are_reported(store: Store, settings: Settings) -> None:
    folds: list[int] = []
    folding = Folding(store, settings, CLOCK, on_fold=folds.append)
    append_commit(store, 0)
    append_commit(store, 1)
    folding.fold(store)
    table = store.table(LOG.name)
    table.commit(seen=table.snapshot())
    folding.fold(store)
    assert folds == [2]


def test_records_that_do_not_decode_are_named_or_nothing_is_folded(store: Store, settings: Settings) -> None:  # R6
    append_commit(store, 0)
    log, other = LogPartition(0, start=1), LogPartition(1)
    for each in (other, log, log):
        each.record(None, b"corrupt")
    appended(store.location, [*other.rows, *log.rows])
    first = "record 1 of log partition 0 does not decode: key: record has no key"
    strict = replace(settings, log=replace(settings.log, corrupt_records="fail"))
    with pytest.raises(UndecodableRecord, match=f'^{first}; nothing was folded; set corrupt_records = "quarantine" '):
        fold_log(store, strict, CLOCK)
    assert progress_of(store).partitions == {}
    warnings: list[str] = []
    assert fold_log(store, settings, CLOCK, warnings.append) == 4
    append_commit(store, 3)
    assert fold_log(store, strict, CLOCK, warnings.append) == 1
    assert warnings == [f"3 of 4 records went into quarantine ({first}); see the store's table quarantine"]


@pytest.mark.parametrize(("age_ms", "expired"), [(WEEK_MS - 1, []), (WEEK_MS, [(1, 1)])])
def test_fold_to_the_end_of_an_owned_store_has_the_tombstones_of_its_expiry(
    place: Path, settings: Settings, age_ms: int, expired: list[tuple[int, int]]
) -> None:  # R19
    OwnedStore.create(place, 2)
    with opened_coordinator(place) as coordinator:
        coordinator.commit_offsets("h", {("t", 0): 5})
    runs: list[tuple[int, int]] = []
    store = opened(place)
    clock = FixedClock(NOW_MS + age_ms)
    Folding(store, settings, clock, on_expiry=lambda *counts: runs.append(counts)).fold_to_end()
    assert runs == expired
    assert published(store.location) == ([] if expired else [("t0", 0, 5)])


def test_a_query_starts_before_all_versions_of_the_log_and_sees_each_newer_one(store: Store) -> None:
    source = LogVersionSource(log_versions(store))
    assert (source.name(), source.schema()) == (FORMAT, "version bigint")
    reader = source.streamReader("")
    before = {table.name: -1 for table in (LOG, LOG_PARTITIONS)}
    assert reader.initialOffset() == before
    first = {table.name: store.version(table.name) for table in (LOG, LOG_PARTITIONS)}
    assert reader.latestOffset() == first
    append_commit(store, 0)
    copy: LogVersionReader = pickle.loads(pickle.dumps(reader))
    assert reader.latestOffset(first) == copy.latestOffset() == first | {LOG.name: first[LOG.name] + 1}
    (partition,) = reader.partitions(before, first)
    assert list(reader.read(partition)) == []
