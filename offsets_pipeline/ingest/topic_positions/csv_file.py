"""Reads CSV files of users: rows with line numbers for error messages."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.common.input_text import opened_text, whole_number
from offsets_pipeline.errors import InvalidGroupId, InvalidTime, MalformedFile, UnknownTopicOrPartition

if TYPE_CHECKING:
    from pathlib import Path


class CsvRow(NamedTuple):
    """The fields of a row, and the number of its first line, from 1. Its errors name file and line."""

    path: Path
    line: int
    fields: list[str]

    def malformed(self, what: str) -> MalformedFile:
        """Return the error for a wrong row."""
        return MalformedFile(f"{self.path}, line {self.line}: {what}")

    def number(self, name: str, text: str) -> int:
        """Return the whole number, from 0 to 2^63-1, of a field. Raises MalformedFile."""
        try:
            return whole_number(text.strip())
        except ValueError as error:
            raise self.malformed(f"{name} {error}") from None

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Context manager: raises MalformedFile in place of the errors of groups, times and partitions."""
        try:
            yield
        except (InvalidGroupId, InvalidTime, UnknownTopicOrPartition) as error:
            raise self.malformed(str(error)) from None


def read_rows(path: Path) -> Iterator[CsvRow]:
    """Yield the rows that are not blank. UTF-8, with or without a BOM. Raises NoSuchPath, MalformedFile."""
    with opened_text(path, newline="") as file:
        text = file.read()
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    line = 1
    try:
        for fields in reader:
            if fields:
                yield CsvRow(path, line, fields)
            line = reader.line_num + 1
    except csv.Error as error:
        raise CsvRow(path, line, []).malformed(f"it is not CSV: {error}") from None
