"""Compacting small files of a table, and removing files that no version within its retention needs. No Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake.exceptions import DeltaError
from pyarrow import fs

from offsets_pipeline.delta.damage import explained, reading
from offsets_pipeline.delta.filesystems import open_path
from offsets_pipeline.delta.reader import StoredFile, rows_of
from offsets_pipeline.errors import StorageFailed, WriteConflict, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from offsets_pipeline.delta.data_file import AddFile
    from offsets_pipeline.delta.schemas import Table
    from offsets_pipeline.delta.table_folder import TableFolder

#: Larger files are left alone, so that a long log is not rewritten again and again.
SMALL_BYTES = 16 * 1024 * 1024
#: A compacted file has about this size; tasks share a table out by files.
TARGET_BYTES = 64 * 1024 * 1024


def conformed(rows: pa.Table, table: Table) -> pa.Table:
    """Return the rows with the columns and types of the table's schema; columns that are missing are null."""
    schema = table.arrow_schema()
    columns = [
        rows[each.name].cast(each.type) if each.name in rows.column_names else pa.nulls(rows.num_rows, each.type)
        for each in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def compact(folder: TableFolder, write: Callable[[pa.Table, StoredFile], list[AddFile]] | None = None) -> int:
    """Put small files of a table together, by partition; returns how many files were replaced.

    Each commit replaces files of up to 64 MiB and says that no row changed. ``write`` writes the rows of one commit,
    in the partition of that file; by default to one file. Files that another writer replaced first stay as they are.

    Raises as `TableFolder.snapshot` and `TableFolder.commit`.
    """
    seen = folder.snapshot()
    replaced = 0
    for together in _bins(seen.files()):
        with reading(folder.folder, together):
            rows = pa.concat_tables(_file_rows(folder, file) for file in together)
        added = [folder.write_file(rows, together[0].partition)] if write is None else write(rows, together[0])
        try:
            folder.commit(added, together, seen=seen, is_change=False, operation="OPTIMIZE")
        except WriteConflict:
            continue
        replaced += len(together)
    return replaced


def _file_rows(folder: TableFolder, file: StoredFile) -> pa.Table:
    rows = conformed(rows_of(f"{folder.folder}/{file.name}"), folder.table)
    return rows.drop_columns(list(folder.table.partitioned_by))


def _bins(files: Iterable[StoredFile]) -> Iterator[list[StoredFile]]:
    """Small files of one partition that become one file, at least two at a time."""
    small: dict[tuple[tuple[str, str], ...], list[StoredFile]] = {}
    for file in files:
        if file.size < SMALL_BYTES:
            small.setdefault(tuple(sorted(file.partition.items())), []).append(file)
    for of_partition in small.values():
        together: list[StoredFile] = []
        held = 0
        for file in of_partition:
            if held + file.size > TARGET_BYTES:
                yield together
                together, held = [], 0
            together.append(file)
            held += file.size
        if len(together) > 1:
            yield together


def vacuum(folder: TableFolder) -> int:
    """Remove files that no version within `delta.deletedFileRetentionDuration` needs; returns how many.

    Files that no commit ever named go once they are older than that, too. Raises as `TableFolder.snapshot`.
    """
    table = folder.snapshot().delta_table()
    try:
        unused: list[str] = table.vacuum(dry_run=True, full=True)
    except (DeltaError, OSError) as error:
        raise explained(folder.folder, error) from error
    system, path = open_path(folder.folder)
    for name in unused:
        try:
            if system.get_file_info(f"{path}/{name}").type == fs.FileType.File:
                system.delete_file(f"{path}/{name}")
        except OSError as error:
            raise StorageFailed(f"cannot remove {name} of {folder.folder}: {first_line(error)}") from error
    return len(unused)


def live(folder: TableFolder) -> tuple[int, int]:
    """Return how many files the table has, and their size in bytes."""
    files: list[Any] = folder.snapshot().files()
    return len(files), sum(file.size for file in files)
