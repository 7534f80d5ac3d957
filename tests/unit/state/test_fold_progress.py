"""The table `fold_progress`, without Spark: of two folds that read one version only one gets through."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.errors import WriteConflict
from offsets_pipeline.fold.state.changes import pending_rows
from offsets_pipeline.fold.state.fold_progress import FoldProgress, PartitionProgress, progressed
from offsets_pipeline.semantics.coordinator_semantics import MODERN
from offsets_pipeline.semantics.effects import ReplayedPartition
from offsets_pipeline.store.delta.schemas import FOLD_PROGRESS
from offsets_pipeline.store.delta.table_folder import TableFolder

if TYPE_CHECKING:
    from pathlib import Path

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
def table(place: Path) -> TableFolder:
    """The empty table."""
    folder = TableFolder(str(place / FOLD_PROGRESS.name), FOLD_PROGRESS)
    folder.create()
    return folder


def partition(log_partition: int, folded_to: int = 0, incarnation: int = 1) -> PartitionProgress:
    return PartitionProgress(log_partition, incarnation=incarnation, folded_to=folded_to)


def test_progress_is_read_as_it_was_written(table: TableFolder) -> None:
    whole = PartitionProgress(0, 2, 3, MODERN, 41, 17, 30, 1, 1_795_000_000_000_000, [])
    FoldProgress.read(table).swap({0: whole, 1: partition(1, 5)}, {"offset_facts": 8, "current_offsets": 0})
    found = FoldProgress.read(table)
    assert found.versions == {"offset_facts": 8, "current_offsets": 0}
    assert found.partitions == {0: whole, 1: partition(1, 5)}
    assert (found.log_incarnation, found.incarnation) == (2, 3)
    assert found.incarnations == {0: 3, 1: 1}
    assert found.folded_to == {0: 41, 1: 5}


def test_a_table_of_a_program_before_takes_progress_and_stays_one_for_that_program(place: Path) -> None:
    columns = tuple(each for each in FOLD_PROGRESS.columns if each.name != "share_versions")
    before = TableFolder(str(place / FOLD_PROGRESS.name), replace(FOLD_PROGRESS, columns=columns))
    before.create()
    table = TableFolder(before.folder, FOLD_PROGRESS)
    FoldProgress.read(table).swap({0: partition(0, 5)}, {"offset_facts": 8, "share_partitions": 4})
    assert FoldProgress.read(table).versions == {"offset_facts": 8, "share_partitions": 4}
    assert before.snapshot().unmet is None


def test_pending_commits_come_back_as_rows_of_their_producer(table: TableFolder) -> None:  # R11
    FoldProgress.read(table).swap({0: replace(partition(0, 41), pending=[COMMIT]), 1: partition(1)}, {})
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
        FoldProgress.read(table).swap({0: partition(0, 1)}, {})
    one, other = FoldProgress.read(table), FoldProgress.read(table)
    one.swap({0: partition(0, 5, incarnation=2)}, {})
    with pytest.raises(WriteConflict):
        other.swap({0: partition(0, 3), 1: partition(1, 3)}, {})
    assert FoldProgress.read(table).partitions == {0: partition(0, 5, incarnation=2)}
    with pytest.raises(WriteConflict):  # what `one` read is no longer the newest either
        one.swap({0: partition(0, 7)}, {})


def published(folded_to: int, published_to: int) -> PartitionProgress:
    """Log partition 0, folded and published to these ends."""
    return replace(partition(0, folded_to), published_to=published_to)


@pytest.mark.parametrize(
    ("later", "same"),
    [
        ({0: published(20, 8)}, True),  # folded further: its facts are still there
        ({0: published(8, 8)}, True),
        ({0: published(8, 3)}, False),
        ({0: replace(published(8, 8), incarnation=2)}, False),
        ({0: published(8, 8), 1: partition(1)}, False),
    ],
)
def test_facts_of_a_progress_stay_until_more_is_published_or_an_incarnation_ends(
    table: TableFolder, later: dict[int, PartitionProgress], *, same: bool
) -> None:
    before, other = FoldProgress.read(table), FoldProgress.read(table)
    before.partitions, other.partitions = {0: published(8, 8)}, later
    assert before.says_same(other) is same


def test_publishing_is_not_in_the_way_of_a_fold_and_both_are_kept(table: TableFolder) -> None:
    FoldProgress.read(table).swap({0: partition(0, 8), 1: partition(1, 10)}, {"offset_facts": 1, "current_offsets": 1})
    fold, publishing = FoldProgress.read(table), FoldProgress.read(table)
    publishing.note_published({"current_offsets": 2})
    fold.swap({0: partition(0, 20), 1: partition(1, 15)}, {"offset_facts": 3})
    found = FoldProgress.read(table)
    assert found.partitions == {0: published(20, 8), 1: replace(partition(1, 15), published_to=10)}
    assert found.versions == {"offset_facts": 3, "current_offsets": 2}
    assert publishing.note_published({}).partitions == found.partitions  # what is published is what was read


def test_fold_is_not_in_the_way_of_a_publishing_and_both_are_kept(table: TableFolder) -> None:
    FoldProgress.read(table).swap({0: partition(0, 8)}, {"offset_facts": 1, "current_offsets": 1})
    publishing = FoldProgress.read(table)
    FoldProgress.read(table).swap({0: partition(0, 20)}, {"offset_facts": 3})
    publishing.note_published({"current_offsets": 2})
    found = FoldProgress.read(table)
    assert (found.partitions, found.versions) == ({0: published(20, 8)}, {"offset_facts": 3, "current_offsets": 2})


def test_end_of_a_publishing_does_not_go_back(table: TableFolder) -> None:
    FoldProgress.read(table).swap({0: partition(0, 8)}, {})
    late = FoldProgress.read(table)
    FoldProgress.read(table).swap({0: published(20, 20)}, {})
    late.note_published({})
    assert FoldProgress.read(table).partitions == {0: published(20, 20)}


def test_publishing_of_an_older_incarnation_says_nothing_of_the_new_one(table: TableFolder) -> None:
    FoldProgress.read(table).swap({0: partition(0, 10)}, {"current_offsets": 1})
    publishing = FoldProgress.read(table)
    FoldProgress.read(table).swap({0: partition(0, 10, incarnation=2)}, {"current_offsets": 2})
    newest = publishing.note_published({"current_offsets": 3})
    found = FoldProgress.read(table)
    assert found.partitions == newest.partitions == {0: partition(0, 10, incarnation=2)}
    assert found.versions == {"current_offsets": 2}


def test_fold_that_another_fold_and_a_publishing_overtook_is_refused(table: TableFolder) -> None:
    FoldProgress.read(table).swap({0: partition(0, 8)}, {})
    late = FoldProgress.read(table)
    FoldProgress.read(table).swap({0: partition(0, 20)}, {})
    FoldProgress.read(table).note_published({})
    with pytest.raises(WriteConflict):
        late.swap({0: partition(0, 20)}, {})
    assert FoldProgress.read(table).partitions == {0: published(20, 20)}


def test_publishing_gives_up_where_folds_are_always_quicker(
    table: TableFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    FoldProgress.read(table).swap({0: partition(0, 8)}, {})

    def overtaken(*_: object) -> None:
        raise WriteConflict("a fold came first")

    publishing = FoldProgress.read(table)
    monkeypatch.setattr(FoldProgress, "replace", overtaken)
    with pytest.raises(WriteConflict, match=r"other writers came first \d+ times"):
        publishing.note_published({})
    assert FoldProgress.read(table).partitions == {0: partition(0, 8)}


def test_replay_moves_log_partitions_with_records_alone() -> None:
    before = {at: replace(partition(at, 10), records=4, unknown_records=1, folded_at_us=5) for at in (0, 1)}
    replayed = {0: ReplayedPartition(14, 3, 2, [COMMIT]), 1: ReplayedPartition(12, 0), 2: ReplayedPartition(9, 9)}
    assert progressed(before, replayed, now_ms=1_795_000_000_123) == {
        0: PartitionProgress(0, 0, 1, MODERN, 14, 0, 7, 3, 1_795_000_000_123_000, [COMMIT]),
        1: before[1],
    }
