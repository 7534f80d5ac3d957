"""Places of stores: a folder, or a prefix of a bucket that tests look into as if it were a folder."""

from __future__ import annotations

import io
import os
import shutil
import stat
from pathlib import Path, PosixPath, PurePosixPath
from typing import TYPE_CHECKING, Any

from pyarrow import fs

if TYPE_CHECKING:
    from collections.abc import Generator

_SCHEME = "s3:/"


class S3Path(PosixPath):
    """A prefix or an object of a bucket, with those methods of `Path` that tests use. A prefix needs no `mkdir`."""

    def __str__(self) -> str:
        """Return the URI."""
        path = super().__str__()
        return f"s3://{path.removeprefix(_SCHEME)}" if path.startswith(_SCHEME) else path

    @property
    def key(self) -> str:
        """The path of Arrow."""
        return "/".join(self.parts[1:])

    @property
    def system(self) -> fs.FileSystem:
        """The file system of Arrow, at the server that the variables name now."""
        return fs.FileSystem.from_uri(f"s3://{self.parts[1]}")[0]

    @property
    def _info(self) -> fs.FileInfo:
        return self.system.get_file_info(self.key)

    def exists(self, **_: Any) -> bool:  # noqa: ANN401 - as those of `Path`, also below
        return bool(self._info.type != fs.FileType.NotFound)

    def is_dir(self, **_: Any) -> bool:  # noqa: ANN401
        return bool(self._info.type == fs.FileType.Directory)

    def is_file(self, **_: Any) -> bool:  # noqa: ANN401
        return bool(self._info.type == fs.FileType.File)

    def stat(self, **_: Any) -> os.stat_result:  # noqa: ANN401
        info = self._info
        return os.stat_result((stat.S_IFREG, *[0] * 5, info.size, *[0] * 3), {"st_mtime_ns": info.mtime_ns})

    def iterdir(self) -> Generator[S3Path, None, None]:
        yield from self._below(recursive=False)

    def rglob(self, pattern: str) -> Generator[S3Path, None, None]:  # type: ignore[override,unused-ignore]
        yield from (each for each in self._below(recursive=True) if each.relative_to(self).match(pattern))

    def glob(self, pattern: str) -> Generator[S3Path, None, None]:  # type: ignore[override,unused-ignore]
        depth = len(PurePosixPath(pattern).parts)
        yield from (each for each in self.rglob(pattern) if len(each.relative_to(self).parts) == depth)

    def _below(self, *, recursive: bool) -> list[S3Path]:
        selector = fs.FileSelector(self.key, allow_not_found=True, recursive=recursive)
        return [S3Path(f"s3://{each.path}") for each in self.system.get_file_info(selector)]

    def open(self, mode: str = "r", *_: Any, **__: Any) -> Any:  # noqa: ANN401
        opened = self.system.open_output_stream if "w" in mode else self.system.open_input_file
        file = opened(self.key)
        return file if "b" in mode else io.TextIOWrapper(file, encoding="utf-8")

    def unlink(self, missing_ok: bool = False) -> None:
        if not missing_ok or self.exists():
            self.system.delete_file(self.key)

    def mkdir(self, *_: Any, **__: Any) -> None:  # noqa: ANN401
        return


def place_of(location: str | Path, *below: str) -> Path:
    """The folder or the prefix with this name, or what is below it."""
    return (S3Path if str(location).startswith("s3://") else Path)(str(location), *below)


def rounds(place: Path, of_folder: int) -> range:
    """The rounds of a test of chance: so many in a folder, a tenth of them on S3, where each takes longer."""
    return range(max(1, of_folder // 10) if isinstance(place, S3Path) else of_folder)


def copied(source: Path, to: Path) -> Path:
    """A copy of a folder or a prefix, for example of a store that a test may change."""
    if isinstance(source, S3Path) or isinstance(to, S3Path):
        (of_source, path), (of_copy, path_of_copy) = _system(source), _system(to)
        fs.copy_files(path, path_of_copy, of_source, of_copy)
    else:
        shutil.copytree(source, to, dirs_exist_ok=True)
    return to


def remove_place(place: Path) -> None:
    """Remove a folder or a prefix with everything in it."""
    system, path = _system(place)
    system.delete_dir(path)


def _system(place: Path) -> tuple[fs.FileSystem, str]:
    return (place.system, place.key) if isinstance(place, S3Path) else (fs.LocalFileSystem(), str(place))
