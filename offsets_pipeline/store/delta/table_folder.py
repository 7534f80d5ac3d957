"""The one way to create, read and commit to a Delta table of a store. No Spark."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import chain, islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError
from pyarrow import fs

from offsets_pipeline.common.arrow_values import conformed
from offsets_pipeline.common.foreign_errors import first_line
from offsets_pipeline.errors import (
    CommitUnknown,
    NoSuchTable,
    OffsetsError,
    StoreReplaced,
    UnsafeStorage,
    UnsupportedTable,
    WriteConflict,
)
from offsets_pipeline.store.delta.data_file import (
    ALL_ROWS,
    APPLICATION,
    COMPRESSION,
    ROW_GROUP_ROWS,
    DataFile,
    NewFile,
    dictionary_columns,
    rows_with,
)
from offsets_pipeline.store.delta.filesystems import mapping_path
from offsets_pipeline.store.delta.properties import require_format
from offsets_pipeline.store.delta.protocol import (
    UNDO,
    Action,
    commit_path,
    creation,
    encoded,
    json_text,
    parsed,
    schema_fields,
    write_actions,
)
from offsets_pipeline.store.delta.reader import explained, open_table, reading
from offsets_pipeline.store.delta.retry import answered, put_if_absent
from offsets_pipeline.store.delta.s3_errors import known_cause, not_written, writing
from offsets_pipeline.store.delta.schemas import LOG, Table
from offsets_pipeline.store.delta.snapshot import MOST_COMMITS, Commit, KnownVersion, Snapshot
from offsets_pipeline.store.delta.storage import NoAnswer, ObjectStorage, Storage, storage_of

if TYPE_CHECKING:
    from offsets_pipeline.store.delta.data_file import Only

_LOG = logging.getLogger(__name__)

_APPEND_ONLY, _CHECKPOINT_INTERVAL = "delta.appendOnly", "delta.checkpointInterval"
#: Versions between checkpoints of a table without the property: more than Delta's 10, as deltalake does.
CHECKPOINT_INTERVAL = 100
#: Seconds for which upkeep keeps what readers of an older version need: dropped files, and commits before a checkpoint.
READERS_SECONDS = 600
#: Seconds after which the table is read anew: a reader then has as many left.
_MOST_SECONDS = READERS_SECONDS / 2
#: Commits to read at once from an object store, when they were one after the other so far.
_MOST_AHEAD = 8
#: Largest file of an object store to read as a whole.
_ONE_REQUEST_BYTES = 256 * 1024
_NOTHING: Mapping[str, int] = MappingProxyType({})


class TableFolder:
    """A Delta table in one folder. Tasks may get it: pickled, it is only its folder and schema.

    Every commit creates the file of the next version, which fails if another writer has that version. A writer that
    loses the race commits on top of the other commit, unless the two conflict.
    """

    def __init__(self, folder: str, table: Table) -> None:
        self.folder = folder.rstrip("/")
        self.table = table
        self._newest: Snapshot | None = None  # the last snapshot; `snapshot` reads on from there
        self._lost_to: KnownVersion | None = None  # the commit that the last append lost to, for `commits_after`

    def __reduce__(self) -> tuple[type[TableFolder], tuple[str, Table]]:
        return TableFolder, (self.folder, self.table)

    @cached_property
    def storage(self) -> Storage:
        """The table's storage. Raises UnsafeStorage."""
        return storage_of(self.folder)

    # --- reading

    def exists(self) -> bool:
        """Return whether the table has any version. Raises DamagedTable as `snapshot`."""
        try:
            self.snapshot()
        except NoSuchTable:
            return False
        return True

    def snapshot(self, version: int | None = None) -> Snapshot:
        """Return the newest version of the table, or ``version``.

        Costs one look for the next commit if this object has a snapshot already.

        Raises NoSuchTable, DamagedTable if a commit or checkpoint is missing or corrupt, StorageFailed if the storage
        fails, UnsafeStorage.
        """
        if version is not None:
            return self._load(version)
        newest, last = None, self._newest  # another thread may set it meanwhile
        if last is not None and last.age_seconds <= _MOST_SECONDS:
            with suppress(WriteConflict, StoreReplaced):
                newest = last.after(*islice(self.commits_after(last.known), MOST_COMMITS + 1))
        if newest is None or newest.commits_read > MOST_COMMITS:
            newest = self._load()
        self._newest = newest
        return newest

    def commit_file(self, version: int) -> bytes | None:
        """Return the file of a commit; None if there is no such version, or it is no longer kept. Raises OSError."""
        return self.storage.read(commit_path(version))

    def read_file(self, file: DataFile, columns: Sequence[str] | None = None, only: Only = ALL_ROWS) -> pa.Table:
        """Return columns, by default all, of a file of the table: of the rows with values of ``only`` (`rows_with`).

        They have the types of the table's schema; columns that an older file lacks are null. Raises as `open_file`.
        """
        names = self.table.names() if columns is None else columns
        with self.open_file(file) as parquet:
            return conformed(rows_with(parquet, names, only), self.table.arrow_schema(names), file.partition)

    @contextmanager
    def open_file(self, file: DataFile, **options: Any) -> Iterator[pq.ParquetFile]:  # noqa: ANN401 - of pyarrow
        """Open a file of the table; ``options`` are those of `pyarrow.parquet.ParquetFile`.

        Raises DamagedTable if the file is missing or corrupt, StorageFailed if the storage fails.
        """
        with (
            reading(self.folder, [file]),
            self._source(file) as source,
            pq.ParquetFile(source, coerce_int96_timestamp_unit="us", **options) as parquet,
        ):
            yield parquet

    def _source(self, file: DataFile) -> pa.NativeFile:
        """The file to read from. A small one of an object store is read with one request, in place of four."""
        if file.size > _ONE_REQUEST_BYTES or not isinstance(self.storage, ObjectStorage):
            system, path = self._place
            return system.open_input_file(f"{path}/{unquote(file.name)}")
        contents = self.storage.read(unquote(file.name))
        if contents is None:
            raise FileNotFoundError(f"{self.folder}/{file.name}")
        return pa.BufferReader(contents)

    def _load(self, version: int | None = None) -> Snapshot:
        with reading(self.folder):
            loaded = open_table(self.folder, version)
            return Snapshot(self, loaded, self.commit_file(loaded.version()))

    @cached_property
    def _place(self) -> tuple[fs.FileSystem, str]:
        return mapping_path(self.folder)

    def commits_after(self, known: KnownVersion) -> Iterator[Commit]:
        """Yield the commits after a version. One is certain to follow the one before when the next is asked for.

        Raises StoreReplaced if it is not a version of the table in this folder any more, WriteConflict if commits after
        it are no longer kept. Raises DamagedTable, StorageFailed.
        """
        _, version, last = known
        lost_to, self._lost_to = self._lost_to, None
        ahead: deque[Callable[[], bytes | None]] = deque()
        if lost_to is not None and lost_to.number == version + 1:
            text = lost_to.text
        else:
            with reading(self.folder):
                check, text = self._begin_check(version, last), self.commit_file(version + 1)
                if text is None and (last is None or not check()):
                    self._refuse_other(known)
        most_ahead = 1
        while text is not None:
            with reading(self.folder):
                check = self._begin_check(version, last)  # again: it was still there when the commit was read
                while len(ahead) < most_ahead:
                    ahead.append(self.storage.begin(self.commit_file, version + 2 + len(ahead)))
                commit = Commit(text, parsed(text))
            yield commit
            with reading(self.folder):
                if not check():
                    self._refuse_other(KnownVersion(known.table_id, version, last))
                version, last, text = version + 1, text, ahead.popleft()()
            most_ahead = min(2 * most_ahead, _MOST_AHEAD)

    def _begin_check(self, version: int, text: bytes | None) -> Callable[[], bool]:
        return self.storage.begin(self.storage.is_unchanged, commit_path(version), text)

    def snapshot_after(self, known: KnownVersion) -> Snapshot:
        """Read the newest version anew. Raises as `snapshot`, and StoreReplaced as `commits_after`."""
        try:
            found = self._load()
        except NoSuchTable:
            raise self._replaced(known.number) from None
        if found.table_id != known.table_id or found.version < known.number:
            raise self._replaced(known.number)
        return found

    def _refuse_other(self, known: KnownVersion) -> None:
        """Raise unless the table is still at a version whose commit is no longer kept."""
        found = self.snapshot_after(known)
        if found.version > known.number:
            if self.commit_file(known.number) is not None:
                raise self._replaced(known.number)  # by a copy that went another way
            raise WriteConflict(f"the table {self.folder} no longer has the commits since version {known.number}")
        if found.text != known.text and found.text is not None:
            raise self._replaced(known.number)

    def _replaced(self, version: int) -> StoreReplaced:
        return StoreReplaced(
            f"the table {self.folder} was deleted, restored or created again while it was open: it differs from "
            f"version {version}, which was read; open it again"
        )

    # --- writing

    def create(self, properties: Mapping[str, str] = MappingProxyType({})) -> bool:
        """Create the table with ``properties`` in addition to those of its schema; returns False if it exists.

        Raises StorageFailed, CommitUnknown if the table may be there: create it again. Raises UnsafeStorage if the
        storage overwrites files that exist.
        """
        text = encoded(creation(self.table, properties))
        try:
            if not self.create_version(0, text, None, durable=True):
                return False
        except OSError as error:
            raise not_written(self.folder, error) from error
        try:
            is_unsafe = isinstance(self.storage, ObjectStorage) and answered(
                lambda: self.storage.create(commit_path(0), text, durable=True)
            )
        except OSError as error:
            raise self._unknown(0, error) from error
        if is_unsafe:
            raise UnsafeStorage(
                f"cannot use the storage of {self.folder}: it ignores conditional puts (If-None-Match), and commits "
                "could get lost; use a store that honours them (docs/storage.md)"
            )
        return True

    def write_file(
        self,
        rows: pa.Table,
        partition: Mapping[str, str] = MappingProxyType({}),
        compression: str = COMPRESSION,
        *,
        few_rows: bool = False,
    ) -> DataFile:
        """Write rows, without the partition columns, to a new file; returns what `commit` adds.

        ``compression``: Parquet's codec. With ``few_rows`` the file takes the least time to write.

        Raises StorageFailed if the storage fails; then no file is left, if the storage lets it be removed. Raises
        UnsupportedTable as `NewFile`.
        """
        dictionary = [] if few_rows else dictionary_columns(rows.schema)
        with writing(self.folder):
            file = NewFile(self.folder, self.table, partition, compression, {"use_dictionary": dictionary})
            try:
                file.write(rows, None if few_rows else ROW_GROUP_ROWS)
                return file.close()
            except BaseException:
                file.discard()
                raise

    def commit(
        self,
        add: Sequence[DataFile] = (),
        remove: Sequence[DataFile] = (),
        *,
        seen: Snapshot,
        advance: Mapping[str, int] = _NOTHING,
        unless_advanced: Collection[str] = (),
        is_change: bool = True,
        metadata: Mapping[str, Any] | None = None,
        operation: str = "WRITE",
        user_metadata: str | None = None,
        keep: bool = False,
    ) -> int:
        """Commit on top of the newest version; returns the version committed. It survives a loss of power.

        ``seen`` is the snapshot that the commit was made from. ``advance`` sets the transaction versions of
        applications. ``is_change=False``: the commit only rearranges rows. ``metadata``: new fields of the `metaData`
        action. ``user_metadata`` is a text that the table's history shows beside the commit.

        Raises WriteConflict if a commit after ``seen`` advanced an application of ``advance`` or ``unless_advanced``,
        removed a file that this commit removes, or changed the metadata that this commit changes. Raises
        UnsupportedTable and NotAStore as `refuse_unwritable`, StoreReplaced if it is another table now, StorageFailed
        if the storage fails. If one of these is raised, nothing is committed, and the files of ``add`` are removed,
        unless ``keep``: write new ones to try again. Raises CommitUnknown as `create_version`: the files stay.
        """
        actions = write_actions(
            add,
            remove,
            advance,
            is_change=is_change,
            operation=operation,
            metadata=metadata,
            user_metadata=user_metadata,
        )
        with self._committing(add, durable=True, keep=keep):
            if remove and is_change and seen.properties.get(_APPEND_ONLY) == "true":
                raise self._unsupported(_APPEND_ONLY)
            committed = self._commit_on_top(seen, actions, unless_advanced)
        self._newest = committed
        if committed.version % int(committed.properties.get(_CHECKPOINT_INTERVAL, CHECKPOINT_INTERVAL)) == 0:
            self.checkpoint(committed.version)
        return committed.version

    def replace(self, rows: pa.Table, *, seen: Snapshot, advance: Mapping[str, int] = _NOTHING) -> int:
        """Commit these rows in place of all rows of a small table; returns the version committed.

        Adds columns that a table of an older version lacks. Raises WriteConflict if another writer replaced the rows
        since ``seen``; then nothing is written. Raises as `commit`.
        """
        return self.commit(
            [self.write_file(conformed(rows, self.table.arrow_schema()))] if rows.num_rows else [],
            seen.files(),
            seen=seen,
            advance={APPLICATION: seen.transaction(APPLICATION) + 1, **advance},
            metadata=self.with_missing_columns(seen),
        )

    @contextmanager
    def _committing(
        self, add: Sequence[DataFile], *, durable: bool, keep: bool = False, after: Collection[str] = ()
    ) -> Iterator[None]:
        """Synchronise the files ``after`` and those of ``add`` before a commit.

        If the commit fails, removes those of ``add``, unless ``keep``. Raises StorageFailed for an OSError. After
        CommitUnknown the files stay: the commit may appear.
        """
        try:
            if durable:
                self.storage.sync(after, may_be_gone=True)
                self.storage.sync([file.name for file in add])
            yield
        except CommitUnknown:
            raise
        except (OSError, OffsetsError) as error:
            self.storage.aside(self.remove_uncommitted, () if keep else add)
            if isinstance(error, OSError):
                raise not_written(self.folder, error) from error
            raise

    def _commit_on_top(self, seen: Snapshot, actions: list[Action], unless_advanced: Collection[str]) -> Snapshot:
        text = encoded(actions)
        newest = seen
        while True:
            others = list(self.commits_after(newest.known))
            self._refuse_conflict(seen, actions, unless_advanced, others)
            newest = newest.after(*others)
            committed = newest.after(Commit(text, actions))
            self.refuse_unwritable(committed)
            if self.create_version(committed.version, text, newest.text, durable=True):
                return committed

    def _refuse_conflict(
        self, seen: Snapshot, actions: list[Action], unless_advanced: Collection[str], others: Sequence[Commit]
    ) -> None:
        """Raise WriteConflict or StoreReplaced if another writer's commit is in the way of one of these actions."""
        applications = {action["txn"]["appId"] for action in actions if "txn" in action} | set(unless_advanced)
        removed = {action["remove"]["path"] for action in actions if "remove" in action}
        for action in chain.from_iterable(other.actions for other in others):
            if "txn" in action and action["txn"]["appId"] in applications:
                raise WriteConflict(f"another writer wrote to {self.folder}")
            if "remove" in action and action["remove"]["path"] in removed:
                raise WriteConflict(f"another writer replaced files of {self.folder}")
            if "metaData" in action:
                if action["metaData"]["id"] != seen.table_id:
                    raise StoreReplaced(f"the table {self.folder} was created again while it was open; open it again")
                if any("metaData" in own for own in actions):
                    raise WriteConflict(f"another writer changed the properties of {self.folder}")

    def append_next(
        self,
        rows: pa.Table,
        known: KnownVersion,
        advance: Mapping[str, int],
        behind: Callable[[Commit], Mapping[str, int] | None],
        *,
        writer: str,
        compression: str,
        durable: bool,
        after: Collection[str] = (),
    ) -> list[Commit]:
        """Commit few rows as the version after this one. Returns the commits after this one, the last one its own.

        If another writer has the version, ``behind`` gets its commit, and returns what to advance when the rows are
        committed behind it; None if they must not be. ``writer`` is the commit's user metadata. A durable commit makes
        the files ``after`` durable first. For a writer that follows the table commit by commit, and refuses tables that
        it cannot write itself.

        Raises WriteConflict if another writer has the version or the commit of ``known`` changed, StorageFailed. Then
        nothing is committed, and the file is removed. Raises CommitUnknown as `create_version`.
        """
        commits: list[Commit] = []
        version, previous = known.number + 1, known.text
        # one request: the caller has just looked for the next commit, and a commit is kept for an hour
        check = None if previous is None else self._begin_check(known.number, previous)
        file = self.write_file(rows, compression=compression, few_rows=True)
        with self._committing([file], durable=durable, after=after):
            is_next = next(self.commits_after(known), None) is None if check is None else check()
            further: Mapping[str, int] | None = advance if is_next else None
            while further is not None:
                actions = write_actions([file], [], further, is_change=True, operation="WRITE", user_metadata=writer)
                text = encoded(actions)
                owner = self._owner_of(version, text, previous, durable=durable)
                commits.append(Commit(owner, actions if owner == text else parsed(owner)))
                if owner == text:
                    return commits
                further = behind(commits[-1])
                # as `commits_after`: the commit of the other writer follows the one that is known
                if further is not None and not self.storage.is_unchanged(commit_path(version - 1), previous):
                    further = None
                version, previous = version + 1, owner
            if commits:
                self._lost_to = KnownVersion(known.table_id, known.number + 1, commits[0].text)
            raise WriteConflict(f"another writer committed version {known.number + 1} of {self.folder}")

    def refuse_unwritable(self, seen: Snapshot) -> None:
        """Raise UnsupportedTable if the table requires a feature that this program does not write.

        Call it before tasks write.

        Raises NotAStore if the table is the log of a store that has got another format since it was opened.
        """
        if self.table == LOG:
            require_format(seen.properties, self.folder.rpartition("/")[0])
        if seen.unmet is not None:
            raise self._unsupported(seen.unmet)

    def create_version(self, version: int, text: bytes, previous: bytes | None, *, durable: bool) -> bool:
        """Create the commit file of a version, behind the ``previous`` one; returns False if another writer has it.

        Raises OSError if the storage refuses it: the commit will not appear. Raises CommitUnknown if the version has no
        owner after a minute, or the table was replaced meanwhile: the commit may still appear. Raises it too if the
        commit is there, but may not survive a loss of power.
        """
        return self._owner_of(version, text, previous, durable=durable) == text

    def _owner_of(self, version: int, text: bytes, previous: bytes | None, *, durable: bool) -> bytes:
        """`create_version`; returns the commit file that the version has then."""
        try:
            return put_if_absent(
                self.storage,
                commit_path(version),
                text,
                durable=durable,
                may_retry=lambda: self.storage.is_unchanged(commit_path(version - 1), previous),
            )
        except NoAnswer as error:
            raise self._unknown(version, error) from error

    def with_properties(self, seen: Snapshot, properties: Mapping[str, str]) -> Mapping[str, Any]:
        """Return the fields of `metaData` for `commit` that set these properties."""
        return {**seen.metadata, "configuration": {**seen.properties, **properties}}

    def with_missing_columns(self, seen: Snapshot) -> Mapping[str, Any] | None:
        """Return the fields of `metaData` that add columns which an older table lacks; None if it lacks none."""
        there = json.loads(seen.metadata["schemaString"])
        names = {field["name"] for field in there["fields"]}
        missing = [field for field in schema_fields(self.table) if field["name"] not in names]
        if not missing:
            return None
        return {**seen.metadata, "schemaString": json_text({**there, "fields": [*there["fields"], *missing]})}

    def remove_uncommitted(self, add: Sequence[DataFile]) -> None:
        """Remove files that no commit adds; a file that cannot be removed is left to `vacuum`."""
        for file in add:
            try:
                self.storage.remove(file.name)
            except OSError as error:
                _LOG.warning(
                    "cannot remove an unused file of %s: %s (%s); VACUUM removes it", self.folder, file.name, error
                )

    def _unsupported(self, requirement: str) -> UnsupportedTable:
        return UnsupportedTable(
            f"cannot write to {self.folder}: its table requires {requirement}, which this program does not support; "
            f"{UNDO}"
        )

    def _unknown(self, version: int, error: OSError) -> CommitUnknown:
        said = known_cause(self.folder, error) or f"the storage failed ({first_line(error)})"
        return CommitUnknown(
            f"version {version} of {self.folder} may have been committed: {said}; check the table before you write "
            "again"
        )

    # --- upkeep

    def checkpoint(self, version: int) -> None:
        """Write a Delta checkpoint of a version, and remove commits older than `delta.logRetentionDuration`.

        A failure is only logged: readers then read more commits.
        """
        try:
            table = open_table(self.folder, version)  # of the newest the list of commits may lack one
            table.create_checkpoint()
            table.cleanup_metadata()
        except (DeltaError, OSError) as error:
            _LOG.warning("cannot write a checkpoint of %s: %s", self.folder, explained(self.folder, error))
