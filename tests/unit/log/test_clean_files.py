"""Which records a cleaning drops, and which files it writes anew."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from offsets_pipeline.semantics.coordinator_semantics import MODERN
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.delta.schemas import LOG
from offsets_pipeline.store.delta.store_folder import create_tables
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.log.clean import CleanedFiles, CleaningLimits, Rewritten, heads
from offsets_pipeline.store.log.file_writer import LogFilePlace
from offsets_pipeline.store.log.log_scan import LogRange

if TYPE_CHECKING:
    from pathlib import Path

#: Incarnation 2 counts; the cleaning is of log partition 0 before record offset 4.
LIMITS = CleaningLimits(
    LogRange({0: 0}, {0: 4}, log_incarnation=2), aged_before_us=0, superseded_before_us=1_000, semantics=MODERN
)

APPENDED_US = 10_000


@pytest.fixture
def log(tmp_path: Path) -> TableFolder:
    create_tables(str(tmp_path), StoreProperties(MIRRORED, 2))
    return TableFolder(str(tmp_path / LOG.name), LOG)


def cleaned(log: TableFolder, *files: list[tuple[int, int, int, int]]) -> CleanedFiles:
    """Files with records: log incarnation, log partition, record offset, time in microseconds."""
    names = ("log_incarnation", "log_partition", "record_offset", "record_timestamp")
    others = {"key": b"k", "value": b"v", "source": "a test", "appended_at": APPENDED_US, "backfill": False}
    tables = (
        pa.Table.from_pylist([dict(zip(names, row, strict=True)) | others for row in rows], LOG.arrow_schema())
        for rows in files
    )
    return CleanedFiles(log, [log.write_file(rows) for rows in tables], LIMITS, None)


def positions(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "little") for number in numbers)


@pytest.mark.parametrize("only_counts", [False, True])
def test_candidates_go_unless_they_stay_and_all_other_records_stay(
    log: TableFolder, tmp_path: Path, only_counts: bool
) -> None:
    whole = [(2, 0, 2, 0), (2, 0, 3, 0), (2, 0, 4, 0), (2, 1, 0, 0)]
    older = [(1, 0, 0, 999), (1, 0, 1, 1_000), (2, 0, 0, 0), (2, 0, 1, 0)]
    files = replace(cleaned(log, whole, older), place=None if only_counts else LogFilePlace(log.folder, 0))
    before = set(tmp_path.rglob("*.parquet"))
    rewritten, written = files.rewrite([(0, positions(0, 1)), (1, positions(3))])
    assert rewritten == [Rewritten(0, 4, {}, 0), Rewritten(1, 4, {0: 1}, 1)]
    if only_counts:
        assert (written, set(tmp_path.rglob("*.parquet"))) == ([], before)
        return
    assert [file.rows for file in written] == [2]  # the first loses nothing
    rows = log.read_file(written[0], ["log_incarnation", "log_partition", "record_offset"]).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [(1, 0, 1), (2, 0, 1)]


def test_files_of_the_present_incarnation_have_no_superseded_records(log: TableFolder) -> None:
    of_first, of_both, of_second = cleaned(log, [(1, 0, 0, 0)], [(1, 0, 1, 0), (2, 0, 0, 0)], [(2, 0, 1, 0)]).files
    found = [LIMITS.may_have_superseded(file) for file in (of_first, of_both, of_second)]
    assert found == [True, True, False]
    unknown = replace(of_second, lowest={}, highest={})  # of a writer without statistics
    assert LIMITS.may_have_superseded(unknown)


def test_head_is_the_first_young_record_of_each_log_partition(log: TableFolder) -> None:
    limits = replace(LIMITS.range, starts={0: 1, 1: 0}, ends={0: 9, 1: 9})
    rows = [(2, 0, 0, 500), (2, 0, 1, 499), (2, 0, 3, 500), (2, 0, 2, 501), (2, 1, 0, 499), (1, 1, 1, 900)]
    files = cleaned(log, rows[:3], rows[3:])
    assert heads(log, limits, files.files, young_from_us=500) == {0: 2}


def test_no_record_is_younger_than_its_append(log: TableFolder) -> None:
    """R23: the clock of the broker was ahead."""
    files = cleaned(log, [(2, 0, 0, APPENDED_US - 1), (2, 0, 1, 10**9), (2, 0, 2, APPENDED_US)]).files
    limits = replace(LIMITS.range, ends={0: 9})
    assert heads(log, limits, files, young_from_us=APPENDED_US) == {0: 1}
    assert heads(log, limits, files, young_from_us=APPENDED_US + 1) == {}
