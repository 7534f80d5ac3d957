"""Scripts of appends, folds and restarts: the state equals the reference replay, wherever batches end (R15, R16)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.semantics.coordinator_semantics import MODERN
from tests.logs import LogPartition, all_captures, capture_rows, in_batches
from tests.places import copied, remove_place
from tests.spark.segments import batch_ends, write_prefix, write_segment
from tests.spark.stores import (
    appended,
    assert_as_reference,
    export_of,
    log_of,
    rows_of,
    segments_of,
    state_rows,
    versions,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from offsets_pipeline.semantics.log_row import LogRow
    from tests.spark.stores import Workbench

pytestmark = pytest.mark.streaming


def rows_in(capture: str) -> list[LogRow]:
    return [row for of_one in capture_rows(capture).values() for row in of_one]


def written(store: Path) -> dict[str, int]:
    """The versions of the tables: each write moves one. One of them is written to say that nothing was to publish."""
    return {name: version for name, version in versions(store).items() if name != "published_as_of"}


@pytest.mark.slow
def test_log_that_grows_is_folded_step_by_step_as_the_reference_replays_it(
    either_way: Workbench, empty: Callable[[int], Path], chance: random.Random, place: Path, tmp_path: Path
) -> None:
    store = copied(empty(5), place / "store")
    torn = 0
    for step, share in enumerate((0.3, 0.55, 0.8, 1.0)):
        # every copy holds all of the one before, whole batches and torn ones
        prefix = write_prefix(segments_of("4.2.0-txn-open"), tmp_path / f"prefix-{step}", share, chance)
        report = either_way.ingest(store, prefix)
        torn += sum(file.torn_tail is not None for file in report.files)
        assert either_way.fold(store) == report.added > 0
        assert_as_reference(store, log_of(store))
    assert torn > 0
    assert len(log_of(store)) == len(rows_in("4.2.0-txn-open"))


def test_fold_of_a_folded_log_writes_nothing(workbench: Workbench, folded: Callable[[str], Path], place: Path) -> None:
    store = copied(folded("4.2.0-kip848"), place / "store")
    before, rows = written(store), state_rows(store)
    assert workbench.fold(store) == 0
    assert (written(store), state_rows(store)) == (before, rows)
    # and what came meanwhile is folded once
    log = LogPartition(0, start=max(row["folded_to"] for row in rows_of(store, "fold_progress")))
    log.commit(("another", "t", 0), 3)
    appended(store, log.rows)
    assert workbench.fold(store) == 1
    assert workbench.fold(store) == 0
    assert_as_reference(store, log_of(store))


def test_all_recorded_logs_in_small_batches_and_by_reload_in_tasks_are_as_the_reference_replays_them(
    in_tasks: Workbench, empty: Callable[[int], Path], place: Path
) -> None:  # R15, R16; tests/unit/state has them in the driver
    log_partitions, rows = all_captures(MODERN)
    store = copied(empty(log_partitions), place / "store")
    for batch in in_batches(rows, 2):
        appended(store, batch)
        assert in_tasks.fold(store) == len(batch)
    assert_as_reference(store, rows)
    streamed = state_rows(store)
    assert in_tasks.reload(store) == len(rows)
    assert state_rows(store) == streamed


def test_second_half_that_came_first_is_replayed_after_the_first(
    workbench: Workbench, empty: Callable[[int], Path], chance: random.Random, place: Path, tmp_path: Path
) -> None:  # R15: rows behind the folded position
    store = copied(empty(5), place / "store")
    source = segments_of("4.2.0-kip848")
    first = write_prefix(source, tmp_path / "first", 0.5, chance)
    for path in sorted(source.glob("*/*.log")):
        start = len((first / path.parent.name / path.name).read_bytes())
        rows = [row for row in rows_in("4.2.0-kip848") if row.log_partition == int(path.parent.name[-1])]
        # a copy of the whole segment without its first batches
        data = path.read_bytes()
        cut = next(end for end in batch_ends(data) if end >= start)
        base = int.from_bytes(data[cut : cut + 8], "big")
        assert 0 < base < rows[-1].record_offset
        write_segment(tmp_path / "second", int(path.parent.name[-1]), data[cut:], base)
    assert workbench.ingest(store, tmp_path / "second").added > 0
    assert workbench.fold(store) > 0
    assert_as_reference(store, log_of(store))
    assert workbench.ingest(store, source).added > 0
    backfilled = [row["record_offset"] for row in rows_of(store, "log") if row["backfill"]]
    assert backfilled
    workbench.fold(store)
    assert log_of(store) == sorted(rows_in("4.2.0-kip848"), key=lambda row: (row.log_partition, row.record_offset))
    assert_as_reference(store, log_of(store))
    assert workbench.fold(store) == 0


def test_names_of_topics_are_the_same_in_one_batch_in_two_and_after_a_reload(
    either_way: Workbench, empty: Callable[[int], Path], place: Path
) -> None:  # R16, R35
    at_once, in_steps = (copied(empty(1), place / name) for name in ("at once", "in steps"))
    log = LogPartition()
    for topic, topic_id in (("t", "old"), ("t", "new"), ("t", None), ("z", "two"), ("y", "two"), ("u", "u")):
        padded = None if topic_id is None else topic_id.rjust(21, "x") + "A"
        log.commit(("g", topic, 0), 1, version=4, topic_id=padded)
    for step in (log.rows[:1], log.rows[1:]):
        appended(in_steps, step)
        either_way.fold(in_steps)
    appended(at_once, log.rows)
    either_way.fold(at_once)
    names = {"old": "t", "new": "t", "two": "y", "u": "u"}
    expected = [{"topic_id": each.rjust(21, "x") + "A", "topic": topic} for each, topic in names.items()]
    for store in (at_once, in_steps):
        assert sorted(rows_of(store, "topics"), key=str) == sorted(expected, key=str)
    remove_place(in_steps / "topics")
    copied(empty(1) / "topics", in_steps / "topics")
    either_way.reload(in_steps)
    assert_as_reference(in_steps, log.rows)


def test_marker_of_a_later_batch_decides(either_way: Workbench, empty: Callable[[int], Path], place: Path) -> None:
    # R11, R12, R17
    store = copied(empty(1), place / "store")
    log = LogPartition()

    def fold_new() -> dict[tuple[str, str], tuple[int, bool]]:
        appended(store, log.rows)
        log.rows.clear()
        either_way.fold(store)
        assert_as_reference(store, log_of(store))
        return {
            (name, offset["topic"]): (offset["offset"], offset["pending"])
            for name, group in export_of(store)["groups"].items()
            for offset in group["offsets"]
        }

    log.commit(("g", "kept", 0), 1)
    log.commit(("g", "kept", 0), 2, producer_id=7)
    log.commit(("g", "dropped", 0), 3, producer_id=8)
    log.commit(("g", "deleted", 0), 4, producer_id=7)
    assert fold_new() == {("g", "kept"): (1, True)}
    log.delete(("g", "deleted", 0))
    log.commit(("g", "next", 0), 5, producer_id=8)
    assert fold_new() == {("g", "kept"): (1, True)}
    log.end_abort(8)
    log.end_commit(7)
    log.commit(("g", "dropped", 0), 6, producer_id=8)
    assert fold_new() == {("g", "kept"): (2, False)}
    log.end_commit(8)
    assert fold_new() == {("g", "kept"): (2, False), ("g", "dropped"): (6, False)}
