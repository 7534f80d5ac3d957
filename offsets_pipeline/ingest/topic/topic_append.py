"""Appends a topic's records to the log exactly once.

The appender reads the end of each log partition from the log itself, and skips records before it. So a batch that
Spark delivers again after a crash adds nothing. The Delta transaction version reveals appends of other writers
(docs/adr/0005).
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from offsets_pipeline.delta import AddFile
from offsets_pipeline.delta.retry import with_retries
from offsets_pipeline.delta.schemas import LOG
from offsets_pipeline.errors import working_on
from offsets_pipeline.log.append import LogAppender
from offsets_pipeline.log.file_writer import SCHEMA, LogFileWriter, log_partitions_of
from offsets_pipeline.semantics.log_row import place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config import Settings
    from offsets_pipeline.log.file_writer import LogFilePlace
    from offsets_pipeline.store import Store

_OF_TOPIC = ("log_partition", "record_offset", "record_timestamp", "key", "value")
# A read_committed consumer gets no control records and no producer ids.
_UNKNOWN = ("producer_id", "producer_epoch", "control_type")


def ends_by_incarnation(store: Store) -> dict[int, dict[int, int]]:
    """By log incarnation and log partition, the record offset after the last record of the log."""
    ends: dict[int, dict[int, int]] = {}
    rows = store.read(LOG.name).groupBy("log_incarnation", "log_partition").agg(F.max("record_offset").alias("last"))
    for row in rows.collect():
        ends.setdefault(row["log_incarnation"], {})[row["log_partition"]] = row["last"] + 1
    return ends


class TopicAppender:
    """Appends batches of one log incarnation.

    Writes ``source`` to the column of that name. Calls ``confirm`` after it has read a batch and before it appends the
    batch; an exception of ``confirm`` prevents the append.
    """

    def __init__(
        self, log_incarnation: int, source: str, settings: Settings, clock: Clock, confirm: Callable[[], object]
    ) -> None:
        self._log_incarnation = log_incarnation
        self._source = source
        self._settings = settings
        self._clock = clock
        self._confirm = confirm
        self._ends: dict[int, int] = {}
        self._number: int | None = None  # expected version of the next append, if no other writer appends

    def append(self, store: Store, rows: DataFrame) -> int:
        """Append the rows of Spark's Kafka source that the log lacks; returns how many.

        Raises WriteConflict if other writers appended first too often, and the exceptions of ``confirm``.
        """
        return with_retries(lambda: self._append_once(store, rows), "an append of a topic", self._settings.fold)

    def _append_once(self, store: Store, rows: DataFrame) -> int:
        appender = LogAppender(store)
        # The appender exists before the log is read: its commit then fails if another writer appends meanwhile.
        place = appender.place(self._clock, self._log_incarnation)
        if appender.number != self._number:
            self._ends = ends_by_incarnation(store).get(self._log_incarnation, {})
            self._number = appender.number
        rows = rows.select(
            F.col("partition").alias("log_partition"),
            F.col("offset").alias("record_offset"),
            F.col("timestamp").alias("record_timestamp"),
            "key",
            "value",
        )
        tasks = store.spark.sparkContext.defaultParallelism  # one file per task, not one per partition of the topic
        write = _writer(place, self._ends, self._source)
        found = rows.coalesce(tasks).mapInArrow(write, "file string, ends string").collect()
        files = [AddFile.of_text(row["file"]) for row in found if row["file"] is not None]
        if not files:
            return 0
        self._confirm()
        added = appender.append_files(files)
        self._number += 1
        for row in found:
            for at, end in json.loads(row["ends"]).items():
                self._ends[int(at)] = max(end, self._ends.get(int(at), 0))
        return added


def _writer(
    place: LogFilePlace, ends: Mapping[int, int], source: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of a task: writes the rows that the log lacks to files, and returns the files and new ends."""
    held = dict(ends)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = LogFileWriter(place)
        new_ends: dict[int, int] = {}
        for batch in batches:
            for rows in log_partitions_of(batch):
                with working_on(partial(place_of, rows)):
                    at = rows["log_partition"][0].as_py()
                    offsets = rows["record_offset"].to_numpy()
                    wanted = offsets >= held.get(at, 0)
                    if wanted.any():
                        new_ends[at] = max(int(offsets.max()) + 1, new_ends.get(at, 0))
                        writer.write(_log_rows(rows.filter(pa.array(wanted)), source))
        with working_on(lambda: f"the end of log partitions {sorted(new_ends)}"):
            files = [each.as_text() for each in writer.close()]
        ends_text = [json.dumps(new_ends)] * len(files)
        yield pa.RecordBatch.from_arrays(
            [pa.array(files, pa.string()), pa.array(ends_text, pa.string())], ["file", "ends"]
        )

    return write


def _log_rows(rows: pa.RecordBatch, source: str) -> pa.RecordBatch:
    """Rows of the topic with the columns of the log, except the columns that `LogFileWriter` fills."""
    columns = {name: rows[name].cast(SCHEMA.field(name).type) for name in _OF_TOPIC}
    columns |= {name: pa.nulls(rows.num_rows, SCHEMA.field(name).type) for name in _UNKNOWN}
    columns["source"] = pa.repeat(pa.scalar(source), rows.num_rows)
    return pa.RecordBatch.from_pydict(columns)
