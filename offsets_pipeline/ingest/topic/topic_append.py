"""Appending a topic's records to the log, each once, whatever was delivered how often.

The log itself says where it ends. A batch that was appended and is delivered again, since its commit was not noted or
the query started again, finds its records there. Another who appends to the log at the same time is noticed by the
number that every append carries (docs/adr/0005).
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
# a read_committed consumer gets no control records, and of records of transactions those that were committed
_UNKNOWN = ("producer_id", "producer_epoch", "control_type")


def ends_by_epoch(store: Store) -> dict[int, dict[int, int]]:
    """One behind the last record of each log partition, by epoch of the log."""
    ends: dict[int, dict[int, int]] = {}
    rows = store.read(LOG.name).groupBy("log_epoch", "log_partition").agg(F.max("record_offset").alias("last"))
    for row in rows.collect():
        ends.setdefault(row["log_epoch"], {})[row["log_partition"]] = row["last"] + 1
    return ends


class TopicAppender:
    """Appends batches of one epoch; ``source`` is what the log says of where its records were read.

    ``confirm`` is called when a batch was read, before it is appended: what it raises keeps the batch out of the log.
    """

    def __init__(
        self, epoch: int, source: str, settings: Settings, clock: Clock, confirm: Callable[[], object]
    ) -> None:
        self._epoch = epoch
        self._source = source
        self._settings = settings
        self._clock = clock
        self._confirm = confirm
        self._ends: dict[int, int] = {}
        self._number: int | None = None  # of the append that comes next, if nobody else appends

    def append(self, store: Store, rows: DataFrame) -> int:
        """Append those rows of Spark's Kafka source that the log does not hold; returns how many.

        Raises WriteConflict where others appended first too often, and what ``confirm`` raises.
        """
        return with_retries(lambda: self._append_once(store, rows), "an append of a topic", self._settings.fold)

    def _append_once(self, store: Store, rows: DataFrame) -> int:
        appender = LogAppender(store)
        place = appender.place(self._clock, self._epoch)  # before the log is looked at
        if appender.number != self._number:
            self._ends = ends_by_epoch(store).get(self._epoch, {})
            self._number = appender.number
        rows = rows.select(
            F.col("partition").alias("log_partition"),
            F.col("offset").alias("record_offset"),
            F.col("timestamp").alias("record_timestamp"),
            "key",
            "value",
        )
        tasks = store.spark.sparkContext.defaultParallelism  # a file each, whatever partitions the topic has
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
    """What a task does: it writes the rows that the log does not hold to files, and tells of these."""
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
    """Rows of the topic with the columns of the log that are not the same for all."""
    columns = {name: rows[name].cast(SCHEMA.field(name).type) for name in _OF_TOPIC}
    columns |= {name: pa.nulls(rows.num_rows, SCHEMA.field(name).type) for name in _UNKNOWN}
    columns["source"] = pa.repeat(pa.scalar(source), rows.num_rows)
    return pa.RecordBatch.from_pydict(columns)
