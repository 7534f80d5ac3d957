"""Copies a store of the previous format to a new store. No Spark.

The state is not copied: a fold or a reload of the new store makes it from the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.common.arrow_values import conformed
from offsets_pipeline.errors import StoreMismatch, WriteConflict
from offsets_pipeline.store.delta.data_file import APPLICATION
from offsets_pipeline.store.delta.properties import (
    FORMAT_VERSION,
    UPGRADABLE_FORMAT,
    StoreProperties,
    format_of,
    too_old,
)
from offsets_pipeline.store.delta.schemas import LOG, LOG_PARTITIONS, QUARANTINE, TOPIC_OFFSETS, TOPICS
from offsets_pipeline.store.delta.store_folder import create_tables, log_of
from offsets_pipeline.store.delta.table_folder import TableFolder

if TYPE_CHECKING:
    from offsets_pipeline.store.delta.snapshot import Snapshot


def upgrade(folder: str, new_folder: str) -> int:
    """Copy the log of a store, and what belongs to it, to a new store; returns the number of its records.

    The folders are paths or URIs of Arrow. The old store is only read. A copy that was interrupted is begun again by
    another call with the same folders. A complete copy stays as it is.

    Raises:
        NoSuchStore, NotAStore: there is no store at ``folder``, or ``new_folder`` holds something else.
        StoreMismatch: the store has another format than UPGRADABLE_FORMAT, or ``new_folder`` holds another store's log.
        WriteConflict: another process wrote to the old store meanwhile.
        DamagedTable, StorageFailed, UnsafeStorage: as `TableFolder.snapshot` and `create_tables`.
    """
    log = log_of(folder)
    version = format_of(log.properties, folder)
    if version < UPGRADABLE_FORMAT:
        raise StoreMismatch(f"cannot copy {folder}: {too_old(version)}")
    if version == FORMAT_VERSION:
        raise StoreMismatch(f"{folder} has format {version} already, the one of this program; use it as it is")
    if version > FORMAT_VERSION:
        raise StoreMismatch(
            f"{folder} has format {version}, this program writes {FORMAT_VERSION}; use a newer version of the program"
        )
    create_tables(new_folder, StoreProperties.of_log(log.properties, folder))
    new_log = TableFolder(f"{new_folder}/{LOG.name}", LOG)
    copied = new_log.snapshot()
    if copied.transaction(_copy_of(log)) == log.version:  # the process of this copy ended before it said so
        return sum(file.rows for file in log.files())
    if copied.files():
        raise StoreMismatch(f"cannot copy {folder} to {new_folder}: it holds a log already; name a new folder")
    for table in (LOG_PARTITIONS, TOPICS, QUARANTINE, TOPIC_OFFSETS):
        old, new = (TableFolder(f"{place}/{table.name}", table) for place in (folder, new_folder))
        if not old.exists():
            continue  # a table that a store gets when it is first written
        if table is TOPIC_OFFSETS:
            new.create()
        _copy(old.snapshot(), new)
    return _copy(log, new_log)  # last: with its records the store is complete


def _copy(old: Snapshot, new: TableFolder) -> int:
    """Write the rows of all files of a table to the new table in one commit, in place of its own; returns how many."""
    seen, source_table = new.snapshot(), TableFolder(old.folder, old.table)
    written = []
    try:
        for file in old.files():
            rows = conformed(source_table.read_file(file), new.table.arrow_schema())
            if rows.num_rows:
                written.append(new.write_file(rows))
        _require_unchanged(old, source_table)
    except BaseException:
        new.remove_uncommitted(written)
        raise
    advance = {APPLICATION: seen.transaction(APPLICATION) + 1, _copy_of(old): old.version}
    new.commit(written, seen.files(), seen=seen, advance=advance, operation="UPGRADE")
    return sum(file.rows for file in written)


def _copy_of(old: Snapshot) -> str:
    """The application id of the Delta transaction that says which version of a table was copied."""
    return f"copy of {old.table_id}"


def _require_unchanged(old: Snapshot, table: TableFolder) -> None:
    if table.snapshot().version != old.version:
        raise WriteConflict(
            f"another process wrote to {old.folder} while it was copied; stop all writers of the store, then try again"
        )
