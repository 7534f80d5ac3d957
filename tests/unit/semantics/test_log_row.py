"""Rows of the log by log partition, record offset and group."""

from __future__ import annotations

import pyarrow as pa
import pytest

from offsets_pipeline.semantics.log_row import (
    LogRow,
    are_keys_of,
    in_log_order,
    of_groups,
    of_partitions,
    place_of,
)
from tests.logs import LogPartition, commit_key, group_key, input_table

PLACES = [(3, 7), (1, 9), (3, 2), (1, 4)]


def rows_at(*places: tuple[int, int]) -> pa.Table:
    return input_table(LogRow(*place, None, None) for place in places)


def places(rows: pa.Table) -> list[tuple[int, int]]:
    return list(zip(rows["log_partition"].to_pylist(), rows["record_offset"].to_pylist(), strict=True))


def test_rows_are_named_taken_and_put_in_order_by_log_partition_and_record_offset() -> None:
    rows = rows_at(*PLACES)
    assert place_of(rows) == "log partitions 1 to 3, record offsets 2 to 9"
    assert place_of(rows_at(*PLACES[::2])) == "log partition 3, record offsets 2 to 7"
    assert place_of(rows_at()) == "no rows"
    assert places(of_partitions(rows, {3, 8})) == [(3, 7), (3, 2)]
    assert places(of_partitions(rows, [1, 3])) == PLACES
    assert places(of_partitions(rows, [])) == []
    assert places(in_log_order(rows)) == sorted(PLACES)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({"g"}, [True, True, False, False, False, False]),
        ({"g", "ü"}, [True, True, False, True, False, False]),
        ({"\ufffd", "g"}, [True, True, False, False, True, False]),
        (set(), [False] * 6),
    ],
)
def test_keys_are_of_a_group_by_its_whole_id(groups: set[str], expected: list[bool]) -> None:
    malformed = commit_key("h").replace(b"h", b"\xff")  # decodes to U+FFFD
    keys = [commit_key("g", "t", 1), group_key(5, "g", "m"), commit_key("gg"), commit_key("ü", version=0), malformed]
    column = pa.chunked_array([keys[:2], [*keys[2:], b"\x00"]], pa.binary())
    assert are_keys_of(column, groups).tolist() == expected


def test_rows_of_groups_come_with_all_control_records() -> None:
    log = LogPartition()
    log.commit(("g", "t", 0), 1, producer_id=7)
    log.record(None, b"no key")
    log.end_commit(7)
    rows = input_table(log.rows)
    for name, expected in (("g", [0, 2]), ("h", [2]), ("\ufffd", [2])):
        assert of_groups(rows, {name})["record_offset"].to_pylist() == expected
