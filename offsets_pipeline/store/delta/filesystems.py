"""Opens files by path or URI through Arrow, also in tasks, which cannot use Hadoop's file systems."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import pyarrow as pa
from pyarrow import fs

from offsets_pipeline.store.delta.s3_access import DEFAULT_REGION, S3_SCHEMES, chosen_region, is_s3

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Those that a URI may have beside letters and digits, also "%", for what is quoted already.
_URI_CHARACTERS = "%/:?#[]@!$&'()*+,;=~"


def open_path(path: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URI, and the path in it. A URI may have spaces."""
    if "://" in path:
        # a small file is then written with one request in place of three; without a region Arrow asks Amazon for it
        region = chosen_region() or DEFAULT_REGION
        options = f"?allow_delayed_open=true&region={region}" if is_s3(path) and "?" not in path else ""
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(quote(path, safe=_URI_CHARACTERS) + options)
        return found
    return fs.LocalFileSystem(), path


@contextmanager
def opened(path: str) -> Iterator[memoryview]:
    """The bytes of a file; memory-maps a local file."""
    files, inner = open_path(path)
    with files.open_input_file(inner) as remote:
        if not isinstance(files, fs.LocalFileSystem) or not remote.size():
            yield memoryview(remote.read())
            return
    with pa.memory_map(inner) as mapped:
        yield memoryview(mapped.read_buffer())


def is_local(path: str) -> bool:
    """Return whether a path or URI is of this machine, without a scheme."""
    return "://" not in path


def children(path: str) -> set[str]:
    """Return the names in a folder; an empty set if it does not exist. Raises NotADirectoryError for a file."""
    system, folder = open_path(path)
    # first the list: S3 says the cause of an error there, and not for a single file
    found = {each.base_name for each in system.get_file_info(fs.FileSelector(folder, allow_not_found=True))}
    if not found and system.get_file_info(folder).type == fs.FileType.File:
        raise NotADirectoryError(f"{path} is a file")
    return found


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
