"""Questions answer as of the end of the log: what is not folded yet, the reader folds (docs/adr/0028). No Spark."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.fold.state.fold import fold_log
from offsets_pipeline.fold.state.fold_progress import belonging
from offsets_pipeline.fold.state.merge_on_read import STATE_TABLES
from offsets_pipeline.fold.state.publishing import compact_facts, publish
from offsets_pipeline.questions.query import state_reader
from offsets_pipeline.questions.query.describe import describe_groups
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.store.log.metadata import LogMetadata
from tests.folded_stores import new_store
from tests.logs import LogPartition
from tests.places import rounds
from tests.random_logs import Shape, random_log, several
from tests.spark.stores import CLOCK, appended, assert_answers_as_reference, log_of
from tests.unit.state.state_files import progress_of

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.fold.state.fold_progress import FoldProgress
    from offsets_pipeline.fold.state.merge_on_read import StateTable
    from offsets_pipeline.semantics.log_row import LogRow
    from offsets_pipeline.store.delta.snapshot import Snapshot
    from offsets_pipeline.store.delta.table_folder import TableFolder
    from offsets_pipeline.store.store import Store

#: Few offsets, so that tombstones and transactions meet on both sides of the cut.
TRANSACTIONS = Shape(
    steps={"commit": 10, "tombstone": 4, "marker": 4, "classic": 1, "remove": 1},
    groups=("g", "h"),
    topics=("t",),
    producers=(7, 8, 9),
    log_partitions=2,
)


def cut_anywhere(rows: list[LogRow], chance: random.Random) -> tuple[list[LogRow], list[LogRow]]:
    """The rows before and behind a cut in each log partition."""
    ends = {at: chance.randrange(max(row.record_offset for row in rows) + 2) for at in {row[0] for row in rows}}
    return [row for row in rows if row[1] < ends[row[0]]], [row for row in rows if row[1] >= ends[row[0]]]


def assert_current_at_random_cuts(folder: Path, settings: Settings, semantics: CoordinatorSemantics, seed: int) -> None:
    """A random log, folded up to a random place of each log partition."""
    chance = random.Random(f"{seed} {semantics}")
    shape = TRANSACTIONS if seed % 2 else several(2)
    rows = random_log(chance, 60, shape).rows()
    before, behind = cut_anywhere(rows, chance)
    store = new_store(folder, 2, semantics)
    appended(store.location, before)
    fold_log(store, settings, CLOCK)
    if chance.random() < 0.3:
        assert publish(store, CLOCK)
    if chance.random() < 0.3:
        compact_facts(store, progress_of(store))
    appended(store.location, behind)
    assert_answers_as_reference(store.location, rows)
    reader = StateReader(store.location)
    assert not reader.current.unfolded
    assert sum(each.records for each in reader.current.progress.values()) == len(rows)


@pytest.mark.parametrize("semantics", CoordinatorSemantics)
@pytest.mark.parametrize("seed", range(6))
def test_answers_are_as_of_the_end_of_the_log_wherever_the_last_fold_ended(
    place: Path, settings: Settings, semantics: CoordinatorSemantics, seed: int, run_seed: int
) -> None:  # R11, R12, R15
    assert_current_at_random_cuts(place, settings, semantics, seed + run_seed)


@pytest.mark.long
@pytest.mark.parametrize("semantics", CoordinatorSemantics)
def test_answers_are_as_of_the_end_of_the_log_at_a_thousand_cuts(
    place: Path, settings: Settings, semantics: CoordinatorSemantics, run_seed: int
) -> None:
    for seed in rounds(place, 500):
        assert_current_at_random_cuts(place / str(seed), settings, semantics, seed + run_seed)


@pytest.fixture
def folded(store: Store, settings: Settings) -> Store:
    """A store of two log partitions, both folded to their ends; one has an open transaction."""
    log, other = LogPartition(0), LogPartition(1)
    log.commit(("h", "t", 0), 1)
    log.commit(("h", "t", 1), 2, producer_id=7)
    other.commit(("g", "t", 0), 3)
    appended(store.location, [*log.rows, *other.rows])
    assert fold_log(store, settings, CLOCK) == 3
    return store


def offsets_in(store: Store, at_most: int = 1_000) -> dict[tuple[str, str, int], tuple[int, bool]]:
    """The offsets that `describe` shows, and whether each is pending."""
    groups = describe_groups(StateReader(store.location, at_most))
    return {
        (name, each.topic, each.partition): (each.offset, each.pending)
        for name, group in groups.items()
        for each in group.offsets
    }


@pytest.mark.parametrize("table", STATE_TABLES, ids=lambda table: table.name)
def test_a_fold_between_two_tables_that_are_read_shows_in_both_or_in_none(
    folded: Store, settings: Settings, table: StateTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogPartition(0, start=2)
    log.commit(("h", "t", 0), 9)
    log.commit(("new", "t", 0), 4)
    before = offsets_in(folded)

    def fold_first(each: TableFolder, progress: FoldProgress, *, is_named: bool = False) -> Snapshot:
        if each.table is table.table and log.rows:
            appended(folded.location, log.rows)
            log.rows.clear()
            assert fold_log(folded, settings, CLOCK) == 2
        return belonging(each, progress, is_named=is_named)

    monkeypatch.setattr(state_reader, "belonging", fold_first)
    groups = describe_groups(StateReader(folded.location))
    found = {(name, each.topic, each.partition): each.offset for name in groups for each in groups[name].offsets}
    assert found == {where: offset for where, (offset, _) in before.items()}
    assert groups.keys() == {name for name, _, _ in before}
    assert offsets_in(folded) == before | {("h", "t", 0): (9, False), ("new", "t", 0): (4, False)}


def test_a_marker_behind_the_last_fold_shows_the_offset_that_waited_for_it(folded: Store) -> None:  # R11, R17
    log = LogPartition(0, start=2)
    log.commit(("h", "t", 0), 10, producer_id=7)
    appended(folded.location, log.rows)
    assert offsets_in(folded)["h", "t", 0] == (1, True)
    log.rows.clear()
    log.end_commit(7)
    appended(folded.location, log.rows)
    assert offsets_in(folded) == {("g", "t", 0): (3, False), ("h", "t", 0): (10, False), ("h", "t", 1): (2, False)}


def test_a_store_that_no_stream_has_folded_answers_from_its_log(store: Store) -> None:
    log = LogPartition(partition_for("g", 2))
    log.commit(("g", "t", 0), 3)
    appended(store.location, log.rows)
    assert offsets_in(store) == {("g", "t", 0): (3, False)}
    assert_answers_as_reference(store.location, log.rows)


def test_a_new_incarnation_of_the_log_answers_as_a_whole_or_not_at_all(folded: Store, settings: Settings) -> None:
    earlier = log_of(folded.location)
    log = LogPartition(1)
    log.commit(("g", "t", 0), 30)
    log.commit(("g", "t", 5), 31, producer_id=9)
    log.end_commit(9)
    appended(folded.location, log.rows, log_incarnation=1)
    assert offsets_in(folded)["g", "t", 0] == (3, False)  # it does not count yet
    LogMetadata(folded, CLOCK, 1).bounds({0: (0, 0), 1: (0, 3)})
    assert offsets_in(folded) == {("g", "t", 0): (30, False), ("g", "t", 5): (31, False)}
    assert_answers_as_reference(folded.location, log.rows, earlier)
    assert offsets_in(folded, at_most=2)["g", "t", 0] == (3, False)
    assert StateReader(folded.location, 2).current.unfolded == {1: 3}


def test_records_behind_folded_ones_are_answered_from_the_start_of_their_log_partition(
    store: Store, settings: Settings
) -> None:  # R16
    late, log = LogPartition(0), LogPartition(0, start=5)
    late.commit(("h", "t", 0), 1)
    late.commit(("h", "t", 1), 2)
    log.delete(("h", "t", 0))
    log.commit(("h", "t", 2), 7)
    appended(store.location, log.rows)
    fold_log(store, settings, CLOCK)
    appended(store.location, late.rows, backfill=True)
    assert offsets_in(store) == {("h", "t", 1): (2, False), ("h", "t", 2): (7, False)}
    assert_answers_as_reference(store.location, [*late.rows, *log.rows])


def test_log_partitions_with_too_many_new_records_answer_as_of_their_last_fold(folded: Store) -> None:
    log, other = LogPartition(0, start=2), LogPartition(1, start=1)
    for number in range(20):
        log.commit(("h", "t", 0), 100 + number)
    other.commit(("g", "t", 0), 4)
    appended(folded.location, [*log.rows, *other.rows])
    found = offsets_in(folded, at_most=20)
    assert (found["h", "t", 0], found["g", "t", 0]) == ((1, False), (4, False))
    assert StateReader(folded.location, 20).current.unfolded == {0: 20}
    assert offsets_in(folded, at_most=21)["h", "t", 0] == (119, False)
    assert StateReader(folded.location, 0).current.unfolded == {0: 20, 1: 1}


def test_a_reader_leaves_no_files(folded: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    log = LogPartition(1, start=1)
    log.commit(("g", "t", 0), 4)
    appended(folded.location, log.rows)
    assert StateReader(folded.location).current.folded
    assert not list(temporary.iterdir())
