"""Texts of users at the boundaries of what is allowed, and how they are shown."""

from __future__ import annotations

import re
from datetime import timedelta

import pyarrow as pa
import pytest

from offsets_pipeline.common.arrow_values import all_false, array_of, conformed
from offsets_pipeline.common.clock import EPOCH
from offsets_pipeline.common.input_text import (
    INT32_MAX,
    counted,
    first_ones,
    is_deeper,
    is_utf8,
    parse_json,
    printable,
    shown,
    validated_topic,
    whole_number,
    with_short_words,
)
from offsets_pipeline.errors import InvalidTopic

DIGITS = "1" * 1_000


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def test_one_thing_has_no_plural() -> None:
    assert [counted(number, "offset") for number in (0, 1, 2)] == ["0 offsets", "1 offset", "2 offsets"]


@pytest.mark.parametrize(
    ("text", "highest", "number"),
    [
        ("0", 9, 0),
        ("-0", 9, 0),
        ("9", 9, 9),
        ("10", 9, "10 is above 9"),
        ("99", 98, "99 is above 98"),
        ("0" * 50 + "98", 98, 98),
        ("2147483648", INT32_MAX, "2147483648 is above 2^31-1"),
        ("9223372036854775807", None, 2**63 - 1),
        ("9223372036854775808", None, "9223372036854775808 is above 2^63-1"),
        ("9" * 10_000, 9, f"{'9' * 40}... is above 9"),
        ("-1", 9, "-1 is negative"),
        ("", 9, "'' is not a whole number"),
        ("1.0", 9, "'1.0' is not a whole number"),
        ("٣", 9, "'٣' is not a whole number"),
    ],
)
def test_whole_number_is_up_to_the_highest(text: str, highest: int | None, number: int | str) -> None:
    limits = () if highest is None else (highest,)
    if isinstance(number, int):
        assert whole_number(text, *limits) == number
    else:
        with pytest.raises(ValueError, match=r"is") as refused:
            whole_number(text, *limits)
        assert str(refused.value) == number


def test_long_and_unprintable_texts_are_cut_and_escaped() -> None:
    assert [shown("x" * length) for length in (40, 41)] == [f"'{'x' * 40}'", f"'{'x' * 40}...'"]
    assert [printable(text) for text in ("a\u0301 b", "a\u202eb\0")] == ["a\u0301 b", "a\\u202eb\\x00"]
    assert with_short_words(f"{'x' * 300} {'y' * 300}z.") == f"{'x' * 300} {'y' * 40}...."
    assert [first_ones("abcd"[:count], 2) for count in (0, 1, 2, 3, 4)] == [
        *("", "a", "a, b", "a, b and 1 more", "a, b and 2 more")
    ]
    assert [is_utf8(text) for text in ("\U0001f600", "\ud83d")] == [True, False]


def test_topic_names_are_those_that_kafka_allows() -> None:
    for name in ("a", "_-.Z9", "...", "x" * 249):
        assert validated_topic(name) == name
    for name in ("", ".", "..", "x" * 250, "a b", "ä", "a\n"):
        with pytest.raises(InvalidTopic, match="is not a topic name: it has 1 to 249 letters"):
            validated_topic(name)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (DIGITS, int(DIGITS)),
        ("-1e3", -1000.0),
        ('{"a": 1, "a": 2}', {"a": 2}),
        (r'"\ud83d\ude00"', "\U0001f600"),
        (f"[{'[],' * 501}{{}}]", [*([] for _ in range(501)), {}]),  # wide, not deep
    ],
)
def test_json_is_read(text: str, value: object) -> None:
    assert parse_json(text) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{DIGITS}1", f"the number {'1' * 40}... has more than 1000 digits"),
        ("1e400", "the number 1e400 is too large"),
        ("-1e400", "the number -1e400 is too large"),
        ("[NaN]", "NaN is not JSON"),
        ("-Infinity", "-Infinity is not JSON"),
        (nested(501), "it has too many levels of arrays and objects"),
        (f'{{"a": {nested(500)}}}', "it has too many levels of arrays and objects"),
        (nested(100_000), "it has too many levels of arrays and objects"),
        (r'["\ud800"]', "surrogates not allowed"),
        ('["\ud800"]', "surrogates not allowed"),
        ("[1,]", "line 1 column"),
    ],
)
def test_json_that_cannot_be_written_again_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse_json(text)


def test_numbers_of_json_may_stay_text_and_500_levels_are_read() -> None:
    assert parse_json(f'[1e400, {DIGITS}1, "x"]', numbers_as_text=True) == ["1e400", f"{DIGITS}1", "x"]
    assert is_deeper(parse_json(nested(500)), 499)
    assert not is_deeper(parse_json(nested(500)), 500)
    for document, levels in ((1, 0), ([], 1), ({"a": 1}, 1), ({"a": [{}]}, 3), ([1, {"b": [2]}, "c"], 3)):
        assert not is_deeper(document, levels)
        assert levels == 0 or is_deeper(document, levels - 1)


def test_arrays_are_arrows_own() -> None:
    for values, type_ in (([], pa.int64()), ([0, -1, 2**63 - 1], pa.int64()), (["ä", "", "bc"], pa.string())):
        array_of(values).validate(full=True)
        assert array_of(values).equals(pa.array(values, type_))
    for size in (0, 1, 8, 80):
        all_false(size).validate(full=True)
        assert all_false(size).to_pylist() == [False] * size


def test_rows_conform_to_a_schema() -> None:
    rows = pa.table({"left": [1, 2], "other": ["x", "y"]})
    names = ("left", "text", "partition", "time", "no")
    types = (pa.int32(), pa.string(), pa.int32(), pa.timestamp("us", tz="UTC"), pa.bool_())
    schema = pa.schema([*zip(names, types, strict=True), ("missing", pa.binary())])
    found = conformed(rows, schema, {"text": "ä", "partition": "7", "time": 1_000_000, "no": False, "left": 5})
    found.validate(full=True)
    assert found.schema == schema
    same = {"text": "ä", "partition": 7, "time": EPOCH + timedelta(seconds=1), "no": False, "missing": None}
    assert found.to_pylist() == [{"left": 1, **same}, {"left": 2, **same}]
