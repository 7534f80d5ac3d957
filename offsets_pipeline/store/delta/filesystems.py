"""Opens files by path or URI through Arrow, also in tasks, which cannot use Hadoop's file systems."""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from pyarrow import fs

from offsets_pipeline.errors import ConfigError
from offsets_pipeline.store.delta.s3_access import (
    ARROW_RETRIES,
    DEFAULT_REGION,
    S3_SCHEMES,
    access_variables,
    arrow_options,
    chosen_region,
    is_s3,
)

if TYPE_CHECKING:
    from offsets_pipeline.store.delta.s3_access import Pairs

#: URI schemes of object stores.
OBJECT_STORES = S3_SCHEMES | {"gs", "abfs", "abfss"}
#: The start of a local path with a scheme: file:/ or file://HOST/.
_FILE_SCHEME = re.compile(r"file:(?://[^/]*)?(?=/)")
_SCHEME = re.compile(r"[A-Za-z0-9]+:/")
_LIKE_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
#: A bucket of S3. Arrow would take NAME:SECRET@ before it for a key, and all libraries a ? or # for its end.
_BUCKET = re.compile(r"[\w.-]+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def open_path(path: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URI, and the path in it. A URI is not encoded: it has blanks."""
    if "://" not in path:
        return fs.LocalFileSystem(), path
    if not is_s3(path):
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(encoded_uri(path))
        return found
    bucket, slash, inner = path.partition("://")[2].partition("/")
    # without a region Arrow asks Amazon for it
    options = arrow_options(chosen_region() or DEFAULT_REGION)
    return _client(tuple(options.items()), access_variables()), f"{bucket}{slash}{inner}".rstrip("/")


def mapping_path(path: str) -> tuple[fs.FileSystem, str]:
    """`open_path`, with a file system that memory-maps local files."""
    system, inner = open_path(path)
    return (fs.LocalFileSystem(use_mmap=True) if isinstance(system, fs.LocalFileSystem) else system), inner


@cache
def _client(options: tuple[tuple[str, Any], ...], variables: Pairs) -> fs.FileSystem:  # noqa: ARG001 - Arrow reads them
    """The client of S3: one in a process keeps its connections, and asks for the key of a role once."""
    # a small file is written with one request in place of three if it is opened late
    retries = fs.AwsDefaultS3RetryStrategy(max_attempts=ARROW_RETRIES)
    return fs.S3FileSystem(**dict(options), allow_delayed_open=True, retry_strategy=retries)


# Python would not end: Arrow waits for the threads of clients, and one with the credentials of a web identity goes on.
atexit.register(_client.cache_clear)


def encoded_uri(path: str) -> str:
    """Return the URI as libraries take it, with %20 for a blank and s3:// for each scheme of S3; a path unchanged."""
    scheme, separator, rest = path.partition("://")
    if not separator:
        return path
    authority, slash, inner = rest.partition("/")
    return f"{'s3' if scheme in S3_SCHEMES else scheme}://{authority}{slash}{quote(inner)}"


@contextmanager
def opened(path: str) -> Iterator[memoryview]:
    """The bytes of a file; memory-maps a local file."""
    system, inner = mapping_path(path)
    with system.open_input_file(inner) as file:
        yield memoryview(file.read_buffer())


def synchronise(path: str | Path) -> None:
    """Make a local file, or the names in a local folder, survive a crash of the machine. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
    folder = arrow_folder(path)
    return folder.rstrip("/") if "://" in folder else str(Path(folder).absolute())


def resolved_folder(location: str) -> str:
    """Return a local folder as an absolute path without links, or a URI without a slash at its end."""
    folder = arrow_folder(location)
    return folder.rstrip("/") if "://" in folder else str(Path(folder).resolve())


def arrow_folder(location: str) -> str:
    """The path or URI for `open_path`, from a user's name of a folder: `file:/data`, `s3a://bucket/a%20store`, a path.

    A URI may have %20 or a blank. Raises ConfigError for a name in an object store that some clients resolve, decode or
    refuse, and others take as it is: an empty one, `.`, `..`, or one with a control character or with a percent sign
    and two hexadecimal digits, once it is decoded. So it is with a path that begins with `~`, with one that begins like
    a URI, and with a bucket that has other characters than those of its name.
    """
    if not _SCHEME.match(location):
        if location.startswith("~"):
            raise ConfigError(f"wrong location {location}: the shell did not expand the ~; write the whole path")
        if _LIKE_SCHEME.match(location):
            raise ConfigError(f"wrong location {location}: neither a path nor a URI; write ./{location}, or ://")
        return location
    folder = without_file_scheme(unquote(location)).rstrip("/")
    scheme, separator, path = folder.partition("://")
    if not separator and not folder.startswith("/"):
        raise ConfigError(f"wrong location {location}: neither a path nor a URI; write SCHEME://NAME, or ./ before it")
    if scheme not in OBJECT_STORES:
        return folder
    bucket, *names = path.split("/")
    if not {"", ".", ".."}.isdisjoint([bucket, *names]):
        raise ConfigError(f"wrong location {location}: names in an object store are not empty, `.` or `..`")
    if is_s3(folder) and not _BUCKET.fullmatch(bucket):
        said = re.sub("://.*@", "://***@", location)  # of a key
        raise ConfigError(f"wrong location {said}: a bucket's name has letters, digits, `.`, `-` and `_` alone")
    if unquote(folder, errors="replace") != folder or _CONTROL.search(folder):
        raise ConfigError(
            f"wrong location {location!r}: names in an object store have no control character, and no percent "
            "sign before two hexadecimal digits (%25 counts as a percent sign)"
        )
    return folder


def refuse_encoded(folder: str) -> None:
    """Raise ConfigError if a local folder's path has a backslash, or a percent sign and two hexadecimal digits.

    `deltalake` takes them for a slash and for a character, however it is given the path, and would open the tables of
    another folder.
    """
    path = str(Path(folder).absolute())
    if "\\" in path:
        raise ConfigError(f"wrong location {path}: a store's path has no backslash; rename the folder")
    if unquote(path, errors="replace") != path:
        raise ConfigError(
            f"wrong location {path}: a store's path has no percent sign before two hexadecimal digits; "
            "rename the folder"
        )


def without_file_scheme(folder: str) -> str:
    """The path of a local folder that Spark names `file:/data`; another URI unchanged."""
    return _FILE_SCHEME.sub("", folder, count=1) if _FILE_SCHEME.match(folder) else folder
