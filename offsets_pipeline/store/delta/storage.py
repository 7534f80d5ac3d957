"""Storage of a table: reads files by name, and creates a file only if its name is free.

A Delta commit is a file named after its version. A writer commits by creating that file if it is absent, so at most one
writer gets a version. `storage_of` decides which storage offers that; docs/storage.md has the same table for users.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import cache, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

import pyarrow as pa
from pyarrow import fs

from offsets_pipeline.common.foreign_errors import first_line
from offsets_pipeline.errors import CommitUnknown, ConfigError, UnsafeStorage, WriteConflict
from offsets_pipeline.store.delta.filesystems import OBJECT_STORES, encoded_uri, open_path, refuse_encoded, synchronise
from offsets_pipeline.store.delta.s3_access import (
    access_variables,
    connection_options,
    endpoint_options,
    is_s3,
    longest_wait,
    object_store_options,
)

if TYPE_CHECKING:
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    from obstore.store import ObjectStore, RetryConfig

    from offsets_pipeline.store.delta.s3_access import Pairs

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

_TURN, _NEXT_TURN = ".turn", ".next-turn"  # lock files in `_delta_log`
_TURN_SECONDS = 0.2
_POLL_SECONDS = 0.0003
_WAITING = "_delta_log/.waiting"  # the signal file of writers on an object store
#: Requests, one after the other, of a writer's round: a look, the data file, the commit. A loser reads what it lost to
#: before; one more for those that take longer.
_LOSERS_REQUESTS, _WINNERS_REQUESTS = 5, 3
_LONGEST_PAUSE_SECONDS = 2.5  # half of a commit's timeout

_LOCAL = frozenset({"", "file"})
#: Some file systems cannot synchronise a folder.
_NOT_SUPPORTED = frozenset({errno.EINVAL, errno.ENOTSUP})
_ATOMIC_RENAME = frozenset({"hdfs", "viewfs"})
#: How obstore says that a request is refused: by a status of 4xx, except 408 and 429 (try again), by 501 (the server
#: does not know conditional puts), or sent elsewhere.
_REFUSED = re.compile(r"status code: (4(?!08|29)\d\d|501)\b|redirect without LOCATION")


class NoAnswer(OSError):
    """The storage did not answer a request to create a file: the file may be there, or may still appear."""


class Storage(ABC):
    """One table's folder on some storage. Names are relative to the folder; a file never changes once it is there."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Return the contents of a file; None if it does not exist."""

    def is_unchanged(self, name: str, contents: bytes | None) -> bool:
        """Return whether `read` of this file still returns these contents."""
        return self.read(name) == contents

    def begin(self, request: Callable[..., T], *arguments: Any) -> Callable[[], T]:  # noqa: ANN401 - of the request
        """Send a request; calling the result waits for its answer. Here the request is sent then."""
        return partial(request, *arguments)

    def aside(self, request: Callable[..., object], *arguments: Any) -> None:  # noqa: ANN401 - those of the request
        """Send a request without a wait for its end if the storage takes long; it raises nothing."""
        request(*arguments)

    @abstractmethod
    def create(self, name: str, contents: bytes, *, durable: bool) -> bool:
        """Create a file if its name is free; returns False if another writer has created it.

        A reader sees the whole file or none. With ``durable`` the file survives a loss of power. Sends one request: a
        retry could hide that an earlier request is still on its way.

        Raises NoAnswer if the file may be there or may still appear, another OSError if the storage refuses: then the
        file will not appear, and none is left behind. Raises CommitUnknown if the file is there, but may not survive a
        loss of power.
        """

    def sync(self, names: Iterable[str], *, may_be_gone: bool = False) -> None:  # noqa: B027 - others write durably
        """Make files survive a loss of power. Raises OSError, for a file that is gone unless it ``may_be_gone``."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file that no commit names; succeeds if there is none."""

    def turn(self, meanwhile: Callable[[], None], winners: Winners) -> AbstractContextManager[None]:  # noqa: ARG002
        """Wait for this writer's turn to commit: 0.2 s at most, 2.5 s on an object store.

        It saves lost races; correctness does not need it. A wait calls ``meanwhile`` repeatedly, which reads the new
        commits and notes their ``winners``. A block that raises WriteConflict has lost a race.
        """
        return nullcontext()


class Winners:
    """The other writers that committed between the last two commits of a writer, and since its last one."""

    def __init__(self, writer: str) -> None:
        self._writer = writer
        self.before: set[str] = set()
        self.since: set[str] = set()

    def note(self, writer: str) -> None:
        """Note the next commit of the table, in order."""
        if writer == self._writer:
            self.before, self.since = self.since, set()
        else:
            self.since.add(writer)


def storage_of(folder: str) -> Storage:
    """Return the storage of a table's folder: the one place that decides where a table may be written.

    Raises UnsafeStorage if the storage cannot create a file only if it is absent: commits would overwrite each other,
    and as `refuse_encoded`.
    """
    scheme = folder.partition("://")[0] if "://" in folder else ""
    if scheme in _LOCAL:
        path = folder.removeprefix("file://")
        refuse_encoded(path)
        return LocalStorage(path)
    if scheme in OBJECT_STORES:
        return ObjectStorage(folder)
    if scheme in _ATOMIC_RENAME:
        return RenamingStorage(folder)
    raise UnsafeStorage(
        f"cannot use a store on {scheme}:// ({folder}): it has no known atomic put-if-absent, and commits could get "
        "lost; use a local folder, s3://, gs://, abfss:// or hdfs:// (docs/storage.md)"
    )


class LocalStorage(Storage):
    """A local folder, or a mounted POSIX file system with hard links and advisory locks.

    `create` writes a temporary file and links it to its name; the link fails if the name is taken.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder.rstrip("/")
        self._seen: tuple[object, ...] = ()  # contents of the file that `is_unchanged` last read, and its inode

    def read(self, name: str) -> bytes | None:
        """See Storage."""
        try:
            with open(f"{self._folder}/{name}", "rb") as file:  # noqa: PTH123 - half of Path's time
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def is_unchanged(self, name: str, contents: bytes | None) -> bool:
        """See Storage. Compares inode, size and times before it reads the file."""
        try:
            found = os.stat(f"{self._folder}/{name}")  # noqa: PTH116 - half of Path's time
        except (FileNotFoundError, NotADirectoryError):
            return contents is None
        seen = (contents, name, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        if seen != self._seen:
            if self.read(name) != contents:
                return False
            self._seen = seen
        return True

    def create(self, name: str, contents: bytes, *, durable: bool) -> bool:
        """See Storage."""
        place = Path(f"{self._folder}/{name}")
        aside = place.parent / f".{uuid.uuid4()}.tmp"

        def write() -> None:
            place.parent.mkdir(parents=True, exist_ok=True)
            with aside.open("xb") as file:
                file.write(contents)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())

        if not _created(
            write, lambda: place.hardlink_to(aside), remove=lambda: aside.unlink(missing_ok=True), is_there=place.exists
        ):
            return False
        if durable:
            try:
                synchronise(str(place.parent))
            except OSError as error:  # readers see the commit already
                if error.errno not in _NOT_SUPPORTED:
                    raise CommitUnknown(
                        f"{place} was written, but may not survive a loss of power: {error}; check the disk"
                    ) from error
                _LOG.warning("%s may not survive a loss of power: %s", place, error)
        return True

    def sync(self, names: Iterable[str], *, may_be_gone: bool = False) -> None:
        """See Storage."""
        folders: set[str] = set()
        for name in names:
            path = f"{self._folder}/{name}"
            try:
                synchronise(path)
            except FileNotFoundError:
                if not may_be_gone:
                    raise
                continue
            folders |= {self._folder, os.path.dirname(path)}  # noqa: PTH120 - half of Path's time
        for folder in folders:
            synchronise(folder)

    def remove(self, name: str) -> None:
        """See Storage."""
        Path(f"{self._folder}/{name}").unlink(missing_ok=True)

    @contextmanager
    def turn(self, meanwhile: Callable[[], None], winners: Winners) -> Iterator[None]:  # noqa: ARG002 - locks order
        """See Storage. A stopped process that holds the turn delays the others by 0.2 s at most."""
        until = time.monotonic() + _TURN_SECONDS
        commits = Path(self._folder) / "_delta_log"
        with ExitStack() as held:
            with suppress(OSError):  # gone or read-only: the commit reports that
                turn = held.enter_context((commits / _TURN).open("wb"))
                # a writer keeps its place in the queue until it has the turn, so the writer before it queues behind it
                with (commits / _NEXT_TURN).open("wb") as next_turn:
                    _lock(next_turn, until, meanwhile)
                    _lock(turn, until, meanwhile)
            yield


class ObjectStorage(Storage):
    """An object store. `create` is one conditional put (`If-None-Match: *`), which fails if the object exists.

    A writer that wins can win again before one that lost has read what it lost to. So a winner lets those writers go
    first that won between its last two commits, and one that loses twice makes itself known by a new text in a signal
    file (docs/adr/0041).
    """

    def __init__(self, folder: str) -> None:
        root, self._folder = _divided(folder)
        self._store, self._once = _object_store(root), _object_store(root, max_retries=0)
        self._losses, self._request_seconds = 0, 0.0
        self._won_at: float | None = None  # the last turn
        self._signal: Future[bytes | None] | None = None
        self._seen_signal: bytes | None = None
        from obstore import exceptions  # noqa: PLC0415 - 20 ms, for object stores alone

        self._errors = exceptions

    def read(self, name: str) -> bytes | None:
        """See Storage."""
        try:
            return bytes(self._store.get(self._folder + name).bytes())
        except FileNotFoundError:
            return None
        except self._errors.BaseError as error:
            raise OSError(first_line(error)) from error

    def begin(self, request: Callable[..., T], *arguments: Any) -> Callable[[], T]:  # noqa: ANN401 - of the request
        """See Storage. The request is under way beside others."""
        return beside(request, *arguments).result

    def aside(self, request: Callable[..., object], *arguments: Any) -> None:  # noqa: ANN401 - those of the request
        """See Storage."""
        beside(request, *arguments)

    def create(self, name: str, contents: bytes, *, durable: bool) -> bool:  # noqa: ARG002 - always durable
        """See Storage."""
        began = time.monotonic()
        try:
            self._once.put(self._folder + name, contents, mode="create", use_multipart=False)
        except (self._errors.AlreadyExistsError, FileExistsError):
            return False
        except (OSError, self._errors.BaseError) as error:
            said = first_line(error)
            raise (OSError if _REFUSED.search(said) else NoAnswer)(said) from error
        self._request_seconds = time.monotonic() - began
        return True

    @contextmanager
    def turn(self, meanwhile: Callable[[], None], winners: Winners) -> Iterator[None]:
        """See Storage. A winner waits until as many others have won, or for as long as their rounds take."""
        if self._won_at is not None:
            others = len(winners.before) or int(self._is_signaled())
            pause = min(others * _LOSERS_REQUESTS * self._request_seconds, _LONGEST_PAUSE_SECONDS)
            while (left := self._won_at + pause - time.monotonic()) > 0 and len(winners.since) < others:
                time.sleep(min(left, _WINNERS_REQUESTS * self._request_seconds))
                meanwhile()
        self._won_at = None
        if not self._losses and (self._signal is None or self._signal.done()):
            self._signal = beside(self.read, _WAITING)
        try:
            yield
        except WriteConflict:
            self._losses += 1
            if self._losses > 1:
                beside(self._store.put, self._folder + _WAITING, str(uuid.uuid4()).encode())
            raise
        self._won_at, self._losses = time.monotonic(), 0

    def _is_signaled(self) -> bool:
        """Return whether a writer has lost twice since this one looked at the signal file last.

        Does not wait for an answer: a look that takes long would delay the commit, which needs none.
        """
        if self._signal is None or not self._signal.done():
            return False
        with suppress(OSError):
            found = self._signal.result()
            if found != self._seen_signal:
                self._seen_signal = found
                return True
        return False

    def remove(self, name: str) -> None:
        """See Storage."""
        try:
            self._store.delete(self._folder + name)
        except FileNotFoundError:
            return
        except self._errors.BaseError as error:
            raise OSError(first_line(error)) from error


class RenamingStorage(Storage):
    """A file system of Hadoop. `create` writes a temporary file and renames it, which fails if the name is taken."""

    def __init__(self, folder: str) -> None:
        self._system, self._folder = open_path(folder)

    def read(self, name: str) -> bytes | None:
        """See Storage."""
        try:
            with self._system.open_input_file(f"{self._folder}/{name}") as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def create(self, name: str, contents: bytes, *, durable: bool) -> bool:  # noqa: ARG002 - HDFS replicates it
        """See Storage."""
        folder = name.rpartition("/")[0]
        aside = f"{folder}/.{uuid.uuid4()}.tmp"

        def write() -> None:
            self._system.create_dir(f"{self._folder}/{folder}", recursive=True)
            with self._system.open_output_stream(f"{self._folder}/{aside}") as file:
                file.write(contents)

        return _created(
            write,
            lambda: self._system.move(f"{self._folder}/{aside}", f"{self._folder}/{name}"),
            remove=lambda: self.remove(aside),
            is_there=lambda: self._is_file(name),
        )

    def remove(self, name: str) -> None:
        """See Storage."""
        if self._is_file(name):
            self._system.delete_file(f"{self._folder}/{name}")

    def _is_file(self, name: str) -> bool:
        return bool(self._system.get_file_info(f"{self._folder}/{name}").type == fs.FileType.File)


def _created(
    write: Callable[[], None], name: Callable[[], None], *, remove: Callable[[], None], is_there: Callable[[], bool]
) -> bool:
    """Write a temporary file and give it its name, which fails if the name is taken; returns whether it was given.

    If the naming fails, the temporary file is removed before a look at the name: a later request then has no file to
    name. Raises NoAnswer if the storage fails again, another OSError if the file will not appear.
    """
    is_named = False
    try:
        write()
        is_named = True
        name()
    except (OSError, pa.ArrowException) as error:
        try:
            remove()
            if is_named and is_there():
                return False
        except (OSError, pa.ArrowException) as no_answer:
            if is_named:
                raise NoAnswer(first_line(error)) from no_answer
        if isinstance(error, OSError):
            raise
        raise OSError(first_line(error)) from error
    with suppress(OSError, pa.ArrowException):  # the name is given
        remove()
    return True


def _divided(folder: str) -> tuple[str, str]:
    """The root that clients share, and the start of the folder's names there: of S3 a bucket and a prefix."""
    if not is_s3(folder):
        return folder, ""
    scheme, _, rest = folder.partition("://")
    bucket, _, prefix = rest.partition("/")
    return f"{scheme}://{bucket}", f"{prefix}/" if prefix else ""


def _object_store(root: str, max_retries: int | None = None) -> ObjectStore:
    """Return the client of a folder or a bucket; ``max_retries`` of a request, None: obstore's default.

    Raises ConfigError if an environment variable of the storage is wrong, ModuleNotFoundError without the extra `s3`.
    """
    from obstore.exceptions import BaseError  # noqa: PLC0415 - 20 ms, for object stores alone
    from obstore.store import LocalStore, from_url  # noqa: PLC0415

    if "://" not in root:
        return LocalStore(root)
    try:
        if is_s3(root):
            options = object_store_options() | endpoint_options(root)
            return _bucket(root, max_retries, tuple(options.items()), access_variables())
        return from_url(encoded_uri(root), retry_config=None if max_retries is None else {"max_retries": max_retries})
    except BaseError as error:
        raise ConfigError(
            f"cannot open {root}: {first_line(error)}; check the environment variables of its storage"
        ) from error


@cache
def _bucket(
    uri: str,
    max_retries: int | None,
    options: Pairs,
    variables: Pairs,  # noqa: ARG001 - obstore and `connection_options` read them
) -> ObjectStore:
    """The client of a bucket: one in a process keeps its connections, and asks for the key of a role once."""
    from obstore.store import S3Store  # noqa: PLC0415 - as above

    # whatever AWS_CONDITIONAL_PUT says: without conditional puts there are no commits
    config = cast("Any", {**dict(options), "aws_conditional_put": "etag"})
    connections = cast("Any", connection_options())
    retries: RetryConfig = {"retry_timeout": longest_wait()}
    if max_retries is not None:
        retries["max_retries"] = max_retries
    return S3Store.from_url(encoded_uri(uri), config=config, client_options=connections, retry_config=retries)


def beside(request: Callable[..., T], *arguments: Any) -> Future[T]:  # noqa: ANN401 - those of the request
    """Send a request beside others. It must not wait for another one that is sent so."""
    return _threads().submit(request, *arguments)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(8, thread_name_prefix="offsets-requests")


def _lock(file: IO[bytes], until: float, meanwhile: Callable[[], None]) -> None:
    """Lock the file until it is closed; gives up at the time ``until``."""
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return None
        meanwhile()
        time.sleep(_POLL_SECONDS)
