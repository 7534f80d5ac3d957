"""Log files as tasks write them, without Spark: their rows and their layout."""

from __future__ import annotations

import errno
import json
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offsets_pipeline.errors import StorageFailed
from offsets_pipeline.store.delta.data_file import COMPRESSION
from offsets_pipeline.store.delta.schemas import LOG
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.delta.upkeep import compact
from offsets_pipeline.store.log import file_writer
from offsets_pipeline.store.log.file_writer import LogFilePlace, LogFileWriter, rewritten
from tests.log_tables import log_store
from tests.places import place_of
from tests.unit.log.test_ordered_log import append

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.store.delta.data_file import DataFile

NOW_MS = 1_795_000_000_123


def rows(log_partition: int, offsets: range, *, keys: int = 3) -> pa.RecordBatch:
    count = len(offsets)
    return pa.RecordBatch.from_pydict(
        {
            "log_partition": pa.array([log_partition] * count, pa.int32()),
            "record_offset": pa.array(offsets, pa.int64()),
            "record_timestamp": pa.array([1000 * each for each in offsets], pa.timestamp("us", tz="UTC")),
            "key": pa.array([None if each == 0 else b"key %d" % (each % keys) for each in offsets], pa.binary()),
            "value": pa.array([None if each == 1 else b"value %d" % each for each in offsets], pa.binary()),
            "producer_id": pa.array([7 if each == 2 else None for each in offsets], pa.int64()),
            "producer_epoch": pa.array([1 if each == 2 else None for each in offsets], pa.int16()),
            "control_type": pa.array(["ABORT" if each == 2 else None for each in offsets], pa.string()),
            "source": pa.array(["a source"] * count, pa.string()),
        }
    )


def written(folder: Path, *batches: pa.RecordBatch) -> list[DataFile]:
    writer = LogFileWriter(LogFilePlace(str(folder), NOW_MS))
    try:
        for batch in batches:
            writer.write(batch)
        return writer.close()
    except BaseException:
        writer.discard()
        raise


def test_file_has_the_rows_and_their_statistics(place: Path) -> None:
    batches = [rows(3, range(5)), rows(3, range(5, 9)), rows(4, range(2, 4))]
    (file,) = written(place, *batches)
    found = pq.read_table(place / file.name)
    expected = pa.Table.from_batches(batches)
    for name in expected.column_names:
        assert found[name].combine_chunks() == expected[name].combine_chunks()
    assert set(found["appended_at"].cast(pa.int64()).to_pylist()) == {NOW_MS * 1000}
    assert set(found["log_incarnation"].to_pylist()) == {0}
    assert set(found["backfill"].to_pylist()) == {False}
    add = file.add_action(is_change=True)
    assert (add["path"], add["partitionValues"], add["dataChange"]) == (file.name, {}, True)
    assert add["size"] == (place / file.name).stat().st_size
    same = {"log_incarnation": 0, "appended_at": "2026-11-18T11:06:40.123Z"}
    assert json.loads(add["stats"]) == {
        "numRecords": 11,
        "minValues": {"log_partition": 3, "record_offset": 0, **same},
        "maxValues": {"log_partition": 4, "record_offset": 8, **same},
        "nullCount": {"log_partition": 0, "record_offset": 0, "log_incarnation": 0, "appended_at": 0},
    }


def test_types_are_those_that_other_readers_expect(place: Path) -> None:
    (file,) = written(place, rows(0, range(3)))
    schema = pq.ParquetFile(place / file.name).schema
    described = [
        (column.name, column.physical_type, str(column.logical_type), column.max_definition_level == 0)
        for column in (schema.column(index) for index in range(len(schema)))
    ]
    timestamp = "Timestamp(isAdjustedToUTC=true, timeUnit=microseconds, is_from_converted_type=false, "
    timestamp += "force_set_converted_type=false)"
    assert described == [
        ("log_partition", "INT32", "None", True),
        ("record_offset", "INT64", "None", True),
        ("record_timestamp", "INT64", timestamp, False),
        ("key", "BYTE_ARRAY", "None", False),
        ("value", "BYTE_ARRAY", "None", False),
        ("producer_id", "INT64", "None", False),
        ("producer_epoch", "INT32", "Int(bitWidth=16, isSigned=true)", False),
        ("control_type", "BYTE_ARRAY", "String", False),
        ("source", "BYTE_ARRAY", "String", True),
        ("appended_at", "INT64", timestamp, True),
        ("log_incarnation", "INT32", "None", True),
        ("backfill", "BOOLEAN", "None", True),
    ]


def test_large_log_partition_has_row_groups_of_its_own_and_small_ones_share(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_writer, "_SMALL_ROW_GROUP_BYTES", rows(0, range(100)).nbytes)
    monkeypatch.setattr(file_writer, "_ROW_GROUP_BYTES", rows(0, range(300)).nbytes)
    small = [rows(partition, range(10)) for partition in range(3)]
    large = [rows(3, range(start, start + 100)) for start in range(0, 1000, 100)]
    (file,) = written(place, *small, *large, rows(4, range(10)), rows(5, range(10)))
    parquet = pq.ParquetFile(place / file.name)
    groups = [
        sorted(set(parquet.read_row_group(group)["log_partition"].to_pylist()))
        for group in range(parquet.num_row_groups)
    ]
    assert (groups[0], groups[-1]) == ([0, 1, 2, 3], [4, 5])
    assert groups[1:-1] == [[3]] * (len(groups) - 2) != []
    # a row group of several batches goes on to 300 rows, but ends at 100 where the next log partition begins
    assert [parquet.metadata.row_group(group).num_rows for group in range(len(groups))] == [330, 300, 300, 100, 20]
    table = parquet.read(["log_partition", "record_offset"])
    assert table == table.sort_by([("log_partition", "ascending"), ("record_offset", "ascending")])


def test_large_file_is_followed_by_the_next(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writer, "_SMALL_ROW_GROUP_BYTES", 0)
    monkeypatch.setattr(file_writer, "_FILE_BYTES", 0)
    found = written(place, *(rows(partition, range(10)) for partition in range(3)))
    assert [(file.lowest["log_partition"], file.highest["log_partition"]) for file in found] == [(0, 0), (1, 1), (2, 2)]
    assert len({file.name for file in found}) == 3


def test_keys_of_a_large_row_group_are_all_in_the_dictionary(place: Path) -> None:
    (file,) = written(place, rows(0, range(200_000), keys=100_000))
    parquet = pq.ParquetFile(place / file.name)
    column = parquet.metadata.row_group(0).column(3)
    assert (column.path_in_schema, column.has_dictionary_page) == ("key", True)
    # pages behind a fallback would be plain and hold every key: twice the dictionary at least
    assert column.total_uncompressed_size < 100_000 * (4 + len(b"key 12345")) + 200_000 * 3
    assert not parquet.metadata.row_group(0).column(4).has_dictionary_page


def test_nothing_to_write_makes_no_file(place: Path) -> None:
    assert written(place, rows(0, range(0))) == []
    assert list(place.iterdir()) == []


@pytest.mark.on_s3  # where a file that is ended later would appear after its removal
def test_file_that_is_discarded_while_it_is_open_does_not_appear_later(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_writer, "_ROW_GROUP_BYTES", 0)
    writer = LogFileWriter(LogFilePlace(str(place), NOW_MS))
    for number in range(3):
        writer.write(rows(0, range(number, number + 1)))
    assert writer._file is not None
    writer.discard()
    assert writer._file._sink.closed
    assert list(place.iterdir()) == []


def test_rows_that_break_a_constraint_are_refused(place: Path) -> None:
    with pytest.raises(ValueError, match="a record has log partition"):
        written(place, rows(0, range(-1, 2)))
    batch = rows(0, range(2))
    no_source = batch.set_column(8, "source", pa.nulls(2, pa.string()))
    with pytest.raises(pa.ArrowInvalid, match="'source' is declared non-nullable"):
        written(place, no_source)
    assert list(place.iterdir()) == []


def test_a_full_disk_ends_a_compaction_in_one_line_and_leaves_no_file(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = log_store(place / "store", 1, [append([(0, 5)]), append([(0, 6)])])
    folder = TableFolder(f"{store}/{LOG.name}", LOG)
    before = sorted(place_of(folder.folder).rglob("*"))

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("pyarrow.parquet.ParquetWriter.write_table", fail)
        with pytest.raises(StorageFailed) as failed:
            compact(folder, partial(rewritten, folder, COMPRESSION))
    assert str(failed.value) == (
        f"cannot write to {folder.folder}: [Errno 28] No space left on device; nothing was committed; check its free "
        "space and your permissions, then try again"
    )
    assert sorted(place_of(folder.folder).rglob("*")) == before
    assert compact(folder, partial(rewritten, folder, COMPRESSION)) == 2
