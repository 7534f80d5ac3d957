"""Commits the completed batches of a query's checkpoint to a group of an owned store, each batch once, without Spark.

Reads the checkpoint of a Structured Streaming query as Spark 3 and 4 write it.

Spark writes the file `offsets/N` when it plans batch N, and `commits/N` when the batch is complete. The first line of a
file is its version. The second line of `offsets/N` is the batch's metadata, which may be empty. Each further line is a
source:

    v1      JSON of the source's end offset, in the order of the query's sources; `-` if there is none yet
    v2      NAME:JSON, with the name that the query gave to the source, or else its number
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs

from offsets_pipeline.common.foreign_errors import first_line
from offsets_pipeline.common.input_text import parse_json
from offsets_pipeline.errors import InvalidRequest, MalformedFile, NoSuchCheckpoint, NoSuchTopic
from offsets_pipeline.spark_query.kafka_source_offsets import (
    BatchMark,
    CompletedBatch,
    commits_of,
    parse_kafka_offsets,
    refuse_shared_topics,
)
from offsets_pipeline.store.delta.filesystems import arrow_folder, open_path
from offsets_pipeline.store.delta.s3_errors import cause

if TYPE_CHECKING:
    from offsets_pipeline.coordinator.coordinator import Coordinator
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
        return QueryCheckpoint(self._location, self._query_id(), tuple(batch for *_, batch in files))

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

    def _completed(self, batch_id: int) -> tuple[int, int, CompletedBatch] | None:
        """Version, number of sources and end offsets of a completed batch; None if Spark has removed it meanwhile."""
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

    def _parsed(self, file: str, batch_id: int, lines: list[str]) -> tuple[int, int, CompletedBatch]:
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
        return version, len(lines) - 2, CompletedBatch(batch_id, self._time_ms(file, lines[1]), kafka)

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

    def _refuse_lost_sources(self, files: Iterable[tuple[int, int, CompletedBatch]]) -> None:
        """Raise MalformedFile for a file that ends between two sources: all files of version 1 have the same number."""
        of_positions = [(sources, batch) for version, sources, batch in files if version == _POSITIONS]
        most = max((sources for sources, _ in of_positions), default=0)
        for sources, batch in of_positions:
            if sources < most:
                file = f"{_OFFSETS}/{batch.batch_id}"
                raise self._malformed(file, f"it has {sources} sources, other batches have {most}")

    def _malformed(self, file: str, reason: str) -> MalformedFile:
        return MalformedFile(
            f"cannot read {self._location}/{file}: {reason}; the file is torn or corrupt, restore it from a copy"
        )


# --- the import


def import_checkpoint(
    checkpoint: QueryCheckpoint, coordinator: Coordinator, group_id: str, sources: Collection[str] = ()
) -> tuple[int, ...]:
    """Commit the end offsets of a checkpoint's completed batches, oldest first, each with the batch's time.

    Returns the ids of these batches. Skips batches that an earlier import, or an OffsetsListener, has committed: it
    knows them by the metadata of the group's offsets.

    Args:
        checkpoint: the query's checkpoint, of `read_checkpoint`.
        coordinator: an open coordinator that has loaded the group's log partition.
        group_id: the group; it has no members.
        sources: names or numbers of the Kafka sources to import; empty: all.

    Raises the errors of `Coordinator.commit_offsets`; StoreMismatch if two of the sources read one topic;
    NoSuchTopic if the query has no Kafka source; InvalidRequest for a source that it does not have.
    """
    batches = _of_sources(checkpoint, sources)
    fetched = coordinator.fetch_offsets(group_id).items()
    marks = ((where, BatchMark.parse(each.metadata)) for where, each in fetched)
    known = {where: mark for where, mark in marks if mark is not None and mark.query_id == checkpoint.query_id}
    of_source: dict[str | None, int] = defaultdict(lambda: -1)
    for mark in known.values():
        of_source[mark.source] = max(of_source[mark.source], mark.batch_id)

    def is_new(batch_id: int, source: str, where: TopicPartition) -> bool:
        # a batch may be imported in part: of each partition the last one counts, or else of its source
        last = known[where].batch_id if where in known else max(of_source[source], of_source[None])
        return batch_id > last

    imported = []
    for batch in batches:
        new = {
            source: {where: offset for where, offset in each.items() if is_new(batch.batch_id, source, where)}
            for source, each in batch.offsets.items()
        }
        if any(new.values()):
            for offsets in commits_of(replace(batch, offsets=new), checkpoint.query_id):
                coordinator.commit_offsets(group_id, offsets)
            imported.append(batch.batch_id)
    return tuple(imported)


def _of_sources(checkpoint: QueryCheckpoint, sources: Collection[str]) -> list[CompletedBatch]:
    """The batches, with offsets of the chosen sources only."""
    found = sorted({source for batch in checkpoint.batches for source in batch.offsets})
    at = f"the query of checkpoint {checkpoint.location}"
    if checkpoint.batches and not found:
        raise NoSuchTopic(f"{at} has no Kafka source; name the checkpoint of a query that reads Kafka")
    for source in sources:
        if found and source not in found:
            raise InvalidRequest(f"{at} has no Kafka source {source}; its Kafka sources are {', '.join(found)}")
    chosen = []
    for batch in checkpoint.batches:
        offsets = {source: each for source, each in batch.offsets.items() if not sources or source in sources}
        refuse_shared_topics(offsets, at, "import each source into a group of its own with --source")
        chosen.append(replace(batch, offsets=offsets))
    return chosen
