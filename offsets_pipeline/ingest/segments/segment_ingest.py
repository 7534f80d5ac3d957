"""Appends the records of a broker's segment files to the log: of `__consumer_offsets`, or a topic of Kafka Connect.

Tasks read the files: each those of some log partitions, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from offsets_pipeline.common.foreign_errors import raised_on_executor, working_on
from offsets_pipeline.errors import (
    CommitUnknown,
    ConflictingLog,
    InvalidPartitionCount,
    OffsetsError,
    StorageFailed,
    StoreMismatch,
)
from offsets_pipeline.ingest.log_columns import LOG_COLUMNS, log_columns
from offsets_pipeline.ingest.record_kind import LOOK_RECORDS, RecordKey, topic_kind_of
from offsets_pipeline.ingest.segments.segment_files import FoundLog, LogFolder, find_log
from offsets_pipeline.kafka.record.corrupt import CorruptRecord, NotASegment, UnknownRecordType
from offsets_pipeline.kafka.record.decode import decode_key
from offsets_pipeline.kafka.record.segment import Damage, SegmentReader, read_segment
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics, of_setting
from offsets_pipeline.semantics.log_row import place_of
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.store.delta.data_file import COMPRESSION
from offsets_pipeline.store.delta.filesystems import opened
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.delta.retry import with_retries
from offsets_pipeline.store.delta.s3_errors import storage_failed
from offsets_pipeline.store.delta.schemas import LOG
from offsets_pipeline.store.log.append import LogAppender
from offsets_pipeline.store.log.file_writer import LogFilePlace, LogFileWriter
from offsets_pipeline.store.log.metadata import LogMetadata, note_topics
from offsets_pipeline.store.log.task_results import items_of, numbers, parallelism, results_in_tasks
from offsets_pipeline.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from offsets_pipeline.common.clock import Clock
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.semantics.topic_kind import TopicKind
    from offsets_pipeline.store.delta.data_file import DataFile
    from offsets_pipeline.store.store import SparkSource

_LOOK_BYTES = 64 * 1024  # the part of each file that the ingest checks before it creates anything
_PLACE = ["log_partition", "record_offset"]
_SAME_RECORD = " AND ".join(f"l.{name} <=> n.{name}" for name in ("key", "value", "producer_id", "control_type"))
_BATCH_ROWS = 65_536
_TASKS_PER_CORE = 4

#: Record offsets by log partition.
Offsets = dict[int, int]


@dataclass
class IngestReport:
    """The result of an ingest.

    ``left_out`` counts records that the ingest skipped because a cleaning of the log has already passed their offsets.
    ``files`` has a report for each file read. ``unread`` are the log partitions of which no ingest into the store read
    a file: the store does not know their groups.
    """

    created: bool = False
    offsets_partitions: int = 0
    added: int = 0
    left_out: int = 0
    files: list[FileReport] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)


def ingest_segments(
    spark: SparkSource,
    location: str,
    paths: Iterable[str],
    settings: Settings,
    clock: Clock,
    offsets_partitions: int | None = None,
    semantics: CoordinatorSemantics | None = None,
    topic: str | None = None,
) -> IngestReport:
    """Append the records of segment files that the store's log lacks; creates the store if there is none.

    After an error the store that this call created is removed, unless another writer has appended to it, or a commit of
    this call may still appear.

    Args:
        spark: the Spark session, or a function that starts it: paths and store are checked before it is called.
        location: the store's folder, or ``schema:NAME``.
        paths: segment files, folders of log partitions, or folders of such folders, as a broker's data folder.
        settings: the program's settings.
        clock: the time of the append.
        offsets_partitions: n of R1. By default the count of the existing store. A new store counts the log partitions
            found if they are 0 to k-1, and else takes the count from the settings.
        semantics: coordinator semantics of a new store. By default those of the settings.
        topic: the topic whose log the files are. By default that of the settings.

    Raises:
        NoSuchPath, NoSegments, NotASegment, WrongRecords: a path holds no readable log of such a topic.
        InvalidPartitionCount: n contradicts the log.
        StoreMismatch: the store is of another kind, cluster or topic, has other semantics, or follows a topic.
        ConflictingLog: the log holds another record at the same record offset.
    """
    name = topic or settings.topic.name
    found = find_log(paths, name)
    store = Store.find(spark, location)
    first = _look(found)
    expected = None if store is None else store.properties.topic_kind
    kind = topic_kind_of("the log in the segment files", name, first, expected)
    if store is None:
        count = _partition_count(found, offsets_partitions, settings, kind)
    else:
        _check_store(store, found, offsets_partitions)
        store.require_semantics(semantics)
        count = store.properties.offsets_partitions
    _check_partition_count(found, _groups(first) if kind.has_groups else set(), count)
    if store is None:
        properties = StoreProperties(
            MIRRORED,
            count,
            found.cluster_id,
            found.topic_id,
            coordinator_semantics=(
                semantics or of_setting(settings.log.coordinator_semantics) if kind.has_groups else MODERN
            ),
            topic_kind=kind,
        )
        store = Store.create(spark, location, properties)
    report = IngestReport(created=store.created_here, offsets_partitions=count)
    appends = 0
    try:
        for copies in found.copies():
            ingest = partial(_ingest, store, copies, settings, clock)
            added, left_out, files = with_retries(ingest, "an ingest of segments")
            appends += added > 0
            report.added += added
            report.left_out += left_out
            report.files += files
        _note(LogMetadata(store, clock, store.current_log().number), report)
        note_topics(store, found.topic_names.items())
    except BaseException as error:
        if not isinstance(error, CommitUnknown):  # it may still appear
            with suppress(OSError, OffsetsError):  # the first error is the cause; the next ingest fills the store
                store.discard(appends)
        if isinstance(error, (PySparkException, Py4JJavaError)) and (ours := raised_on_executor(error)) is not None:
            raise ours from error
        raise
    if kind.has_groups:
        report.unread = sorted(set(range(count)).difference(store.current_log().ends))
    return report


# --- checks before the ingest creates anything


def _look(found: FoundLog) -> list[RecordKey]:
    """Read the start of every file; returns the first records of each log partition.

    Raises NotASegment if a file holds something else, StorageFailed if one is gone or cannot be read.
    """
    first: list[RecordKey] = []
    for folder in found.folders:
        known = len(first)
        for path in folder.files:
            with _segment(path) as data:
                batches = _first_batches(data, path)
            for batch in batches if len(first) == known else ():
                rows = batch.filter(pc.is_null(batch["control_type"])).slice(0, LOOK_RECORDS)
                places = zip(rows["record_offset"].to_pylist(), rows["key"].to_pylist(), strict=True)
                first += [RecordKey(folder.log_partition, record_offset, key) for record_offset, key in places]
    return first


@contextmanager
def _segment(path: str) -> Iterator[memoryview]:
    """The bytes of a segment file. Raises StorageFailed if it is gone or cannot be read."""
    try:
        with opened(path) as data:
            yield data
    except FileNotFoundError:
        raise StorageFailed(f"{path} is gone: its broker has replaced or deleted it; run this again") from None
    except OSError as error:
        raise storage_failed(f"cannot read {path}", path, error, "check its storage and your permissions") from error


def _first_batches(data: memoryview, path: str) -> list[pa.RecordBatch]:
    """Return the records in the first `_LOOK_BYTES` of a file.

    If the reader refuses these bytes, return the first Arrow batch of the whole file. Raises NotASegment.
    """
    try:
        return list(read_segment(data[:_LOOK_BYTES], source=path).batches())
    except NotASegment:
        return list(islice(read_segment(data, source=path).batches(), 1))


def _groups(first: Iterable[RecordKey]) -> set[tuple[int, str]]:
    """The group ids in the first records, each with its log partition."""
    groups = set()
    for record in first:
        with suppress(CorruptRecord, UnknownRecordType):
            groups.add((record.log_partition, decode_key(record.key).group_id))
    return groups


def _check_store(store: Store, found: FoundLog, offsets_partitions: int | None) -> None:
    store.require(MIRRORED)
    # `follow` resumes at the log's end: segments would move that end
    if store.current_log().is_followed:
        raise StoreMismatch(
            f"cannot ingest segments into {store.location}: it follows a broker's topic; ingest them into another store"
        )
    known = store.properties
    if offsets_partitions not in (None, known.offsets_partitions):
        raise InvalidPartitionCount(
            f"the log in {store.location} has {known.offsets_partitions} partitions, not {offsets_partitions}, and the "
            "number cannot change; leave out --offsets-partitions, or name another store"
        )
    for what, of_store, of_source in (
        ("cluster", known.cluster_id, found.cluster_id),
        ("topic", known.topic_id, found.topic_id),
    ):
        if of_store is not None and of_source is not None and of_store != of_source:
            raise StoreMismatch(
                f"{store.location} mirrors {what} {of_store}, the segments belong to {of_source}; name another store"
            )


def _partition_count(found: FoundLog, offsets_partitions: int | None, settings: Settings, kind: TopicKind) -> int:
    if offsets_partitions is not None:
        return offsets_partitions
    partitions = found.partitions()
    if not kind.has_groups:  # no answer depends on the number (R1)
        return max(partitions) + 1
    return len(partitions) if partitions == set(range(len(partitions))) else settings.log.offsets_partitions


def _check_partition_count(found: FoundLog, groups: set[tuple[int, str]], count: int) -> None:
    """Raise InvalidPartitionCount if the found log cannot have so many partitions.

    A wrong count misplaces nearly all groups (R1); a few misplaced groups are normal.
    """
    if count < 1:
        raise InvalidPartitionCount(f"a log has at least 1 partition, not {count}")
    beyond = [partition for partition in sorted(found.partitions()) if partition >= count]
    if beyond:
        raise InvalidPartitionCount(
            f"found log partition {beyond[0]}, but a log of {count} partitions has 0 to {count - 1}; "
            "give the broker's offsets.topic.num.partitions as --offsets-partitions"
        )
    misplaced = sum(partition_for(group_id, count) != partition for partition, group_id in groups)
    if 2 * misplaced > len(groups):
        raise InvalidPartitionCount(
            f"{misplaced} of {len(groups)} groups are in the wrong partition of a log of {count} partitions; "
            "give the broker's offsets.topic.num.partitions as --offsets-partitions"
        )


# --- the append


def _ingest(
    store: Store, folders: list[LogFolder], settings: Settings, clock: Clock
) -> tuple[int, int, list[FileReport]]:
    """Append the records of these folders that the log lacks.

    Returns how many records it added, how many it left out, and a report for each file.

    Leaves out records before the offset that a log partition was cleaned to. The cleaning removed these records, or
    the tombstone that would delete them (R23).
    """
    current = store.current_log().number
    appender = LogAppender(store, settings.log.codec(COMPRESSION))
    # The appender exists before the log is read: its commit then fails if another writer appends meanwhile.
    place = appender.place(clock, current)
    log = store.read(LOG.name).where(F.col("log_incarnation") == current)
    log = log.where(F.col("log_partition").isin([folder.log_partition for folder in folders]))
    ends: Offsets = {row[0]: row[1] for row in log.groupBy("log_partition").agg(F.max("record_offset")).collect()}
    known = [folder for folder in folders if folder.log_partition in ends]
    late, left_out = _late(store, log, known, ends) if known else (None, 0)
    written = write_segments(store.spark, folders, ends, place, store.properties)
    if late is not None:
        return appender.append_late(late, place, written.files).records, left_out, written.reports
    added = appender.append_files(written.files).records if written.files else 0
    return added, left_out, written.reports


def _late(store: Store, log: DataFrame, known: list[LogFolder], ends: Offsets) -> tuple[DataFrame | None, int]:
    """The records up to these ends that the log lacks, None for no records; and how many more a cleaning has passed.

    Raises ConflictingLog if the log holds another record at the same record offset.
    """
    cleaned_to = sorted(store.current_log().cleaned_to.items())
    cleaned = [f"(log_partition = {at} AND record_offset < {to}L)" for at, to in cleaned_to]
    overlap = parsed_segments(store.spark, known, store.properties, ends)
    overlap = overlap.withColumn("cleaned", F.expr(" OR ".join(cleaned) or "FALSE"))
    held = overlap.alias("n").join(log.withColumn("held", F.lit(True)).alias("l"), _PLACE, "left")
    where = [*_PLACE, "n.source", "l.appended_at"]
    found = held.select(
        F.count_if(F.expr("l.held IS NULL AND NOT cleaned")).alias("missing"),
        F.count_if(F.expr("l.held IS NULL AND cleaned")).alias("left_out"),
        F.min(F.when(F.expr(f"l.held AND NOT ({_SAME_RECORD})"), F.struct(*where))).alias("conflict"),
    ).first()
    assert found is not None  # noqa: S101 - an aggregate has a row
    conflict = found["conflict"]
    if conflict is not None:
        raise ConflictingLog(
            f"record {conflict['record_offset']} of log partition {conflict['log_partition']} in {conflict['source']} "
            f"differs from the record in {store.location}: the segments belong to another log; name another store"
        )
    late = overlap.where("NOT cleaned").join(log, _PLACE, "left_anti") if found["missing"] else None
    return late, int(found["left_out"])


def _note(notes: LogMetadata, report: IngestReport) -> None:
    """Write bounds and damage of the files to the store's metadata tables."""
    bounds: dict[int, tuple[int, int]] = {}
    for file in report.files:
        start, end = bounds.get(file.log_partition, (file.start_offset, file.start_offset))
        bounds[file.log_partition] = (min(start, file.start_offset), max(end, file.end_offset or file.start_offset))
    notes.bounds(bounds)
    notes.damage([(file.log_partition, file.source, damage) for file in report.files for damage in file.damage])


# --- in tasks


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

        with working_on(place), _segment(path) as data:
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
