"""Group ids and metadata of clients cannot control a terminal or a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal

import pytest

from offsets_pipeline.cli.output import write_json, write_rows

HOSTILE = "a\x1b[2J\x00\x9b\u202eb\u2066\u200f\u061c\u2028\ufeff\r\n\tü"


def rows_of_csv(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\uff1d1", "-", "=\t"])
def test_text_in_csv_is_never_a_formula(capsys: pytest.CaptureFixture[str], text: str) -> None:
    write_rows(["group", "offset"], [[text, -5], [f" {text}", None]], "csv")
    shown = text.replace("\t", "\\t")
    assert rows_of_csv(capsys.readouterr().out) == [["group", "offset"], ["'" + shown, "-5"], [" " + shown, ""]]


def test_numbers_in_csv_stay_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(["=a", "b", "c"], [[-1, -0.5, Decimal("-1.50")]], "csv")
    assert rows_of_csv(capsys.readouterr().out) == [["'=a", "b", "c"], ["-1", "-0.5", "-1.50"]]


@pytest.mark.parametrize("format_", ["csv", "table"])
def test_what_is_not_printable_is_shown_escaped(capsys: pytest.CaptureFixture[str], format_: str) -> None:
    write_rows(["a", "b"], [["x", HOSTILE], ["\tx", "\rx"]], format_)
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 3
    assert all(line.isprintable() for line in out.splitlines())
    assert r"a\x1b[2J\x00\x9b\u202eb\u2066\u200f\u061c\u2028\ufeff\r\n\tü" in out


def test_json_is_exact_and_holds_nothing_that_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    exact = HOSTILE + "=1\ud800'\\"
    write_rows(["a"], [[exact]], "json")
    write_json({"a": exact})
    lines = capsys.readouterr().out.split("\n")[:-1]
    assert [json.loads(line) for line in lines] == [{"a": exact}] * 2
    assert all(line.isprintable() for line in lines)
    assert "ü" in lines[0]


def test_long_cell_does_not_pad_every_row_of_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    long = "g" * 32_000
    write_rows(["group", "offset"], [[long, 1], ["h", 2]], "table")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) == 100 + 2 + len("OFFSET")
    assert lines[1].split() == ["g" * 99 + "…", "1"]
    for format_ in ("csv", "json"):
        write_rows(["group", "offset"], [[long, 1]], format_)
        assert long in capsys.readouterr().out
