"""Which task reads which files of the log, and what it reads of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offsets_pipeline.log.files import SCHEMA, LogFile, read_log_file, shared_out

if TYPE_CHECKING:
    from pathlib import Path


def files(*sizes: int) -> list[LogFile]:
    return [LogFile(f"{number}", size, number, number) for number, size in enumerate(sizes)]


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
    assert [[file.path for file in share] for share in shared_out(files(*sizes), tasks)] == shares


def test_rows_of_the_wanted_log_partitions_are_read_with_keys_by_dictionary(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "log_partition": pa.array([0, 0, 1, 2], pa.int32()),
            "record_offset": pa.array([5, 6, 5, 5], pa.int64()),
            "key": pa.array([b"a", b"a", b"b", b"a"]),
            "value": pa.array([b"v", None, b"w", b"x"]),
            "producer_id": pa.array([None] * 4, pa.int64()),
            "control_type": pa.array([None] * 4, pa.string()),
            "backfill": [False] * 4,
            "log_epoch": pa.array([0] * 4, pa.int32()),
            "source": ["not read"] * 4,
        }
    )
    path = str(tmp_path / "a file.parquet")
    pq.write_table(rows, path, row_group_size=3)
    (whole,) = [pa.concat_tables(read_log_file(path, None)).unify_dictionaries()]
    assert whole.schema == SCHEMA
    assert whole["key"].to_pylist() == [b"a", b"a", b"b", b"a"]
    assert whole["value"].to_pylist() == [b"v", None, b"w", b"x"]
    chosen = pa.concat_tables(read_log_file(path, {0, 2})).unify_dictionaries().select(["log_partition", "key"])
    assert chosen["log_partition"].to_pylist() == [0, 0, 2]
    assert chosen["key"].to_pylist() == [b"a", b"a", b"a"]
    assert list(read_log_file(path, {9})) == []


def test_rows_of_another_epoch_are_left_out(tmp_path: Path) -> None:
    rows = pa.Table.from_pylist(
        [{"log_partition": 0, "record_offset": at, "backfill": False, "log_epoch": at % 2} for at in range(4)]
    )
    rows = pa.table(
        {name: pa.nulls(4) if name not in rows.column_names else rows[name] for name in [*SCHEMA.names, "log_epoch"]}
    )
    path = str(tmp_path / "mixed.parquet")
    pq.write_table(rows, path)
    assert [rows["record_offset"].to_pylist() for rows in read_log_file(path, None, 1)] == [[1, 3]]
    assert [rows["record_offset"].to_pylist() for rows in read_log_file(path, {0}, 0)] == [[0, 2]]
    assert list(read_log_file(path, None, 2)) == []


def test_files_of_several_writers_can_be_put_together(tmp_path: Path) -> None:
    columns = {
        "log_partition": pa.array([0], pa.int32()),
        "record_offset": pa.array([5], pa.int64()),
        "key": pa.array([b"a"]),
        "value": pa.array([b"v"]),
        "producer_id": pa.array([None], pa.int64()),
        "control_type": pa.array([None], pa.string()),
        "backfill": pa.array([False]),
        "log_epoch": pa.array([0], pa.int32()),
    }
    paths = [str(tmp_path / name) for name in ("nullable.parquet", "required.parquet", "large.parquet")]
    required = pa.schema([pa.field(name, each.type, nullable=bool(each.null_count)) for name, each in columns.items()])
    pq.write_table(pa.table(columns), paths[0])
    pq.write_table(pa.table(columns, schema=required), paths[1])
    large = {name: each.cast(pa.large_binary()) for name, each in columns.items() if name in ("key", "value")}
    pq.write_table(pa.table(columns | large), paths[2])
    together = pa.concat_tables(rows for path in paths for rows in read_log_file(path, None)).unify_dictionaries()
    assert (together["key"].to_pylist(), together["value"].to_pylist()) == ([b"a"] * 3, [b"v"] * 3)
