"""Reads the metadata and the files of one version of a table through `deltalake`, and quotes names in queries.

Of a table that cannot be read it names the damaged file, with its version, the lost data and the recovery.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import fs

from offsets_pipeline.common.foreign_errors import first_line
from offsets_pipeline.common.input_text import is_utf8, shown
from offsets_pipeline.errors import (
    DamagedTable,
    InvalidRequest,
    NoSuchTable,
    OffsetsError,
    UnsupportedTable,
    WriteConflict,
)
from offsets_pipeline.store.delta.data_file import DataFile
from offsets_pipeline.store.delta.filesystems import children, encoded_uri, open_path, refuse_encoded
from offsets_pipeline.store.delta.protocol import DELETION_VECTORS, DELTA_LOG, commit_path, parsed
from offsets_pipeline.store.delta.s3_access import (
    connection_options,
    endpoint_options,
    is_s3,
    longest_wait,
    object_store_options,
)
from offsets_pipeline.store.delta.s3_errors import known_cause, storage_failed
from offsets_pipeline.store.delta.schemas import STATE
from offsets_pipeline.store.delta.storage import storage_of

_LISTINGS, _LISTING_SECONDS = 20, 0.01
#: What deltalake says of a gap, and of a list whose connection ended before it did: it asks for no list again.
_TRY_AGAIN = re.compile("Expected contiguous commit files|Error getting list response body")

#: Errors of reading: the storage is out of reach, a file is gone, or the table has a feature that is not supported.
UNREADABLE = (DeltaError, OSError, pa.ArrowException, UnsupportedTable)
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint.*\.parquet")
LAST_CHECKPOINT = "_last_checkpoint"


def open_table(folder: str, version: int | None = None) -> DeltaTable:
    """Return a version of the table in a folder, a path or a URI; by default the newest.

    Raises one of UNREADABLE, and as `refuse_encoded`.

    A list of files that is made while another process commits may lack a commit and hold the next one. So a gap counts
    as damage only if it is still there after some attempts.
    """
    if "://" not in folder:
        refuse_encoded(folder)
    options = _access_options(folder) if is_s3(folder) else None
    attempts = 0
    while True:
        try:
            return DeltaTable(encoded_uri(folder), version=version, storage_options=options)
        except (DeltaError, OSError) as error:
            attempts += 1
            if _TRY_AGAIN.search(str(error)) is None or attempts == _LISTINGS:
                raise
            time.sleep(_LISTING_SECONDS)


def _access_options(folder: str) -> dict[str, str]:
    endpoint = endpoint_options(folder)
    # a second time, by the name of the variable that deltalake prefers
    of_s3 = {f"{name}_s3": each for name, each in endpoint.items()}
    limit = {"retry_timeout": f"{longest_wait() // timedelta(milliseconds=1)}ms"}
    return {**connection_options(), **limit, **object_store_options(), **endpoint, **of_s3}


def has_deletion_vectors(table: DeltaTable) -> bool:
    """Return whether files of the table contain deleted rows."""
    return DELETION_VECTORS in (table.protocol().reader_features or ()) and any(
        batch.num_rows for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors())
    )


def metadata_of(table: DeltaTable) -> dict[str, Any]:
    """Return the fields of the table's action `metaData`."""
    found = table.metadata()
    fields = {
        "id": str(found.id),
        "name": found.name,
        "description": found.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": table.schema().to_json(),
        "partitionColumns": list(found.partition_columns),
        "configuration": dict(found.configuration),
        "createdTime": found.created_time,
    }
    return {name: value for name, value in fields.items() if value is not None}


def protocol_of(table: DeltaTable) -> dict[str, Any]:
    """Return the fields of the table's action `protocol`."""
    found = table.protocol()
    return {
        "minReaderVersion": found.min_reader_version,
        "minWriterVersion": found.min_writer_version,
        "readerFeatures": found.reader_features,
        "writerFeatures": found.writer_features,
    }


def stored_files(table: DeltaTable) -> list[DataFile]:
    """Return the files of a table."""
    # neither pa.table() nor times as Python has them: for both Arrow imports pandas, which takes as long as an answer
    actions = pa.RecordBatchReader.from_stream(table.get_add_actions()).read_all()

    def column(name: str) -> list[Any]:
        return actions[name].to_pylist() if name in actions.column_names else [None] * actions.num_rows

    def bounds(name: str) -> list[dict[str, Any]]:
        if name not in actions.column_names:
            return [{}] * actions.num_rows
        struct = actions[name].combine_chunks()
        columns = (_statistics(pc.struct_field(struct, each.name)) for each in struct.type)
        names = [each.name for each in struct.type]
        known = [
            {key: each for key, each in zip(names, row, strict=True) if each is not None}
            for row in zip(*columns, strict=True)
        ]
        return known or [{}] * actions.num_rows

    return [
        DataFile(path, size, rows or 0, low, high, _in_protocol(partition or {}))
        for path, size, rows, partition, low, high in zip(
            *(column(name) for name in ("path", "size_bytes", "num_records", "partition")),
            bounds("min"),
            bounds("max"),
            strict=True,
        )
    ]


def _statistics(bounds: pa.Array) -> list[Any]:
    """Bounds as Delta's statistics have them: timestamps as texts, see `in_statistics`."""
    if not pa.types.is_timestamp(bounds.type):
        listed: list[Any] = bounds.to_pylist()
        return listed
    # without a time zone: Arrow reads a database of all to convert one
    times = bounds.cast(pa.timestamp("ms", bounds.type.tz), safe=False).cast(pa.int64()).cast(pa.timestamp("ms"))
    return [each and f"{each[:10]}T{each[11:]}Z" for each in times.cast(pa.string()).to_pylist()]


def _in_protocol(partition: Mapping[str, object]) -> dict[str, str]:
    """Values of partition columns as Delta's protocol writes them."""
    return {name: str(each).lower() if isinstance(each, bool) else str(each) for name, each in partition.items()}


def names_in_order(names: Collection[str]) -> list[str]:
    """Return the names in order, each once. Raises InvalidRequest for a name that UTF-8 cannot hold."""
    for each in names:
        if not is_utf8(each):
            raise InvalidRequest(f"{shown(each)} is not a name: it has an unpaired surrogate, which UTF-8 cannot hold")
    return sorted(set(names))


def quoted(text: str) -> str:
    """Return the text as a string literal in SQL. Raises InvalidRequest as `names_in_order`."""
    return "'" + names_in_order([text])[0].replace("'", "''") + "'"


# --- damage


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
    return storage_failed(f"cannot read the table {folder}", folder, error, "check its storage and your permissions")


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
        latest = None if pointed is None else int(json.loads(pointed)["version"])
    except (ValueError, KeyError, TypeError):
        return f"the file {DELTA_LOG}/{LAST_CHECKPOINT} of {folder} is corrupt; nothing is lost: delete it"
    if latest is not None and latest not in checkpoints:
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
    """Return why the contents of a Parquet file cannot be decoded; None if they can. Reads all of it.

    Raises OSError if the storage fails or the file is gone: its contents are not known then.
    """
    system, name = open_path(path)
    with system.open_input_file(name) as source:
        contents = _Contents(source)
        try:
            with pq.ParquetFile(pa.PythonFile(contents, mode="r")) as file:
                for _ in file.iter_batches(use_threads=False):
                    pass
        except (OSError, pa.ArrowException) as error:
            if contents.failed is not None:
                raise contents.failed from error
            return first_line(error)
    return None


class _Contents:
    """The contents of a file, for Arrow. ``failed`` is the storage's error, which Arrow raises as those of decoding."""

    closed = False

    def __init__(self, source: pa.NativeFile) -> None:
        self._source = source
        self.failed: OSError | None = None
        self.seek, self.tell = source.seek, source.tell

    def read(self, size: int) -> bytes:
        try:
            return bytes(self._source.read(size))
        except OSError as error:
            self.failed = error
            raise

    def close(self) -> None:
        self.closed = True


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
