"""Reads CSV files of users: rows with line numbers for error messages."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from offsets_pipeline.common.input_text import opened_text, whole_number
from offsets_pipeline.errors import MalformedFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not blank, each with the number of its first line, from 1. UTF-8, with or without a BOM.

    Raises NoSuchPath, MalformedFile.
    """
    with opened_text(path, newline="") as file:
        text = file.read()
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise malformed(path, line, f"it is not CSV: {error}") from None
        if row is None:
            return
        if row:
            yield line, row


def number(path: Path, line: int, name: str, text: str) -> int:
    """Return the whole number, from 0 to 2^63-1, of a field. Raises MalformedFile."""
    try:
        return whole_number(text.strip())
    except ValueError as error:
        raise malformed(path, line, f"{name} {error}") from None


def malformed(path: Path, line: int, what: str) -> MalformedFile:
    """Return the error for a wrong line."""
    return MalformedFile(f"{path}, line {line}: {what}")
