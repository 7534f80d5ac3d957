"""Writing the table `log` as the segment files of a broker: `offsets export-segments`.

A half-written log must not pass for a whole one. So the folders of log partitions have another name until all of them
are whole, which neither a broker nor an ingest takes for the log's. The last folder to get its own name is that of
log partition 0: without it nobody takes the others for all there are. The manifest comes behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offsets_pipeline.delta.filesystems import absolute_path
from offsets_pipeline.delta.schemas import LOG_EPOCH
from offsets_pipeline.export.ordered import OrderedLog
from offsets_pipeline.export.segment_writer import ExportedPartition, PartitionWriter
from offsets_pipeline.export.target import target_folder
from offsets_pipeline.query.state_reader import StateReader
from offsets_pipeline.record.compression import Codec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: segment.bytes of __consumer_offsets, a broker's default for offsets.topic.segment.bytes.
SEGMENT_BYTES = 100 * 1024 * 1024
_WAITING_BYTES_IN_ALL = 128 * 1024 * 1024


@dataclass(frozen=True)
class Export:
    """What an export wrote, and of what: its manifest.

    ``log_version`` is the version of the Delta table `log`; ``as_of_ms`` is in milliseconds since 1970, None for all.
    """

    store: str
    log_version: int
    log_epoch: int
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
        reader: reads the store. The newest epoch of its log is written.
        to: a folder that is empty or not there, or holds what an export that was killed left.
        as_of_ms: of each log partition everything is left out from the first record on that is younger.
        codec: compresses batches of records.
        segment_bytes: how large a segment file gets, but for a batch that is larger.
        on_read: gets the number of records that were read since its last call.

    Raises:
        TargetNotEmpty: there is something else at ``to``, or another export writes to it.
        UnsupportedTable: the table `log` cannot be read without Spark.
    """
    partitions = range(reader.offsets_partitions)
    with target_folder(to) as target:
        known = reader.rows("SELECT * FROM log_partitions", "log_partitions")
        # opened after that: an ingest appends records first and notes their bounds then, and no bound may lie behind
        # records which are not seen
        reader = StateReader(reader.location)
        log_epoch, bounds = _newest(known)
        log = OrderedLog(reader.table("log"), log_epoch, as_of_ms)
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
        # the end of a log that was cut off is that of its last record
        exported = tuple(
            writer.close(0 if partition in log.ends else bounds.get(partition, (0, 0))[1])
            for partition, writer in writers.items()
        )
        for writer in reversed(writers.values()):
            writer.name()
        export = Export(
            absolute_path(reader.location),
            reader.table("log").version,
            log_epoch,
            as_of_ms,
            codec.name.lower(),
            exported,
        )
        target.finish(export)
    return export


def _newest(known: list[dict[str, Any]]) -> tuple[int, dict[int, tuple[int, int]]]:
    """The log epoch that counts, and in it the log start and log end of each log partition that are known."""
    newest = max((row["log_epoch"] for row in known), default=LOG_EPOCH)
    return newest, {
        row["log_partition"]: (row["start_offset"], row["end_offset"]) for row in known if row["log_epoch"] == newest
    }
