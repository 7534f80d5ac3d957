"""Folds up to the end of the log with the expiry before them, and records that do not decode. Without Spark."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.common.config.sections import FoldSettings
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.errors import UndecodableRecord
from offsets_pipeline.fold.state.fold import fold_log
from offsets_pipeline.fold.state.verify import verify_store
from offsets_pipeline.fold.stream.folding import Folding, follow
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from offsets_pipeline.store.delta.properties import MIRRORED, OWNED, StoreProperties
from offsets_pipeline.store.delta.store_folder import create_tables
from offsets_pipeline.store.log.metadata import LogMetadata
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
    assert folding._upkeep is None
    assert Folding(opened(place), replace(settings, fold=FoldSettings(upkeep_interval_ms=1)), CLOCK)._upkeep is not None
    before = set(threading.enumerate())
    folding.start()
    started = {each.name for each in set(threading.enumerate()) - before}
    assert {"publishing", "expiry"} <= started
    assert "upkeep" not in started
    folding.close()
    wait_until("all have ended", lambda: set(threading.enumerate()) <= before)


@pytest.mark.parametrize(
    ("kind", "in_stream", "expires"), [(OWNED, True, True), (OWNED, False, False), (MIRRORED, True, False)]
)
def test_offsets_expire_beside_the_folds_of_an_owned_store_if_the_settings_ask_for_it(
    place: Path, settings: Settings, *, kind: str, in_stream: bool, expires: bool
) -> None:  # R4
    create_tables(str(place / "s"), StoreProperties(kind, 1))
    wanted = replace(settings, fold=replace(settings.fold, expire_in_stream=in_stream))
    assert (Folding(opened(place / "s"), wanted, CLOCK)._expiry is not None) == expires


def test_a_log_that_is_as_it_was_is_not_folded_again(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    folds: list[int] = []

    def noted(*arguments: Any) -> int:  # noqa: ANN401
        found.append(fold_log(*arguments))
        return found[-1]

    monkeypatch.setattr("offsets_pipeline.fold.stream.folding.fold_log", noted)
    folding = Folding(store, settings, CLOCK, on_fold=folds.append)
    folding.fold(store)
    assert (found, folds) == ([0], [])  # of no record nothing is said
    due_at = folding._publisher._due_at()
    append_commit(store, 0)
    for _ in range(2):
        folding.fold(store)
    assert (found, folds) == ([0, 1], [1])
    assert folding._publisher._due_at() < due_at
    LogMetadata(store, CLOCK).bounds({0: (0, 1)})  # another incarnation of the log may count now
    folding.fold(store)
    assert (found, folds) == ([0, 1, 0], [1])


@pytest.mark.parametrize("available_now", [True, False])
def test_follow_folds_what_came_before_it_and_what_it_has_read(
    store: Store, settings: Settings, *, available_now: bool
) -> None:
    append_commit(store, 0)
    before, folds = set(threading.enumerate()), list[int]()

    def run(*, available_now: bool, folding: Folding) -> int:
        assert folds == [1]
        has_threads = any(each.name == "publishing" for each in set(threading.enumerate()) - before)
        assert has_threads is not available_now
        assert folding.next_fold(store, 0) is not None
        append_commit(store, 1)
        return 7

    ingest = cast("Any", SimpleNamespace(store=store, run=run))
    wanted = replace(settings, fold=replace(settings.fold, upkeep_interval_ms=0))
    assert follow(ingest, wanted, CLOCK, available_now=available_now, on_fold=folds.append) == 7
    assert folds == [1, 1]
    assert published(store.location) == [("t0", 1, 1)]
    wait_until("all threads have ended", lambda: set(threading.enumerate()) <= before)


def test_follow_replays_the_log_by_the_semantics_that_its_broker_has_now(store: Store, settings: Settings) -> None:
    append_commit(store, 0)
    fold_log(store, settings, CLOCK)
    changed = store.with_semantics(CoordinatorSemantics.CLASSIC)
    for _ in range(2):
        ingest = cast("Any", SimpleNamespace(store=changed, run=lambda **_: 0))
        follow(ingest, settings, CLOCK, available_now=True)
        assert progress_of(store).semantics is CoordinatorSemantics.CLASSIC
        assert progress_of(store).incarnation == 2  # the state has them already


def test_a_fold_goes_on_with_the_semantics_of_the_state(store: Store, settings: Settings) -> None:
    """The store gets other semantics, as at the start of a reload. Under them a group without offsets is gone (R14)."""
    append_commit(store, 0)
    fold_log(store, settings, CLOCK)
    changed = store.with_semantics(CoordinatorSemantics.CLASSIC)
    log = LogPartition(0, start=1)
    log.delete(("h", "t", 0))
    appended(store.location, log.rows)
    assert fold_log(changed, settings, CLOCK) == 1
    assert progress_of(store).semantics is CoordinatorSemantics.MODERN
    found = verify_store(changed, settings.fold, independent=True)
    assert found.equal, found.examples


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
