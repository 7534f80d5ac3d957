"""One version of a table, and the versions after it, read commit by commit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake.exceptions import DeltaError

from offsets_pipeline.errors import UnsupportedTable
from offsets_pipeline.store.delta.data_file import ALL_ROWS, DataFile
from offsets_pipeline.store.delta.protocol import (
    UNDO,
    Action,
    commit_hash,
    files_of,
    info_of,
    is_durable,
    parsed,
    takes_rows,
    unreadable,
    unwritable,
)
from offsets_pipeline.store.delta.reader import has_deletion_vectors, metadata_of, protocol_of, reading, stored_files
from offsets_pipeline.store.delta.storage import LocalStorage

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from offsets_pipeline.store.delta.data_file import Only
    from offsets_pipeline.store.delta.table_folder import TableFolder

#: Commits from which on it is quicker to read the table anew than to read on commit by commit.
MOST_COMMITS = 1_000
_WRITTEN_BACK_MS = 300_000  # after which a machine has written files that no one has synchronised


class Commit(NamedTuple):
    """A commit: the text of its file, and its actions."""

    text: bytes
    actions: Sequence[Action]


class KnownVersion(NamedTuple):
    """A version of a table that was read. ``text`` is its commit file; None if that is no longer kept."""

    table_id: str
    number: int
    text: bytes | None


class Snapshot:
    """One version of a table. `TableFolder.snapshot` makes one.

    deltalake reads a table's log once, and a second time for its first files and for each application's transaction.
    `after` makes a later version's snapshot from this one and the commits between, without reading anything. Its cost
    depends on the commits since deltalake read the log, not on the table's files.
    """

    def __init__(self, table_folder: TableFolder, loaded: DeltaTable, text: bytes | None) -> None:
        self.table_folder = table_folder
        self.folder = table_folder.folder
        self.table = table_folder.table
        self.version = loaded.version()
        #: the commit file of `version`; None if it is no longer kept
        self.text = text
        self.metadata = metadata_of(loaded)
        self.protocol = protocol_of(loaded)
        self._loaded = loaded
        self._loaded_at = monotonic()
        self._transactions: dict[str, int] = {}
        self._changed: dict[str, DataFile | None] = {}  # since the version that was loaded; None: removed
        self._commits: dict[int, Sequence[Action]] = {}  # since that version
        self._has_vectors = False

    @property
    def table_id(self) -> str:
        """The table's id, which it got when it was created."""
        return str(self.metadata["id"])

    @property
    def known(self) -> KnownVersion:
        """This version, for `TableFolder.commits_after`."""
        return KnownVersion(self.table_id, self.version, self.text)

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        found: dict[str, str] = self.metadata["configuration"]
        return found

    @property
    def columns(self) -> list[str]:
        """The names of the table's columns."""
        return [field["name"] for field in json.loads(self.metadata["schemaString"])["fields"]]

    @property
    def unmet(self) -> str | None:
        """The table's requirement of a writer that this program lacks; None if it may write."""
        return unwritable(self.protocol, self.metadata, self.table)

    @property
    def commits_read(self) -> int:
        """Number of commits since the version that deltalake read."""
        return self.version - int(self._loaded.version())

    @property
    def age_seconds(self) -> float:
        """Seconds since deltalake read the log: of the commits that it then found, old ones may have been removed."""
        return monotonic() - self._loaded_at

    def transaction(self, application: str) -> int:
        """Return the version of an application's last transaction; -1 if there was none.

        Raises DamagedTable, StorageFailed.
        """
        if application not in self._transactions:
            with reading(self.folder):
                found = self._loaded.transaction_version(application)
            self._transactions[application] = -1 if found is None else found
        return self._transactions[application]

    def actions(self, version: int) -> Sequence[Action] | None:
        """Return the actions of a commit up to this one; None if it is not kept. Raises DamagedTable, StorageFailed."""
        if version in self._commits:
            return self._commits[version]
        with reading(self.folder):
            text = self.text if version == self.version else self.table_folder.commit_file(version)
            return None if text is None else parsed(text)

    def user_metadata(self, application: str) -> str | None:
        """Return the user metadata of the commit that made the application's last transaction.

        Reads the commits backwards from this version: those of other writers come first. Returns None if the
        application made no transaction, its commit is no longer kept, or it has no user metadata. Raises DamagedTable,
        StorageFailed.
        """
        number = self.transaction(application)
        made = {"appId": application, "version": number}
        for version in range(self.version, -1, -1) if number >= 0 else ():
            actions = self.actions(version)
            if actions is None:
                return None
            if any(made.items() <= action.get("txn", {}).items() for action in actions):
                found: str | None = info_of(actions).get("userMetadata")
                return found
        return None

    def added_after(self, version: int) -> list[DataFile] | None:
        """Return the files with new rows of the commits after a version, up to this one.

        Returns None if a commit is no longer kept, these are more than MOST_COMMITS, or a later commit rearranged the
        rows. Raises DamagedTable, StorageFailed.
        """
        added: dict[str, DataFile] = {}
        for actions in self._actions_after(version):
            if actions is None or any(action["remove"]["path"] in added for action in actions if "remove" in action):
                return None
            adds = (action["add"] for action in actions if action.get("add", {}).get("dataChange"))
            added |= {add["path"]: DataFile.of_action(add) for add in adds}
        return list(added.values())

    def commit_hash(self, version: int) -> str | None:
        """Return what tells a commit up to this one from any other of its version; None if it is not kept.

        Raises DamagedTable, StorageFailed.
        """
        actions = self.actions(version)
        return None if actions is None else commit_hash(actions)

    def has_rows_of(self, version: int, commit: str | None) -> bool:
        """Whether the table has kept the rows of an older version, whose commit has this hash (`commit_hash`).

        Not if the table was restored or copied, or a commit since has taken rows. True if that cannot be told: the hash
        is None, or that commit is no longer kept, nor are maybe those after it. Raises DamagedTable, StorageFailed.
        """
        if version > self.version:
            return False
        found = self.commit_hash(version)
        if found is None:  # else one vain request for each later commit that is gone, too
            return True
        if commit not in (found, None):
            return False
        return not any(takes_rows(actions or ()) for actions in self._actions_after(version))

    def _actions_after(self, version: int) -> Iterator[Sequence[Action] | None]:
        """Yield the actions of the commits after a version, up to this one; None for one that is no longer kept."""
        if not self.version - MOST_COMMITS <= version <= self.version:
            yield None
            return
        for each in range(version + 1, self.version + 1):
            actions = self.actions(each)
            if actions is not None:
                self._commits[each] = actions
            yield actions

    def make_durable(self, after: int) -> None:
        """Make the commits after a version, whose writers have not, survive a loss of power, up to this one.

        Only a local folder has such commits; a machine has written those of some minutes ago by itself. Raises
        DamagedTable, StorageFailed.
        """
        storage = self.table_folder.storage
        if not isinstance(storage, LocalStorage):
            return
        names: list[str] = []
        times_ms: list[int] = []
        for version in range(self.version, after, -1):
            actions = self.actions(version) or []
            times_ms.append(info_of(actions).get("timestamp", 0))
            if times_ms[-1] < times_ms[0] - _WRITTEN_BACK_MS:
                break
            if not is_durable(actions):
                names += files_of(version, actions)
        with reading(self.folder):
            storage.sync(names, may_be_gone=True)

    def files(self) -> list[DataFile]:
        """Return the files of this version.

        Raises UnsupportedTable if the table's rows differ from the contents of its Parquet files.
        """
        reason = unreadable(self.protocol, self.properties)
        if reason is not None:
            raise UnsupportedTable(f"cannot read the table {self.folder} without Spark: it requires {reason}; {UNDO}")
        with reading(self.folder):
            if self._has_vectors or has_deletion_vectors(self._loaded):
                raise UnsupportedTable(
                    f"cannot read the table {self.folder} without Spark: its files have deleted rows that were not "
                    f"rewritten (deletion vectors); run REORG TABLE delta.`{self.folder}` APPLY (PURGE)"
                )
            files = [file for file in self._stored_files if file.name not in self._changed]
        return files + [file for file in self._changed.values() if file is not None]

    @cached_property
    def _stored_files(self) -> list[DataFile]:
        """The files of the version that deltalake read, which reads the table's log again for them."""
        return stored_files(self._loaded)

    def path(self, file: DataFile) -> str:
        """Return the path or URI of a file of this version."""
        return f"{self.folder}/{unquote(file.name)}"

    def rows(self, columns: Sequence[str] | None = None, only: Only = ALL_ROWS) -> pa.Table:
        """Return columns, by default all, of the rows with values of ``only`` (`rows_with`); by default of all rows.

        Columns that an older table lacks are null. Raises UnsupportedTable as `files`, DamagedTable if a file is
        missing or corrupt.
        """
        names = self.table.names() if columns is None else columns
        return pa.concat_tables([pa.Table.from_batches([], self.table.arrow_schema(names)), *self.tables(names, only)])

    def tables(
        self, columns: Sequence[str], only: Only = ALL_ROWS, files: Iterable[DataFile] | None = None
    ) -> Iterator[pa.Table]:
        """Yield `rows`, file by file; by default of all files."""
        for file in self.files() if files is None else files:
            if file.may_hold(only):
                yield self.table_folder.read_file(file, columns, only)

    def after(self, *commits: Commit) -> Snapshot:
        """Return the snapshot after these commits, which directly follow this version."""
        if not commits:
            return self
        later = object.__new__(Snapshot)
        later.__dict__ |= self.__dict__
        later.version, later.text = self.version + len(commits), commits[-1].text
        later._transactions, later._changed = dict(self._transactions), dict(self._changed)
        later._commits = self._commits | {
            version: each.actions for version, each in enumerate(commits, self.version + 1)
        }
        for action in chain.from_iterable(each.actions for each in commits):
            if "txn" in action:
                later._transactions[action["txn"]["appId"]] = action["txn"]["version"]
            elif "add" in action:
                later._has_vectors |= action["add"].get("deletionVector") is not None
                later._changed[action["add"]["path"]] = DataFile.of_action(action["add"])
            elif "remove" in action:
                later._changed[action["remove"]["path"]] = None
            elif "metaData" in action:
                later.metadata = {"configuration": {}} | action["metaData"]
            elif "protocol" in action:
                later.protocol = action["protocol"]
        return later

    def stored(self) -> list[DataFile] | None:
        """Return the files of this version as `files`; None if that raises."""
        try:
            return self.files()
        except (DeltaError, OSError, UnsupportedTable):
            return None
