"""What the commands print: tables for people, JSON and CSV for programs, progress for whoever watches."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FORMATS = ("table", "json", "csv")
_NOTHING = "-"


def write_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]], format_: str) -> None:
    """Write rows to stdout in one of FORMATS; JSON is one object a line."""
    if format_ == "json":
        for row in rows:
            print(json.dumps(dict(zip(columns, row, strict=True)), default=str, ensure_ascii=False))
    elif format_ == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
    else:
        _write_table(columns, rows)


def write_json(value: object) -> None:
    """Write one JSON document to stdout."""
    print(json.dumps(value, ensure_ascii=False, default=_plain))


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever JSON knows
    """A dataclass by its fields, a tenth of the time that `asdict` takes; anything else as text."""
    if is_dataclass(value):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    return str(value)


def progress(text: str) -> None:
    """Say what is going on, to a terminal only."""
    if sys.stderr.isatty():
        print(f"offsets: {text}", file=sys.stderr)


def warn(text: str) -> None:
    """Write a warning to stderr, at once."""
    sys.stderr.write(f"offsets: warning: {text}\n")
    sys.stderr.flush()


def _write_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    rows = list(rows)
    cells = [[name.upper().replace("_", "-") for name in columns]]
    cells += [[_shown(value) for value in row] for row in rows]
    numeric = [all(_is_number(row[index]) for row in rows) for index in range(len(columns))]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    for row in cells:
        line = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        print("  ".join(line).rstrip())


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


def _shown(value: object) -> str:
    if value is None or value == "":
        return _NOTHING
    # metadata may hold anything, a NUL too: a terminal shall not obey it
    text = str(value)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
