"""Files of text that users name."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from offsets_pipeline.errors import MalformedFile, NoSuchPath

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def opened_text(path: Path, newline: str | None = None) -> Iterator[TextIO]:
    """Open a file for reading: UTF-8, with or without a BOM. ``newline`` as of `open`.

    Raises NoSuchPath, MalformedFile, also while the block reads.
    """
    try:
        with path.open(encoding="utf-8-sig", newline=newline) as file:
            yield file
    except FileNotFoundError:
        raise NoSuchPath(f"no such file: {path}") from None
    except OSError as error:
        raise MalformedFile(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise MalformedFile(f"cannot read {path}: it is not UTF-8") from None
