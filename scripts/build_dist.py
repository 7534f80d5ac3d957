"""Build the wheel and the source archive: equal, byte by byte, for one source and one SOURCE_DATE_EPOCH.

    SOURCE_DATE_EPOCH=1795620000 .venv/bin/python scripts/build_dist.py FOLDER

setuptools builds from a copy that has the package's files alone: no other file of the folder can get in. No network is
needed.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from setuptools import build_meta

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "offsets_pipeline"
BESIDE = ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "NOTICE")


def build(folder: Path, epoch: int) -> list[Path]:
    """Build into a folder; returns the wheel and the source archive."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch)  # setuptools reads it for the wheel
    os.umask(0o022)  # a wheel has the modes of files
    with tempfile.TemporaryDirectory() as beside, contextlib.chdir(beside):
        _copy_source(Path(beside))
        with contextlib.redirect_stdout(io.StringIO()):
            wheel, archive = build_meta.build_wheel(str(folder)), build_meta.build_sdist(str(folder))
    _normalise(folder / archive, epoch)
    return [folder / wheel, folder / archive]


def _copy_source(to: Path) -> None:
    found = [path for path in (ROOT / PACKAGE).rglob("*") if path.is_file() and path.suffix != ".pyc"]
    for path in [*found, *(ROOT / name for name in BESIDE)]:
        copy = to / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def _normalise(archive: Path, epoch: int) -> None:
    """Write a source archive again: in the order of names, all times the epoch, without the names of a user."""
    with tarfile.open(archive) as built:
        members = [(each, built.extractfile(each)) for each in sorted(built, key=lambda each: each.name)]
        contents = [(each, None if file is None else file.read()) for each, file in members]
    with (
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=epoch) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as written,
    ):
        for each, content in contents:
            each.mtime, each.pax_headers = epoch, {}
            each.uid = each.gid = 0
            each.uname = each.gname = ""
            written.addfile(each, None if content is None else io.BytesIO(content))


if __name__ == "__main__":
    for built in build(Path(sys.argv[1]).resolve(), int(os.environ["SOURCE_DATE_EPOCH"])):
        print(built)
