"""The tables of a store in one folder: creates them, and reads the store's properties. No Spark."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from offsets_pipeline.errors import NoSuchStore, NoSuchTable, NotAStore, StoreMismatch
from offsets_pipeline.store.delta.filesystems import children
from offsets_pipeline.store.delta.properties import CLUSTER_NAME, CREATION, StoreProperties
from offsets_pipeline.store.delta.retry import with_retries
from offsets_pipeline.store.delta.s3_errors import storage_failed
from offsets_pipeline.store.delta.schemas import LOG, TABLE_BY_NAME, tables_of
from offsets_pipeline.store.delta.storage import storage_of
from offsets_pipeline.store.delta.table_folder import TableFolder

if TYPE_CHECKING:
    from offsets_pipeline.store.delta.snapshot import Snapshot


def properties_of(folder: str) -> StoreProperties:
    """Return the properties of the store in a folder, given as a path or as a URI of Arrow.

    Raises NoSuchStore if nothing is there, NotAStore if something else is there or a store of a newer format,
    DamagedTable if the log's table is damaged, UnsupportedTable if it has a feature that this program does not support.
    """
    return StoreProperties.from_table_properties(log_of(folder).properties, folder)


def log_of(folder: str) -> Snapshot:
    """Return the newest version of the table `log` in a folder. Raises as `properties_of`, but for any format."""
    try:
        return TableFolder(f"{folder}/{LOG.name}", LOG).snapshot()
    except NoSuchTable:
        raise no_store(folder) from None


def create_tables(folder: str, properties: StoreProperties) -> bool:
    """Create the tables of a store, the log last; returns False if another process created the same store.

    Completes a store that another process makes now, or died making. Raises NotAStore if the folder holds something
    else, also a store that lost its log, StoreMismatch if it is a store with other properties, UnsafeStorage,
    StorageFailed, and as `StoreProperties.require_partition_count`.
    """
    properties.require_partition_count()
    storage_of(folder)  # before Arrow, which does not name the schemes that are supported
    found = _children(folder)
    mark = uuid.uuid4().hex
    *others, log = (TableFolder(f"{folder}/{table.name}", table) for table in tables_of(properties.topic_kind))
    if found <= {each.table.name for each in (*others, log)} and not are_in_use(others) and not log.exists():
        with ThreadPoolExecutor(len(others)) as threads:  # creating a table is mostly waiting for the storage
            list(threads.map(TableFolder.create, others))
        log.create(properties.as_table_properties() | {CREATION: mark})
        if log.snapshot().properties.get(CREATION) == mark:
            return True
    elif not log.exists():
        raise NotAStore(f"cannot create a store in {folder}: it is not empty; name a new or empty folder")
    require_same(folder, properties_of(folder), properties)
    return False


def require_same(place: str, found: StoreProperties, wanted: StoreProperties) -> None:
    """Raise StoreMismatch if the store that was found at a place has other properties than the one to create."""
    if found != wanted:
        raise StoreMismatch(
            f"cannot create a store in {place}: it has a store with other properties; name another folder"
        )


def name_cluster(folder: str, name: str) -> None:
    """Give the store's cluster a name. Processes that write to the store go on.

    Raises NoSuchStore, NotAStore, WriteConflict if other writers change the properties too often.
    """
    properties_of(folder)
    log = TableFolder(f"{folder}/{LOG.name}", LOG)
    set_properties(log, {CLUSTER_NAME: name}, "a change of the cluster's name")


def set_properties(log: TableFolder, properties: Mapping[str, str], what: str) -> None:
    """Set properties of a store's log. Raises WriteConflict, naming ``what``, if other writers do so too often."""

    def change() -> None:
        seen = log.snapshot()
        log.commit(seen=seen, metadata=log.with_properties(seen, properties), operation="SET TBLPROPERTIES")

    with_retries(change, what)


def no_store(folder: str) -> NoSuchStore | NotAStore:
    """Return the error about a folder without the table `log`."""
    try:
        found = _children(folder)
    except NotAStore:
        found = {folder}
    if not found <= TABLE_BY_NAME.keys() or are_in_use(
        TableFolder(f"{folder}/{name}", TABLE_BY_NAME[name]) for name in found
    ):
        return NotAStore(f"cannot open store {folder}: it has no table named log; name the folder of a store")
    return NoSuchStore(f"no store at {folder}; ingest a log, run offsets create for an owned store, or check the path")


def are_in_use(tables: Iterable[TableFolder]) -> bool:
    """Return whether any of these tables of a place without a log has been written to: then the place has lost its log.

    Else there is no store yet: a process makes it now, or died doing so. The folder of a table may be there before its
    first version.
    """
    for table in tables:
        with suppress(NoSuchTable):
            if table.snapshot().version > 0:
                return True
    return False


def _children(folder: str) -> set[str]:
    try:
        return children(folder)
    except NotADirectoryError:
        raise NotAStore(f"cannot create a store in {folder}: it is a file; name a new or empty folder") from None
    except OSError as error:
        raise storage_failed(f"cannot list {folder}", folder, error, "check the path and your permissions") from error
