"""Folds up to the end of the log with the expiry before them, and records that do not decode. Without Spark."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.errors import UndecodableRecord
from offsets_pipeline.fold.state.fold import fold_log
from offsets_pipeline.fold.stream.folding import Folding
from tests.folded_stores import opened
from tests.logs import LogPartition
from tests.spark.stores import CLOCK, appended
from tests.unit.coordinator.stores import NOW_MS
from tests.unit.coordinator.stores import opened as opened_coordinator
from tests.unit.state.state_files import progress_of, published
from tests.waiting import wait_until

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


@pytest.mark.parametrize(("age_ms", "expired"), [(WEEK_MS - 1, []), (WEEK_MS, [(1, 1)])])
def test_fold_to_the_end_of_an_owned_store_has_the_tombstones_of_its_expiry(
    place: Path, settings: Settings, age_ms: int, expired: list[tuple[int, int]]
) -> None:  # R19
    OwnedStore.create(place, 2)
    with opened_coordinator(place) as coordinator:
        coordinator.commit_offsets("h", {("t", 0): 5})
    runs: list[tuple[int, int]] = []
    clock = FixedClock(NOW_MS + age_ms)
    Folding(opened(place), settings, clock, on_expiry=lambda *counts: runs.append(counts)).fold_to_end()
    assert runs == expired
    assert published(place) == ([] if expired else [("t0", 0, 5)])


def test_a_folding_ends_its_threads(place: Path, settings: Settings) -> None:
    OwnedStore.create(place, 2)
    folding = Folding(opened(place), replace(settings, fold=replace(settings.fold, upkeep_interval_ms=0)), CLOCK)
    before = set(threading.enumerate())
    folding.start()
    assert len(set(threading.enumerate()) - before) >= 2  # publishing and expiry, whose coordinator has one, too
    folding.close()
    wait_until("all have ended", lambda: set(threading.enumerate()) <= before)


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
