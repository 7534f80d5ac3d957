"""The table `fold_progress`, without Spark: of two folds that read one version only one gets through."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.delta.schemas import FOLD_PROGRESS
from offsets_pipeline.delta.table_folder import TableFolder
from offsets_pipeline.errors import WriteConflict
from offsets_pipeline.semantics.coordinator_semantics import MODERN
from offsets_pipeline.state.fold_progress import FoldProgress, PartitionProgress, compacted_to
from offsets_pipeline.state.replay_start import pending_rows

if TYPE_CHECKING:
    from pathlib import Path

GROUPS = "groups"

COMMIT = {
    "producer_id": 7,
    "group_id": "g",
    "topic": "t",
    "partition": 3,
    "committed_offset": 12,
    "record_offset": 40,
    "position": 40,
    "key": b"key",
    "value": b"value",
}


@pytest.fixture
def table(tmp_path: Path) -> TableFolder:
    """The empty table."""
    folder = TableFolder(str(tmp_path / FOLD_PROGRESS.name), FOLD_PROGRESS)
    folder.create()
    return folder


def partition(log_partition: int, folded_to: int = 0, incarnation: int = 1) -> PartitionProgress:
    return PartitionProgress(log_partition, incarnation=incarnation, folded_to=folded_to)


def test_progress_is_read_as_it_was_written(table: TableFolder) -> None:
    whole = PartitionProgress(0, 2, 3, MODERN, 41, with_groups(17), 30, 1, 1_795_000_000_000_000, [])
    FoldProgress.read(table).swap({0: whole, 1: partition(1, 5)})
    found = FoldProgress.read(table)
    assert found.partitions == {0: whole, 1: partition(1, 5)}
    assert (found.log_incarnation, found.incarnation) == (2, 3)
    assert found.incarnations == {0: 3, 1: 1}
    assert found.folded_to == {0: 41, 1: 5}


def test_pending_commits_come_back_as_rows_of_their_producer(table: TableFolder) -> None:  # R11
    FoldProgress.read(table).swap({0: replace(partition(0, 41), pending=[COMMIT]), 1: partition(1)})
    (row,) = pending_rows(FoldProgress.read(table).partitions).to_pylist()
    assert row["records"] == 0  # the fold that met it counted it
    assert {name: row[name] for name in ("log_partition", "record_offset", "producer_id", "key", "value")} == {
        "log_partition": 0,
        "record_offset": 40,
        "producer_id": 7,
        "key": b"key",
        "value": b"value",
    }
    assert row["control_type"] is None


@pytest.mark.parametrize("is_first", [True, False])
def test_second_of_two_folds_that_read_one_version_is_refused(table: TableFolder, is_first: bool) -> None:
    if not is_first:
        FoldProgress.read(table).swap({0: partition(0, 1)})
    one, other = FoldProgress.read(table), FoldProgress.read(table)
    one.swap({0: partition(0, 5, incarnation=2)})
    with pytest.raises(WriteConflict):
        other.swap({0: partition(0, 3), 1: partition(1, 3)})
    assert FoldProgress.read(table).partitions == {0: partition(0, 5, incarnation=2)}
    with pytest.raises(WriteConflict):  # what `one` read is no longer the newest either
        one.swap({0: partition(0, 7)})


def with_groups(record_offset: int) -> dict[str, int]:
    """The ends of a log partition after a compaction of `groups` alone."""
    return compacted_to(0) | {GROUPS: record_offset}


def test_compaction_is_not_in_the_way_of_a_fold_and_both_are_kept(table: TableFolder) -> None:
    FoldProgress.read(table).swap({0: partition(0, 10), 1: partition(1, 10)})
    fold, compaction = FoldProgress.read(table), FoldProgress.read(table)
    compaction.compact_to(GROUPS, {0: 8})
    fold.swap({0: partition(0, 20), 1: partition(1, 15)})
    found = FoldProgress.read(table).partitions
    assert found == {0: replace(partition(0, 20), compacted_to=with_groups(8)), 1: partition(1, 15)}
    compaction.compact_to(GROUPS, {0: 5, 1: 9})  # late: the end that is known does not go back
    found = FoldProgress.read(table).partitions
    assert found == {
        0: replace(partition(0, 20), compacted_to=with_groups(8)),
        1: replace(partition(1, 15), compacted_to=with_groups(9)),
    }


def test_compaction_of_an_older_incarnation_says_nothing_of_the_new_one(table: TableFolder) -> None:
    FoldProgress.read(table).swap({0: partition(0, 10)})
    compaction = FoldProgress.read(table)
    FoldProgress.read(table).swap({0: partition(0, 10, incarnation=2)})
    compaction.compact_to(GROUPS, {0: 8})
    assert FoldProgress.read(table).partitions == {0: partition(0, 10, incarnation=2)}
