"""The files of the log that each task reads, and the rows."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offsets_pipeline.semantics.compaction import compact_early
from offsets_pipeline.store.delta.data_file import DataFile
from offsets_pipeline.store.delta.schemas import LOG
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.log.log_reader import LogReader, shared_out
from offsets_pipeline.store.log.log_scan import LogRange

if TYPE_CHECKING:
    from pathlib import Path


def files(*sizes: int) -> list[DataFile]:
    return [DataFile(f"{number}", size, number) for number, size in enumerate(sizes)]


def commit(log_partition: int, offset: int, topic: bytes = b"t", log_incarnation: int = 0) -> dict[str, Any]:
    """A row of the log: a commit of group g; ``topic`` has one letter."""
    key = b"\x00\x01\x00\x01g\x00\x01" + topic + b"\x00\x00\x00\x00"
    value = b"\x00\x00" + offset.to_bytes(8, "big") + b"\x00\x00" + bytes(8)
    place = {"log_partition": log_partition, "record_offset": offset, "key": key, "value": value}
    return {**place, "backfill": False, "log_incarnation": log_incarnation, "source": "not read"}


def written(folder: Path, name: str, *rows: dict[str, Any], **types: pa.DataType) -> DataFile:
    """A file of the log with these rows."""
    folder.mkdir(exist_ok=True)
    schema = LOG.arrow_schema()
    for column, kind in types.items():
        schema = schema.set(schema.get_field_index(column), pa.field(column, kind))
    schema = pa.schema([field.with_nullable(nullable=True) for field in schema])
    with (folder / name).open("wb") as file:
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), file, row_group_size=3)
    return DataFile(name, (folder / name).stat().st_size, len(rows))


def places(folder: Path, files: list[DataFile], wanted: LogRange) -> list[tuple[int, int]]:
    """Log partition and record offset of the rows that a replay gets."""
    read = list(
        LogReader(TableFolder(str(folder), LOG), wanted, compact=partial(compact_early, folded_to={})).read(files)
    )
    return sorted((row["log_partition"], row["record_offset"]) for table in read for row in table.to_pylist())


@pytest.mark.parametrize(
    ("sizes", "tasks", "shares"),
    [
        ((10, 10, 10, 10), 2, [["0", "1"], ["2", "3"]]),
        ((10, 10, 10), 8, [["0"], ["1"], ["2"]]),
        ((90, 5, 5), 2, [["0"], ["1", "2"]]),
        ((7,), 4, [["0"]]),
        ((), 4, []),
    ],
)
def test_neighbours_stay_together_and_shares_are_about_equal(
    sizes: tuple[int, ...], tasks: int, shares: list[list[str]]
) -> None:
    assert [[file.name for file in share] for share in shared_out(files(*sizes), tasks)] == shares


def test_only_rows_of_the_range_are_read(place: Path) -> None:
    rows = [commit(at, offset, topic) for at in range(3) for offset, topic in ((5, b"t"), (6, b"u"), (9, b"v"))]
    file = written(place / "a folder", "a%20file.parquet", *rows)  # a name as Delta writes it
    (place / "a folder" / "a file.parquet").write_bytes((place / "a folder" / file.name).read_bytes())
    (place / "a folder" / file.name).unlink()
    every = [(at, offset) for at in range(3) for offset in (5, 6, 9)]
    assert places(place / "a folder", [file], LogRange({0: 0, 1: 0, 2: 0})) == every
    assert places(place / "a folder", [file], LogRange({0: 0, 2: 6})) == [*every[:3], (2, 6), (2, 9)]
    assert places(place / "a folder", [file], LogRange({0: 6, 1: 0}, {0: 9, 1: 6})) == [(0, 6), (1, 5)]
    assert places(place / "a folder", [file], LogRange({9: 0})) == []


def test_rows_of_another_log_incarnation_are_left_out(place: Path) -> None:
    rows = [commit(0, offset, b"tu"[offset % 2 : offset % 2 + 1], log_incarnation=offset % 2) for offset in range(4)]
    file = written(place / "log", "mixed.parquet", *rows)
    assert places(place / "log", [file], LogRange({0: 0}, log_incarnation=1)) == [(0, 3)]  # the last of its key
    assert places(place / "log", [file], LogRange({0: 0}, log_incarnation=0)) == [(0, 2)]
    assert places(place / "log", [file], LogRange({0: 0}, log_incarnation=2)) == []


def test_files_without_rows_of_the_range_are_known_by_their_statistics() -> None:
    bounds = (
        {"log_partition": 1, "record_offset": 10, "log_incarnation": 0},
        {"log_partition": 3, "record_offset": 20, "log_incarnation": 0},
    )
    file = DataFile("f", 1, 1, *bounds)
    assert LogRange({2: 0}).may_hold(file)
    assert LogRange({2: 20}).may_hold(file)
    assert not LogRange({2: 21}).may_hold(file)
    assert not LogRange({0: 0, 4: 0}).may_hold(file)
    assert not LogRange({2: 0}, log_incarnation=1).may_hold(file)
    assert LogRange({2: 0}, {2: 11}).may_hold(file)
    assert not LogRange({2: 0}, {2: 10}).may_hold(file)
    assert LogRange(None).may_hold(file)
    assert not LogRange(None, log_incarnation=1).may_hold(file)
    for unknown in (LogRange({9: 99}, log_incarnation=9), LogRange({9: 0}, {9: 1})):
        assert unknown.may_hold(DataFile("without statistics", 1, 0))


def test_files_of_several_writers_can_be_put_together(place: Path) -> None:
    wanted = LogRange({0: 0})
    files = [
        written(place / "log", "plain.parquet", commit(0, 1, b"t")),
        written(place / "log", "large.parquet", commit(0, 2, b"u"), key=pa.large_binary(), value=pa.large_binary()),
    ]
    assert places(place / "log", files, wanted) == [(0, 1), (0, 2)]
