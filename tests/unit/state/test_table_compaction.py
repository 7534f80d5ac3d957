"""Compaction and reload of the state tables without Spark, and rows that come in behind the base (R10, R15)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from offsets_pipeline.clock import FixedClock
from offsets_pipeline.config import load_settings
from offsets_pipeline.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.delta.schemas import FOLD_PROGRESS
from offsets_pipeline.delta.store_folder import create_tables
from offsets_pipeline.delta.table_folder import TableFolder
from offsets_pipeline.state.fold import reload_partitions
from offsets_pipeline.state.fold_progress import FoldProgress, PartitionProgress
from offsets_pipeline.state.merge_on_read import OFFSETS, StateTable
from offsets_pipeline.state.table_compaction import compact, sizes_of
from offsets_pipeline.store import Store
from tests.logs import LogPartition
from tests.spark.stores import appended
from tests.unit.state.test_merge_on_read import in_spark, of_offsets, offset, without_spark, written

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

CLOCK = FixedClock(1_795_000_000_000)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store of two log partitions. It has no Spark session."""
    properties = StoreProperties(MIRRORED, 2)
    create_tables(str(tmp_path), properties)
    return Store(cast("SparkSession", None), str(tmp_path), properties)


def progress_of(store: Store) -> FoldProgress:
    return FoldProgress.read(store.table(FOLD_PROGRESS.name))


def append(store: Store, *rows: dict[str, Any]) -> None:
    """Append delta rows of incarnation 1, as a fold does."""
    folder = store.table(OFFSETS.name)
    folder.commit(add=written(folder, OFFSETS, list(rows)), seen=folder.snapshot())


def offsets(store: Store) -> list[tuple[str, int, int | None]]:
    """The rows that count, equal by both queries."""
    progress = progress_of(store)
    ends = " ".join(f"WHEN {at} THEN {each.compacted_to}" for at, each in progress.partitions.items())

    def to_spark(table: StateTable, name: str, named: str) -> str:
        return in_spark(table, name, named, f"CASE log_partition {ends} END")

    folder = store.table(OFFSETS.name)
    found = of_offsets(folder, progress.incarnations, without_spark)
    assert of_offsets(folder, progress.incarnations, to_spark) == found
    return found


def test_late_rows_behind_a_compaction_change_nothing_and_newer_ones_count(store: Store) -> None:  # R10, R15
    progress_of(store).swap({at: PartitionProgress(at, incarnation=1, folded_to=50) for at in (0, 1)})
    append(store, offset("a0", 10), offset("a1", 20), offset("a2", 30), offset("z0", 3, log_partition=1))
    assert compact(store, OFFSETS)
    base = [("a0", 10, 10), ("a1", 20, 20), ("a2", 30, 30), ("z0", 3, 3)]
    assert offsets(store) == base
    append(store, offset("a0", 9), offset("a1", 20), offset("z0", 2, log_partition=1))
    assert offsets(store) == base
    append(store, offset("a2", 31), offset("b0", 4), offset("z0", 4, log_partition=1))
    after = [("a0", 10, 10), ("a1", 20, 20), ("a2", 31, 31), ("b0", 4, 4), ("z0", 4, 4)]
    assert offsets(store) == after
    append(store, offset("a2", 29), offset("b0", 32), offset("a0", 33, is_tombstone=True))
    after = [("a0", 33, None), ("a1", 20, 20), ("a2", 31, 31), ("b0", 32, 32), ("z0", 4, 4)]
    assert offsets(store) == after
    assert compact(store, OFFSETS)
    assert sizes_of(store, OFFSETS) == (5, 0, 0, 0)
    assert offsets(store) == after


def test_no_reader_sees_a_base_that_goes_beyond_its_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    progress_of(store).swap({at: PartitionProgress(at, incarnation=1, folded_to=50) for at in (0, 1)})
    append(store, offset("a0", 10), offset("a1", 30), offset("z0", 3, log_partition=1))
    ends: dict[int, int] = {}
    whole = TableFolder.commit

    def commit(self: TableFolder, *arguments: Any, **named: Any) -> int:  # noqa: ANN401
        if self.folder == store.table(OFFSETS.name).folder:
            ends.update({at: each.compacted_to for at, each in progress_of(store).partitions.items()})
        return whole(self, *arguments, **named)

    monkeypatch.setattr(TableFolder, "commit", commit)
    assert compact(store, OFFSETS)
    assert ends == {0: 31, 1: 4}


def test_compaction_beside_a_fold_and_a_reload_keeps_their_progress(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = {at: PartitionProgress(at, incarnation=1, folded_to=50) for at in (0, 1)}
    progress_of(store).swap(start)
    append(store, offset("a0", 10), offset("z0", 3, log_partition=1))
    moved = {0: replace(start[0], folded_to=60), 1: replace(start[1], folded_to=55, incarnation=2, compacted_to=1)}
    whole = FoldProgress.compact_to

    def compact_to(self: FoldProgress, ends: dict[int, int]) -> None:
        progress_of(store).swap(moved)
        whole(self, ends)

    monkeypatch.setattr(FoldProgress, "compact_to", compact_to)
    assert compact(store, OFFSETS)
    assert progress_of(store).partitions == moved | {0: replace(moved[0], compacted_to=11)}


def test_late_rows_behind_a_reload_change_nothing(store: Store) -> None:  # R15
    log = LogPartition()
    for partition in range(3):
        log.commit(("g", "a", partition), partition)
    appended(store.location, log.rows)
    assert reload_partitions(store, None, load_settings(), CLOCK) == 3
    base = [("a0", 0, 0), ("a1", 1, 1), ("a2", 2, 2)]
    assert offsets(store) == base
    append(store, offset("a1", 0), offset("a2", 2))
    assert offsets(store) == base
    append(store, offset("a0", 3))
    assert offsets(store) == [("a0", 3, 3), *base[1:]]
