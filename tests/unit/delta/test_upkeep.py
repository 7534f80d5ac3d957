"""Small files become larger ones, small tables are replaced as a whole, and overtaken writes are tried again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.errors import UnsupportedTable, WriteConflict
from offsets_pipeline.store.delta import snapshot, upkeep
from offsets_pipeline.store.delta.protocol import changes_rows, info_of
from offsets_pipeline.store.delta.reader import open_table, stored_files
from offsets_pipeline.store.delta.retry import with_retries
from offsets_pipeline.store.delta.schemas import LOG_PARTITIONS
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.delta.upkeep import compact, vacuum
from tests.places import place_of
from tests.unit.delta.test_table_folder import append, numbers, rows

if TYPE_CHECKING:
    from pathlib import Path

    from deltalake import DeltaTable

    from offsets_pipeline.store.delta.data_file import DataFile


@pytest.fixture
def folder(place: Path) -> TableFolder:
    """An empty table."""
    found = TableFolder(str(place / LOG_PARTITIONS.name), LOG_PARTITIONS)
    found.create()
    return found


def test_large_files_stay_as_they_are(folder: TableFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        append(folder, *range(6_000))
    append(folder, *range(10_000))  # not so many rows that these alone keep it as it is
    sizes = sorted(file.size for file in folder.snapshot().files())
    assert sizes[1] < sizes[2]
    monkeypatch.setattr(upkeep, "SMALL_BYTES", sizes[2])
    assert compact(folder) == 2
    assert sorted(file.rows for file in folder.snapshot().files()) == [10_000, 12_000]


def test_compacted_files_have_about_the_size_that_is_wanted(
    folder: TableFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        append(folder, number)
    before = folder.snapshot()
    monkeypatch.setattr(upkeep, "TARGET_BYTES", 2 * max(file.size for file in before.files()))
    assert compact(folder) == 4  # the fifth is alone
    for commit in folder.commits_after(before.known):
        assert not changes_rows(commit.actions)  # streams skip them
        assert info_of(commit.actions)["operation"] == "OPTIMIZE"
    assert sorted(file.rows for file in folder.snapshot().files()) == [1, 2, 2]
    assert numbers(folder) == list(range(5))


def test_runs_of_compaction_rewrite_a_row_few_times(folder: TableFolder) -> None:
    written = 0

    def rewritten(files: list[DataFile]) -> list[DataFile]:
        nonlocal written
        held = [each for file in files for each in of_file(folder, file)]
        written += len(held)
        return [folder.write_file(rows(*held))]

    runs = 60
    for run in range(runs):
        for number in range(2):
            append(folder, 2 * run + number)
        compact(folder, rewritten)
    files = folder.snapshot().files()
    assert sorted(numbers(folder)) == list(range(2 * runs))
    assert len(files) < 10
    assert written < 2 * runs * 10  # without a bound they would write 60 * 61


def of_file(folder: TableFolder, file: DataFile) -> list[int]:
    return [int(each) for each in folder.read_file(file, ["log_partition"])["log_partition"].to_pylist()]


def test_few_tiny_files_do_not_keep_many_larger_ones_apart(folder: TableFolder) -> None:
    for number in range(2):
        append(folder, number)
    for _ in range(5):
        append(folder, *range(100))
    assert compact(folder) == 7
    assert [file.rows for file in folder.snapshot().files()] == [502]


@pytest.mark.parametrize(("largest", "left"), [(6, [9]), (7, [3, 7])])
def test_a_file_with_more_than_twice_the_rows_of_all_smaller_ones_stays(
    folder: TableFolder, largest: int, left: list[int]
) -> None:
    for count in (2, largest, 1):  # that of two rows has twice those of the one below
        append(folder, *range(count))
    compact(folder)
    assert sorted(file.rows for file in folder.snapshot().files()) == left


def test_upkeep_that_is_to_stop_ends_between_two_commits(folder: TableFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        append(folder, number)
    sizes = [file.size for file in folder.snapshot().files()]
    monkeypatch.setattr(upkeep, "TARGET_BYTES", 2 * max(sizes))
    asked = iter([False, True])
    assert compact(folder, is_stopping=lambda: next(asked)) == 2
    assert numbers(folder) == list(range(6))


def test_files_that_another_writer_replaced_first_stay_as_that_writer_left_them(folder: TableFolder) -> None:
    for number in range(3):
        append(folder, number)

    def overtaken(files: list[DataFile]) -> list[DataFile]:
        folder.commit([folder.write_file(rows(7))], files, seen=folder.snapshot())
        return [folder.write_file(rows(*range(3)))]

    assert compact(folder, overtaken) == 0
    assert numbers(folder) == [7]


def test_a_snapshot_has_its_files_while_a_vacuum_in_another_thread_asks_for_its_version(
    folder: TableFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fold and the upkeep of a stream share the snapshots of a table."""
    append(folder, 1)
    append(folder, 2)
    folder = TableFolder(folder.folder, folder.table)
    folder.snapshot()  # loads it; the two commits that follow are read one by one
    compact(folder)
    append(folder, 3)
    seen = folder.snapshot()
    expected = {file.name for file in TableFolder(folder.folder, folder.table).snapshot().files()}

    def listed_while_vacuum_looks(loaded: DeltaTable) -> list[DataFile]:
        found = stored_files(loaded)
        vacuum(folder)
        return found

    monkeypatch.setattr(snapshot, "stored_files", listed_while_vacuum_looks)
    assert seen.commits_read == 2
    assert {file.name for file in seen.files()} == expected


def test_second_of_two_writers_that_replace_an_empty_table_is_refused(folder: TableFolder) -> None:
    seen = folder.snapshot()
    folder.replace(rows(1), seen=seen)
    with pytest.raises(WriteConflict):
        folder.replace(rows(2), seen=seen)
    assert numbers(folder) == [1]


def test_small_table_of_an_older_version_gets_the_columns_that_it_lacks(folder: TableFolder, place: Path) -> None:
    older = replace(LOG_PARTITIONS, columns=LOG_PARTITIONS.columns[:-1])
    TableFolder(str(place / "older"), older).create()
    newer = TableFolder(str(place / "older"), LOG_PARTITIONS)
    newer.replace(rows(1), seen=newer.snapshot())
    assert open_table(newer.folder).schema() == open_table(folder.folder).schema()


def test_overtaken_write_waits_longer_each_time_up_to_a_bound_and_ends_with_a_conflict() -> None:
    waits: list[float] = []
    writes = 0

    def overtaken(times: int) -> int:
        nonlocal writes
        writes += 1
        if writes <= times:
            raise WriteConflict("another writer came first")
        return writes

    with pytest.raises(WriteConflict, match="cannot commit a note: other writers committed first, 11 times"):
        with_retries(lambda: overtaken(11), "a note", waits.append)
    longest = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5, 5]
    assert all(at_most / 2 <= wait <= at_most for at_most, wait in zip(longest, waits, strict=True))
    writes = 0
    assert with_retries(lambda: overtaken(10), "a note", waits.append) == 11


def test_a_partition_value_that_is_a_path_writes_no_file(folder: TableFolder) -> None:
    before = sorted(place_of(folder.folder).parent.rglob("*"))
    with pytest.raises(UnsupportedTable, match="a value of a partition column has a /, as in a path"):
        folder.write_file(rows(1), {"incarnation": "../../../pwn"})
    assert sorted(place_of(folder.folder).parent.rglob("*")) == before
