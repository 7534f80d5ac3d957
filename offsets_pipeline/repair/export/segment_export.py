"""Write the table `log` as segment files of a broker: `offsets export-segments`.

A reader must not take a half-written log for a complete one. So the folders of log partitions have temporary names
until all are complete; brokers and ingests ignore these names. The folder of log partition 0 is renamed last: without
it, the other folders do not look complete. The manifest gets its final name last. Until then the folder has it under a
temporary name. This identifies a killed export, and the next export replaces it.
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.common.foreign_errors import first_line
from offsets_pipeline.errors import TargetNotWritable
from offsets_pipeline.ingest.segments.segment_files import OFFSETS_TOPIC
from offsets_pipeline.kafka.record.compression import Codec
from offsets_pipeline.kafka.record.log_batches import LogBatches, empty_batch, encode_log
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.filesystems import absolute_path, synchronise
from offsets_pipeline.store.log.ordered_log import OrderedLog
from offsets_pipeline.store.store_snapshot import StoreSnapshot

if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO

    from offsets_pipeline.kafka.record.records import Int64s

#: Suffix of the names of incomplete folders.
UNFINISHED = ".unfinished"
#: The file that lists what a complete export wrote.
MANIFEST = "export-manifest.json"
_UNFINISHED_MANIFEST = MANIFEST + UNFINISHED
#: segment.bytes of __consumer_offsets: a broker's default for offsets.topic.segment.bytes.
SEGMENT_BYTES = 100 * 1024 * 1024
_EXPORTED = (
    TopicKind.CONSUMER_OFFSETS,
    TopicKind.CONNECT_OFFSETS,
    TopicKind.CONNECT_STATUS,
    TopicKind.CONNECT,
)
_WAITING_BYTES = 8 * 1024 * 1024  # buffer of a log partition's rows: encoding many batches at once is cheaper
_WAITING_BYTES_IN_ALL = 128 * 1024 * 1024
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
        as_of_ms: in each log partition, leave out the first record that was written later (R36) and all after it.
        codec: compresses batches of records.
        segment_bytes: maximum size of a segment file; only a file with a single larger batch exceeds it.
        on_read: called with the number of records read since its last call.

    Raises:
        TargetNotWritable: ``to`` has other content, another export writes to it, or it cannot be written, for a disk
            that is full for example.
        UnsupportedTable: the table `log` cannot be read without Spark.
        StoreMismatch: the store has the topic of Connect's configurations, whose values it does not hold.
    """
    properties, kind = reader.properties, reader.properties.topic_kind
    properties.require_topic_kind(reader.location, *_EXPORTED)
    if is_owned_connect := kind is TopicKind.CONNECT:
        kind = TopicKind.CONNECT_OFFSETS
    topic = OFFSETS_TOPIC if kind is TopicKind.CONSUMER_OFFSETS else properties.topic_name or str(kind)
    with target_folder(to, topic) as manifest:
        store = StoreSnapshot(reader.location)  # as of now
        current = store.current_log
        partitions = range(current.offsets_partitions)
        log = OrderedLog(store.table("log"), current.number, as_of_ms)
        writers = {
            partition: PartitionWriter(
                to / f"{topic}-{partition}", partition, current.starts.get(partition, 0), codec, segment_bytes
            )
            for partition in partitions
        }
        waiting_bytes = 0
        for partition, run in log.runs():
            # the key of an offset is a JSON array
            rows = run.filter(pc.starts_with(run["key"].cast(pa.string()), "[")) if is_owned_connect else run
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
        _finish(to, manifest, export)
    return export


@contextmanager
def target_folder(folder: Path, topic: str) -> Iterator[IO[str]]:
    """Open an empty folder for an export of a topic. Removes the remains of a killed export of it.

    The `with` block writes the folders and syncs them, and writes the result, the manifest.

    If the export fails, removes all that it wrote. Raises TargetNotWritable.
    """
    try:
        with _locked(folder, topic) as manifest:
            yield manifest
    except OSError as error:
        raise TargetNotWritable(
            f"cannot export to {folder}: {first_line(error)}; what was written is removed; check its free space "
            "and your permissions, then try again"
        ) from error


@contextmanager
def _locked(folder: Path, topic: str) -> Iterator[IO[str]]:
    there = folder.exists()
    if there and not folder.is_dir():
        raise TargetNotWritable(f"cannot export to {folder}: it is not a local folder; name a new or empty one")
    ours = re.compile(rf"{re.escape(topic)}-\d+({re.escape(UNFINISHED)})?")
    _check_empty(folder, {child.name for child in folder.iterdir()} if there else set(), ours)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _UNFINISHED_MANIFEST).open("a", encoding="utf-8") as manifest:
        try:
            fcntl.flock(manifest, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a killed process releases it
        except BlockingIOError:
            raise TargetNotWritable(
                f"cannot export to {folder}: another export writes to it; wait until it ends, or name another folder"
            ) from None
        manifest.truncate(0)
        try:
            _remove_folders(folder, ours)
            yield manifest
        except BaseException:
            _remove_all(folder, ours, is_new=not there)
            raise


def _finish(folder: Path, file: IO[str], manifest: Export) -> None:
    """Write the manifest, and rename it after it and the names of all folders are on disk."""
    file.write(json.dumps(asdict(manifest), ensure_ascii=False, indent=1) + "\n")
    file.flush()
    for path in (folder / _UNFINISHED_MANIFEST, folder):
        synchronise(path)
    (folder / _UNFINISHED_MANIFEST).rename(folder / MANIFEST)
    synchronise(folder)


def _check_empty(folder: Path, names: set[str], ours: re.Pattern[str]) -> None:
    """Raise TargetNotWritable unless the folder is empty, or has only the remains of a killed export."""
    if MANIFEST in names:
        raise TargetNotWritable(
            f"cannot export to {folder}: it has a complete export ({MANIFEST}); name a new or empty folder"
        )
    if _UNFINISHED_MANIFEST in names:
        names = {name for name in names if name != _UNFINISHED_MANIFEST and not ours.fullmatch(name)}
    if names:
        raise TargetNotWritable(f"cannot export to {folder}: it is not empty; name a new or empty folder")


def _remove_all(folder: Path, ours: re.Pattern[str], *, is_new: bool) -> None:
    _remove_folders(folder, ours)
    for name in (MANIFEST, _UNFINISHED_MANIFEST):
        (folder / name).unlink(missing_ok=True)
    if is_new:
        folder.rmdir()


def _remove_folders(folder: Path, ours: re.Pattern[str]) -> None:
    for child in folder.iterdir():
        if ours.fullmatch(child.name):
            shutil.rmtree(child)


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
