"""R1: which log partition a group belongs to, one name at a time and by columns."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offsets_pipeline.semantics.partitioning import java_hash, partition_for, partitions_for
from tests.logs import CAPTURE_NAMES, capture_partitions, oracle

INT_MIN_STRING = "polygenelubricants"  # its hash is -2^31
NEGATIVE_STRING = "The quick brown fox jumps over the lazy dog"
FIXED = settings(max_examples=200)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("ab", 97 * 31 + 98),
        ("hello", 99162322),
        ("hello world", 1794106052),
        ("Hello, World!", 1498789909),
        (NEGATIVE_STRING, -609428141),
        ("\0\0", 0),
        ("é", 0xE9),
        ("€", 0x20AC),
        ("\U0001f600", 0xD83D * 31 + 0xDE00),  # two UTF-16 code units
        ("\ud83d", 0xD83D),  # half of a pair
        (INT_MIN_STRING, -(2**31)),
    ],
)
def test_hash_is_java_s(text: str, expected: int) -> None:
    assert java_hash(text) == _by_definition(text) == expected


def _by_definition(text: str) -> int:
    """s[0]*31^(n-1) + ... + s[n-1] over UTF-16 code units, in 32 bits."""
    raw = text.encode("utf-16-be", "surrogatepass")
    units = [int.from_bytes(raw[at : at + 2], "big") for at in range(0, len(raw), 2)]
    value: int = sum(unit * 31 ** (len(units) - 1 - at) for at, unit in enumerate(units)) % 2**32
    return value - 2**32 if value >= 2**31 else value


@pytest.mark.parametrize("offsets_partitions", [1, 5, 50, 7919])
def test_smallest_hash_belongs_to_the_first_log_partition(offsets_partitions: int) -> None:
    """Java's abs(-2^31) is negative; Kafka takes 0."""
    assert partition_for(INT_MIN_STRING, offsets_partitions) == 0
    assert partitions_for(pa.array([INT_MIN_STRING, "g"]), offsets_partitions)[0] == 0


def test_negative_hash_counts_by_its_distance_from_zero() -> None:
    assert partition_for(NEGATIVE_STRING, 50) == 609428141 % 50
    assert partitions_for(pa.array([NEGATIVE_STRING]), 50).tolist() == [609428141 % 50]


@pytest.mark.parametrize("name", CAPTURE_NAMES)
def test_log_partition_is_the_one_the_broker_took(name: str) -> None:
    answers = {group_id: each["partition_for_group"] for group_id, each in oracle(name)["groups"].items()}
    n = capture_partitions(name)
    assert {group_id: partition_for(group_id, n) for group_id in answers} == answers
    assert partitions_for(pa.array(answers.keys(), pa.string()), n).tolist() == list(answers.values())


def test_some_recorded_group_is_not_ascii() -> None:
    assert any(not group_id.isascii() for name in CAPTURE_NAMES for group_id in oracle(name)["groups"])


def test_no_names_have_no_log_partitions() -> None:
    assert partitions_for(pa.array([], pa.string()), 50).tolist() == []


def test_slice_of_a_column_is_read_in_place() -> None:
    names = pa.array(["aaaa", "g", "", "größe", "zz"])
    assert partitions_for(names.slice(1, 3), 50).tolist() == [partition_for(name, 50) for name in ("g", "", "größe")]


TEXT = st.text(max_size=12) | st.text(st.characters(max_codepoint=127), max_size=40) | st.just(INT_MIN_STRING)


@FIXED
@given(st.lists(TEXT, max_size=8, unique=True), st.sampled_from([1, 5, 50, 7919]))
def test_column_agrees_with_one_by_one_and_with_the_definition(names: list[str], offsets_partitions: int) -> None:
    found = partitions_for(pa.array(names, pa.string()), offsets_partitions)
    assert str(found.dtype) == "int32"
    assert found.tolist() == [partition_for(name, offsets_partitions) for name in names]
    for name in names:
        value = _by_definition(name)
        assert java_hash(name) == value
        assert partition_for(name, offsets_partitions) == (0 if value == -(2**31) else abs(value)) % offsets_partitions
