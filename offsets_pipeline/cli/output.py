"""The output of commands: tables for people, CSV for spreadsheets, JSON for programs, status lines for a terminal.

Group ids and metadata come from clients. No format lets them control a terminal or a spreadsheet. Only JSON is exact,
because JSON has escapes of its own. A table leaves out what says nothing, and shortens what does not fit.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import sys
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache, lru_cache
from itertools import accumulate, chain, count, islice
from math import isfinite
from textwrap import wrap
from types import NoneType
from typing import Any, NamedTuple, TextIO
from unicodedata import category, east_asian_width
from uuid import UUID

import click

from offsets_pipeline.common.clock import MS_OF_SECOND, SystemClock, parse_time_ms, shown_duration
from offsets_pipeline.common.input_text import printable
from offsets_pipeline.common.warnings import line_time

FORMATS = ("table", "json", "csv")
_NOTHING = "-"
_TEXTS_KEPT = 10_000
_ROWS_AT_ONCE = 10_000  # of JSON
_CELL_CHARACTERS = 100  # of a table
_CUT = "…"
_GAP = "  "  # between columns
_NARROWEST = 12  # characters of a column of text, in a table that has to fit a terminal
_LONG = 16  # characters: a wide table has a note for a longer text that repeats
_NOTES = 9  # of a column
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")  # as `shown_time` writes it
#: Columns with names and texts that clients chose, which may look like times.
_OF_CLIENTS = {"group", "topic", "metadata", "cluster", "connector", "client_id", "consumer_id", "group_instance_id"}
#: Classes of characters in Unicode.
_COMBINING, _WIDE = ("Mn", "Me"), ("W", "F")
#: Vowels and final consonants of Hangul, which join the consonant before them: no columns of their own.
_HANGUL_ENDS = frozenset(map(chr, range(0x1160, 0x1200)))
#: A spreadsheet takes a cell with this start for a formula; the last four are full-width characters.
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
#: Types of DuckDB's and Spark's values that are shown by their text within a list, map or struct, too.
_SHOWN_AS_TEXT = (date, time, timedelta, Decimal, UUID)
#: Characters that JSON allows and that terminals obey or readers misread: DEL and C1, marks and overrides of the
#: direction of text, line separators; and single surrogates, which UTF-8 cannot encode.
_ESCAPED_IN_JSON = re.compile(r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def write_rows(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    format_: str,
    *,
    absolute: bool = False,
    first: Sequence[str] = (),
    all_columns: bool = False,
) -> None:
    """Write rows to stdout in one of FORMATS; JSON is one object a line, 10,000 at once, on a terminal indented.

    A table has ages in place of times unless ``absolute``, and begins with the columns ``first``: a narrow one lacks
    the last ones. With ``all_columns``, as for a user's query, no column is changed.
    """
    if format_ == "json":
        for text in _json_lines(columns, rows):
            sys.stdout.write(_ESCAPED_IN_JSON.sub(_escaped, text))
    elif format_ == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([_in_csv(value) for value in row] for row in chain([columns], rows))
    else:
        _write_table(columns, list(rows), first, absolute=absolute or all_columns, all_columns=all_columns)


def shown_age(time: str) -> str:
    """Format a time as `shown_time` writes it by its distance from now: 12 s ago, in 3 d 4 h."""
    age_ms = SystemClock().now_ms() - parse_time_ms(time)
    distance = shown_duration(abs(age_ms) // MS_OF_SECOND * MS_OF_SECOND)
    return f"in {distance}" if age_ms < 0 else f"{distance} ago"


def with_cluster(columns: Iterable[str], stores: Sized) -> list[str]:
    """Return the columns, and for rows of several stores the column `cluster`."""
    return [*columns, *(["cluster"] if len(stores) > 1 else [])]


def write_json(value: object) -> None:
    """Write one JSON document to stdout, on a terminal indented."""
    print(_ESCAPED_IN_JSON.sub(_escaped, _encoder()(value)))


def write_documents(documents: Sequence[object]) -> None:
    """Write one JSON document: that of one store, or those of several as the list `clusters`."""
    write_json(documents[0] if len(documents) == 1 else {"clusters": documents})


def write_lines(lines: Iterable[str]) -> None:
    """Write lines of text to stdout, each escaped as a cell of a table, but whole: they are names to go on with."""
    _page(list(map(_shown, lines)))


def _json_lines(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield lines of JSON; many rows together, because by column they take half as long as row by row."""
    encode = _encoder()
    columns = _different(columns)
    if is_terminal():
        yield from (f"{encode(dict(zip(columns, row, strict=True)))}\n" for row in rows)
        return
    fields = ", ".join([f"{encode(name)}: ".replace("%", "%%") + "%s" for name in columns])
    line, waiting = f"{{{fields}}}\n", iter(rows)
    while some := list(islice(waiting, _ROWS_AT_ONCE)):
        cells = [_json_cells(each, encode) for each in zip(*some, strict=True)]
        yield "".join([line % row for row in zip(*cells, strict=True)])


def _different(columns: Sequence[str]) -> list[str]:
    """The names of columns, a repeated one with a number: a, a_1."""
    names: list[str] = []
    for name in columns:
        taken, numbered = {*names, *columns}, (f"{name}_{number}" for number in count(1))
        names.append(next(each for each in numbered if each not in taken) if name in names else name)
    return names


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


def _encoder() -> Callable[[object], str]:
    encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_plain, indent=2 if is_terminal() else None)

    def encode(value: object) -> str:
        try:
            return encoder.encode(value)
        except (TypeError, ValueError):
            return encoder.encode(_finite(value))

    return encode


def _finite(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """The value with null in place of each number that JSON does not have, and text for other keys of maps."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {name if isinstance(name, str | int) else _plain(name): _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return _finite(_plain(value)) if is_dataclass(value) else value


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def _in_csv(value: object) -> object:
    """Return a number unchanged; escape text that is not printable, and put a ' before a formula."""
    if value is None or isinstance(value, (int, float, Decimal)):
        return value
    return _text_in_csv(_text(value))


@lru_cache(_TEXTS_KEPT)
def _text_in_csv(text: str) -> str:
    text = printable(text)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return the fields of a dataclass, ten times as fast as `asdict`; any other object's text."""
    if is_dataclass(value):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    return _text(value)


def is_terminal(stream: TextIO | None = None) -> bool:
    """Whether a stream, by default stdout, is a terminal."""
    return (stream or sys.stdout).isatty()


def show_status(text: str) -> None:
    """Write a line to stderr if it is a terminal."""
    if sys.stderr.isatty():
        print(f"{line_time()}offsets: {text}", file=sys.stderr)


class _Column(NamedTuple):
    """A column of a table; ``width`` as of `_width`, that of its header and its cells."""

    name: str
    header: str
    cells: Sequence[str]
    width: int
    is_number: bool
    is_text: bool

    @classmethod
    def of(cls, name: str, values: Sequence[Any], *, absolute: bool) -> _Column:
        is_number = all(map(_is_number, values))
        may_be_time = not (is_number or name in _OF_CLIENTS)
        is_time = may_be_time and all(each is None or _is_time(each) for each in values)
        has_ages = is_time and not absolute and not _have_one_age([each for each in values if each is not None])
        shown = cache(shown_age if has_ages else _shown)  # most texts of a column repeat
        cells = [shown(each) if isinstance(each, str) and each else _shown(each) for each in values]
        header = _shown(name.upper().replace("_", "-"))
        return cls(name, header, (), 0, is_number, not (is_number or is_time)).with_cells(cells)

    @property
    def least(self) -> int:
        """The least width. No number, no time and no header is cut."""
        return max(len(self.header), min(self.width, _NARROWEST)) if self.is_text else self.width

    def narrowed(self, width: int) -> _Column:
        return self.with_cells([_cut(each, width) for each in self.cells]) if width < self.width else self

    def with_cells(self, cells: Sequence[str]) -> _Column:
        return self._replace(cells=cells, width=max(map(_width, (self.header, *cells))))

    def lines(self) -> Iterator[str]:
        align = str.rjust if self.is_number else str.ljust
        return (align(each, self.width - _width(each) + len(each)) for each in (self.header, *self.cells))


def _write_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], first: Sequence[str], *, absolute: bool, all_columns: bool
) -> None:
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    has_values = [
        all_columns or not rows or any(each is not None and each != "" for each in column) for column in values
    ]
    table = [
        _Column.of(name, column, absolute=absolute)
        for name, column, has_value in zip(columns, values, has_values, strict=True)
        if has_value or not any(has_values)
    ]
    table.sort(key=lambda each: first.index(each.name) if each.name in first else len(first))
    width = shutil.get_terminal_size().columns  # COLUMNS, or 80 in a pipe
    notes = _repeated_texts(table, width) if rows and not all_columns else []
    table = [each.narrowed(_CELL_CHARACTERS) for each in table]
    if is_terminal() or "COLUMNS" in os.environ:
        shown = _fitting(table, width)
        if len(shown) < len(table):
            left_out = ", ".join(each.header for each in table[len(shown) :])
            notes.append(f"no room for {left_out}; --format csv has all columns")
        table = shown
    lines = [_GAP.join(line).rstrip() for line in zip(*(each.lines() for each in table), strict=True)]
    _page([*lines, *chain.from_iterable(wrap(note, width) for note in notes)], has_header=True)


def _repeated_texts(table: list[_Column], width: int) -> list[str]:
    """Take long texts and times that repeat out of a table that is too wide; returns notes that have them.

    The note of a column with one text or time replaces the column. Other columns get marks of their notes: [1].
    """
    notes: list[str] = []
    marks = map("[{}]".format, count(1))
    for each in sorted(table, key=lambda column: -column.width):
        if len(table) == 1 or _together(table) <= width:
            break
        texts, is_long = Counter(each.cells), each.width > _LONG
        if len(texts) == 1 and not each.is_number and (is_long or not each.is_text):
            table.remove(each)
            notes.append(f"{each.header}: {each.cells[0]}")
        elif each.is_text and is_long:
            sentences = [
                text for text, rows in texts.most_common(_NOTES) if rows > 1 and len(text) > _LONG and " " in text
            ]
            if sum(texts[text] for text in sentences) * 2 >= len(each.cells):
                mark_of = dict(zip(sentences, marks, strict=False))
                table[table.index(each)] = each.with_cells([mark_of.get(cell, cell) for cell in each.cells])
                notes += [f"{mark} {text}" for text, mark in mark_of.items()]
    return notes


def _together(table: Sequence[_Column]) -> int:
    return sum(each.width for each in table) + len(_GAP) * (len(table) - 1)


def _fitting(table: Sequence[_Column], width: int) -> list[_Column]:
    """The first columns, as many as fit, with long texts cut; numbers and times are never cut."""
    ends = accumulate(len(_GAP) + each.least for each in table)
    table = table[: max(1, sum(end - len(_GAP) <= width for end in ends))]
    widths = [each.width for each in table]
    for _ in range(_together(table) - width):
        texts = [index for index, each in enumerate(table) if widths[index] > each.least]
        if texts:
            widths[max(texts, key=widths.__getitem__)] -= 1
    return [each.narrowed(after) for each, after in zip(table, widths, strict=True)]


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
    return value is None or (isinstance(value, (int, float, Decimal)) and not isinstance(value, bool))


def _is_time(value: object) -> bool:
    return isinstance(value, str) and _TIME.fullmatch(value) is not None


def _have_one_age(times: Sequence[str]) -> bool:
    """Whether the ages of different times of long ago are the same, so that they tell nothing."""
    first, last = min(times), max(times)
    return parse_time_ms(last) - parse_time_ms(first) >= MS_OF_SECOND and shown_age(first) == shown_age(last)


def _shown(value: object) -> str:
    if value is None or value == "":
        return _NOTHING
    return printable(_text(value))


def _text(value: object) -> str:
    """A value as text, alone or within another one: a time, which is in UTC, says so, and bytes are in base64."""
    return value if isinstance(value, str) else str(_with_texts(value))


def _with_texts(value: Any) -> Any:  # noqa: ANN401 - any value
    """The value with texts in place of times, bytes and numbers with a scale, also in lists, maps and structs."""
    if isinstance(value, dict):
        return {_with_texts(name): _with_texts(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_texts(each) for each in value]
    if isinstance(value, tuple):  # of DuckDB: an array of fixed length, or a struct whose fields have no names
        return tuple(map(_with_texts, value))
    if isinstance(value, datetime):
        return f"{value.isoformat()}Z"
    if isinstance(value, bytes | bytearray):  # older versions of Spark return bytearrays
        return b64encode(value).decode()
    return str(value) if isinstance(value, _SHOWN_AS_TEXT) else value


def _cut(text: str, width: int) -> str:
    """The text without its middle: ids that a client makes differ at both ends."""
    if _width(text) <= width:
        return text
    tail = (width - len(_CUT)) // 2
    return _start(text, width - len(_CUT) - tail) + _CUT + _start(text[::-1], tail)[::-1]


def _start(text: str, width: int) -> str:
    return text[: sum(end <= width for end in accumulate(map(_width, text)))]


def _width(text: str) -> int:
    """The width on a terminal, in characters: two for a wide one, as of Chinese and emoji, none for a combining one."""
    if text.isascii():
        return len(text)
    return sum(
        0 if category(each) in _COMBINING or each in _HANGUL_ENDS else 1 + (east_asian_width(each) in _WIDE)
        for each in text
    )
