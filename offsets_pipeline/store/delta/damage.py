"""Names the damaged file of a table that cannot be read, with its version, the lost data and the recovery."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import fs

from offsets_pipeline.common.foreign_errors import first_line
from offsets_pipeline.errors import (
    DamagedTable,
    NoSuchTable,
    OffsetsError,
    StorageFailed,
    UnsupportedTable,
    WriteConflict,
)
from offsets_pipeline.store.delta.filesystems import children, open_path
from offsets_pipeline.store.delta.protocol import DELTA_LOG, commit_path, parsed
from offsets_pipeline.store.delta.reader import open_table, stored_files
from offsets_pipeline.store.delta.s3_errors import known_cause
from offsets_pipeline.store.delta.schemas import STATE
from offsets_pipeline.store.delta.storage import storage_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from offsets_pipeline.store.delta.data_file import DataFile

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint.*\.parquet")
LAST_CHECKPOINT = "_last_checkpoint"


@contextmanager
def reading(folder: str, files: Iterable[DataFile] | None = None) -> Iterator[None]:
    """Turn an error of reading a table into one of this package that says what is wrong.

    With ``files`` the table's data files were read too. Raises NoSuchTable, DamagedTable,
    UnsupportedTable, StorageFailed, or WriteConflict if the newest version of the table lacks one of the files.
    """
    try:
        yield
    except OffsetsError:
        raise
    except Exception as error:  # deltalake raises bare exceptions out of Rust
        raise explained(folder, error, files) from error


def explained(folder: str, error: Exception, files: Iterable[DataFile] | None = None) -> OffsetsError:
    """Return the error of this package for an error of reading a table; see `reading`."""
    said = known_cause(folder, error)
    if said is None and files is not None and _were_replaced(folder, files):
        return WriteConflict(f"files of {folder} were compacted or cleaned while they were read; run it again")
    damaged = damage_of(folder, files) if said is None else None
    if damaged is not None:
        return damaged
    if isinstance(error, TableNotFoundError) or (isinstance(error, FileNotFoundError) and files is None):
        store, _, table = folder.rpartition("/")
        reload = f"make the state again from the log: offsets reload --store {store}"
        return NoSuchTable(f"no Delta table at {folder}; {reload if table in STATE else 'check the path'}")
    if isinstance(error, DeltaError):
        return UnsupportedTable(f"cannot read the table {folder} without Spark: {first_line(error)}")
    said = said or f"{first_line(error)}; check its storage and your permissions"
    return StorageFailed(f"cannot read the table {folder}: {said}")


def damage_of(folder: str, files: Iterable[DataFile] | None = None) -> DamagedTable | None:
    """Return what is wrong with a table's log, and with these of its data files; None if nothing is found."""
    try:
        damage = _damaged_log(folder) or _damaged_file(folder, files or ())
    except (OSError, pa.ArrowException):
        return None
    return None if damage is None else DamagedTable(damage)


def _were_replaced(folder: str, files: Iterable[DataFile]) -> bool:
    """Return whether the newest version lacks one of these files: upkeep removes it some minutes later."""
    try:
        newest = {unquote(file.name) for file in stored_files(open_table(folder))}
    except Exception:  # noqa: BLE001 - `damage_of` finds what is wrong
        return False
    return any(unquote(file.name) not in newest for file in files)


def _damaged_log(folder: str) -> str | None:
    """Return what is wrong with a table's commits and checkpoints, and the way back; None if nothing is."""
    storage = storage_of(folder)
    names = children(f"{folder}/{DELTA_LOG}")
    commits, checkpoints = _versions(_COMMIT, names), _versions(_CHECKPOINT, names)
    if not commits and not checkpoints:
        if any(name.endswith(".parquet") for name in children(folder)):
            return (
                f"the table {folder} is damaged: its folder {DELTA_LOG} has no commit; all rows are lost to readers; "
                f"{_recovery(folder)}"
            )
        return None
    for name in sorted(filter(_CHECKPOINT.fullmatch, names), reverse=True):
        reason, version = _unreadable_parquet(f"{folder}/{DELTA_LOG}/{name}"), int(name.partition(".")[0])
        if reason is not None:
            lost = _lost_without_checkpoint(folder, version, commits, f"it and {DELTA_LOG}/{LAST_CHECKPOINT}")
            return (
                f"the checkpoint file {DELTA_LOG}/{name} (version {version}) of {folder} is corrupt ({reason}); {lost}"
            )
    pointed = storage.read(f"{DELTA_LOG}/{LAST_CHECKPOINT}")
    try:
        latest = -1 if pointed is None else int(json.loads(pointed)["version"])
    except (ValueError, KeyError, TypeError):
        return f"the file {DELTA_LOG}/{LAST_CHECKPOINT} of {folder} is corrupt; nothing is lost: delete it"
    if latest >= 0 and latest not in checkpoints:
        lost = _lost_without_checkpoint(folder, latest, commits, f"{DELTA_LOG}/{LAST_CHECKPOINT}")
        return f"the checkpoint file of version {latest} of {folder} is missing, but {LAST_CHECKPOINT} names it; {lost}"
    first = max(checkpoints, default=-1) + 1
    for version in range(first, max(commits, default=-1) + 1):
        text = storage.read(commit_path(version))
        file = f"the commit file {commit_path(version)} (version {version}) of {folder}"
        lost = f"the changes of version {version} are lost, and version {version} and later cannot be read"
        if text is None:
            return f"{file} is missing: {lost}; {_recovery(folder)}"
        try:
            if not all(isinstance(action, dict) for action in parsed(text)) or not text.strip():
                raise ValueError  # noqa: TRY301 - a file of no actions is as corrupt
        except ValueError:
            return f"{file} is corrupt: {lost}; {_recovery(folder)}"
    return None


def _versions(kind: re.Pattern[str], names: Iterable[str]) -> list[int]:
    """Return the versions of these files of a table's log that are of one kind, in order."""
    return sorted(int(found[1]) for name in names if (found := kind.fullmatch(name)))


def _lost_without_checkpoint(folder: str, version: int, commits: Iterable[int], removable: str) -> str:
    """Return what is lost with the checkpoint of a version, and the way back: to delete ``removable`` may suffice."""
    if set(range(version + 1)) <= set(commits):
        return f"nothing is lost: delete {removable}"
    return f"versions up to {version} are lost; {_recovery(folder)}"


def _damaged_file(folder: str, files: Iterable[DataFile]) -> str | None:
    """Return what is wrong with the first damaged data file, and the way back; None if all can be read."""
    system, path = open_path(folder)
    for file in files:
        found = system.get_file_info(f"{path}/{file.name}")
        if found.type != fs.FileType.File:
            reason: str | None = "missing"
        elif found.size != file.size:
            reason = f"corrupt: it has {found.size} bytes instead of {file.size}"
        else:
            reason = _unreadable_parquet(f"{folder}/{file.name}")
            reason = reason and f"corrupt ({reason})"
        if reason:
            version = _version_of(folder, file.name)
            added = "" if version is None else f" (added by version {version})"
            lost = f"its {file.rows} rows are lost; {_recovery(folder)}"
            return f"the data file {file.name}{added} of {folder} is {reason}: {lost}"
    return None


def _unreadable_parquet(path: str) -> str | None:
    """Return why a Parquet file cannot be read; None if it can. Reads all of it."""
    system, name = open_path(path)
    try:
        with system.open_input_file(name) as source, pq.ParquetFile(source) as file:
            for _ in file.iter_batches(use_threads=False):
                pass
    except (OSError, pa.ArrowException) as error:
        return first_line(error)
    return None


def _version_of(folder: str, name: str) -> int | None:
    """Return the version that added a file; None if its commit is no longer kept."""
    storage = storage_of(folder)
    for version in reversed(_versions(_COMMIT, children(f"{folder}/{DELTA_LOG}"))):
        text = storage.read(commit_path(version)) or b""
        if any(action["add"]["path"] == name for action in parsed(text) if "add" in action):
            return version
    return None


def _recovery(folder: str) -> str:
    store, _, table = folder.rpartition("/")
    reload = f"move the folder of this table away and make the state again from the log: offsets reload --store {store}"
    way = reload if table in STATE else "ingest the log again into a new store"
    return f"restore the file from a backup of the store; without one, {way}"
