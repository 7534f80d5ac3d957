"""Compacting small files of a table, and removing files that no version within its retention needs. No Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake.exceptions import DeltaError
from pyarrow import fs

from offsets_pipeline.errors import WriteConflict
from offsets_pipeline.store.delta.filesystems import open_path
from offsets_pipeline.store.delta.protocol import DELTA_LOG, commit_path
from offsets_pipeline.store.delta.reader import LAST_CHECKPOINT, explained, open_table, reading
from offsets_pipeline.store.delta.s3_errors import storage_failed
from offsets_pipeline.store.delta.table_folder import READERS_SECONDS, TableFolder

if TYPE_CHECKING:
    from offsets_pipeline.store.delta.data_file import DataFile

_ABANDONED_HOURS = 24
_VERSION = re.compile(DELTA_LOG + r"/(\d{20})\.")
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
        added = (rewrite or partial(_as_one, folder))(together)
        try:
            folder.commit(added, together, seen=seen, is_change=False, operation="OPTIMIZE")
        except WriteConflict:
            continue
        replaced += len(together)
    return replaced


def _as_one(folder: TableFolder, files: list[DataFile]) -> list[DataFile]:
    rows = pa.concat_tables(map(folder.read_file, files)).drop_columns(list(folder.table.partitioned_by))
    return [folder.write_file(rows, files[0].partition)]


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


def vacuum(
    folder: TableFolder,
    is_stopping: Callable[[], bool] = never,
    dropped_since_ms: dict[str, int] | None = None,
    now_ms: int = 0,
) -> tuple[int, int]:
    """Remove files that the table dropped longer ago than its `delta.deletedFileRetentionDuration`.

    Returns the number of files removed, and of those that are left in the folder, with its Delta log. Files that no
    commit ever named go after a day: until then a task may write them for a commit to come. Ends between two files if
    ``is_stopping``.

    Args:
        folder: The table.
        is_stopping: Whether to end early.
        dropped_since_ms: By file, the time of the first run that found it dropped, or found it a commit before the last
            checkpoint; each run adds to it. Such a file goes ten minutes later: readers of an older version have ended
            by then.
        now_ms: The present time.

    Raises as `TableFolder.snapshot`.
    """
    unchecked: dict[str, Any] = {"dry_run": True, "enforce_retention_duration": False}
    system, path = open_path(folder.folder)
    with reading(folder.folder):
        table = open_table(folder.folder)  # not that of a snapshot, which threads of a store share
    try:
        found = system.get_file_info(fs.FileSelector(path, allow_not_found=True, recursive=True))
        stored = {each.path.removeprefix(f"{path}/") for each in found if each.type == fs.FileType.File}
        unused = {*table.vacuum(**unchecked | {"full": True, "retention_hours": _ABANDONED_HOURS}), *table.vacuum()}
        if dropped_since_ms is not None:
            dropped = stored.intersection(table.vacuum(retention_hours=0, **unchecked)) | _in_checkpoint(folder, stored)
            known = {name: dropped_since_ms.get(name, now_ms) for name in dropped}
            dropped_since_ms.clear()
            dropped_since_ms.update(known)
            unused |= {name for name, since_ms in known.items() if now_ms - since_ms >= READERS_SECONDS * 1000}
    except (DeltaError, OSError, ValueError) as error:
        raise explained(folder.folder, error) from error
    removed = 0
    for name in sorted(unused & stored):
        if is_stopping():
            break
        try:
            system.delete_file(f"{path}/{name}")
        except FileNotFoundError:
            continue  # another vacuum came first
        except OSError as error:
            what, remedy = f"cannot remove {name} of {folder.folder}", "check your permissions, then try again"
            raise storage_failed(what, folder.folder, error, remedy) from error
        removed += 1
    return removed, len(stored) - removed


def _in_checkpoint(folder: TableFolder, stored: set[str]) -> set[str]:
    """The commits and checkpoints before the last checkpoint that is whole: it has what they say."""
    last = folder.storage.read(f"{DELTA_LOG}/{LAST_CHECKPOINT}")  # written when its checkpoint is whole
    version = -1 if last is None else json.loads(last)["version"]
    if commit_path(version).replace(".json", ".checkpoint.parquet") not in stored:
        return set()
    return {name for name in stored if (found := _VERSION.match(name)) is not None and int(found[1]) < version}


def live(folder: TableFolder) -> tuple[int, int]:
    """Return how many files the table has, and their size in bytes."""
    files: list[Any] = folder.snapshot().files()
    return len(files), sum(file.size for file in files)
