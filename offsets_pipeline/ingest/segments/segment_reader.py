"""Reads segment files on the executors: each task reads the files of some log partitions, one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from pyspark.sql.pandas.types import from_arrow_schema

from offsets_pipeline.common.foreign_errors import working_on
from offsets_pipeline.ingest.log_columns import LOG_COLUMNS, log_columns
from offsets_pipeline.kafka.record.segment import Damage, SegmentReader, read_segment
from offsets_pipeline.semantics.log_row import place_of
from offsets_pipeline.store.delta.filesystems import opened
from offsets_pipeline.store.log.file_writer import LogFilePlace, LogFileWriter
from offsets_pipeline.store.log.task_results import items_of, numbers, parallelism, results_in_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from offsets_pipeline.ingest.segments.segment_files import LogFolder
    from offsets_pipeline.store.delta.data_file import DataFile
    from offsets_pipeline.store.delta.properties import StoreProperties

_BATCH_ROWS = 65_536
_TASKS_PER_CORE = 4

#: Record offsets by log partition.
Offsets = dict[int, int]


@dataclass(frozen=True)
class FileReport:
    """Result of reading one segment file: offsets, number of records, and damage."""

    log_partition: int
    source: str
    start_offset: int
    end_offset: int | None
    records: int
    damage: tuple[Damage, ...] = ()
    torn_tail: str | None = None


@dataclass
class Written:
    """Result of `write_segments`: a report for each segment file, and the files written."""

    reports: list[FileReport] = field(default_factory=list)
    files: list[DataFile] = field(default_factory=list)


def write_segments(
    spark: SparkSession,
    folders: list[LogFolder],
    after: Offsets,
    place: LogFilePlace,
    properties: StoreProperties,
) -> Written:
    """Write the records after the record offsets ``after`` to files of the table `log`."""

    def write(some: list[LogFolder]) -> Written:
        written, writer = Written(), LogFileWriter(place)
        for folder in some:
            for batch in _read_folder(folder, written.reports, properties):
                wanted = batch.slice(_rows_up_to(batch, after.get(folder.log_partition, -1)))
                with working_on(partial(place_of, wanted)):
                    writer.write(wanted)
        with working_on(lambda: f"the end of log partitions {', '.join(str(each.log_partition) for each in some)}"):
            written.files = writer.close()
        return written

    whole = Written()
    for part in results_in_tasks(spark, _shares(spark, folders), write):
        whole.reports += part.reports
        whole.files += part.files
    return whole


def parsed_segments(
    spark: SparkSession, folders: list[LogFolder], properties: StoreProperties, up_to: Offsets
) -> DataFrame:
    """The records of these folders, with the columns of the table `log` that a segment file provides.

    ``up_to`` has the last record offset to read of each log partition.
    """
    shares = _shares(spark, folders)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for folder in chain.from_iterable(items_of(shares, batches)):
            for records in _read_folder(folder, [], properties):
                end = _rows_up_to(records, up_to[folder.log_partition])
                yield records.slice(0, end)
                if end < records.num_rows:
                    break

    return numbers(spark, shares).mapInArrow(read, from_arrow_schema(LOG_COLUMNS))


def _shares(spark: SparkSession, folders: list[LogFolder]) -> list[list[LogFolder]]:
    """The folders of each task. Neighbours stay together: a file of the table then holds a range of log partitions."""
    count = min(len(folders), _TASKS_PER_CORE * parallelism(spark))
    return [folders[at * len(folders) // count : (at + 1) * len(folders) // count] for at in range(count)]


def _rows_up_to(records: pa.RecordBatch, last: int) -> int:
    """How many of the first records have record offsets up to ``last``; offsets increase (R2)."""
    return int(np.searchsorted(records["record_offset"].to_numpy(), last, side="right"))


def _read_folder(folder: LogFolder, reports: list[FileReport], properties: StoreProperties) -> Iterator[pa.RecordBatch]:
    """Yield the records of a folder in ascending order; adds a file's report once the file is read."""
    last = folder.start_offset - 1
    for path in folder.files:
        source = "/".join(path.split("/")[-2:])
        records = overlapping = 0
        reader: SegmentReader | None = None

        def place() -> str:
            return f"byte position {reader.position if reader else 0} of {path}"  # noqa: B023 - of this file

        with working_on(place), opened(path) as data:
            reader = read_segment(data, source=path, max_records=_BATCH_ROWS)
            for batch in reader.batches():
                first = _rows_up_to(batch, last)
                overlapping += first if last >= folder.start_offset else 0
                fresh = batch.slice(first)
                if fresh.num_rows:
                    last = fresh["record_offset"][-1].as_py()
                    records += fresh.num_rows
                    yield log_columns(fresh, folder.log_partition, source, properties)
            damage = list(reader.damage)
            if overlapping:
                damage.append(Damage(0, 0, f"{overlapping} records repeat record offsets of the segment before", b""))
            torn = reader.torn_tail
            reports.append(
                FileReport(
                    log_partition=folder.log_partition,
                    source=source,
                    start_offset=max(folder.start_offset, int(path.rpartition("/")[2].partition(".")[0])),
                    end_offset=reader.end_offset,
                    records=records,
                    damage=tuple(damage),
                    torn_tail=None
                    if torn is None
                    else f"{torn.length} bytes at position {torn.position}: {torn.reason}",
                )
            )
