"""Write the table `log` as segment files of a broker: `offsets export-segments`.

A reader must not take a half-written log for a complete one. So the folders of log partitions have temporary names
until all are complete; brokers and ingests ignore these names. The folder of log partition 0 is renamed last: without
it, the other folders do not look complete. The manifest follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offsets_pipeline.delta.filesystems import absolute_path
from offsets_pipeline.delta.schemas import LOG_INCARNATION
from offsets_pipeline.export.segment_writer import ExportedPartition, PartitionWriter
from offsets_pipeline.export.target import target_folder
from offsets_pipeline.log.ordered_log import OrderedLog
from offsets_pipeline.query.state_reader import StateReader
from offsets_pipeline.record.compression import Codec
from offsets_pipeline.semantics.topic_kind import TopicKind

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: segment.bytes of __consumer_offsets: a broker's default for offsets.topic.segment.bytes.
SEGMENT_BYTES = 100 * 1024 * 1024
_WAITING_BYTES_IN_ALL = 128 * 1024 * 1024


@dataclass(frozen=True)
class Export:
    """The manifest of an export: its source, and the files written.

    ``log_version`` is the version of the Delta table `log`. ``as_of_ms`` is in milliseconds since 1970; None: no limit.
    """

    store: str
    log_version: int
    log_incarnation: int
    as_of_ms: int | None
    codec: str
    log_partitions: tuple[ExportedPartition, ...]


def export_segments(
    reader: StateReader,
    to: Path,
    *,
    as_of_ms: int | None = None,
    codec: Codec = Codec.NONE,
    segment_bytes: int = SEGMENT_BYTES,
    on_read: Callable[[int], None] = lambda _: None,
) -> Export:
    """Write the log of a store to segment files that a broker loads: a folder for each log partition below ``to``.

    Args:
        reader: reads the store. The export has the newest log incarnation of its log.
        to: a new or empty folder, or one with the remains of a killed export.
        as_of_ms: in each log partition, leave out the first record with a later timestamp and all records after it.
        codec: compresses batches of records.
        segment_bytes: maximum size of a segment file; only a file with a single larger batch exceeds it.
        on_read: called with the number of records read since its last call.

    Raises:
        TargetNotEmpty: ``to`` has other content, or another export writes to it.
        UnsupportedTable: the table `log` cannot be read without Spark.
        StoreMismatch: the store has a topic of Kafka Connect.
    """
    reader.properties.require_topic_kind(reader.location, TopicKind.CONSUMER_OFFSETS)
    partitions = range(reader.offsets_partitions)
    with target_folder(to) as target:
        known = reader.rows("SELECT * FROM log_partitions", "log_partitions")
        # open the log after reading the bounds: an ingest appends records before it writes their bounds, so this
        # snapshot has all records up to each bound
        reader = StateReader(reader.location)
        log_incarnation, bounds = _newest(known)
        log = OrderedLog(reader.table("log"), log_incarnation, as_of_ms)
        writers = {
            partition: PartitionWriter(to, partition, bounds.get(partition, (0, 0))[0], codec, segment_bytes)
            for partition in partitions
        }
        waiting_bytes = 0
        for partition, rows in log.runs():
            waiting_bytes += writers[partition].add(rows)
            if waiting_bytes > _WAITING_BYTES_IN_ALL:
                waiting_bytes += sum(writer.flush() for writer in writers.values())
            on_read(rows.num_rows)
        # a log partition that `as_of_ms` cuts off ends with its last record
        exported = tuple(
            writer.close(0 if partition in log.ends else bounds.get(partition, (0, 0))[1])
            for partition, writer in writers.items()
        )
        for writer in reversed(writers.values()):
            writer.name()
        export = Export(
            absolute_path(reader.location),
            reader.table("log").version,
            log_incarnation,
            as_of_ms,
            codec.name.lower(),
            exported,
        )
        target.finish(export)
    return export


def _newest(known: list[dict[str, Any]]) -> tuple[int, dict[int, tuple[int, int]]]:
    """Return the newest log incarnation, and the known log start and log end of its log partitions."""
    newest = max((row["log_incarnation"] for row in known), default=LOG_INCARNATION)
    return newest, {
        row["log_partition"]: (row["start_offset"], row["end_offset"])
        for row in known
        if row["log_incarnation"] == newest
    }
