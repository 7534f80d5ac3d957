"""Compacting small files of a table, and removing files that no version within its retention needs. No Spark."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake.exceptions import DeltaError
from pyarrow import fs

from offsets_pipeline.delta.damage import explained
from offsets_pipeline.delta.filesystems import open_path
from offsets_pipeline.delta.snapshot import conformed
from offsets_pipeline.errors import StorageFailed, WriteConflict
from offsets_pipeline.foreign_errors import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from offsets_pipeline.delta.data_file import DataFile
    from offsets_pipeline.delta.table_folder import TableFolder

#: Larger files are left alone, so that a long log is not rewritten again and again.
SMALL_BYTES = 16 * 1024 * 1024
#: A file with more rows than this times the rows of all smaller files stays as it is.
_MOST_TIMES_AS_MANY = 2
#: A compacted file has about this size; tasks share a table out by files.
TARGET_BYTES = 64 * 1024 * 1024


def never() -> bool:
    """Return False: the ``stop`` of work that runs to its end."""
    return False


def compact(
    folder: TableFolder,
    rewrite: Callable[[list[DataFile]], list[DataFile]] | None = None,
    is_stopping: Callable[[], bool] = never,
) -> int:
    """Put small files of a table together, by partition; returns how many files were replaced.

    Each commit replaces files of up to 64 MiB and says that no row changed. ``rewrite`` writes the rows of such files
    to new files; by default to one. Files that another writer replaced first stay as they are. Ends between two commits
    if ``is_stopping``.

    Raises as `TableFolder.snapshot` and `TableFolder.commit`; StorageFailed if new files cannot be written.
    """
    seen = folder.snapshot()
    replaced = 0
    for together in _bins(seen.files()):
        if is_stopping():
            break
        try:
            added = (rewrite or partial(_as_one, folder))(together)
        except OSError as error:
            raise StorageFailed(
                f"cannot compact {folder.folder}: {first_line(error)}; nothing was committed; check its free space and "
                "your permissions, then try again"
            ) from error
        try:
            folder.commit(added, together, seen=seen, is_change=False, operation="OPTIMIZE")
        except WriteConflict:
            continue
        replaced += len(together)
    return replaced


def _as_one(folder: TableFolder, files: list[DataFile]) -> list[DataFile]:
    rows = pa.concat_tables(conformed(folder.read_file(file), folder.table) for file in files)
    together = rows.drop_columns(list(folder.table.partitioned_by))
    return [folder.write_file(together, files[0].partition)]


def _bins(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    """Small files of one partition that become one file, at least two at a time."""
    small: dict[tuple[tuple[str, str], ...], list[DataFile]] = {}
    for file in files:
        if file.size < SMALL_BYTES:
            small.setdefault(tuple(sorted(file.partition.items())), []).append(file)
    for of_partition in small.values():
        together: list[DataFile] = []
        held = 0
        for file in _worth_rewriting(of_partition):
            if held + file.size > TARGET_BYTES:
                yield together
                together, held = [], 0
            together.append(file)
            held += file.size
        if len(together) > 1:
            yield together


def _worth_rewriting(files: Sequence[DataFile]) -> list[DataFile]:
    """The files, without those that have far more rows than all smaller ones together.

    Else each run would write again what the runs before it compacted. So a row is rewritten a number of times that
    grows with the logarithm of the rows of a file.
    """
    largest = rows = 0
    for held in sorted(file.rows for file in files):
        if held <= _MOST_TIMES_AS_MANY * rows:
            largest = held
        rows += held
    return [file for file in files if file.rows <= largest]


def vacuum(folder: TableFolder, is_stopping: Callable[[], bool] = never) -> int:
    """Remove files that no version within `delta.deletedFileRetentionDuration` needs; returns how many.

    Files that no commit ever named go once they are older than that, too. Ends between two files if ``is_stopping``.
    Raises as `TableFolder.snapshot`.
    """
    table = folder.snapshot().delta_table()
    try:
        unused: list[str] = table.vacuum(dry_run=True, full=True)
    except (DeltaError, OSError) as error:
        raise explained(folder.folder, error) from error
    system, path = open_path(folder.folder)
    removed = 0
    for name in unused:  # also those that an earlier vacuum removed
        if is_stopping():
            break
        try:
            if system.get_file_info(f"{path}/{name}").type == fs.FileType.File:
                system.delete_file(f"{path}/{name}")
                removed += 1
        except OSError as error:
            raise StorageFailed(f"cannot remove {name} of {folder.folder}: {first_line(error)}") from error
    return removed


def live(folder: TableFolder) -> tuple[int, int]:
    """Return how many files the table has, and their size in bytes."""
    files: list[Any] = folder.snapshot().files()
    return len(files), sum(file.size for file in files)
