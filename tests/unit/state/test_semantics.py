"""The state tables of both coordinator semantics, as folds of small batches write them and readers merge them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.fold.state.merge_on_read import OFFSETS
from offsets_pipeline.semantics.columnar_replay import Replay
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from tests.logs import LogPartition, input_table
from tests.random_logs import Shape, random_log
from tests.replays import effects_of, references
from tests.unit.state.tables import StoredState

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from offsets_pipeline.semantics.log_row import LogRow

both = pytest.mark.parametrize("semantics", CoordinatorSemantics)
#: Few offsets, so that tombstones and transactions meet, and groups with and without metadata.
SHAPE = Shape(
    steps={"commit": 10, "tombstone": 5, "marker": 5, "classic": 1, "remove": 2},
    groups=("g", "h"),
    topics=("t",),
    producers=(7, 8, 9),
)


@pytest.fixture
def classic(place: Path) -> StoredState:
    return StoredState(place, 1, CoordinatorSemantics.CLASSIC)


def assert_as_replayed_from_the_start(state: StoredState, rows: list[LogRow]) -> None:
    """Visible and pending offsets have the positions that a replay of the whole log gives: `verify` compares them."""
    replay = Replay(len(state.progress), None, state.semantics)
    replay.add(input_table(rows))
    effects = effects_of(replay)
    live = [row for row in effects["offsets"] if row["committed_offset"] is not None]
    assert state.offsets("position") == {tuple(row[name] for name in OFFSETS.key): row["position"] for row in live}
    pending = {(row["producer_id"], row["record_offset"]): row["position"] for row in effects["pending"]}
    assert {
        (row["producer_id"], row["record_offset"]): row["position"]
        for each in state.progress.values()
        for row in each.pending
    } == pending


def assert_as_specified(state: StoredState, rows: Iterable[LogRow]) -> None:
    """The tables hold the offsets and groups of the row-wise replay."""
    expected = references(rows, len(state.progress), state.semantics)
    assert state.offsets() == {
        (at, *identity): offset.record_offset
        for at, each in expected.items()
        for identity, offset in each.offsets.items()
    }
    assert {at: kind for at, (kind, _) in state.groups().items()} == {
        (at, group_id): group.group_type for at, each in expected.items() for group_id, group in each.groups.items()
    }


@both
@pytest.mark.parametrize("seed", range(2))
def test_folds_in_small_batches_give_the_specified_state(
    place: Path, seed: int, semantics: CoordinatorSemantics, run_seed: int
) -> None:  # R10-R16
    chance = random.Random(run_seed + seed)
    rows = random_log(chance, 40, SHAPE).rows()
    state = StoredState(place, 1, semantics)
    done = 0
    while done < len(rows):
        end = done + chance.choice([1, 3, 8])
        if chance.random() < 0.2:
            state.fold(rows[done:end], swap=False)  # it dies, and its rows stay
        state.fold(rows[max(0, done - chance.choice([0, 4])) : end])
        done = end
        assert_as_specified(state, rows[:done])
        assert_as_replayed_from_the_start(state, rows[:done])


def test_commit_whose_marker_comes_batches_after_a_tombstone_brings_the_offset_back(classic: StoredState) -> None:
    # R10c, R12
    log = LogPartition()
    log.commit(("g", "t", 0), 10)
    first = log.commit(("g", "t", 0), 20, producer_id=7)
    second = log.commit(("g", "t", 0), 30, producer_id=8)
    classic.fold(log.rows)
    log.delete(("g", "t", 0))
    classic.fold(log.rows)
    assert classic.offsets() == {}
    log.end_commit(8)
    classic.fold(log.rows)
    assert classic.offsets() == {(0, "g", "t", 0): second}
    log.end_commit(7)
    classic.fold(log.rows)
    assert classic.offsets() == {(0, "g", "t", 0): second}
    assert first < second
    log.delete(("g", "t", 0))
    classic.fold(log.rows)
    assert (classic.offsets(), classic.groups()) == ({}, {})


def test_group_without_metadata_is_listed_while_it_has_an_offset(classic: StoredState) -> None:  # R14
    log = LogPartition()
    log.commit(("g", "t", 0), 1)
    log.commit(("g", "t", 1), 1)
    classic.fold(log.rows)
    assert classic.groups() == {(0, "g"): ("Classic", "Empty")}
    log.delete(("g", "t", 0))
    classic.fold(log.rows)
    assert classic.groups() == {(0, "g"): ("Classic", "Empty")}
    log.delete(("g", "t", 1))
    classic.fold(log.rows)
    assert classic.groups() == {}
    log.commit(("g", "t", 0), 1, producer_id=7)
    classic.fold(log.rows)
    assert classic.groups() == {(0, "g"): ("Classic", "Empty")}
    log.end_abort(7)
    classic.fold(log.rows)
    assert classic.groups() == {}


def test_offsets_that_a_group_tombstone_left_behind_make_a_simple_group(classic: StoredState) -> None:  # R14
    log = LogPartition()
    log.commit(("g", "t", 0), 1)
    log.group(2, "g", protocol_type="consumer", generation=3)
    classic.fold(log.rows)
    log.group_tombstone(2, "g")
    classic.fold(log.rows)
    assert classic.groups() == {(0, "g"): ("Classic", "Empty")}
    assert classic.offsets() == {(0, "g", "t", 0): 0}
