"""CSV files that a user wrote: rows with the number of their line, so that an error can name it."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING

from offsets_pipeline.errors import MalformedFile, NoSuchPath

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NUMBER = re.compile(r"-?[0-9]+")


def read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, each with the number of its (first) line, from 1. UTF-8, with or without a mark.

    Raises NoSuchPath, MalformedFile.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            text = file.read()
    except FileNotFoundError:
        raise NoSuchPath(f"no such file: {path}") from None
    except OSError as error:
        raise MalformedFile(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise MalformedFile(f"{path} cannot be read: it is not in UTF-8") from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise malformed(path, line, f"no CSV: {error}") from None
        if row is None:
            return
        if row:
            yield line, row


def number(path: Path, line: int, name: str, text: str) -> int:
    """A field that holds a whole number which is not negative. Raises MalformedFile."""
    if _NUMBER.fullmatch(text.strip()) is None:
        raise malformed(path, line, f"{name} {text!r} is no whole number")
    value = int(text)
    if value < 0:
        raise malformed(path, line, f"{name} {value} is negative")
    return value


def malformed(path: Path, line: int, what: str) -> MalformedFile:
    """The error that a line is not what it should be."""
    return MalformedFile(f"{path}, line {line}: {what}")
