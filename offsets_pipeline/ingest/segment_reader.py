"""Reading segment files on the executors: a task reads the files of some log partitions, one after the other."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs
from pyspark.accumulators import AccumulatorParam

from offsets_pipeline.ingest.segment_files import LogFolder, open_path
from offsets_pipeline.record.segment import Damage, read_segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark import Accumulator
    from pyspark.sql import DataFrame, SparkSession

_BATCH_ROWS = 65_536
_TASKS_PER_CORE = 4
_PARSED = (
    "log_partition int, record_offset bigint, record_timestamp timestamp, key binary, value binary, "
    "producer_id bigint, producer_epoch smallint, control_type string, source string"
)


@dataclass(frozen=True)
class FileReport:
    """What reading one file found, beside its records."""

    log_partition: int
    source: str
    start_offset: int
    end_offset: int | None
    records: int
    damage: tuple[Damage, ...] = ()
    torn_tail: str | None = None


#: Reports by log partition and file: a task that runs twice reports the same twice.
Reports = dict[tuple[int, str], FileReport]


class GatheredReports(AccumulatorParam[Reports]):
    """How the reports of all tasks come together."""

    def zero(self, value: Reports) -> Reports:  # noqa: ARG002
        """No reports."""
        return {}

    def addInPlace(  # noqa: N802 - Spark's name
        self, value1: Reports, value2: Reports
    ) -> Reports:
        """Those of both."""
        value1.update(value2)
        return value1


def parsed_segments(spark: SparkSession, folders: list[LogFolder], reports: Accumulator[Reports]) -> DataFrame:
    """The records of these folders, with the columns of the table `log` that a file tells.

    ``reports`` is complete when the result was computed once.
    """

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                folder = LogFolder(row["log_partition"], tuple(row["files"]), row["start_offset"])
                yield from _read_folder(folder, reports)

    rows = [(folder.log_partition, list(folder.files), folder.start_offset) for folder in folders]
    # neighbours stay together, so that a file of the table holds a range of log partitions, in order
    slices = min(len(rows), _TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
    listed = spark.createDataFrame(
        spark.sparkContext.parallelize(rows, slices), "log_partition int, files array<string>, start_offset bigint"
    )
    return listed.mapInArrow(read, _PARSED)


def _read_folder(folder: LogFolder, reports: Accumulator[Reports]) -> Iterator[pa.RecordBatch]:
    last = folder.start_offset - 1
    for path in folder.files:
        source = "/".join(path.split("/")[-2:])
        records = overlapping = 0
        with opened(path) as data:
            reader = read_segment(data, source=path, max_records=_BATCH_ROWS)
            for batch in reader.batches():
                offsets = batch["record_offset"].to_numpy()
                first = int(np.searchsorted(offsets, last, side="right"))  # R2: they increase
                overlapping += first if last >= folder.start_offset else 0
                fresh = batch.slice(first)
                if fresh.num_rows:
                    last = int(offsets[-1])
                    records += fresh.num_rows
                    yield _log_columns(fresh, folder.log_partition, source)
            damage = list(reader.damage)
            if overlapping:
                damage.append(
                    Damage(0, 0, f"{overlapping} records lie at offsets that the segment before it holds", b"")
                )
            torn = reader.torn_tail
            report = FileReport(
                log_partition=folder.log_partition,
                source=source,
                start_offset=max(folder.start_offset, _base_offset(path)),
                end_offset=reader.end_offset,
                records=records,
                damage=tuple(damage),
                torn_tail=None if torn is None else f"{torn.length} bytes at position {torn.position}: {torn.reason}",
            )
        reports.add({(folder.log_partition, path): report})


def _log_columns(batch: pa.RecordBatch, log_partition: int, source: str) -> pa.RecordBatch:
    # the id of a producer without a transaction means nothing to a replay (R11)
    matters = pc.or_(batch["is_transactional"], batch["control_type"].is_valid())
    rows = batch.num_rows
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(log_partition, pa.int32()), rows),
            batch["record_offset"],
            batch["record_timestamp"].cast(pa.timestamp("us", tz="UTC")),
            batch["key"].cast(pa.binary()),
            batch["value"].cast(pa.binary()),
            pc.if_else(matters, batch["producer_id"], pa.scalar(None, pa.int64())),
            pc.if_else(matters, batch["producer_epoch"], pa.scalar(None, pa.int16())),
            batch["control_type"],
            pa.repeat(pa.scalar(source), rows),
        ],
        names=[
            "log_partition",
            "record_offset",
            "record_timestamp",
            "key",
            "value",
            "producer_id",
            "producer_epoch",
            "control_type",
            "source",
        ],
    )


def _base_offset(path: str) -> int:
    return int(path.rpartition("/")[2].partition(".")[0])


@contextmanager
def opened(path: str) -> Iterator[memoryview]:
    """The bytes of a file; a local one is mapped, not read."""
    files, inner = open_path(path)
    with files.open_input_file(inner) as remote:
        if not isinstance(files, fs.LocalFileSystem) or not remote.size():
            yield memoryview(remote.read())
            return
    with pa.memory_map(inner) as mapped:
        yield memoryview(mapped.read_buffer())
