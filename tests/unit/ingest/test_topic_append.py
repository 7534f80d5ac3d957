"""A task writes the records of a topic that the log lacks, each once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from offsets_pipeline.delta.data_file import AddFile
from offsets_pipeline.ingest.topic.topic_append import _writer
from offsets_pipeline.log.file_writer import SCHEMA, LogFilePlace

if TYPE_CHECKING:
    from pathlib import Path


def batch(*places: tuple[int, int]) -> pa.RecordBatch:
    """Records of the topic, as Spark's Kafka source hands them to a task."""
    count = len(places)
    return pa.RecordBatch.from_pydict(
        {
            "log_partition": pa.array([at for at, _ in places], pa.int32()),
            "record_offset": pa.array([offset for _, offset in places], pa.int64()),
            "record_timestamp": pa.array([1_000_000] * count, pa.timestamp("us", tz="UTC")),
            "key": pa.array([b"key"] * count),
            "value": pa.array([None] * count, pa.binary()),
        }
    )


def written(
    folder: Path, ends: dict[int, int], *batches: pa.RecordBatch
) -> tuple[list[pa.Table], list[dict[str, int]]]:
    place = LogFilePlace(str(folder), 5_000, log_incarnation=2)
    rows = [row for out in _writer(place, ends, "kafka://c/t")(batches) for row in out.to_pylist()]
    files = [AddFile.of_text(row["file"]) for row in rows]
    return [pq.read_table(folder / file.name) for file in files], [json.loads(row["ends"]) for row in rows]


def test_records_in_the_log_are_left_out_and_others_are_written_once(tmp_path: Path) -> None:
    (rows,), (ends,) = written(tmp_path, {0: 5, 1: 9}, batch((0, 3), (0, 4), (0, 7), (1, 8)), batch((0, 8), (2, 0)))
    assert rows.schema.equals(SCHEMA)
    places = zip(rows["log_partition"].to_pylist(), rows["record_offset"].to_pylist(), strict=True)
    assert list(places) == [(0, 7), (0, 8), (2, 0)]
    assert ends == {"0": 9, "2": 1}


def test_rows_say_where_they_come_from_and_nothing_of_transactions(tmp_path: Path) -> None:
    (rows,), _ = written(tmp_path, {}, batch((0, 0)))
    (row,) = rows.to_pylist()
    assert (row["source"], row["log_incarnation"], row["backfill"]) == ("kafka://c/t", 2, False)
    assert (row["producer_id"], row["producer_epoch"], row["control_type"]) == (None, None, None)


def test_where_the_log_holds_all_no_file_is_written(tmp_path: Path) -> None:
    assert written(tmp_path, {0: 5}, batch((0, 3), (0, 4))) == ([], [])
    assert list(tmp_path.iterdir()) == []
