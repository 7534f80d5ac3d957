"""The folder that an export writes to, and its manifest.

The manifest gets its final name last. Until then the folder has it under a temporary name. This identifies a killed
export, and the next export replaces it.
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from offsets_pipeline.common.foreign_errors import first_line
from offsets_pipeline.errors import TargetNotWritable
from offsets_pipeline.store.delta.filesystems import synchronise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import IO

    from _typeshed import DataclassInstance

    #: Writes the manifest of a complete export.
    Finish = Callable[[DataclassInstance], None]

#: The file that lists what a complete export wrote.
MANIFEST = "export-manifest.json"
#: Suffix of the names of incomplete folders.
UNFINISHED = ".unfinished"
_UNFINISHED_MANIFEST = MANIFEST + UNFINISHED


@contextmanager
def target_folder(folder: Path, topic: str) -> Iterator[Finish]:
    """Open an empty folder for an export of a topic. Removes the remains of a killed export of it.

    The `with` block writes the folders and syncs them, and calls the result with the manifest.

    If the export fails, removes all that it wrote. Raises TargetNotWritable.
    """
    try:
        with _locked(folder, topic) as finish:
            yield finish
    except OSError as error:
        raise TargetNotWritable(
            f"cannot export to {folder}: {first_line(error)}; what was written is removed; check its free space "
            "and your permissions, then try again"
        ) from error


@contextmanager
def _locked(folder: Path, topic: str) -> Iterator[Finish]:
    there = folder.exists()
    if there and not folder.is_dir():
        raise TargetNotWritable(f"cannot export to {folder}: it is not a local folder; name a new or empty one")
    ours = re.compile(rf"{re.escape(topic)}-\d+({re.escape(UNFINISHED)})?")
    _check_empty(folder, {child.name for child in folder.iterdir()} if there else set(), ours)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _UNFINISHED_MANIFEST).open("a", encoding="utf-8") as manifest:
        try:
            fcntl.flock(manifest, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a killed process releases it
        except BlockingIOError:
            raise TargetNotWritable(
                f"cannot export to {folder}: another export writes to it; wait until it ends, or name another folder"
            ) from None
        manifest.truncate(0)
        try:
            _remove_folders(folder, ours)
            yield partial(_finish, folder, manifest)
        except BaseException:
            _remove_all(folder, ours, is_new=not there)
            raise


def _finish(folder: Path, file: IO[str], manifest: DataclassInstance) -> None:
    """Write the manifest, and rename it after it and the names of all folders are on disk."""
    file.write(json.dumps(asdict(manifest), ensure_ascii=False, indent=1) + "\n")
    file.flush()
    for path in (folder / _UNFINISHED_MANIFEST, folder):
        synchronise(path)
    (folder / _UNFINISHED_MANIFEST).rename(folder / MANIFEST)
    synchronise(folder)


def _check_empty(folder: Path, names: set[str], ours: re.Pattern[str]) -> None:
    """Raise TargetNotWritable unless the folder is empty, or has only the remains of a killed export."""
    if MANIFEST in names:
        raise TargetNotWritable(
            f"cannot export to {folder}: it has a complete export ({MANIFEST}); name a new or empty folder"
        )
    if _UNFINISHED_MANIFEST in names:
        names = {name for name in names if name != _UNFINISHED_MANIFEST and not ours.fullmatch(name)}
    if names:
        raise TargetNotWritable(f"cannot export to {folder}: it is not empty; name a new or empty folder")


def _remove_all(folder: Path, ours: re.Pattern[str], *, is_new: bool) -> None:
    _remove_folders(folder, ours)
    for name in (MANIFEST, _UNFINISHED_MANIFEST):
        (folder / name).unlink(missing_ok=True)
    if is_new:
        folder.rmdir()


def _remove_folders(folder: Path, ours: re.Pattern[str]) -> None:
    for child in folder.iterdir():
        if ours.fullmatch(child.name):
            shutil.rmtree(child)
