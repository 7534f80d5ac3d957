"""The scan of the log: rows of a range, by position, of tables and files of other writers."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from offsets_pipeline.errors import DamagedTable, TaskFailed
from offsets_pipeline.store.delta.data_file import DataFile
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.delta.schemas import LOG
from offsets_pipeline.store.delta.store_folder import create_tables
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.log.file_writer import SCHEMA as WHOLE
from offsets_pipeline.store.log.file_writer import LogFilePlace, LogFileWriter, log_partitions_of
from offsets_pipeline.store.log.log_scan import PLACE, POSITION, LogRange, LogScan, ends_by_incarnation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCHEMA = pa.schema([*(LOG.arrow_schema().field(name) for name in ("log_partition", "record_offset")), POSITION])
PLACES = [(0, 5), (0, 6), (1, 2), (1, 9), (2, 0), (2, 1)]


def rows_at(places: list[tuple[int, int]]) -> pa.Table:
    columns = [[at for at, _ in places], [offset for _, offset in places], [0] * len(places)]
    types = [pa.int32(), pa.int64(), pa.int32()]
    return pa.table({name: pa.array(each, type_) for name, each, type_ in zip(PLACE, columns, types, strict=True)})


def written(folder: Path, rows: pa.Table) -> DataFile:
    folder.mkdir()
    pq.write_table(rows, folder / "a.parquet", row_group_size=2)
    return DataFile("a.parquet", (folder / "a.parquet").stat().st_size, rows.num_rows)


def read(tables: Iterator[pa.Table]) -> list[tuple[int, int, int]]:
    return [tuple(row.values()) for table in tables for row in table.to_pylist()]


def row_groups_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the row groups that are read from now on."""
    groups: list[int] = []
    original = pq.ParquetFile.read_row_group

    def noted(self: pq.ParquetFile, group: int, **options: object) -> pa.Table:
        groups.append(group)
        return original(self, group, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", noted)
    return groups


@pytest.mark.parametrize("block_rows", [None, 1, 100])
def test_rows_of_a_range_come_with_their_positions_in_the_file(place: Path, block_rows: int | None) -> None:
    file = written(place / "log", rows_at(PLACES))
    folder = TableFolder(str(place / "log"), LOG)
    whole = LogScan(folder, SCHEMA, block_rows=block_rows)
    assert read(whole.rows([file])) == [(*place, position) for position, place in enumerate(PLACES)]
    part = LogScan(folder, SCHEMA, LogRange({0: 6, 1: 0}, {1: 9}), block_rows)
    assert read(pickle.loads(pickle.dumps(part)).rows([file])) == [(0, 6, 1), (1, 2, 2)]
    assert read(LogScan(folder, SCHEMA, LogRange(None, {2: 1}), block_rows).rows([file])) == read(
        whole.rows_at(file, np.array([True, True, True, True, True, False]))
    )
    assert read(LogScan(folder, SCHEMA, LogRange(None, log_incarnation=1), block_rows).rows([file])) == []


def test_row_groups_without_wanted_rows_are_not_read(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(place / "log", rows_at(PLACES))
    groups = row_groups_read(monkeypatch)
    scan = LogScan(TableFolder(str(place / "log"), LOG), SCHEMA, LogRange({1: 3, 2: 0}, {2: 1}))
    assert read(scan.rows([file])) == [(1, 9, 3), (2, 0, 4)]
    assert groups == [1, 2]
    groups.clear()
    assert read(LogScan(scan.log, SCHEMA).rows_at(file, np.array([False] * 5 + [True]))) == [(2, 1, 5)]
    assert groups == [2]


def test_a_damaged_file_is_named(place: Path) -> None:
    rows = rows_at(PLACES)
    write_deltalake(place / "log", rows)
    folder = TableFolder(str(place / "log"), LOG)
    (file,) = folder.snapshot().files()
    path = place / "log" / file.name
    path.write_bytes(b"x" * file.size)
    with pytest.raises(DamagedTable, match=rf"the data file {file.name} .* is corrupt"):
        list(LogScan(folder, SCHEMA).rows([file]))


def test_a_table_that_its_owner_partitioned_is_read(place: Path) -> None:
    write_deltalake(place / "log", rows_at(PLACES), partition_by=["log_partition"])
    folder = TableFolder(str(place / "log"), LOG)
    found = LogScan(folder, SCHEMA, LogRange({0: 6, 2: 0})).rows(folder.snapshot().files())
    assert sorted(place[:2] for place in read(found)) == [(0, 6), (2, 0), (2, 1)]


def test_a_column_of_another_type_is_an_error_that_names_the_file(place: Path) -> None:
    file = written(place / "log", rows_at(PLACES).set_column(1, "record_offset", pa.array(["x"] * 6)))
    with pytest.raises(TaskFailed, match=r"a task failed at the file .*/log/a\.parquet from row 0 on: ArrowInvalid"):
        list(LogScan(TableFolder(str(place / "log"), LOG), SCHEMA).rows([file]))


def test_ends_of_the_log_come_from_statistics_and_else_from_the_rows(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three files: of one log partition, of three in two row groups, and of a writer without statistics."""
    create_tables(str(place), StoreProperties(MIRRORED, 3))
    log = TableFolder(str(place / "log"), LOG)
    monkeypatch.setattr("offsets_pipeline.store.log.file_writer._SMALL_ROW_GROUP_BYTES", 0)
    for log_incarnation, places in (0, [(2, 4), (2, 7)]), (1, [(0, 3), (0, 5), (1, 9), (1, 11)]):
        rows = rows_at(places).set_column(2, PLACE[2], pa.array([log_incarnation] * len(places), pa.int32()))
        writer = LogFileWriter(LogFilePlace(log.folder, 0, log_incarnation))
        for each in log_partitions_of(whole(rows)):
            writer.write(each)
        log.commit(add=writer.close(), seen=log.snapshot())
    groups = row_groups_read(monkeypatch)
    assert ends_by_incarnation(log) == {0: {2: 8}, 1: {0: 6, 1: 12}}
    assert groups == []
    pq.write_table(whole(rows_at([(1, 12), (0, 1), (2, 20)])), place / "log" / "a.parquet", write_statistics=False)
    other = DataFile("a.parquet", (place / "log" / "a.parquet").stat().st_size, 3)
    log.commit(add=[other], seen=log.snapshot())
    assert ends_by_incarnation(log) == {0: {0: 2, 1: 13, 2: 21}, 1: {0: 6, 1: 12}}
    assert groups == [0]


def whole(places: pa.Table) -> pa.Table:
    """Rows with all columns of the log: these places, and nothing else."""
    columns = {
        each.name: places[each.name] if each.name in places.column_names else pa.repeat(value_of(each), len(places))
        for each in WHOLE
    }
    return pa.table(columns, schema=WHOLE)


def value_of(column: pa.Field) -> pa.Scalar:
    return pa.scalar(None if column.nullable else {pa.string(): "", pa.bool_(): False}.get(column.type, 0), column.type)
