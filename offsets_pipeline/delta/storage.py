"""Where the table `log` lies: reading its commits by their numbers, and adding the next one if nobody else did.

A commit of Delta is a file named by its version, and to write it is to create that file if it is not there. So the
next version is looked for by its name, and of two writers of one version one is refused.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
import uuid
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol
from urllib.parse import unquote

import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction
from pyarrow import fs

from offsets_pipeline.delta.data_file import APPLICATION, WrittenFile
from offsets_pipeline.delta.filesystems import open_path
from offsets_pipeline.delta.protocol import DELTA_LOG, commit_name, parsed
from offsets_pipeline.errors import UnsafeStorage, WriteConflict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from offsets_pipeline.delta.protocol import Action

_LOG = logging.getLogger(__name__)

_TURN, _NEXT_TURN = ".turn", ".next-turn"  # files to lock
_TURN_SECONDS = 0.2
_POLL_SECONDS = 0.0003
_LOCKING_PROVIDER = "AWS_S3_LOCKING_PROVIDER"
_SAFE_PROVIDER = "dynamodb"
_SAFE_SCHEMES = frozenset({"gs", "az", "adl", "abfs", "abfss", "hdfs", "viewfs"})  # put if absent, or a safe rename
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_S3_SCHEMES = frozenset({"s3", "s3a", "s3n"})


@dataclass(frozen=True)
class Commit:
    """A commit that is to be written: its version, the number of the application's transaction, and its file.

    ``previous`` is the text of the commit before it, as its writer read it; None where that is no longer kept.
    """

    version: int
    number: int
    written: WrittenFile
    timestamp_ms: int
    previous: bytes | None

    def actions(self) -> list[Action]:
        """Its actions in Delta's protocol."""
        return [
            {
                "commitInfo": {
                    "timestamp": self.timestamp_ms,
                    "operation": "WRITE",
                    "operationParameters": {"mode": "Append", "partitionBy": "[]"},
                    "isBlindAppend": True,
                    "operationMetrics": {
                        "numFiles": "1",
                        "numOutputRows": str(self.written.rows),
                        "numOutputBytes": str(self.written.size),
                    },
                    "engineInfo": "offsets_pipeline",
                }
            },
            {"txn": {"appId": APPLICATION, "version": self.number, "lastUpdated": self.timestamp_ms}},
            {"add": self.written.add_action()},
        ]


class Storage(Protocol):
    """What the log asks of the storage that a table lies on. Paths of files are relative to the table."""

    def read_commit(self, version: int) -> bytes | None:
        """The text of a commit; None where there is no such version, or not yet, or no longer."""
        ...

    def is_unchanged(self, version: int, text: bytes | None) -> bool:
        """Whether `read_commit` of this version still returns this text."""
        ...

    def read_rows(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Columns of a file."""
        ...

    def write_rows(self, name: str, rows: pa.Table, *, durable: bool) -> int:
        """Write a file; returns its size in bytes. ``durable``: it outlives the machine's loss of power."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file that no commit names."""
        ...

    def turn(self, meanwhile: Callable[[], None]) -> AbstractContextManager[None]:
        """Wait for this writer's turn, for a moment: a courtesy that saves lost races, and nothing depends on it.

        ``meanwhile`` is called again and again while it waits.
        """
        ...

    def commit(self, commit: Commit, *, durable: bool) -> bytes:
        """Add the commit; returns its text.

        Raises WriteConflict where its version is there already, written by somebody else, or where the commit before
        it is not the one that its writer read: then nothing was committed.
        """
        ...


def storage_of(folder: str, environment: Mapping[str, str] = os.environ) -> Storage:
    """The storage of a table's folder.

    Raises UnsafeStorage where two writers of one version could both succeed.
    """
    scheme, separator, _ = folder.partition("://")
    if not separator or scheme == "file":
        return LocalStorage(folder.removeprefix("file://"))
    if scheme in _SAFE_SCHEMES:
        return ObjectStorage(folder)
    if scheme not in _S3_SCHEMES:
        raise UnsafeStorage(
            f"{folder}: nothing is known of {scheme}:// that keeps two writers apart: put an owned store on a local "
            f"folder, hdfs://, gs:// or abfss://"
        )
    if environment.get(_LOCKING_PROVIDER, "").lower() != _SAFE_PROVIDER:
        raise UnsafeStorage(
            f"{folder}: S3 alone does not keep Spark and this program apart, and acknowledged commits would get lost: "
            f"set {_LOCKING_PROVIDER}={_SAFE_PROVIDER} and let Spark use S3DynamoDBLogStore with the same table, "
            "or put the store elsewhere"
        )
    return ObjectStorage(folder)


class LocalStorage:
    """A folder of this machine.

    A commit is written aside and then linked to its name, which fails where the name is taken. So it costs the same
    however many files the table has; `deltalake` reads over all of them with each commit (docs/adr/0013).
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._commits = self._folder / DELTA_LOG
        self._seen: tuple[object, ...] = ()  # a commit's text, and which file holds it

    def read_commit(self, version: int) -> bytes | None:
        """See Storage."""
        try:
            with open(f"{self._commits}/{commit_name(version)}", "rb") as file:  # noqa: PTH123 - half of Path's time
                return file.read()
        except FileNotFoundError:
            return None

    def is_unchanged(self, version: int, text: bytes | None) -> bool:
        """See Storage. A file that was looked into before is known by its inode, size and times: 4 microseconds."""
        try:
            found = os.stat(f"{self._commits}/{commit_name(version)}")  # noqa: PTH116 - half of Path's time
        except FileNotFoundError:
            return text is None
        seen = (text, version, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        if seen != self._seen:
            if self.read_commit(version) != text:
                return False
            self._seen = seen
        return True

    def read_rows(self, name: str, columns: Sequence[str]) -> pa.Table:
        """See Storage."""
        with pq.ParquetFile(self._folder / unquote(name)) as file:
            return file.read(columns=list(columns), use_threads=False)

    def write_rows(self, name: str, rows: pa.Table, *, durable: bool) -> int:
        """See Storage."""
        with (self._folder / name).open("xb") as file:
            _write_parquet(rows, file)
            size = file.tell()
            if durable:
                file.flush()
                os.fsync(file.fileno())
        return size

    def remove(self, name: str) -> None:
        """See Storage."""
        (self._folder / name).unlink(missing_ok=True)

    @contextmanager
    def turn(self, meanwhile: Callable[[], None]) -> Iterator[None]:
        """See Storage. Where the one whose turn it is was stopped in the midst of it, nobody waits for long."""
        until = time.monotonic() + _TURN_SECONDS
        with ExitStack() as held:
            with suppress(FileNotFoundError):  # the folder is gone: reading the log says so
                turn = held.enter_context((self._commits / _TURN).open("wb"))
                # who has the next turn keeps its place until it has the turn: so who just had it comes behind
                with (self._commits / _NEXT_TURN).open("wb") as next_turn:
                    _lock(next_turn, until, meanwhile)
                    _lock(turn, until, meanwhile)
            yield

    def commit(self, commit: Commit, *, durable: bool) -> bytes:
        """See Storage."""
        if not self.is_unchanged(commit.version - 1, commit.previous):
            raise _not_the_next(self._folder, commit.version)
        return self.create(commit.version, commit.actions(), durable=durable)

    def create(self, version: int, actions: Sequence[Action], *, durable: bool) -> bytes:
        """Add a commit of these actions, whatever is before it; else as `commit`."""
        text = "\n".join(map(json.dumps, actions)).encode()
        aside = self._commits / f".{uuid.uuid4()}.tmp"
        with aside.open("xb") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
                _sync_folder(self._folder)  # the rows' file, before what names it
        try:
            (self._commits / commit_name(version)).hardlink_to(aside)
        except FileExistsError as taken:
            raise WriteConflict(f"another writer wrote version {version} of {self._folder}") from taken
        finally:
            aside.unlink()
        if durable:
            try:
                _sync_folder(self._commits)
            except OSError as error:  # the commit is there all the same: who says no now would say what is not so
                _LOG.warning("%s may not outlive a loss of power: %s", self._commits / commit_name(version), error)
        return text


class ObjectStorage:
    """An object store, or a file system over the network: `deltalake` knows how two writers are kept apart there."""

    def __init__(self, folder: str) -> None:
        self._uri = folder
        self._system, self._folder = open_path(folder)
        self._table: DeltaTable | None = None

    def read_commit(self, version: int) -> bytes | None:
        """See Storage."""
        try:
            with self._system.open_input_file(f"{self._folder}/{DELTA_LOG}/{commit_name(version)}") as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def is_unchanged(self, version: int, text: bytes | None) -> bool:
        """See Storage."""
        return self.read_commit(version) == text

    def read_rows(self, name: str, columns: Sequence[str]) -> pa.Table:
        """See Storage."""
        return pq.read_table(f"{self._folder}/{unquote(name)}", columns=list(columns), filesystem=self._system)

    def write_rows(self, name: str, rows: pa.Table, *, durable: bool) -> int:  # noqa: ARG002 - it is, or it failed
        """See Storage."""
        with self._system.open_output_stream(f"{self._folder}/{name}") as file:
            _write_parquet(rows, file)
            return int(file.tell())

    def remove(self, name: str) -> None:
        """See Storage."""
        if self._system.get_file_info(f"{self._folder}/{name}").type == fs.FileType.File:
            self._system.delete_file(f"{self._folder}/{name}")

    def turn(self, meanwhile: Callable[[], None]) -> AbstractContextManager[None]:  # noqa: ARG002 - it does not wait
        """See Storage."""
        return nullcontext()

    def commit(self, commit: Commit, *, durable: bool) -> bytes:  # noqa: ARG002 - it is, or it failed
        """See Storage."""
        if not self.is_unchanged(commit.version - 1, commit.previous):
            raise _not_the_next(self._uri, commit.version)
        if self._table is None:
            self._table = DeltaTable(self._uri)
        self._table.update_incremental()
        if self._table.version() != commit.version - 1:
            raise WriteConflict(f"another writer wrote version {commit.version} of {self._uri}")
        file = commit.written.add_action()
        failed: Exception | None = None
        try:
            self._table.create_write_transaction(
                [
                    AddAction(
                        file["path"], file["size"], {}, file["modificationTime"], file["dataChange"], file["stats"]
                    )
                ],
                mode="append",
                schema=self._table.schema(),
                partition_by=[],
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(APPLICATION, commit.number)], max_commit_retries=0
                ),
                post_commithook_properties=PostCommitHookProperties(
                    create_checkpoint=False, cleanup_expired_logs=False
                ),
            )
        except (CommitFailedError, OSError) as error:
            failed = error
        text = self._own(commit)
        if text is None:
            raise WriteConflict(f"another writer wrote version {commit.version} of {self._uri}") from failed
        return text

    def _own(self, commit: Commit) -> bytes | None:
        """The text of the commit if it was written, whatever its writer was told."""
        text = self.read_commit(commit.version)
        named = [] if text is None else [action["add"]["path"] for action in parsed(text) if "add" in action]
        return text if commit.written.name in named else None


def _not_the_next(folder: str | Path, version: int) -> WriteConflict:
    return WriteConflict(f"version {version - 1} of {folder} is not the one that version {version} was to follow")


def _write_parquet(rows: pa.Table, file: object) -> None:
    # a few rows: what makes large files small takes longer here than the rows do
    pq.write_table(rows, file, compression="snappy", use_dictionary=False, write_statistics=True, store_schema=False)


def _lock(file: IO[bytes], until: float, meanwhile: Callable[[], None]) -> None:
    """Lock the file until it is closed, if nobody else has it locked until then."""
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return None
        meanwhile()
        time.sleep(_POLL_SECONDS)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
