"""The records of a topic: tasks read ranges of it, and an append puts them into the log exactly once.

A task fetches raw record batches from the leaders, and decodes them as those of segment files, in the columns of the
log. The appender reads the end of each log partition from the log itself, and skips records before it. So a batch that
Spark delivers again after a crash adds nothing. The Delta transaction version reveals appends of other writers
(docs/adr/0005).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.common.foreign_errors import working_on
from offsets_pipeline.ingest.log_columns import LOG_COLUMNS, log_columns
from offsets_pipeline.kafka.broker.cluster import Cluster
from offsets_pipeline.kafka.broker.offset_ranges import FetchedBatches, OffsetRange, read_ranges
from offsets_pipeline.kafka.record.corrupt import NotASegment
from offsets_pipeline.kafka.record.scan import MAX_DAMAGE_BYTES
from offsets_pipeline.kafka.record.segment import Damage, read_segment
from offsets_pipeline.semantics.log_row import place_of
from offsets_pipeline.store.delta.data_file import COMPRESSION, DataFile
from offsets_pipeline.store.delta.retry import with_retries
from offsets_pipeline.store.delta.schemas import LOG, RECORD_COLUMNS
from offsets_pipeline.store.log.append import Append, LogAppender, RecordsFold
from offsets_pipeline.store.log.file_writer import LogFilePlace, LogFileWriter, log_partitions_of
from offsets_pipeline.store.log.log_scan import ends_by_incarnation
from offsets_pipeline.store.log.metadata import LogMetadata
from offsets_pipeline.store.log.task_results import parallelism, task_results

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from offsets_pipeline.common.clock import Clock
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
    from offsets_pipeline.store.delta.properties import StoreProperties
    from offsets_pipeline.store.store import Store

#: Columns of records. `damage` is null for a record. Else the row is a stretch that does not decode: its bytes are in
#: `value`, the record offset of its first batch in `record_offset`.
RECORDS_SCHEMA = LOG_COLUMNS.append(pa.field("damage", pa.string()))
#: Columns of ranges: those of a task, pickled.
RANGES_SCHEMA = "ranges binary"

_BATCH_ROWS = 65_536
_OFFSET_BYTES = 8


@dataclass(frozen=True)
class TopicReader:
    """Reads ranges of a topic. ``source``: text for the column `source`."""

    topic: str
    kafka: KafkaOptions
    source: str
    properties: StoreProperties

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        """The rows of these ranges in RECORDS_SCHEMA. Raises the errors of `read_ranges`."""
        with Cluster(self.kafka) as cluster:
            yield from self.rows(read_ranges(cluster, self.topic, ranges))

    def rows(self, fetched: Iterable[FetchedBatches]) -> Iterator[pa.RecordBatch]:
        """The rows of fetched batches in RECORDS_SCHEMA."""
        for each in fetched:
            yield from _rows(each, self.source, self.properties)

    def read_all(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the ranges in batches of RANGES_SCHEMA."""
        for batch in batches:
            for task in batch["ranges"].to_pylist():
                yield from self.read(pickle.loads(task))  # noqa: S301 - the program's own


def ranges_row(ranges: Sequence[OffsetRange]) -> pa.RecordBatch:
    """The ranges of a task as a row of RANGES_SCHEMA."""
    return pa.RecordBatch.from_pydict({"ranges": [pickle.dumps(tuple(ranges))]})


def _rows(fetched: FetchedBatches, source: str, properties: StoreProperties) -> Iterator[pa.RecordBatch]:
    """The rows of fetched batches: their records within the range, and the stretches that do not decode."""
    at, partition = fetched.position, fetched.range.partition
    name = f"{source}, partition {partition} at {at}"
    reader = read_segment(fetched.records, source=name, max_records=_BATCH_ROWS, good_at=fetched.good_at)
    damage: list[Damage] = []
    try:
        for batch in reader.batches():
            offsets = batch["record_offset"]
            wanted = batch.filter(pc.and_(pc.greater_equal(offsets, at), pc.less(offsets, fetched.range.end)))
            if wanted.num_rows:
                rows = log_columns(wanted, partition, source, properties)
                yield rows.append_column("damage", pa.nulls(rows.num_rows, pa.string()))
        damage = reader.damage
    except NotASegment:  # not one batch in it decodes
        raw = fetched.records
        damage = [Damage(0, len(raw), "no record batch of it decodes", raw[:MAX_DAMAGE_BYTES])]
    for each in damage:
        row = {
            "log_partition": partition,
            "record_offset": _offset_of(each, at),
            "value": each.raw,
            "source": source,
            "damage": f"{each.reason} ({each.length} bytes)",
        }
        yield pa.RecordBatch.from_pylist([row], schema=RECORDS_SCHEMA)


def _offset_of(damage: Damage, fetched_at: int) -> int:
    """The record offset in the header of the stretch's first batch, or at which it was fetched.

    The header's does not depend on the fetch. So a batch that two tasks fetch, or two processes, is one stretch.
    """
    first = int.from_bytes(damage.raw[:_OFFSET_BYTES], "big", signed=True)
    return first if len(damage.raw) >= _OFFSET_BYTES and first >= 0 else fetched_at


class TopicAppender:
    """Appends batches of one log incarnation.

    ``read`` turns the batches of a task into batches of records; by default they are records. With a reader
    of ranges, records need not go row by row from one Python process through the JVM to another.

    Calls ``confirm`` after it has read a batch and before it appends the batch; an exception of ``confirm`` prevents
    the append.
    """

    def __init__(
        self,
        log_incarnation: int,
        settings: Settings,
        clock: Clock,
        confirm: Callable[[], object],
        read: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]] = iter,
    ) -> None:
        self._log_incarnation = log_incarnation
        self._settings = settings
        self._clock = clock
        self._confirm = confirm
        self._read = read
        self._ends: dict[int, int] = {}
        self._number: int | None = None  # expected version of the next append, if no other writer appends

    def append(
        self,
        store: Store,
        rows: DataFrame,
        complete_ms: int | None = None,
        records: Callable[[], Iterable[pa.RecordBatch]] | None = None,
        next_fold: Callable[[Store], RecordsFold | None] | None = None,
    ) -> Append:
        """Append the records of rows of `RecordBatchSource` that the log lacks.

        ``records`` returns the same records in this process: for a batch that is not worth a Spark job.

        ``next_fold`` returns the fold of the next append to a store, which runs where the records are: no two tasks may
        have records of one log partition.

        ``complete_ms`` is the time up to which this append completes the log; None: unknown (R36).

        Raises WriteConflict if other writers appended first too often, and the exceptions of ``confirm``.
        """

        def append_once() -> Append:
            appender = LogAppender(store, self._settings.log.codec(COMPRESSION))
            # The appender exists before the log is read: its commit then fails if another writer appends meanwhile.
            place = appender.place(self._clock, self._log_incarnation)
            if appender.number != self._number:
                self._ends = ends_by_incarnation(store.table(LOG.name)).get(self._log_incarnation, {})
                self._number = appender.number
            fold = None if next_fold is None else next_fold(store)
            write = _writer(place, self._ends, fold)
            if records is None:
                tasks = parallelism(store.spark)  # one file per task, not one per partition of the topic
                read = self._read
                written = task_results(rows.coalesce(tasks), lambda batches: [write(read(batches))])
            else:
                written = [write(records())]
            files = [file for each in written for file in each.files]
            damage = [stretch for each in written for stretch in each.damage]
            if not files and not damage:
                return appender.nothing
            self._confirm()
            LogMetadata(store, self._clock, self._log_incarnation).damage(damage)
            if not files:
                return appender.nothing
            append = appender.append_files(files, complete_ms)
            self._number += 1
            for each in written:
                for at, end in each.ends.items():
                    self._ends[at] = max(end, self._ends.get(at, 0))
            return replace(append, fold=fold, folded=[each.folded for each in written if each.files])

        return with_retries(append_once, "an append of a topic")


@dataclass
class _Written:
    """Result of a task: files of the log, what the fold made of their rows, and damaged parts of the topic.

    ``ends`` are the new ends by log partition.
    """

    files: list[DataFile] = field(default_factory=list)
    folded: Any = None
    ends: dict[int, int] = field(default_factory=dict)
    damage: list[tuple[int, str, Damage]] = field(default_factory=list)


def _writer(
    place: LogFilePlace, held: Mapping[int, int], fold: RecordsFold | None = None
) -> Callable[[Iterable[pa.RecordBatch]], _Written]:
    """The function of a task: writes the records that the log lacks to files, and folds them.

    ``held`` are the ends of the log by log partition.
    """

    def missing(
        batches: Iterable[pa.RecordBatch], writer: LogFileWriter, written: _Written
    ) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            is_damage = batch["damage"].is_valid()
            if pc.any(is_damage).as_py():
                written.damage += [_damage(row) for row in batch.filter(is_damage).to_pylist()]
            records = batch.filter(pc.invert(is_damage)).drop_columns(["damage"])
            for rows in log_partitions_of(records) if records.num_rows else ():
                with working_on(partial(place_of, rows)):
                    at = rows["log_partition"][0].as_py()
                    offsets = rows["record_offset"].to_numpy()
                    wanted = offsets >= held.get(at, 0)
                    if wanted.any():
                        written.ends[at] = max(int(offsets.max()) + 1, written.ends.get(at, 0))
                        missing_rows = rows.filter(pa.array(wanted))
                        writer.write(missing_rows)
                        yield missing_rows.select(RECORD_COLUMNS)

    def write(batches: Iterable[pa.RecordBatch]) -> _Written:
        writer, written = LogFileWriter(place), _Written()
        rows = missing(batches, writer, written)
        if fold is not None:
            written.folded = fold(rows)
        for _ in rows:  # what the fold did not take
            pass
        with working_on(lambda: f"the end of log partitions {sorted(written.ends)}"):
            written.files = writer.close()
        return written

    return write


def _damage(row: Mapping[str, Any]) -> tuple[int, str, Damage]:
    """A stretch for the quarantine. Its position is a record offset: a topic has no files."""
    raw = row["value"]
    return row["log_partition"], row["source"], Damage(row["record_offset"], len(raw), row["damage"], raw)
