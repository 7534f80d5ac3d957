"""Landing segment files in the log: `__consumer_offsets` as a broker wrote it to disk."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs
from pyspark.accumulators import AccumulatorParam
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from offsets_pipeline.errors import (
    ConflictingLog,
    InvalidPartitionCount,
    NoSuchStore,
    StoreMismatch,
    raised_on_executor,
)
from offsets_pipeline.fold.retry import with_retries
from offsets_pipeline.fold.state import LOG_EPOCH, timestamp_of
from offsets_pipeline.ingest.segment_files import FoundLog, LogFolder, find_log, open_path
from offsets_pipeline.log.append import LogAppender
from offsets_pipeline.log.partitioning import partitions_for
from offsets_pipeline.record.corrupt import CorruptRecord, NotASegment, UnknownRecordType
from offsets_pipeline.record.decode import decode_key
from offsets_pipeline.record.segment import Damage, read_segment
from offsets_pipeline.store import MIRRORED, Store, StoreProperties, delete_store, normalised
from offsets_pipeline.tables import LOG, LOG_PARTITIONS, QUARANTINE, TOPICS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark import Accumulator
    from pyspark.sql import Column, DataFrame, SparkSession

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config import Settings

_LOOK_BYTES = 64 * 1024  # how much of a file's start is looked at before anything is created
_LOOK_KEYS = 200
_BATCH_ROWS = 65_536
_TASKS_PER_CORE = 4
_PARSED = (
    "log_partition int, record_offset bigint, record_timestamp timestamp, key binary, value binary, "
    "producer_id bigint, producer_epoch smallint, control_type string, source string"
)
_SAME_RECORD = " AND ".join(f"l.{name} <=> n.{name}" for name in ("key", "value", "producer_id", "control_type"))


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


@dataclass
class IngestReport:
    """What an ingest did. ``files`` has a report for each file read."""

    created: bool = False
    offsets_partitions: int = 0
    added: int = 0
    files: list[FileReport] = field(default_factory=list)


class _Reports(AccumulatorParam[dict[tuple[int, str], FileReport]]):
    """Reports by file: a task that runs twice reports the same twice."""

    def zero(self, value: dict[tuple[int, str], FileReport]) -> dict[tuple[int, str], FileReport]:  # noqa: ARG002
        return {}

    def addInPlace(  # noqa: N802 - Spark's name
        self, value1: dict[tuple[int, str], FileReport], value2: dict[tuple[int, str], FileReport]
    ) -> dict[tuple[int, str], FileReport]:
        value1.update(value2)
        return value1


def ingest_segments(
    spark: SparkSession,
    location: str,
    paths: Iterable[str],
    settings: Settings,
    clock: Clock,
    offsets_partitions: int | None = None,
) -> IngestReport:
    """Append the records of segment files that the log of the store does not hold yet; creates the store if need be.

    ``paths`` are segment files, folders of log partitions, or folders with such folders in them, as a broker's data
    folder. ``offsets_partitions`` is R1's n; where it is not given, an existing store knows it, else the log
    partitions found do if they are 0 to k-1, else the settings.

    Raises NoSuchPath, NoSegments, NotASegment for what cannot be read, InvalidPartitionCount where n contradicts
    the log, StoreMismatch for a store of another kind or cluster, ConflictingLog where a record offset already
    holds another record. Then nothing was appended, and a store that was to be created is not there.
    """
    found = find_log(paths)
    groups = _look(found)
    store = _existing(spark, location)
    if store is None:
        count = _partition_count(found, offsets_partitions, settings)
    else:
        _check_store(store, found, offsets_partitions)
        count = store.properties.offsets_partitions
    _check_partition_count(found, groups, count)
    created = store is None
    report = IngestReport(created=created, offsets_partitions=count)
    try:
        if store is None:
            store = Store.create(spark, location, StoreProperties(MIRRORED, count, found.cluster_id, found.topic_id))
        for copies in found.copies():
            what = "an ingest of segments"
            added, files = with_retries(partial(_ingest, store, copies, clock), what, settings.fold)
            report.added += added
            report.files += files.values()
        _note(store, report, found, settings, clock)
    except BaseException as error:
        if created:
            delete_store(spark, normalised(location))
        if isinstance(error, PySparkException) and (ours := raised_on_executor(error)) is not None:
            raise ours from None
        raise
    return report


# --- what is looked at before anything is created


def _existing(spark: SparkSession, location: str) -> Store | None:
    try:
        return Store.open(spark, location)
    except NoSuchStore:
        return None


def _look(found: FoundLog) -> dict[int, set[str]]:
    """Look at the start of every file; returns groups named in the first records of each log partition.

    Raises NotASegment for a file that holds something else.
    """
    groups: dict[int, set[str]] = {}
    for folder in found.folders:
        named = groups.setdefault(folder.log_partition, set())
        for path in folder.files:
            with _opened(path) as data:
                batches = _first_batches(data, path)
            for batch in batches if not named else ():
                named.update(_group_ids(batch["key"].slice(0, _LOOK_KEYS)))
    return groups


def _first_batches(data: memoryview, path: str) -> list[pa.RecordBatch]:
    """The records in the first bytes; where those hold none, as behind damage, in the first million of records."""
    try:
        return list(read_segment(data[:_LOOK_BYTES], source=path).batches())
    except NotASegment:
        return list(islice(read_segment(data, source=path).batches(), 1))


def _group_ids(keys: pa.Array) -> Iterator[str]:
    for key in keys.to_pylist():
        try:
            yield decode_key(key).group_id
        except (CorruptRecord, UnknownRecordType):
            continue


def _check_store(store: Store, found: FoundLog, offsets_partitions: int | None) -> None:
    store.require(MIRRORED)
    known = store.properties
    if offsets_partitions not in (None, known.offsets_partitions):
        raise InvalidPartitionCount(
            f"the log in {store.location} has {known.offsets_partitions} partitions, not {offsets_partitions}: "
            "that is fixed with the store"
        )
    for what, of_store, of_source in (
        ("cluster", known.cluster_id, found.cluster_id),
        ("topic", known.topic_id, found.topic_id),
    ):
        if of_store is not None and of_source is not None and of_store != of_source:
            raise StoreMismatch(
                f"{store.location} mirrors {what} {of_store}, the segments belong to {of_source}: name another store"
            )


def _partition_count(found: FoundLog, offsets_partitions: int | None, settings: Settings) -> int:
    if offsets_partitions is not None:
        return offsets_partitions
    partitions = found.partitions()
    return len(partitions) if partitions == set(range(len(partitions))) else settings.log.offsets_partitions


def _check_partition_count(found: FoundLog, groups: dict[int, set[str]], count: int) -> None:
    """A wrong count would put nearly every group where it does not belong (R1); a few misplaced ones are normal."""
    if count < 1:
        raise InvalidPartitionCount(f"a log has at least 1 partition, not {count}")
    beyond = [partition for partition in sorted(found.partitions()) if partition >= count]
    if beyond:
        raise InvalidPartitionCount(
            f"log partition {beyond[0]} is there, but a log of {count} partitions has 0 to {count - 1}: "
            "give the broker's offsets.topic.num.partitions as --offsets-partitions"
        )
    placed = misplaced = 0
    for partition, named in groups.items():
        at_home = int(np.count_nonzero(partitions_for(pa.array(sorted(named), pa.string()), count) == partition))
        placed, misplaced = placed + at_home, misplaced + len(named) - at_home
    if misplaced > placed:
        raise InvalidPartitionCount(
            f"{misplaced} of {placed + misplaced} groups do not belong where they lie in a log of {count} partitions: "
            "give the broker's offsets.topic.num.partitions as --offsets-partitions"
        )


# --- reading on the executors


def _ingest(store: Store, folders: list[LogFolder], clock: Clock) -> tuple[int, dict[tuple[int, str], FileReport]]:
    """Append what one copy of some log partitions holds and the log does not."""
    appender = LogAppender(store)
    spark = store.spark
    reports: Accumulator[dict[tuple[int, str], FileReport]] = spark.sparkContext.accumulator({}, _Reports())
    parsed = _parsed(spark, folders, reports)
    log = store.read(LOG.name).where(F.col("log_partition").isin([folder.log_partition for folder in folders]))
    ends = {row[0]: row[1] for row in log.groupBy("log_partition").agg(F.max("record_offset")).collect()}
    if ends:
        parsed = parsed.persist()
    try:
        rows = _new_rows(parsed, log, ends, store.location)
        if ends and rows.isEmpty():
            return 0, reports.value
        added = appender.append(
            rows.withColumn("appended_at", timestamp_of(clock)).withColumn("log_epoch", F.lit(LOG_EPOCH))
        )
        return added, reports.value
    finally:
        if ends:
            parsed.unpersist()


def _parsed(
    spark: SparkSession, folders: list[LogFolder], reports: Accumulator[dict[tuple[int, str], FileReport]]
) -> DataFrame:
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


def _read_folder(
    folder: LogFolder, reports: Accumulator[dict[tuple[int, str], FileReport]]
) -> Iterator[pa.RecordBatch]:
    last = folder.start_offset - 1
    for path in folder.files:
        source = "/".join(path.split("/")[-2:])
        records = overlapping = 0
        with _opened(path) as data:
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
def _opened(path: str) -> Iterator[memoryview]:
    """The bytes of a file; a local one is mapped, not read."""
    files, inner = open_path(path)
    with files.open_input_file(inner) as remote:
        if not isinstance(files, fs.LocalFileSystem) or not remote.size():
            yield memoryview(remote.read())
            return
    with pa.memory_map(inner) as mapped:
        yield memoryview(mapped.read_buffer())


# --- what is new


def _new_rows(parsed: DataFrame, log: DataFrame, ends: dict[int, int], location: str) -> DataFrame:
    """The rows that the log does not hold, marked where they lie behind rows that it holds.

    Raises ConflictingLog where it holds another record at the same record offset.
    """
    if not ends:
        return parsed.withColumn("backfill", F.lit(False))
    end = F.coalesce(
        F.create_map(*[F.lit(item) for pair in ends.items() for item in pair])[F.col("log_partition")], F.lit(-1)
    )
    ahead = parsed.where(F.col("record_offset") > end).withColumn("backfill", F.lit(False))
    overlap = parsed.where(F.col("record_offset") <= end)
    at = ["log_partition", "record_offset"]
    same_place = overlap.alias("n").join(log.alias("l"), at)
    conflict = same_place.where(f"NOT ({_SAME_RECORD})").orderBy(*at).select(*at, "n.source", "l.appended_at").first()
    if conflict is not None:
        raise ConflictingLog(
            f"record {conflict['record_offset']} of log partition {conflict['log_partition']} in {conflict['source']} "
            f"is not the record that {location} holds there: these segments are of another log; use another store"
        )
    behind = overlap.join(log.select(*at), at, "left_anti").withColumn("backfill", F.lit(True))
    return ahead.unionByName(behind)


# --- what was noted beside the records


def _note(store: Store, report: IngestReport, found: FoundLog, settings: Settings, clock: Clock) -> None:
    """Note the log's bounds, damage and topic names: each says what is so, and may be noted twice."""

    def merge(
        table: str, rows: list[tuple[Any, ...]], schema: str, on: str, matched: dict[str, str | Column] | None
    ) -> None:
        if not rows:
            return
        source = store.spark.createDataFrame(rows, schema).withColumn("at", timestamp_of(clock))
        stamp = {LOG_PARTITIONS.name: "updated_at", QUARANTINE.name: "quarantined_at"}.get(table)
        stamped: dict[str, str | Column] = {stamp: "s.at"} if stamp else {}
        values: dict[str, str | Column] = {**{name: f"s.{name}" for name in source.columns if name != "at"}, **stamped}

        def write() -> None:
            builder = store.delta(table).alias("t").merge(source.alias("s"), on)
            if matched is not None:
                changes = " OR ".join(f"t.{name} <> {value}" for name, value in matched.items())
                builder = builder.whenMatchedUpdate(condition=changes, set=matched | stamped)
            builder.whenNotMatchedInsert(values=values).execute()

        with_retries(write, f"a merge into {table}", settings.fold)

    bounds: dict[int, tuple[int, int]] = {}
    for file in report.files:
        start, end = bounds.get(file.log_partition, (file.start_offset, file.start_offset))
        bounds[file.log_partition] = (min(start, file.start_offset), max(end, file.end_offset or file.start_offset))
    merge(
        LOG_PARTITIONS.name,
        [(partition, LOG_EPOCH, start, end) for partition, (start, end) in bounds.items()],
        "log_partition int, log_epoch int, start_offset bigint, end_offset bigint",
        "t.log_partition = s.log_partition",
        {
            "start_offset": "least(t.start_offset, s.start_offset)",
            "end_offset": "greatest(t.end_offset, s.end_offset)",
        },
    )
    merge(
        QUARANTINE.name,
        [
            (file.log_partition, LOG_EPOCH, file.source, damage.position, damage.length, damage.reason, damage.raw)
            for file in report.files
            for damage in file.damage
        ],
        "log_partition int, log_epoch int, source string, position bigint, length bigint, reason string, value binary",
        "t.log_partition = s.log_partition AND t.source = s.source AND t.position = s.position AND t.reason = s.reason",
        None,
    )
    merge(
        TOPICS.name,
        list(found.topic_names.items()),
        "topic_id string, topic string",
        "t.topic_id = s.topic_id",
        None,
    )
