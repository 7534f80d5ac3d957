"""Reloads without Spark: beside other reloads and folds, and rows that come in behind them (R11, R15, R16)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.errors import InvalidPartitionCount, WriteConflict
from offsets_pipeline.fold.state.fold import fold_log, reload_partitions
from offsets_pipeline.fold.state.fold_progress import FoldProgress
from offsets_pipeline.fold.state.publishing import drop_replaced, publish
from offsets_pipeline.fold.state.verify import verify_store
from offsets_pipeline.store.delta import retry
from offsets_pipeline.store.log.metadata import LogMetadata
from tests.logs import LogPartition
from tests.places import remove_place
from tests.spark.stores import CLOCK, appended, assert_as_reference, log_of
from tests.unit.state.state_files import append, before_swap, offset, offsets, progress_of, published, swap

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offsets_pipeline.common.clock import Clock
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.store.store import Store


@pytest.fixture
def folded(store: Store, settings: Settings) -> Store:
    """A store with commits, a deletion, groups and an open transaction, of incarnation 1."""
    log, other = LogPartition(0), LogPartition(1)
    for number in range(3):
        log.commit(("h", "a", number), number)
        other.group(2, f"classic{number}")
    log.delete(("h", "a", 0))
    log.commit(("h", "open", 0), 7, producer_id=1)
    appended(store.location, [*log.rows, *other.rows])
    assert reload_partitions(store, None, settings, CLOCK) == 8
    assert_as_reference(store.location, log_of(store.location))
    return store


def test_late_rows_behind_a_reload_change_nothing(store: Store, settings: Settings) -> None:  # R15
    log = LogPartition()
    for partition in range(3):
        log.commit(("h", "a", partition), partition)
    appended(store.location, log.rows)
    assert reload_partitions(store, None, settings, CLOCK) == 3
    rows = [("a0", 0, 0), ("a1", 1, 1), ("a2", 2, 2)]
    assert offsets(store) == published(store.location) == rows
    append(store, offset("a1", 0), offset("a2", 2))
    assert offsets(store) == rows
    append(store, offset("a0", 3))
    assert offsets(store) == [("a0", 3, 3), *rows[1:]]
    assert published(store.location) == rows


def test_each_reload_has_an_incarnation_of_its_own(folded: Store, settings: Settings) -> None:
    reload_partitions(folded, [0], settings, CLOCK)
    assert progress_of(folded).incarnations == {0: 2, 1: 1}
    reload_partitions(folded, [1], settings, CLOCK)
    assert progress_of(folded).incarnations == {0: 2, 1: 3}
    assert_as_reference(folded.location, log_of(folded.location))
    for at, message in ((-1, "no log partition -1 in"), (2, r"no log partition 2 in .*: its log has 2, 0 to 1$")):
        with pytest.raises(InvalidPartitionCount, match=message):
            reload_partitions(folded, [0, at], settings, CLOCK)
    assert progress_of(folded).incarnations == {0: 2, 1: 3}


def test_reload_makes_lost_tables_anew_and_says_when_it_folded_each_log_partition(
    store: Store, settings: Settings, place: Path
) -> None:
    for name in ("group_facts", "quarantine", "topics"):
        remove_place(place / name)
    reload_partitions(store, None, settings, CLOCK)
    assert [store.table(name).exists() for name in ("group_facts", "quarantine", "topics")] == [True] * 3
    found = progress_of(store).partitions
    assert {at: (each.folded_to, each.folded_at_us) for at, each in found.items()} == {
        at: (0, CLOCK.now_ms() * 1000) for at in (0, 1)
    }


@pytest.mark.on_s3
def test_reload_keeps_the_commits_of_an_open_transaction(folded: Store, settings: Settings) -> None:  # R11
    log = LogPartition(0, start=5)
    log.end_commit(1)
    before_reload = progress_of(folded).partitions[0].pending
    assert [commit["record_offset"] for commit in before_reload] == [4]
    appended(folded.location, log.rows)
    reload_partitions(folded, None, settings, CLOCK)
    assert progress_of(folded).partitions[0].pending == []
    assert_as_reference(folded.location, log_of(folded.location))


def test_reload_has_what_others_folded_since_it_read_the_log(
    folded: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:  # R11, R16
    def stream_goes_on() -> None:
        log = LogPartition(0, start=5)
        log.end_commit(1)
        log.commit(("h", "a", 1), 10)
        appended(folded.location, log.rows)
        swap(folded, {0: replace(progress_of(folded).partitions[0], folded_to=7)})

    before_swap(monkeypatch, stream_goes_on)
    reload_partitions(folded, None, settings, CLOCK)
    assert progress_of(folded).folded_to == {0: 7, 1: 3}
    assert progress_of(folded).incarnations == {0: 2, 1: 2}
    assert_as_reference(folded.location, log_of(folded.location))
    append(folded, offset("a2", 1), incarnation=2)  # late, behind what is published
    assert offsets(folded)[:3] == [("a0", 3, None), ("a1", 6, 10), ("a2", 2, 2)]
    assert publish(folded, CLOCK)
    assert published(folded.location) == [("a1", 6, 10), ("a2", 2, 2), ("open0", 4, 7)]


def test_verification_counts_what_it_has_compared(folded: Store, settings: Settings) -> None:
    """Hand-worked: of three offsets one is deleted, and that of an open transaction does not count yet."""
    found = verify_store(folded, settings.fold)
    assert found.equal
    assert (found.log_partitions, found.records, found.offsets) == (2, 8, 2)
    assert [(at, table) for at, table, _ in found.digests] == [
        (0, "group_facts"),  # the group `h` is made of its offsets
        (0, "offset_facts"),
        (1, "group_facts"),
    ]


@pytest.mark.parametrize("chosen", [None, [0, 1]], ids=["all", "each by its number"])
def test_reload_of_all_names_the_versions_of_a_published_table_that_was_lost(
    folded: Store, settings: Settings, place: Path, chosen: list[int] | None
) -> None:
    """Made anew, the table counts its versions from the start, and the progress names the old higher ones."""
    for number in range(3):
        log = LogPartition(0, start=5 + number)
        log.commit(("h", "a", 1), 10 + number)
        appended(folded.location, log.rows)
        assert fold_log(folded, settings, CLOCK) == 1
        assert publish(folded, CLOCK)
    before = progress_of(folded).versions["current_offsets"]
    remove_place(place / "current_offsets")
    reload_partitions(folded, chosen, settings, CLOCK)
    assert progress_of(folded).versions["current_offsets"] == folded.version("current_offsets") < before
    assert_as_reference(folded.location, log_of(folded.location))


def test_reload_that_a_later_one_overtook_starts_again(
    folded: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another_reload() -> None:
        reload_partitions(folded, None, settings, CLOCK)
        drop_replaced(folded, progress_of(folded))  # the first is older than the incarnation that is named

    before_swap(monkeypatch, another_reload)
    reload_partitions(folded, None, settings, CLOCK)
    assert_as_reference(folded.location, log_of(folded.location))
    assert progress_of(folded).incarnations == {0: 4, 1: 4}


def test_reload_of_a_log_incarnation_that_no_longer_counts_ends_with_a_conflict(
    folded: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has folded a new one, into a state incarnation that is older than that of this reload."""

    def another_log() -> None:
        swap(folded, {at: replace(each, log_incarnation=1) for at, each in progress_of(folded).partitions.items()})

    before_swap(monkeypatch, another_log)
    monkeypatch.setattr(retry, "MAX_RETRIES", 0)
    with pytest.raises(WriteConflict, match="cannot commit a reload: other writers committed first"):
        reload_partitions(folded, None, settings, CLOCK)
    assert progress_of(folded).log_incarnation == 1


def test_reload_gives_up_where_a_stream_is_always_quicker(
    folded: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(*_: object) -> None:
        raise WriteConflict("another fold came first")

    monkeypatch.setattr(FoldProgress, "replace", overtaken)
    monkeypatch.setattr(retry, "MAX_RETRIES", 0)
    with pytest.raises(WriteConflict, match="cannot commit a reload: other writers committed first"):
        reload_partitions(folded, None, settings, CLOCK)
    monkeypatch.undo()
    assert_as_reference(folded.location, log_of(folded.location))


def test_reload_never_moves_the_progress_back(folded: Store, settings: Settings) -> None:
    progress = progress_of(folded)
    beyond = replace(progress.partitions[0], folded_to=progress.folded_to[0] + 5)  # the last records left the log
    swap(folded, {0: beyond})
    reload_partitions(folded, None, settings, CLOCK)
    assert progress_of(folded).folded_to == progress.folded_to | {0: beyond.folded_to}


@pytest.mark.parametrize(
    "replay",
    [fold_log, lambda store, settings, clock: reload_partitions(store, [1], settings, clock)],
    ids=["a fold", "a reload of one log partition"],
)
def test_state_of_a_superseded_log_incarnation_becomes_that_of_the_one_that_counts(
    folded: Store, settings: Settings, replay: Callable[[Store, Settings, Clock], int]
) -> None:
    log = LogPartition(0)
    log.commit(("h", "a", 0), 70)
    appended(folded.location, log.rows, log_incarnation=1)
    LogMetadata(folded, CLOCK, 1).bounds({0: (0, 1), 1: (0, 0)})
    assert replay(folded, settings, CLOCK) == 1
    assert progress_of(folded).log_incarnation == 1
    assert {each.log_incarnation for each in progress_of(folded).partitions.values()} == {1}
    assert offsets(folded) == [("a0", 0, 70)]
    assert_as_reference(folded.location, log.rows)
