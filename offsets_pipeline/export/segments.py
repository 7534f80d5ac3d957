"""Writing the table `log` as the segment files of a broker: `offsets export-segments`.

A half-written log must not pass for a whole one. So folders of log partitions have another name until all of them are
whole, which neither a broker nor an ingest takes for the log's. The last to get its own name is log partition 0:
without it nobody takes the others for all there are.
"""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from offsets_pipeline.errors import TargetNotEmpty
from offsets_pipeline.export.ordered import OrderedLog
from offsets_pipeline.ingest.segment_files import OFFSETS_TOPIC
from offsets_pipeline.output import progress
from offsets_pipeline.query.state import StateReader
from offsets_pipeline.record.compression import Codec
from offsets_pipeline.record.log_batches import encode_log
from offsets_pipeline.record.write import encode_batch
from offsets_pipeline.tables import LOG_EPOCH

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from offsets_pipeline.record.log_batches import LogBatches

#: segment.bytes of __consumer_offsets, a broker's default for offsets.topic.segment.bytes.
SEGMENT_BYTES = 100 * 1024 * 1024
_UNFINISHED = ".unfinished"
_WAITING_BYTES = 8 * 1024 * 1024  # of a log partition's rows: many batches at once are cheaper
_WAITING_BYTES_IN_ALL = 128 * 1024 * 1024
_MAX_OFFSET_SPAN = 2**31 - 1  # the indexes of a segment store offsets relative to its base as int32
_PROGRESS_RECORDS = 1_000_000


@dataclass(frozen=True)
class ExportedPartition:
    """What was written of one log partition: from its log start to its log end, a record offset behind the last."""

    log_partition: int
    start: int
    end: int
    records: int
    segments: int
    bytes: int


def export_segments(
    reader: StateReader,
    to: Path,
    *,
    as_of_ms: int | None = None,
    codec: Codec = Codec.NONE,
    segment_bytes: int = SEGMENT_BYTES,
) -> list[ExportedPartition]:
    """Write the log of a store to segment files that a broker loads: a folder for each log partition below ``to``.

    Args:
        reader: reads the store. The newest epoch of its log is written.
        to: a folder that is empty or not there.
        as_of_ms: of each log partition everything is left out from the first record on that is younger.
        codec: compresses batches of records.
        segment_bytes: how large a segment file gets, but for a batch that is larger.

    Raises:
        TargetNotEmpty: there is something at ``to``.
        UnsupportedTable: the table `log` cannot be read without Spark.
    """
    partitions = range(reader.offsets_partitions)
    with _made(to):
        known = reader.rows("SELECT * FROM log_partitions", "log_partitions")
        # opened after that: an ingest appends records first and notes their bounds then, and no bound may lie behind
        # records which are not seen
        reader = StateReader(reader.location)
        log_epoch, bounds = _newest(known)
        log = OrderedLog(reader.table("log"), log_epoch, as_of_ms)
        writers = {
            partition: _PartitionWriter(to, partition, bounds.get(partition, (0, 0))[0], codec, segment_bytes)
            for partition in partitions
        }
        records = waiting_bytes = 0
        for partition, rows in log.runs():
            waiting_bytes += writers[partition].add(rows)
            if waiting_bytes > _WAITING_BYTES_IN_ALL:
                waiting_bytes += sum(writer.flush() for writer in writers.values())
            before, records = records, records + rows.num_rows
            if before // _PROGRESS_RECORDS != records // _PROGRESS_RECORDS:
                progress(f"{records} records exported")
        # the end of a log that was cut off is that of its last record
        exported = [
            writer.close(0 if partition in log.ends else bounds.get(partition, (0, 0))[1])
            for partition, writer in writers.items()
        ]
        for writer in reversed(writers.values()):
            writer.name()
    return exported


def _newest(known: list[dict[str, Any]]) -> tuple[int, dict[int, tuple[int, int]]]:
    """The log epoch that counts, and in it the log start and log end of each log partition that are known."""
    newest = max((row["log_epoch"] for row in known), default=LOG_EPOCH)
    return newest, {
        row["log_partition"]: (row["start_offset"], row["end_offset"]) for row in known if row["log_epoch"] == newest
    }


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """The folder, empty to begin with; where what is done within fails, all of that is removed again."""
    there = folder.exists()
    if there and not folder.is_dir():
        raise TargetNotEmpty(f"{folder} is no local folder: name a new or empty one")
    if there and any(folder.iterdir()):
        raise TargetNotEmpty(f"{folder} is not empty: name a new or empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for child in folder.iterdir():
            shutil.rmtree(child)
        if not there:
            folder.rmdir()
        raise


class _PartitionWriter:
    """Writes the segment files of one log partition; `name` gives its folder its own name in the end."""

    def __init__(self, to: Path, log_partition: int, start_offset: int, codec: Codec, segment_bytes: int) -> None:
        self._log_partition = log_partition
        self._whole = to / f"{OFFSETS_TOPIC}-{log_partition}"
        self._folder = to / f"{self._whole.name}{_UNFINISHED}"
        self._folder.mkdir()
        self._codec = codec
        self._segment_bytes = segment_bytes
        self._start = self._end = start_offset
        self._records = self._segments = self._bytes = 0
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._path = self._new_segment(start_offset)

    def add(self, rows: pa.Table) -> int:
        """Take rows behind those before them, with RECORD_COLUMNS; returns how many bytes more wait to be written."""
        self._waiting.append(rows)
        more = int(rows.nbytes)
        self._waiting_bytes += more
        return more + (self.flush() if self._waiting_bytes > _WAITING_BYTES else 0)

    def flush(self) -> int:
        """Write what waits; returns by how many bytes that gets more: less than none."""
        waited = self._waiting_bytes
        if self._waiting:
            rows, self._waiting, self._waiting_bytes = pa.concat_tables(self._waiting), [], 0
            self._write(encode_log(rows, self._codec))
            self._records += rows.num_rows
        return -waited

    def close(self, end_offset: int) -> ExportedPartition:
        """Write the rest, and see to it that the log ends at this record offset at least."""
        self.flush()
        if end_offset > self._end:
            # what lay there was compacted away: a batch without records keeps its record offsets from being given
            # again (R2), as the broker's own cleaner does
            nothing = pa.array([], pa.binary())
            if self._is_full(0, 0, end_offset - 1):
                self._roll(end_offset - 1)
            self._append(encode_batch(nothing, nothing, base_offset=end_offset - 1), end_offset - 1)
        return ExportedPartition(
            self._log_partition, self._start, self._end, self._records, self._segments, self._bytes
        )

    def name(self) -> None:
        """Give the folder the name under which a broker looks for it."""
        self._folder.rename(self._whole)

    def _write(self, batches: LogBatches) -> None:
        view = memoryview(batches.data)
        bounds = [*batches.start.tolist(), len(view)]
        base_offsets, last_offsets = batches.base_offset.tolist(), batches.last_offset.tolist()
        first = 0
        for batch in range(len(batches)):
            if self._is_full(bounds[batch] - bounds[first], bounds[batch + 1] - bounds[batch], last_offsets[batch]):
                if batch > first:
                    self._append(view[bounds[first] : bounds[batch]], last_offsets[batch - 1])
                self._roll(base_offsets[batch])
                first = batch
        self._append(view[bounds[first] :], last_offsets[-1])

    def _is_full(self, waiting: int, size: int, last_offset: int) -> bool:
        """Whether the segment takes no batch of this size and last offset behind the bytes that wait for it."""
        held = self._size + waiting
        return (held > 0 and held + size > self._segment_bytes) or last_offset - self._base_offset > _MAX_OFFSET_SPAN

    def _append(self, data: bytes | memoryview, last_offset: int) -> None:
        with self._path.open("ab") as segment:
            segment.write(data)
        self._size += len(data)
        self._bytes += len(data)
        self._end = last_offset + 1

    def _roll(self, base_offset: int) -> None:
        if not self._size:  # nothing lies so near to the log's start
            self._path.unlink()
            self._segments -= 1
        self._path = self._new_segment(base_offset)

    def _new_segment(self, base_offset: int) -> Path:
        path = self._folder / f"{base_offset:020}.log"
        path.touch(exist_ok=False)
        self._base_offset, self._size = base_offset, 0
        self._segments += 1
        return path
