"""Write the table `log` as segment files of a broker: `offsets export-segments`.

A reader must not take a half-written log for a complete one. So the folders of log partitions have temporary names
until all are complete; brokers and ingests ignore these names. The folder of log partition 0 is renamed last: without
it, the other folders do not look complete. The manifest follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.ingest.segments.segment_files import OFFSETS_TOPIC
from offsets_pipeline.kafka.record.compression import Codec
from offsets_pipeline.repair.export.segment_writer import ExportedPartition, PartitionWriter
from offsets_pipeline.repair.export.target import target_folder
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.filesystems import absolute_path
from offsets_pipeline.store.log.ordered_log import OrderedLog
from offsets_pipeline.store.store_snapshot import StoreSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offsets_pipeline.store.delta.properties import StoreProperties

#: segment.bytes of __consumer_offsets: a broker's default for offsets.topic.segment.bytes.
SEGMENT_BYTES = 100 * 1024 * 1024
_EXPORTED = (
    TopicKind.CONSUMER_OFFSETS,
    TopicKind.CONNECT_OFFSETS,
    TopicKind.CONNECT_STATUS,
    TopicKind.CONNECT,
)
_NAMES = {TopicKind.CONNECT: TopicKind.CONNECT_OFFSETS}
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
    reader: StoreSnapshot,
    to: Path,
    *,
    as_of_ms: int | None = None,
    codec: Codec = Codec.NONE,
    segment_bytes: int = SEGMENT_BYTES,
    on_read: Callable[[int], None] = lambda _: None,
) -> Export:
    """Write the log of a store to segment files that a broker loads: a folder for each log partition below ``to``.

    Of an owned store for Connect it writes the offsets, as a worker's `offset.storage.topic`.

    Args:
        reader: reads the store. The export has the newest log incarnation of its log.
        to: a new or empty folder, or one with the remains of a killed export.
        as_of_ms: in each log partition, leave out the first record with a later timestamp and all records after it.
        codec: compresses batches of records.
        segment_bytes: maximum size of a segment file; only a file with a single larger batch exceeds it.
        on_read: called with the number of records read since its last call.

    Raises:
        TargetNotWritable: ``to`` has other content, another export writes to it, or it cannot be written, for a disk
            that is full for example.
        UnsupportedTable: the table `log` cannot be read without Spark.
        StoreMismatch: the store has the topic of Connect's configurations, whose values it does not hold.
    """
    topic = _topic(reader.properties)
    is_owned_connect = reader.properties.topic_kind is TopicKind.CONNECT
    reader.properties.require_topic_kind(reader.location, *_EXPORTED)
    partitions = range(reader.offsets_partitions)
    with target_folder(to, topic) as finish:
        store = StoreSnapshot(reader.location)  # as of now
        current = store.current_log
        log = OrderedLog(store.table("log"), current.number, as_of_ms)
        writers = {
            partition: PartitionWriter(
                to / f"{topic}-{partition}", partition, current.starts.get(partition, 0), codec, segment_bytes
            )
            for partition in partitions
        }
        waiting_bytes = 0
        for partition, run in log.runs():
            rows = run.filter(_are_offsets(run)) if is_owned_connect else run
            waiting_bytes += writers[partition].add(rows) if rows.num_rows else 0
            if waiting_bytes > _WAITING_BYTES_IN_ALL:
                waiting_bytes += sum(writer.flush() for writer in writers.values())
            on_read(run.num_rows)
        # a log partition that `as_of_ms` cuts off ends with its last record
        exported = tuple(
            writer.close(0 if partition in log.ends else current.ends.get(partition, 0))
            for partition, writer in writers.items()
        )
        for writer in reversed(writers.values()):
            writer.name()
        export = Export(
            absolute_path(reader.location),
            store.table("log").version,
            current.number,
            as_of_ms,
            codec.name.lower(),
            exported,
        )
        finish(export)
    return export


def _topic(properties: StoreProperties) -> str:
    """Return the name of the topic that the folders are of."""
    if properties.topic_kind is TopicKind.CONSUMER_OFFSETS:
        return OFFSETS_TOPIC
    return properties.topic_name or str(_NAMES.get(properties.topic_kind, properties.topic_kind))


def _are_offsets(rows: pa.Table) -> pa.ChunkedArray:
    """Return whether each record of an owned store for Connect is an offset, by its key: a JSON array."""
    return pc.starts_with(rows["key"].cast(pa.string()), "[")
