"""Files by path or URI, through Arrow: in tasks, where Hadoop's file systems cannot be reached."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from pyarrow import fs

_ARROW_SCHEMES = {"s3a": "s3", "s3n": "s3"}  # what Hadoop calls otherwise than Arrow


def open_path(path: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URI, and the path in it."""
    if "://" in path:
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(path)
        return found
    return fs.LocalFileSystem(), path


def absolute_path(path: str) -> str:
    """A local path from the root, for tasks have another working folder; a URI as it is. Neither ends with a slash."""
    return path.rstrip("/") if "://" in path else str(Path(path).absolute())


def arrow_path(scheme: str | None, authority: str | None, path: str) -> str:
    """The path or URI for `open_path` of what Hadoop has as a URI of these parts, decoded."""
    if scheme in {None, "file"}:
        return path
    return f"{_ARROW_SCHEMES.get(scheme or '', scheme)}://{authority or ''}{quote(path)}"
