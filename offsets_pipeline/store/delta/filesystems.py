"""Opens files by path or URI through Arrow, also in tasks, which cannot use Hadoop's file systems."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote

from pyarrow import fs

from offsets_pipeline.store.delta.s3_access import S3_SCHEMES, is_s3


def open_path(path: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URI, and the path in it."""
    if "://" in path:
        # a small file is then written with one request in place of three
        options = "?allow_delayed_open=true" if is_s3(path) and "?" not in path else ""
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(path + options)
        return found
    return fs.LocalFileSystem(), path


def is_local(path: str) -> bool:
    """Return whether a path or URI is of this machine, without a scheme."""
    return "://" not in path


def children(path: str) -> set[str]:
    """Return the names in a folder; an empty set if it does not exist. Raises NotADirectoryError for a file."""
    system, folder = open_path(path)
    if system.get_file_info(folder).type == fs.FileType.File:
        raise NotADirectoryError(f"{path} is a file")
    return {each.base_name for each in system.get_file_info(fs.FileSelector(folder, allow_not_found=True))}


def absolute_path(path: str) -> str:
    """Return a local path as an absolute one, for tasks in other folders, or a URI; without a slash at its end."""
    return path.rstrip("/") if "://" in path else str(Path(path).absolute())


def read_text(location: str) -> str:
    """The text of a file, named as Spark names it. Raises OSError."""
    system, path = open_path(arrow_folder(location))
    with system.open_input_stream(path) as source:
        return bytes(source.read()).decode()


def arrow_folder(location: str) -> str:
    """The path or URI for `open_path`, from Spark's name of a folder: `file:/data`, `s3a://bucket/store`, or a path."""
    scheme, separator, rest = location.partition(":/")
    if not separator or not scheme.isalnum():
        return location
    authority, _, path = rest.removeprefix("/").partition("/") if rest.startswith("/") else ("", "", rest)
    return arrow_path(scheme, authority, "/" + unquote(path)).rstrip("/")


def arrow_path(scheme: str | None, authority: str | None, path: str) -> str:
    """Return the decoded path or URI for `open_path`, from the parts of a Hadoop URI."""
    if scheme in {None, "file"}:
        return path
    return f"{'s3' if scheme in S3_SCHEMES else scheme}://{authority or ''}{quote(path)}"
