"""One behaviour on random logs, cut anywhere: stream with restarts, reload and reference agree (R15, R16)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.semantics.group_types import GROUP_TYPE_OF_RECORD_TYPE
from tests.places import copied, remove_place, rounds
from tests.random_logs import IN_SEGMENTS, random_log
from tests.spark.segments import write_log, write_prefix
from tests.spark.stores import assert_as_reference, log_of, remove, state_of
from tests.streaming.random_turns import MirroredTurn, OwnedTurn, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from offsets_pipeline.semantics.log_row import LogRow
    from tests.spark.stores import Workbench

pytestmark = [pytest.mark.streaming, pytest.mark.slow, pytest.mark.usefixtures("many_retries")]

PARTITIONS = IN_SEGMENTS.log_partitions
STEPS = 2_000


def record_types(rows: Iterable[LogRow]) -> set[int]:
    return {int.from_bytes(row.key[:2]) for row in rows if row.key is not None and row.control_type is None}


def commit_versions(rows: Iterable[LogRow]) -> set[int]:
    """The versions of the values of offset commits."""
    return {int.from_bytes(row.value[:2]) for row in rows if (row.key or b"")[:2] == b"\0\1" and row.value is not None}


def reload_one_by_one(workbench: Workbench, store: Path) -> int:
    return sum(workbench.reload(store, partition) for partition in range(PARTITIONS))


def reload_whole(workbench: Workbench, store: Path) -> int:
    return workbench.reload(store)


@pytest.mark.parametrize(
    ("seed", "ways"),  # in the driver, then in tasks
    [
        (11, (reload_whole, reload_one_by_one)),
        pytest.param(13, (reload_one_by_one, reload_whole), marks=pytest.mark.long),
    ],
    ids=["11", "13"],
)
def test_reference_stream_and_reload_agree_on_a_random_log(
    workbench: Workbench,
    in_tasks: Workbench,
    empty: Callable[[int], Path],
    place: Path,
    tmp_path: Path,
    seed: int,
    ways: tuple[Callable[[Workbench, Path], int], ...],
) -> None:
    chosen = random.Random(seed)
    rows = random_log(chosen, STEPS, IN_SEGMENTS).rows()
    assert record_types(rows) >= set(GROUP_TYPE_OF_RECORD_TYPE)
    assert commit_versions(rows) >= {0, 1, 2, 3, 4}
    whole = write_log(tmp_path / "whole", rows, partitions=PARTITIONS)
    store = copied(empty(PARTITIONS), place / "store")
    shares = sorted(chosen.uniform(0.1, 0.9) for _ in range(3))
    for step, (share, folds) in enumerate(zip([*shares, 1.0], [workbench, in_tasks] * 2, strict=True)):
        folds.ingest(store, write_prefix(whole, tmp_path / f"prefix-{step}", share, chosen))
        folds.fold(store)
        assert_as_reference(store, log_of(store))
    state = state_of(store)
    assert [row for row in log_of(store) if row.control_type is None] == [
        row for row in rows if row.control_type is None
    ]
    assert state.quarantine
    assert any(each.pending for each in state.progress.values())
    assert any(row["misplaced"] for row in state.offsets.values())
    for bench, way in zip((workbench, in_tasks), ways, strict=True):
        remove(store, "current_offsets", "record_offset % 2 = 0")
        remove(store, "offset_facts", "record_offset % 2 = 0")
        remove(store, "group_records", "value_offset % 2 = 0")
        assert not bench.verify(store).equal
        assert way(bench, store) == len(rows)
        assert_as_reference(store, rows)
        assert bench.verify(store).equal


# they take Spark: a real stream is what is started, stopped and overtaken
@pytest.mark.parametrize("turns", [2, pytest.param(20, marks=pytest.mark.long)])
def test_random_logs_through_streams_with_restarts_reloads_and_cleaning(
    workbench: Workbench, in_tasks: Workbench, empty: Callable[[int], Path], place: Path, turns: int, turn_seed: int
) -> None:
    for seed in seeds_of(turn_seed, rounds(place, turns)):
        store = copied(empty(PARTITIONS), place / f"{seed}" / "store")
        run_turn(MirroredTurn(in_tasks if seed % 8 == 0 else workbench, store, random.Random(seed)))


@pytest.mark.local_only("one turn after the other; tests of the coordinator have stores on S3")
@pytest.mark.parametrize("turns", [2, pytest.param(40, marks=pytest.mark.long)])
def test_owned_logs_through_streams_that_also_expire_offsets(
    workbench: Workbench,
    in_tasks: Workbench,
    tmp_path: Path,
    turns: int,
    turn_seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expired = 0
    for seed in seeds_of(turn_seed, range(turns)):
        bench, store = in_tasks if seed % 8 == 0 else workbench, tmp_path / f"{seed}" / "store"
        with monkeypatch.context() as patch:
            turn = OwnedTurn(bench, store, random.Random(seed), patch)
            run_turn(turn)
        expired += len(turn.expired)
    assert expired >= turns


def seeds_of(turn_seed: int, rounds_of_it: range) -> range:
    """Seeds that no other turn of a long test has."""
    return range(turn_seed * 1_000, turn_seed * 1_000 + len(rounds_of_it))


def run_turn(turn: Turn) -> None:
    """Run a turn, and remove its place."""
    turn.run()
    remove_place(turn.store.parent)
