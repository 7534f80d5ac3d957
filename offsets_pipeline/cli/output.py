"""The output of commands: tables for people, CSV for spreadsheets, JSON for programs, status lines for a terminal.

Group ids and metadata come from clients. No format lets them control a terminal or a spreadsheet. Only JSON is exact,
because JSON has escapes of its own. A table also cuts long cells.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import sys
from dataclasses import is_dataclass
from decimal import Decimal
from functools import cache, lru_cache
from itertools import chain
from types import NoneType
from typing import TYPE_CHECKING, Any, TextIO

import click

from offsets_pipeline.common.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence, Sized

FORMATS = ("table", "json", "csv")
_NOTHING = "-"
_TEXTS_KEPT = 10_000
_ROWS_AT_ONCE = 10_000  # of JSON
_CELL_CHARACTERS = 100  # of a table
_CUT = "…"
_GAP = "  "  # between columns
_NARROWEST = 8  # characters of a column of text, in a table that has to fit a terminal
#: A spreadsheet takes a cell with this start for a formula; the last four are full-width characters.
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
#: Characters that JSON allows and that terminals obey or readers misread: DEL and C1, marks and overrides of the
#: direction of text, line separators; and single surrogates, which UTF-8 cannot encode.
_ESCAPED_IN_JSON = re.compile(r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def write_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]], format_: str) -> None:
    """Write rows to stdout in one of FORMATS; JSON is one object a line, on a terminal indented."""
    if format_ == "json":
        for text in _json_of_all(columns, rows) if isinstance(rows, list) else map(_json_line(columns), rows):
            sys.stdout.write(_ESCAPED_IN_JSON.sub(_escaped, text))
    elif format_ == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([_in_csv(value) for value in row] for row in chain([columns], rows))
    else:
        _write_table(columns, rows)


def with_cluster(columns: Iterable[str], stores: Sized) -> list[str]:
    """Return the columns, and for rows of several stores the column `cluster`."""
    return [*columns, *(["cluster"] if len(stores) > 1 else [])]


def write_json(value: object) -> None:
    """Write one JSON document to stdout, on a terminal indented."""
    print(_ESCAPED_IN_JSON.sub(_escaped, _encoder(_plain).encode(value)))


def write_documents(documents: Sequence[object]) -> None:
    """Write one JSON document: that of one store, or those of several as the list `clusters`."""
    write_json(documents[0] if len(documents) == 1 else {"clusters": documents})


def write_lines(lines: Iterable[str]) -> None:
    """Write lines of text to stdout, each escaped as a cell of a table."""
    _page([_shown(line) for line in lines])


def _json_line(columns: Sequence[str]) -> Callable[[Sequence[Any]], str]:
    """Return a function from a row to its line of JSON, for rows that come one by one while a command runs."""
    encode = _encoder(_plain).encode
    if is_terminal():
        return lambda row: f"{encode(dict(zip(columns, row, strict=True)))}\n"
    of_text = lru_cache(_TEXTS_KEPT)(encode)  # most texts repeat
    keys = [f"{encode(name)}: " for name in columns]

    def cell(value: object) -> str:
        kind = type(value)
        if kind is str:
            return of_text(value)
        return str(value) if kind is int else "null" if value is None else encode(value)

    return lambda row: f"{{{', '.join([key + cell(value) for key, value in zip(keys, row, strict=True)])}}}\n"


def _json_of_all(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    """Yield the lines of JSON of a complete list of rows, encoded by column: twice as fast as `_json_line`."""
    if is_terminal():
        yield from map(_json_line(columns), rows)
        return
    encode = _encoder(_plain).encode
    fields = ", ".join([f"{encode(name)}: ".replace("%", "%%") + "%s" for name in columns])
    line = f"{{{fields}}}\n"
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        cells = [_json_cells(each, encode) for each in zip(*rows[start : start + _ROWS_AT_ONCE], strict=True)]
        yield "".join([line % row for row in zip(*cells, strict=True)])


def _json_cells(column: Sequence[Any], encode: Callable[[Any], str]) -> list[str]:
    """The values of a column in JSON."""
    kinds = set(map(type, column))
    if kinds <= {str, NoneType}:
        texts = {value: encode(value) for value in set(column)}
        return [texts[value] for value in column]
    if kinds <= {int, float, bool, NoneType}:
        return encode(column)[1:-1].split(", ")
    if kinds == {tuple} and not any(column):
        return [encode(())] * len(column)
    return [encode(value) for value in column]


def _encoder(default: Callable[[Any], Any]) -> json.JSONEncoder:
    return json.JSONEncoder(ensure_ascii=False, default=default, indent=2 if is_terminal() else None)


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def _in_csv(value: object) -> object:
    """Return a number unchanged; escape text that is not printable, and put a ' before a formula."""
    if value is None or isinstance(value, (int, float, Decimal)):
        return value
    return _text_in_csv(str(value))


@lru_cache(_TEXTS_KEPT)
def _text_in_csv(text: str) -> str:
    text = printable(text)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return the fields of a dataclass, ten times as fast as `asdict`; of any other object its text."""
    if is_dataclass(value):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    return str(value)


def is_terminal(stream: TextIO | None = None) -> bool:
    """Whether a stream, by default stdout, is a terminal."""
    return (stream or sys.stdout).isatty()


def show_status(text: str) -> None:
    """Write a line to stderr if it is a terminal."""
    if sys.stderr.isatty():
        print(f"offsets: {text}", file=sys.stderr)


def _write_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    rows = list(rows)
    values = [list(each) for each in zip(*rows, strict=True)] or [[] for _ in columns]
    headers = [_shown(name.upper().replace("_", "-")) for name in columns]
    shown = cache(_shown)  # most texts of a column repeat
    cells = [
        [header, *(shown(value) if isinstance(value, str) else _shown(value) for value in column)]
        for header, column in zip(headers, values, strict=True)
    ]
    numeric = [all(map(_is_number, column)) for column in values]
    widths = [max(map(len, column)) for column in cells]
    if is_terminal():
        fitting = _fitting(widths, numeric, shutil.get_terminal_size().columns)
        cells = [
            column if after == before else [_cut(cell, after) for cell in column]
            for column, before, after in zip(cells, widths, fitting, strict=True)
        ]
        widths = fitting
    line = _GAP.join(f"%{width}s" if right else f"%-{width}s" for width, right in zip(widths, numeric, strict=True))
    _page([(line % row).rstrip() for row in zip(*cells, strict=True)], has_header=True)


def _fitting(widths: list[int], numeric: list[bool], columns: int) -> list[int]:
    """Widths that fit into the terminal, if the widest columns of text get narrower; numbers are never cut."""
    widths = list(widths)
    texts = [index for index, is_number in enumerate(numeric) if not is_number]
    for _ in range(sum(widths) + len(_GAP) * (len(widths) - 1) - columns):
        widest = max(texts, key=widths.__getitem__, default=None)
        if widest is None or widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
    return widths


def _page(lines: list[str], *, has_header: bool = False) -> None:
    """Print lines; on a terminal with a bold header, and in a pager if they do not fit."""
    if not is_terminal():
        print("".join(f"{line}\n" for line in lines), end="")
        return
    if has_header and "NO_COLOR" not in os.environ:
        lines = [click.style(lines[0], bold=True), *lines[1:]]
    text = "".join(f"{line}\n" for line in lines)
    if len(lines) < shutil.get_terminal_size().lines or not is_terminal(sys.stdin):
        print(text, end="")
    else:
        os.environ.setdefault("LESS", "FRSX")
        click.echo_via_pager(text)


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


def _shown(value: object) -> str:
    if value is None or value == "":
        return _NOTHING
    return _cut(printable(str(value)), _CELL_CHARACTERS)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - len(_CUT)] + _CUT
