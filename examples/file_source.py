r"""A streaming source of Spark that reads lines of files as Kafka Connect's file source does (R30, R31).

It keeps its positions in an owned store, where `offsets connect` shows, alters and resets them:

    spark.dataSource.register(FileSource)
    spark.readStream.format("connect-file").option("name", "files").option("file", "/srv/inbox/a.txt") \
        .option("offset.storage.topic", "owned-connect").load()

A query without a checkpoint resumes after the last flush in the store. A query with one resumes where its checkpoint
says; the store follows. The query waits for a file that does not exist. It reads nothing while its connector is PAUSED,
and fails if the connector is STOPPED or deleted, or a file was truncated.

=========================  =============================================================================================
name                       the connector
file                       the file, or several as a JSON array; each is the source partition {"filename": ...}
batch.size                 largest number of lines in a batch; default: no limit
offset.storage.topic       the owned store
offset.flush.interval.ms   see `FlushSettings`
offset.flush.timeout.ms
offset.flush.records
offset.reset               for files without an offset: earliest (default), latest, none, or {"position": n}
=========================  =============================================================================================
"""

from __future__ import annotations

import json
import logging
import signal
import threading
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from examples.file_lines import Mark, after_lines, chunks, lines, mark_of, truncated
from offsets_pipeline import (
    FlushSettings,
    OffsetBackingStore,
    OffsetCommitter,
    OffsetStorageReader,
    OffsetStorageWriter,
    initialize_offsets,
)
from offsets_pipeline.common import input_text
from offsets_pipeline.connect.target_states import PAUSED, refuse_writes, target_state_of
from offsets_pipeline.errors import ConfigError, InvalidRequest, StorageFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    #: File -> {"position": n}: the source offset of each source partition.
    Offsets = dict[str, dict[str, int]]

_LOG = logging.getLogger(__name__)

FORMAT = "connect-file"
SCHEMA = "filename string, position bigint, value string"
_ROWS = pa.schema([("filename", pa.string()), ("position", pa.int64()), ("value", pa.string())])
_FILENAME, _POSITION = "filename", "position"
_NO_LIMIT = 2**63 - 1
_CHUNKS_OF_TASK = 8  # of 4 MiB
_RESETS = ("earliest", "latest", "none")
_NAMES = {
    "name",
    "file",
    "batch.size",
    "offset.storage.topic",
    "offset.flush.interval.ms",
    "offset.flush.timeout.ms",
    "offset.flush.records",
    "offset.reset",
}
_Count = TypeVar("_Count", int, None)


@dataclass(frozen=True)
class FileSourceOptions:
    """The options of the source; the module has their meanings."""

    name: str
    files: tuple[str, ...]
    store: str
    batch_size: int | None = None
    flush: FlushSettings = field(default_factory=FlushSettings)
    offset_reset: Any = "earliest"

    @classmethod
    def of_options(cls, options: Mapping[str, str]) -> FileSourceOptions:
        """Options as Spark passes them. Raises ConfigError for a missing or an unknown option, and a wrong value."""
        unknown = sorted(set(options) - _NAMES)
        if unknown:
            raise ConfigError(f"{unknown[0]}: no such option; there are {', '.join(sorted(_NAMES))}")
        usual = FlushSettings()
        return cls(
            _required(options, "name"),
            _files(_required(options, "file")),
            _required(options, "offset.storage.topic"),
            _count(options, "batch.size", None),
            FlushSettings(
                _count(options, "offset.flush.interval.ms", usual.offset_flush_interval_ms),
                _count(options, "offset.flush.timeout.ms", usual.offset_flush_timeout_ms),
                _count(options, "offset.flush.records", None),
            ),
            _offset_reset(options.get("offset.reset", "earliest")),
        )


def _required(options: Mapping[str, str], name: str) -> str:
    if not options.get(name):
        raise ConfigError(f"{name}: missing; set this option")
    return options[name]


def _files(text: str) -> tuple[str, ...]:
    try:
        files = input_text.parse_json(text) if text.startswith("[") else [text]
    except ValueError as error:
        raise ConfigError(f"file: {input_text.shown(text)} is not a JSON array: {error}") from None
    if not files or not all(isinstance(each, str) and each for each in files):
        raise ConfigError(f"file: {input_text.shown(text)} is not allowed; it takes a path, or a JSON array of paths")
    return tuple(dict.fromkeys(files))


def _count(options: Mapping[str, str], name: str, default: _Count) -> int | _Count:
    if name not in options:
        return default
    try:
        found = input_text.whole_number(options[name])
    except ValueError:
        found = 0
    if found < 1:
        raise ConfigError(f"{name}: {input_text.shown(options[name])} is not allowed; it takes a whole number from 1")
    return found


def _offset_reset(text: str) -> Any:  # noqa: ANN401 - an offset may have any members
    if text in _RESETS:
        return text
    try:
        found = input_text.parse_json(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        allowed = f'{" or ".join(_RESETS)}, or an offset as {{"position": 0}}'
        raise ConfigError(f"offset.reset: {input_text.shown(text)} is not allowed; it takes {allowed}")
    return found


class FileSource(DataSource):
    """The source; see the module."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> str:
        """SCHEMA."""
        return SCHEMA

    def streamReader(self, schema: object) -> FileStreamReader:  # noqa: ARG002, N802 - Spark's
        """The reader."""
        return FileStreamReader(FileSourceOptions.of_options(self.options))


class FileRange(InputPartition):
    """The lines of one file that a task reads."""

    def __init__(self, file: str, start: Mark, end: Mark) -> None:
        super().__init__((file, start, end))


class FileStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets and reads of the source."""

    def __init__(self, options: FileSourceOptions) -> None:
        self._options = options
        self._task: _Task | None = None
        self._marks: dict[str, dict[int, Mark]] = {file: {} for file in options.files}
        self._line_counts: dict[tuple[str, int], int] = {}
        self._sizes: dict[str, int] | None = None
        self._absent: set[str] = set()
        self._terminating = _Terminating()

    def __reduce__(self) -> tuple[Any, ...]:
        return FileStreamReader, (self._options,)  # a task reads files, and opens no store

    # --- in the driver

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's
        """The offsets in the store; without one, as offset.reset says. Raises NoSuchOffset."""
        return self._initial(self._options.files)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """The limit of the option batch.size."""
        return ReadAllAvailable() if self._options.batch_size is None else ReadMaxRows(self._options.batch_size)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Read no further than the files reach now."""
        self._sizes = {file: _size(file) for file in self._options.files}

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802 - Spark's
        """Return the end of the next batch: after complete lines.

        Returns ``start`` while the connector is PAUSED, or the store is away. Raises ConnectorStopped,
        SourceFileTruncated.
        """
        new = [file for file in self._options.files if file not in start]  # the option got another file
        start = {**{file: start[file] for file in self._options.files if file in start}, **self._initial(new)}
        try:
            self.commit(start)  # the query has completed the batch up to there; of a last batch Spark never says so
            if self._opened.is_paused():
                return start
        except StorageFailed as error:
            if self._sizes is not None:
                raise
            _LOG.warning("connector %s reads nothing for now: %s", self._options.name, error)
            return start
        left = limit.max_rows if isinstance(limit, ReadMaxRows) else _NO_LIMIT
        end = {}
        for file, offset in start.items():
            position, count = self._advanced(file, offset[_POSITION], left)
            left -= count
            end[file] = {_POSITION: position}
        if self._sizes is not None and end == start:
            self._opened.flush()  # the query ends now
        return end

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """The tasks of a batch: one for each file, and about each 32 MiB of it."""
        found: list[InputPartition] = []
        for file, offset in end.items():
            first = start[file][_POSITION] if file in start else self._initial([file])[file][_POSITION]
            last = offset[_POSITION]
            if last <= first:
                continue
            marks = [self._mark(file, first), self._mark(file, last)]
            if None in marks:
                raise truncated(file, first, 0)
            cuts = sorted(at for at in self._marks[file] if first < at < last)[::_CHUNKS_OF_TASK]
            places = [self._marks[file][at] for at in (first, *cuts, last)]
            found += [FileRange(file, *each) for each in pairwise(places)]
        return found

    def commit(self, end: Offsets) -> None:
        """Queue the offsets of a batch that the query has completed; the committer flushes them when it is due."""
        for file, offset in end.items():
            position = offset[_POSITION]
            self._opened.record(file, position, self._line_counts.pop((file, position), 1))
            self._marks[file] = {at: mark for at, mark in self._marks.get(file, {}).items() if at >= position}

    def stop(self) -> None:
        """Flush what is queued, and close the store."""
        task, self._task = self._task, None
        if task is not None:
            task.close()
            self._terminating.undo()

    @property
    def _opened(self) -> _Task:
        if self._task is None:
            self._terminating.ends_the_program()
            self._task = _Task(self._options)
        return self._task

    def _initial(self, files: Sequence[str]) -> dict[str, dict[str, int]]:
        def position(partition: Any, which: str) -> dict[str, int]:  # noqa: ANN401 - a JSON object
            file = str(partition[_FILENAME])
            return {_POSITION: 0 if which == "earliest" else self._last(file)}

        offsets = self._opened.offsets([{_FILENAME: file} for file in files], position) if files else []
        return {file: {_POSITION: _position(file, offset)} for file, offset in zip(files, offsets, strict=True)}

    def _last(self, file: str) -> int:
        return max((chunk.end.position for chunk in chunks(file)), default=0)

    def _advanced(self, file: str, position: int, most: int) -> tuple[int, int]:
        """The position after the next lines of a file, and how many lines these are."""
        start = self._mark(file, position)
        if start is None or not most:
            return position, 0
        until = _NO_LIMIT if self._sizes is None else self._sizes.get(file, 0)
        end, found = start, 0
        for chunk in chunks(file, start):
            count = chunk.line_count()
            if found + count > most or chunk.end.byte > until:
                end, count = after_lines(chunk, most - found, until)
                found += count
                break
            end, found = chunk.end, found + count
            self._marks[file][end.position] = end
        self._marks[file][end.position] = end
        if found:
            self._line_counts[file, end.position] = found
        return end.position, found

    def _mark(self, file: str, position: int) -> Mark | None:
        """The place of a position; None while the file does not exist."""
        if not Path(file).exists():
            if file not in self._absent:
                self._absent.add(file)
                _LOG.warning("there is no file %s yet; waiting for it", file)
            return None
        self._absent.discard(file)
        known = self._marks.setdefault(file, {})
        if position not in known and (found := mark_of(file, position)) is not None:
            known[position] = found
        return known.get(position)

    # --- in a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The lines of a task in SCHEMA. Raises SourceFileTruncated, StorageFailed."""
        file, at, end = partition.value
        for chunk in chunks(file, at, end.byte):
            found = list(lines(chunk))
            yield pa.record_batch(
                [[file] * len(found), [line.position for line in found], [line.text for line in found]], schema=_ROWS
            )
            at = chunk.end
        if at != end:
            raise truncated(file, end.position, at.byte)


class _Terminating:
    """SIGTERM, with which Spark ends the process of a query's reader: without a handler `stop` would not be called."""

    def __init__(self) -> None:
        self._before: Any = None

    def ends_the_program(self) -> None:
        """Let the first SIGTERM raise SystemExit, if the program has no handler of its own; further ones do nothing."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._before = signal.signal(signal.SIGTERM, self._raise)

    def undo(self) -> None:
        """Restore the handler."""
        if self._before is not None and signal.getsignal(signal.SIGTERM) == self._raise:
            signal.signal(signal.SIGTERM, self._before)

    @staticmethod
    def _raise(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # Spark sends it twice
        raise SystemExit(128 + number)


class _Task:
    """The connector's offsets in the store, and the committer that flushes them."""

    def __init__(self, options: FileSourceOptions) -> None:
        self._options = options
        self._store = OffsetBackingStore(options.store)
        self._store.start()
        self._begun = self._store.stopped_at(options.name)
        self._reader = OffsetStorageReader(self._store, options.name)
        self._committer = OffsetCommitter(OffsetStorageWriter(self._store, options.name), options.flush)
        self._committer.start()
        self._recorded: dict[str, int] = {}

    def offsets(self, partitions: Sequence[Any], positions: Any) -> Sequence[Any]:  # noqa: ANN401 - JSON objects
        return initialize_offsets(self._reader, partitions, self._options.offset_reset, positions)

    def is_paused(self) -> bool:
        log, name = self._store.log, self._options.name

        def found() -> bool:
            refuse_writes(log, name, "offsets", self._begun)
            return target_state_of(log, name) == PAUSED

        return log.read(found)

    def record(self, file: str, position: int, lines_: int) -> None:
        if file not in self._recorded:
            offset = self._reader.offset({_FILENAME: file})
            self._recorded[file] = 0 if offset is None else _position(file, offset)
        if self._recorded[file] != position:
            self._recorded[file] = position
            self._committer.record({_FILENAME: file}, {_POSITION: position}, lines_)

    def flush(self) -> None:
        self._committer.commit()

    def close(self) -> None:
        self._committer.close()
        self._store.stop()


def _position(file: str, offset: Mapping[str, Any]) -> int:
    """The position that an offset has. Raises InvalidRequest if it has none."""
    position = offset.get(_POSITION) or 0
    if not isinstance(position, int) or isinstance(position, bool) or position < 0:
        raise InvalidRequest(
            f'the offset of {file} is {json.dumps(offset)}, which has no position; alter it to {{"position": 0}}'
        )
    return position


def _size(file: str) -> int:
    try:
        return Path(file).stat().st_size
    except FileNotFoundError:
        return 0
