"""Tables of a few rows: the driver reads and rewrites them as a whole, without a Spark job where Arrow reaches them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from offsets_pipeline.delta.data_file import written_file
from offsets_pipeline.delta.reader import UNREADABLE, newest_table, stored_files, table_as_of, whole
from offsets_pipeline.guarded import GuardedWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalake import DeltaTable

    from offsets_pipeline.delta.reader import StoredFile
    from offsets_pipeline.delta.schemas import Table
    from offsets_pipeline.store import Store

_MAX_BYTES = 8 * 1024 * 1024  # of files; more is read by Spark


def read_rows(store: Store, table: Table) -> pa.Table:
    """The rows of a small table, with the columns of `schemas.py`; null in columns that an older store lacks."""
    try:
        found = _rows(newest_table(store.arrow_folder(table.name)))
    except UNREADABLE:
        found = None
    return conformed(store.read(table.name).toArrow() if found is None else found, table)


def files_and_rows(writer: GuardedWriter) -> tuple[list[StoredFile] | None, pa.Table | None]:
    """The files of a table as of the writer's version, and its rows as they lie there.

    None for files that Arrow does not reach, and for rows of more than 8 MiB.
    """
    if writer.files is None:
        return None, None
    try:
        table = table_as_of(writer.files.folder, writer.version)
        return stored_files(table), _rows(table)
    except UNREADABLE:
        return None, None


def conformed(rows: pa.Table, table: Table) -> pa.Table:
    """The rows with the columns and types of `schemas.py`; columns that are not there are null."""
    schema = table.arrow_schema()
    columns = [
        rows[each.name].cast(each.type) if each.name in rows.column_names else pa.nulls(rows.num_rows, each.type)
        for each in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


class SmallTable:
    """The rows of a small table, and the right to replace them unless another writer does first."""

    def __init__(self, store: Store, table: Table) -> None:
        self._store = store
        self._table = table
        self._writer = GuardedWriter(store, table)
        self._files, found = files_and_rows(self._writer)
        if found is None:
            found = store.snapshot(table.name, self._writer.version).toArrow()
        self.rows = conformed(found, table)

    def replace(self, rows: pa.Table, bounded: Sequence[str]) -> None:
        """Commit these rows in place of all; ``bounded`` are columns without nulls to keep statistics of.

        Raises WriteConflict if another writer committed since this object was made: then nothing was written.
        """
        commit = self._writer.files
        if commit is not None and self._files is not None:
            commit.replace([written_file(commit.folder, rows, bounded)], self._files)
        else:
            self._writer.overwrite(self._store.spark.createDataFrame(rows, self._table.schema()).coalesce(1))


def _rows(table: DeltaTable) -> pa.Table | None:
    files = stored_files(table)
    if sum(file.size for file in files) > _MAX_BYTES:
        return None
    return whole(table)
