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
from itertools import chain
from typing import TYPE_CHECKING, Any, TextIO

import click

from offsets_pipeline.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

FORMATS = ("table", "json", "csv")
_NOTHING = "-"
_CELL_CHARACTERS = 100  # of a table
_CUT = "…"
_GAP = "  "  # between columns
_NARROWEST = 8  # characters of a column of text, in a table that has to fit a terminal
#: A spreadsheet takes a cell with this start for a formula; the last four are full-width characters.
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
#: Characters that JSON allows and that terminals obey or readers misread: DEL and C1, marks and overrides of the
#: direction of text, line separators; and single surrogates, which UTF-8 cannot encode.
_ESCAPED_IN_JSON = re.compile(r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def format_option(help_: str = "Output format.") -> Callable[[Callable[..., int]], Callable[..., int]]:
    """The option `--format`, one of FORMATS, as the argument ``format_``."""
    return click.option(
        "--format", "format_", type=click.Choice(FORMATS), default=FORMATS[0], show_default=True, help=help_
    )


def write_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]], format_: str) -> None:
    """Write rows to stdout in one of FORMATS; JSON is one object a line, on a terminal indented."""
    if format_ == "json":
        for row in rows:
            print(_in_json(dict(zip(columns, row, strict=True)), str))
    elif format_ == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([_in_csv(value) for value in row] for row in chain([columns], rows))
    else:
        _write_table(columns, rows)


def write_json(value: object) -> None:
    """Write one JSON document to stdout, on a terminal indented."""
    print(_in_json(value, _plain))


def write_lines(lines: Iterable[str]) -> None:
    """Write lines of text to stdout, each escaped as a cell of a table."""
    _page([_shown(line) for line in lines])


def _in_json(value: object, default: Callable[[Any], Any]) -> str:
    text = json.dumps(value, ensure_ascii=False, default=default, indent=2 if is_terminal() else None)
    return _ESCAPED_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _in_csv(value: object) -> object:
    """Return a number unchanged; escape text that is not printable, and put a ' before a formula."""
    if value is None or isinstance(value, (int, float, Decimal)):
        return value
    text = printable(str(value))
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
    cells = [[_shown(name.upper().replace("_", "-")) for name in columns]]
    cells += [[_shown(value) for value in row] for row in rows]
    numeric = [all(_is_number(row[index]) for row in rows) for index in range(len(columns))]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    if is_terminal():
        widths = _fitting(widths, numeric, shutil.get_terminal_size().columns)
    lines = [
        _GAP.join(
            (_cut(cell, width).rjust if right else _cut(cell, width).ljust)(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    ]
    _page(lines, has_header=True)


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
