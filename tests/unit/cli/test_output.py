"""Group ids and metadata of clients cannot control a terminal or a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from unicodedata import normalize

import click
import pytest
from duckdb import connect

from offsets_pipeline.cli import output
from offsets_pipeline.cli.output import write_json, write_rows
from offsets_pipeline.common.clock import SystemClock, parse_time_ms, shown_time

TIMES = "(SELECT TIMESTAMP '2026-03-01 12:00:00.25' AS t)"
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


@pytest.mark.parametrize("is_terminal", [True, False])
def test_json_has_null_for_what_is_no_number_and_bytes_in_base64(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool
) -> None:
    """RFC 8259 has no word for infinity; the bytes are those of `key_json` in the view `log_records`."""

    @dataclass(frozen=True)
    class Told:
        at: float

    def refused(word: str) -> None:
        raise ValueError(word)

    monkeypatch.setattr(output, "is_terminal", lambda: is_terminal)
    row = [math.inf, {"a": [-math.inf, Told(math.nan), 0.5]}, b"\x00k", [b"\xff"]]
    write_rows(["rate", "more", "key", "list"], [row], "json")
    write_json(dict(zip(("rate", "more", "key", "list"), row, strict=True)))
    decoder = json.JSONDecoder(parse_constant=refused)
    first, end = decoder.raw_decode(text := capsys.readouterr().out)
    assert first == {"rate": None, "more": {"a": [None, {"at": None}, 0.5]}, "key": "AGs=", "list": ["/w=="]}
    assert decoder.decode(text[end:]) == first


@pytest.mark.parametrize("format_", ["csv", "table", "json"])
def test_bytes_of_a_query_are_in_base64(capsys: pytest.CaptureFixture[str], format_: str) -> None:
    write_rows(["key", "list"], [[b"\x00k", [b"\xff"]]], format_, all_columns=True)
    out = capsys.readouterr().out
    assert "AGs=" in out
    assert "/w==" in out
    assert "b'" not in out


@pytest.mark.parametrize("format_", ["csv", "table", "json"])
def test_values_in_arrays_and_structs_of_a_query_are_no_objects_of_python(
    capsys: pytest.CaptureFixture[str], format_: str
) -> None:
    of_tuples = "row('\\x00k'::BLOB, '2026-03-01 12:00:00'::TIMESTAMP) AS bare, ['\\xFF'::BLOB]::BLOB[1] AS fixed"
    others = "[1.50] AS numbers, {'id': '01020304-0506-0708-090a-0b0c0d0e0f10'::UUID} AS ids, [TIME '10:00'] AS times"
    with connect() as duckdb:
        result = duckdb.sql(f"SELECT {of_tuples}, {others}")
        write_rows(result.columns, result.fetchall(), format_, all_columns=True)
    out = capsys.readouterr().out.replace('"', "'")
    for text in ("AGs=", "2026-03-01T12:00:00Z", "/w==", "1.50", "01020304-0506-0708-090a-0b0c0d0e0f10", "10:00:00"):
        assert f"'{text}'" in out
    assert "b'" not in out
    assert not re.search(r"datetime|Decimal|UUID", out)


@pytest.mark.parametrize("format_", ["csv", "table", "json"])
def test_a_time_of_a_query_has_its_zone(capsys: pytest.CaptureFixture[str], format_: str) -> None:
    at = datetime(2026, 3, 1, 12, 0, 0, 250_000)  # noqa: DTZ001 - as DuckDB and Spark give them
    write_rows(["at"], [[at]], format_, all_columns=True)
    assert "2026-03-01T12:00:00.250000Z" in capsys.readouterr().out


@pytest.mark.parametrize("format_", ["csv", "table", "json"])
def test_times_in_lists_and_maps_of_a_query_have_their_zone(capsys: pytest.CaptureFixture[str], format_: str) -> None:
    with connect() as duckdb:
        of_lists = "{'times': [t, NULL], 'of': {'at': t}} AS lists, [t::DATE] AS days"
        result = duckdb.sql(f"SELECT {of_lists}, MAP {{t: 0.5, t + INTERVAL 1 DAY: 'nan'::DOUBLE}} AS map FROM {TIMES}")
        write_rows(result.columns, result.fetchall(), format_, all_columns=True)
    out = capsys.readouterr().out
    times = ["2026-03-01T12:00:00.250000Z"] * 3 + ["2026-03-02T12:00:00.250000Z"]
    assert re.findall(r"['\"]([-\d]+T[.:\d]+Z)['\"]", out) == times
    assert "datetime" not in out
    if format_ == "json":
        assert json.loads(out)["map"] == {times[0]: 0.5, times[3]: None}


@pytest.mark.parametrize("key", ["DATE '2026-03-01'", "1.50", "'\\x00k'::BLOB", "true"])
def test_keys_of_maps_are_the_texts_that_json_has_of_such_values(capsys: pytest.CaptureFixture[str], key: str) -> None:
    with connect() as duckdb:
        result = duckdb.sql(f"SELECT MAP {{{key}: 1}} AS map, {key} AS key")
        write_rows(result.columns, result.fetchall(), "json")
    found = json.loads(capsys.readouterr().out)
    assert found["map"] == {str(found["key"]).replace("True", "true"): 1}


def test_columns_of_one_name_are_different_fields_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(["a", "a", "a_1", "b", "a"], [[1, 2, 3, 4, 5]], "json")
    assert json.loads(capsys.readouterr().out, object_pairs_hook=list) == [
        ("a", 1),
        ("a_2", 2),
        ("a_1", 3),
        ("b", 4),
        ("a_3", 5),
    ]


def test_rows_that_are_all_there_are_the_same_json_as_rows_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass(frozen=True)
    class Told:
        at: int

    columns = ["a%s", "b", "c", "d", "e", "f", "g"]
    some = [HOSTILE, None, "100 %", "a, b"]
    rows: list[tuple[Any, ...]] = [
        (some[at % 4], at, at / 3, at if at % 2 else None, (), [at, "x, y"], some[at % 3] if at % 5 else at % 2 == 0)
        for at in range(25_000)
    ]
    rows[7] = (*rows[7][:4], (Told(1),), {"k": [1]}, Decimal("1.50"))
    write_rows(columns, rows, "json")
    together = capsys.readouterr().out
    write_rows(columns, iter(rows), "json")
    assert together == capsys.readouterr().out
    lines = [json.loads(line) for line in together.splitlines()]
    for at, (row, line) in enumerate(zip(rows, lines, strict=True)):
        values = [*row] if at != 7 else [*row[:4], [{"at": 1}], {"k": [1]}, "1.50"]
        assert line == dict(zip(columns, [list(each) if each == () else each for each in values], strict=True))
    write_rows(columns, [], "json")
    assert capsys.readouterr().out == ""


def test_long_cell_does_not_pad_every_row_of_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    long = "g" * 32_000
    write_rows(["group", "offset"], [[long, 1], ["h", 2]], "table")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) == 100 + 2 + len("OFFSET")
    assert lines[1].split() == ["g" * 50 + "…" + "g" * 49, "1"]
    for format_ in ("csv", "json"):
        write_rows(["group", "offset"], [[long, 1]], format_)
        assert long in capsys.readouterr().out


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    """Output to a terminal of 60 columns and 10 lines."""
    monkeypatch.setattr(output, "is_terminal", lambda *_: True)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "10")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return capsys


def test_a_table_fits_the_terminal_and_cuts_no_number(terminal: pytest.CaptureFixture[str]) -> None:
    write_rows(["group", "topic", "offset"], [["g" * 80, "t" * 50, 12_345_678_901], ["h", "u", None]], "table")
    header, *lines = click.unstyle(terminal.readouterr().out).splitlines()
    assert max(map(len, (header, *lines))) == 60
    assert header.split() == ["GROUP", "TOPIC", "OFFSET"]
    group, topic, offset = lines[0].split()
    assert (group.strip("g"), topic.strip("t"), offset) == ("…", "…", "12345678901")


def test_wide_and_combining_characters_keep_columns_in_line(
    terminal: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of these names a terminal shows 4, 2, 1, 4, 4 and 3 columns."""
    names = [
        "消費",
        "🚚",
        "e\N{COMBINING ACUTE ACCENT}",
        "\N{FULLWIDTH LATIN CAPITAL LETTER K}❤\N{VARIATION SELECTOR-16}b",
        normalize("NFD", "한국"),  # as a Mac writes file names: each syllable in two or three letters
        "abc",
    ]
    write_rows(["group", "lag"], [[name, 7] for name in names], "table")
    lines = click.unstyle(terminal.readouterr().out).splitlines()
    shown = zip(names, (4, 2, 1, 4, 4, 3), strict=True)
    assert lines == ["GROUP  LAG", *(f"{name}{' ' * (5 - columns)}    7" for name, columns in shown)]
    monkeypatch.setenv("COLUMNS", "17")
    write_rows(["group", "lag"], [["消費者" * 6, 7], ["abc", 7]], "table")
    lines = click.unstyle(terminal.readouterr().out).splitlines()
    expected = ("GROUP        LAG", "消費者…費者    7", "abc            7")  # 6 columns, the cut, and 4
    assert lines == [*expected]


def test_a_narrow_table_has_the_first_columns_and_names_the_others(
    terminal: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "22")
    columns = ["group", "topic", "offset", "reason"]
    write_rows(columns, [["group-of-billing", "t", 12_345_678, "none"]], "table", first=["group", "offset"])
    assert click.unstyle(terminal.readouterr().out).splitlines() == [
        *("GROUP           OFFSET", "group-…lling  12345678"),
        *("no room for TOPIC,", "REASON; --format csv", "has all columns"),
    ]


def test_columns_without_values_are_left_out_of_a_table_but_not_of_a_query(capsys: pytest.CaptureFixture[str]) -> None:
    columns = ["group", "lag", "host"]
    rows: list[list[str | None]] = [["g", None, ""], ["h", None, None]]
    write_rows(columns, rows, "table")
    assert capsys.readouterr().out == "GROUP\ng\nh\n"
    write_rows(columns, rows, "table", all_columns=True)
    assert capsys.readouterr().out.splitlines() == ["GROUP  LAG  HOST", "g        -  -", "h        -  -"]
    write_rows(columns, [], "table")
    assert capsys.readouterr().out == "GROUP  LAG  HOST\n"
    write_rows(columns, [[None, None, ""]], "table")
    assert capsys.readouterr().out.splitlines() == ["GROUP  LAG  HOST", "    -    -  -"]
    write_rows(columns, rows, "csv")
    assert capsys.readouterr().out == "group,lag,host\ng,,\nh,,\n"


def test_times_of_a_table_are_ages_unless_absolute(capsys: pytest.CaptureFixture[str]) -> None:
    now_ms = SystemClock().now_ms()
    times = [shown_time(now_ms + by_ms) for by_ms in (-12_100, -3_660_100, 3 * 86_400_000 + 4 * 3_600_000 + 59_000)]
    rows: list[list[str | None]] = [["g", times[0]], ["h", times[1]], ["i", times[2]], ["j", None]]
    for format_ in ("table", "json", "csv"):
        write_rows(["group", "last_commit"], rows, format_)
    out = capsys.readouterr().out
    ages = ["g      12 s ago", "h      1 h 1 min ago", "i      in 3 d 4 h", "j      -"]
    assert out.splitlines()[:5] == ["GROUP  LAST-COMMIT", *ages]
    assert all(out.count(time) == 2 for time in times)
    write_rows(["group", "last_commit"], rows, "table", absolute=True)
    write_rows(["group", "last_commit"], rows, "table", all_columns=True)
    assert [capsys.readouterr().out.count(time) for time in times[:1]] == [2]
    for name in (times[0], "9999-99-99T99:99:99.999Z"):  # names like times
        write_rows(["group", "topic", "metadata"], [[name] * 3], "table")
        assert capsys.readouterr().out.count(name) == 3


@pytest.mark.parametrize(("apart_ms", "shown"), [(999, "5 d 1 h ago"), (1_000, "2026-11-")])
def test_times_of_long_ago_stay_where_all_have_one_age(
    apart_ms: int, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    long_ago_ms = parse_time_ms("2026-11-20T19:00:00.000Z")
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: long_ago_ms + (5 * 24 + 1) * 3_600_000 + 60_000)
    write_rows(["group", "time"], [["g", shown_time(long_ago_ms)], ["h", shown_time(long_ago_ms + apart_ms)]], "table")
    assert capsys.readouterr().out.count(shown) == 2


@pytest.mark.parametrize("absolute", [False, True])
def test_times_that_are_no_ages_are_whole_in_a_narrow_table(
    terminal: pytest.CaptureFixture[str], *, absolute: bool
) -> None:
    times = ["2020-11-20T19:00:00.000Z", "2020-11-20T19:00:05.500Z"]
    rows = [
        [time, at * 40, 12_345_678_901, f"a detail that takes the rest of the line, {at}"]
        for time, at in zip(times, "cd", strict=True)
    ]
    write_rows(["time", "event", "offset", "detail"], rows, "table", absolute=absolute)
    header, *lines = click.unstyle(terminal.readouterr().out).splitlines()
    assert header.split() == ["TIME", "EVENT", "OFFSET"]
    assert [line.split()[0] for line in lines[:2]] == times
    assert lines[2] == "no room for DETAIL; --format csv has all columns"


def test_texts_that_repeat_in_a_wide_table_are_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    reasons = ["no position of the partition is known", "the group has no committed offset"]
    rows = [[f"group-{number:030}", "a text of all the rows", reasons[number % 2], 7] for number in range(6)]
    columns = ["group", "method", "reason", "offset"]
    write_rows(columns, [*rows, ["group", "a text of all the rows", "once, and as long as the others", 7]], "table")
    *table, first, second, of_all = capsys.readouterr().out.splitlines()
    assert [first, second, of_all] == [f"[1] {reasons[0]}", f"[2] {reasons[1]}", "METHOD: a text of all the rows"]
    assert table[0].split() == ["GROUP", "REASON", "OFFSET"]
    assert [line.split()[1] for line in table[1:]] == ["[1]", "[2]", "[1]", "[2]", "[1]", "[2]", "once,"]
    write_rows(columns[1:], [row[1:] for row in rows], "table")  # it fits
    assert capsys.readouterr().out.count(reasons[0]) == 3


@pytest.mark.parametrize("no_color", [False, True])
def test_the_header_is_bold_on_a_terminal_unless_no_color_is_set(
    terminal: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, no_color: bool
) -> None:
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    write_rows(["group"], [["g"]], "table")
    assert terminal.readouterr().out == ("GROUP\ng\n" if no_color else "\x1b[1mGROUP\x1b[0m\ng\n")


def test_a_table_longer_than_the_terminal_goes_to_a_pager(
    terminal: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paged: list[str] = []
    monkeypatch.setattr(click, "echo_via_pager", paged.append)
    write_rows(["n"], [[number] for number in range(8)], "table")
    assert terminal.readouterr().out.count("\n") == 9
    write_rows(["n"], [[number] for number in range(9)], "table")
    assert (terminal.readouterr().out, paged[0].count("\n")) == ("", 10)


def test_json_is_indented_on_a_terminal_only(
    terminal: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_json({"a": [1]})
    assert terminal.readouterr().out == '{\n  "a": [\n    1\n  ]\n}\n'
    monkeypatch.setattr(output, "is_terminal", lambda *_: False)
    write_json({"a": [1]})
    write_rows(["a"], [[1]], "table")
    assert terminal.readouterr().out == '{"a": [1]}\nA\n1\n'
