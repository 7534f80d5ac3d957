"""Write the segment files of one log partition to a folder with a temporary name, renamed after they are on disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import crc32c
import numpy as np
import pyarrow as pa

from offsets_pipeline.kafka.record.log_batches import LogBatches, empty_batch, encode_log
from offsets_pipeline.store.delta.filesystems import synchronise

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.kafka.record.compression import Codec
    from offsets_pipeline.kafka.record.records import Int64s

#: Suffix of the names of incomplete folders.
UNFINISHED = ".unfinished"
_WAITING_BYTES = 8 * 1024 * 1024  # buffer of a log partition's rows: encoding many batches at once is cheaper
_MAX_OFFSET_SPAN = 2**31 - 1  # the indexes of a segment store offsets relative to its base as int32


@dataclass(frozen=True)
class ExportedFile:
    """A segment file: size in bytes, checksum of its bytes (CRC-32C, hexadecimal), and record offsets.

    `end_offset` is exclusive.
    """

    name: str
    size: int
    crc32c: str
    records: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True)
class ExportedPartition:
    """The export of one log partition: from its log start to its log end, which is exclusive."""

    log_partition: int
    folder: str
    start_offset: int
    end_offset: int
    records: int
    files: tuple[ExportedFile, ...]


class _Segment:
    """A segment file during writing."""

    def __init__(self, folder: Path, base_offset: int) -> None:
        self.path = folder / f"{base_offset:020}.log"
        self.path.touch(exist_ok=False)
        self._checksum = 0
        self._records = 0
        self.base_offset = self.end = base_offset
        self.size = 0

    def append(self, data: bytes | memoryview, last_offset: int, records: int) -> None:
        with self.path.open("ab") as file:
            file.write(data)
        self._checksum = crc32c.crc32c(data, self._checksum)
        self._records += records
        self.end = last_offset + 1
        self.size += len(data)

    def finish(self) -> ExportedFile:
        """Sync the file to disk, so that it survives a crash of the machine."""
        synchronise(self.path)
        checksum = f"{self._checksum:08x}"
        return ExportedFile(self.path.name, self.size, checksum, self._records, self.base_offset, self.end)


class PartitionWriter:
    """Writer of the segment files of one log partition. `name` gives its folder the final name."""

    def __init__(self, whole: Path, log_partition: int, start_offset: int, codec: Codec, segment_bytes: int) -> None:
        """``whole``: the final name of the folder."""
        self._log_partition = log_partition
        self._whole = whole
        self._folder = whole.with_name(f"{whole.name}{UNFINISHED}")
        self._folder.mkdir()
        self._codec = codec
        self._segment_bytes = segment_bytes
        self._start = start_offset
        self._files: list[ExportedFile] = []
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._segment = _Segment(self._folder, start_offset)

    def add(self, rows: pa.Table) -> int:
        """Add rows with RECORD_COLUMNS and higher record offsets. Returns the change in buffered bytes."""
        self._waiting.append(rows)
        more = int(rows.nbytes)
        self._waiting_bytes += more
        return more + (self.flush() if self._waiting_bytes > _WAITING_BYTES else 0)

    def flush(self) -> int:
        """Write the buffered rows. Returns the change in buffered bytes, zero or negative."""
        waited = self._waiting_bytes
        if self._waiting:
            rows, self._waiting, self._waiting_bytes = pa.concat_tables(self._waiting), [], 0
            self._write(encode_log(rows, self._codec), rows["record_offset"].to_numpy())
        return -waited

    def close(self, end_offset: int) -> ExportedPartition:
        """Write the rest, and extend the log to at least this end offset."""
        self.flush()
        if end_offset > self._segment.end:
            # compaction removed the last records: a batch without records keeps a broker from assigning their
            # record offsets again (R2), as the broker's own cleaner does
            if self._is_full(0, 0, end_offset - 1):
                self._roll(end_offset - 1)
            self._segment.append(empty_batch(end_offset - 1), end_offset - 1, 0)
        self._files.append(self._segment.finish())
        synchronise(self._folder)
        records, end = sum(each.records for each in self._files), self._segment.end
        return ExportedPartition(self._log_partition, self._whole.name, self._start, end, records, tuple(self._files))

    def name(self) -> None:
        """Rename the folder to the name that a broker expects."""
        self._folder.rename(self._whole)

    def _write(self, batches: LogBatches, offsets: Int64s) -> None:
        view = memoryview(batches.data)
        bounds = [*batches.start.tolist(), len(view)]
        base_offsets, last_offsets = batches.base_offset.tolist(), batches.last_offset.tolist()
        rows = [0, *np.searchsorted(offsets, batches.last_offset, side="right").tolist()]
        first = 0
        for batch in range(len(batches)):
            if self._is_full(bounds[batch] - bounds[first], bounds[batch + 1] - bounds[batch], last_offsets[batch]):
                if batch > first:
                    some = view[bounds[first] : bounds[batch]]
                    self._segment.append(some, last_offsets[batch - 1], rows[batch] - rows[first])
                self._roll(base_offsets[batch])
                first = batch
        self._segment.append(view[bounds[first] :], last_offsets[-1], rows[-1] - rows[first])

    def _is_full(self, waiting: int, size: int, last_offset: int) -> bool:
        """Whether a batch of this size and last offset exceeds the segment, after the `waiting` bytes."""
        held = self._segment.size + waiting
        too_large = held > 0 and held + size > self._segment_bytes
        return too_large or last_offset - self._segment.base_offset > _MAX_OFFSET_SPAN

    def _roll(self, base_offset: int) -> None:
        if self._segment.size:
            self._files.append(self._segment.finish())
        else:  # empty: the first batch lies too far from the log start
            self._segment.path.unlink()
        self._segment = _Segment(self._folder, base_offset)
