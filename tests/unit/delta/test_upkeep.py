"""Small files become larger ones, small tables are replaced as a whole, and overtaken writes are tried again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.config import FoldSettings
from offsets_pipeline.delta import upkeep
from offsets_pipeline.delta.retry import with_retries
from offsets_pipeline.delta.schemas import LOG_PARTITIONS
from offsets_pipeline.delta.small_table import SmallTable
from offsets_pipeline.delta.table_folder import TableFolder
from offsets_pipeline.delta.upkeep import compact
from offsets_pipeline.errors import WriteConflict
from tests.unit.delta.test_table_folder import append, numbers, rows

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.delta.data_file import AddFile
    from offsets_pipeline.delta.reader import StoredFile


@pytest.fixture
def folder(tmp_path: Path) -> TableFolder:
    """An empty table."""
    found = TableFolder(str(tmp_path / LOG_PARTITIONS.name), LOG_PARTITIONS)
    found.create()
    return found


def test_large_files_stay_as_they_are(folder: TableFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        append(folder, number)
    append(folder, *range(10_000))
    sizes = sorted(file.size for file in folder.snapshot().files())
    assert sizes[1] < sizes[2]
    monkeypatch.setattr(upkeep, "SMALL_BYTES", sizes[2])
    assert compact(folder) == 2
    assert sorted(file.rows for file in folder.snapshot().files()) == [2, 10_000]


def test_compacted_files_have_about_the_size_that_is_wanted(
    folder: TableFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        append(folder, number)
    sizes = [file.size for file in folder.snapshot().files()]
    monkeypatch.setattr(upkeep, "TARGET_BYTES", 2 * max(sizes))
    assert compact(folder) == 4  # the fifth is alone
    assert sorted(file.rows for file in folder.snapshot().files()) == [1, 2, 2]
    assert numbers(folder) == list(range(5))


def test_files_that_another_writer_replaced_first_stay_as_that_writer_left_them(folder: TableFolder) -> None:
    for number in range(3):
        append(folder, number)

    def overtaken(files: list[StoredFile]) -> list[AddFile]:
        folder.commit([folder.write_file(rows(7))], files, seen=folder.snapshot())
        return [folder.write_file(rows(*range(3)))]

    assert compact(folder, overtaken) == 0
    assert numbers(folder) == [7]


def test_second_of_two_writers_that_replace_an_empty_table_is_refused(folder: TableFolder) -> None:
    first, second = SmallTable(folder), SmallTable(folder)
    first.replace(rows(1))
    with pytest.raises(WriteConflict):
        second.replace(rows(2))
    assert numbers(folder) == [1]


def test_small_table_of_an_older_version_gets_the_columns_that_it_lacks(folder: TableFolder, tmp_path: Path) -> None:
    older = replace(LOG_PARTITIONS, columns=LOG_PARTITIONS.columns[:-1])
    TableFolder(str(tmp_path / "older"), older).create()
    newer = TableFolder(str(tmp_path / "older"), LOG_PARTITIONS)
    SmallTable(newer).replace(rows(1))
    assert newer.snapshot().delta_table().schema() == folder.snapshot().delta_table().schema()


def test_overtaken_write_waits_longer_each_time_up_to_a_bound_and_ends_with_a_conflict() -> None:
    settings = FoldSettings(max_retries=4, retry_backoff_ms=100, max_backoff_ms=300)
    waits: list[float] = []
    writes = 0

    def overtaken(times: int) -> int:
        nonlocal writes
        writes += 1
        if writes <= times:
            raise WriteConflict("another writer came first")
        return writes

    with pytest.raises(WriteConflict, match="cannot commit a note: other writers committed first, 5 times"):
        with_retries(lambda: overtaken(5), "a note", settings, waits.append)
    assert [at_most / 2 <= wait <= at_most for at_most, wait in zip([0.1, 0.2, 0.3, 0.3], waits, strict=True)] == [
        True
    ] * 4
    writes = 0
    assert with_retries(lambda: overtaken(4), "a note", settings, waits.append) == 5
