"""Reads the checkpoint of a Structured Streaming query, as Spark 3 and 4 write it, without Spark.

Spark writes the file `offsets/N` when it plans batch N, and `commits/N` when the batch is complete. The first line of a
file is its version. The second line of `offsets/N` is the batch's metadata, which may be empty. Each further line is a
source:

    v1      JSON of the source's end offset, in the order of the query's sources; `-` if there is none yet
    v2      NAME:JSON, with the name that the query gave to the source, or else its number
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs

from offsets_pipeline.common.foreign_errors import first_line
from offsets_pipeline.common.input_text import parse_json
from offsets_pipeline.errors import MalformedFile, NoSuchCheckpoint
from offsets_pipeline.spark_query.kafka_source_offsets import CompletedBatch, parse_kafka_offsets
from offsets_pipeline.store.delta.filesystems import arrow_folder, open_path
from offsets_pipeline.store.delta.s3_errors import cause

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offsets_pipeline.semantics.partition_state import TopicPartition

_OFFSETS, _COMMITS, _METADATA = "offsets", "commits", "metadata"
_VERSION = re.compile(r"v(\d{1,9})")
_POSITIONS, _NAMED = 1, 2
_NO_OFFSET = "-"
_MAX_TIME_MS = 253_402_300_799_999  # the last millisecond of the year 9999
_READERS = 8


@dataclass(frozen=True)
class QueryCheckpoint:
    """The completed batches of a query, oldest first; the query's id is None if the checkpoint does not have it."""

    location: str
    query_id: str | None
    batches: tuple[CompletedBatch, ...]


@dataclass(frozen=True)
class _OffsetsFile:
    version: int
    sources: int
    batch: CompletedBatch


def read_checkpoint(location: str) -> QueryCheckpoint:
    """Read the completed batches of a checkpoint: a local folder or a URI that Arrow opens.

    Leaves out batches that Spark removes meanwhile.

    Raises NoSuchCheckpoint if the folder has no checkpoint or cannot be read, MalformedFile for a torn or corrupt file.
    """
    try:
        return _Folder(location).read()
    except (OSError, pa.ArrowException) as error:
        said = cause(location, error, "check the path and your permissions")
        raise NoSuchCheckpoint(f"cannot read checkpoint {location}: {said}") from error


class _Folder:
    def __init__(self, location: str) -> None:
        self._location = location
        self._system, path = open_path(arrow_folder(location.rstrip("/") or location))
        self._path = path.rstrip("/")

    def read(self) -> QueryCheckpoint:
        # commits first: Spark writes a batch's offsets before its commit
        commits = self._batch_ids(_COMMITS)
        planned = self._batch_ids(_OFFSETS)
        if commits is None or planned is None:
            raise NoSuchCheckpoint(
                f"no checkpoint of a Structured Streaming query in {self._location}: it has no folders "
                f"{_OFFSETS} and {_COMMITS}; name the query's checkpointLocation"
            )
        if commits and commits[-1] not in planned:
            raise self._malformed(f"{_OFFSETS}/{commits[-1]}", "it is missing, though the batch is complete")
        completed = sorted(set(commits) & set(planned))
        with ThreadPoolExecutor(_READERS) as pool:
            files = [each for each in pool.map(self._completed, completed) if each is not None]
        self._refuse_lost_sources(files)
        return QueryCheckpoint(self._location, self._query_id(), tuple(each.batch for each in files))

    def _batch_ids(self, folder: str) -> list[int] | None:
        """The batches with a file in this folder, in order; None if there is no such folder."""
        if self._system.get_file_info(f"{self._path}/{folder}").type != fs.FileType.Directory:
            return None
        found = self._system.get_file_info(fs.FileSelector(f"{self._path}/{folder}", allow_not_found=True))
        return sorted(
            int(each.base_name)
            for each in found
            if each.type == fs.FileType.File and each.base_name.isascii() and each.base_name.isdigit()
        )

    def _completed(self, batch_id: int) -> _OffsetsFile | None:
        """The end offsets of a completed batch; None if Spark has removed it meanwhile."""
        commit, offsets = f"{_COMMITS}/{batch_id}", f"{_OFFSETS}/{batch_id}"
        of_commit, of_offsets = self._lines(commit), self._lines(offsets)
        if of_commit is None or of_offsets is None:
            return None
        self._version(commit, of_commit)
        if any(of_commit[1:]):
            self._json(commit, of_commit[1])
        return self._parsed(offsets, batch_id, of_offsets)

    def _lines(self, file: str) -> list[str] | None:
        try:
            with self._system.open_input_stream(f"{self._path}/{file}") as source:
                data = bytes(source.read())
        except FileNotFoundError:
            return None
        try:
            return [line.removesuffix("\r") for line in data.decode().split("\n")]
        except UnicodeDecodeError:
            raise self._malformed(file, "it is not text") from None

    def _parsed(self, file: str, batch_id: int, lines: list[str]) -> _OffsetsFile:
        version = self._version(file, lines)
        if len(lines) < 3:  # version, metadata, and a source
            raise self._malformed(file, "it ends before the offsets of the sources")
        kafka: dict[str, dict[TopicPartition, int]] = {}
        for number, line in enumerate(lines[2:]):
            name, offset = str(number), line
            if version == _NAMED:
                name, colon, offset = line.partition(":")
                if not (name and colon):
                    raise self._malformed(file, f"its line {number + 3} is not NAME:OFFSET")
            if not offset:
                raise self._malformed(file, f"its line {number + 3} has no offset")
            try:
                found = None if offset == _NO_OFFSET else parse_kafka_offsets(offset)
            except ValueError as error:
                raise self._malformed(file, f"source {name}: {first_line(error)}") from None
            if found is not None:
                kafka[name] = found
        return _OffsetsFile(version, len(lines) - 2, CompletedBatch(batch_id, self._time_ms(file, lines[1]), kafka))

    def _version(self, file: str, lines: list[str]) -> int:
        found = _VERSION.fullmatch(lines[0].strip())
        if found is None:
            reason = "it is empty" if lines == [""] else f"its first line {lines[0][:40]!r} is not a version"
            raise self._malformed(file, reason)
        version = int(found[1])
        if version not in {_POSITIONS, _NAMED}:
            raise MalformedFile(
                f"cannot read {self._location}/{file}: it has version {version}, and this program reads "
                f"versions {_POSITIONS} and {_NAMED}; install a newer offsets-pipeline"
            )
        return version

    def _time_ms(self, file: str, metadata: str) -> int | None:
        """The batch's time; without metadata that of the file, which Spark writes when the batch begins."""
        if metadata.strip():
            time_ms = self._json(file, metadata).get("batchTimestampMs", 0)
            if not isinstance(time_ms, int) or not 0 <= time_ms <= _MAX_TIME_MS:
                raise self._malformed(file, f"its batchTimestampMs {time_ms!r} is not a time")
            if time_ms:  # Spark writes 0 for none
                return time_ms
        modified_ns = self._system.get_file_info(f"{self._path}/{file}").mtime_ns
        return None if modified_ns is None else int(modified_ns) // 1_000_000

    def _query_id(self) -> str | None:
        try:
            with self._system.open_input_stream(f"{self._path}/{_METADATA}") as source:
                found = parse_json(bytes(source.read()).decode())
            return str(found["id"])
        except FileNotFoundError:
            return None
        except (ValueError, LookupError, TypeError):
            raise self._malformed(_METADATA, "it has no id of the query") from None

    def _json(self, file: str, line: str) -> dict[str, Any]:
        try:
            found: Any = parse_json(line)
        except ValueError as error:
            raise self._malformed(file, f"its metadata is not JSON: {first_line(error)}") from None
        if not isinstance(found, dict):
            raise self._malformed(file, "its metadata is not a JSON object")
        return found

    def _refuse_lost_sources(self, files: Iterable[_OffsetsFile]) -> None:
        """Raise MalformedFile for a file that ends between two sources: all files of version 1 have the same number."""
        of_positions = [each for each in files if each.version == _POSITIONS]
        most = max((each.sources for each in of_positions), default=0)
        for each in of_positions:
            if each.sources < most:
                file = f"{_OFFSETS}/{each.batch.batch_id}"
                raise self._malformed(file, f"it has {each.sources} sources, other batches have {most}")

    def _malformed(self, file: str, reason: str) -> MalformedFile:
        return MalformedFile(
            f"cannot read {self._location}/{file}: {reason}; the file is torn or corrupt, restore it from a copy"
        )
