"""Rows of the log by log partition, record offset and group."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from offsets_pipeline.semantics.log_row import (
    LogRow,
    are_keys_of,
    has_one_prefix,
    in_log_order,
    of_each_row,
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


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ([], "no rows"),
        ([(3, 7), (3, 2)], "log partition 3, record offsets 2 to 7"),
        (PLACES, "log partitions 1 to 3, record offsets 2 to 9"),
    ],
)
def test_place_of_rows_names_log_partitions_and_record_offsets(at: list[tuple[int, int]], expected: str) -> None:
    assert place_of(rows_at(*at)) == expected


def test_rows_are_taken_by_log_partition_and_put_in_order() -> None:
    rows = rows_at(*PLACES)
    assert places(of_partitions(rows, {3, 8})) == [(3, 7), (3, 2)]
    assert places(of_partitions(rows, [1, 3])) == PLACES
    assert places(of_partitions(rows, [])) == []
    assert places(in_log_order(rows)) == sorted(PLACES)


@pytest.mark.parametrize(
    ("offsets", "log_partitions", "missing", "expected"),
    [
        ({1: 5, 4: 7}, [4, 0, 1, 6], 0, [7, 0, 5, 0]),
        ({1: 5, 4: 7}, [4, 0, 1, 6], 9, [7, 9, 5, 9]),
        ({0: 5}, [], 0, []),
        ({}, [2, 0], 3, [3, 3]),
        ({}, [], 0, []),
    ],
)
def test_each_row_has_the_offset_of_its_log_partition(
    offsets: dict[int, int], log_partitions: list[int], missing: int, expected: list[int]
) -> None:
    assert of_each_row(offsets, np.array(log_partitions, dtype=np.int32), missing).tolist() == expected
    if not missing:
        assert of_each_row(offsets, np.array(log_partitions, dtype=np.int32)).tolist() == expected


MALFORMED = commit_key("h").replace(b"h", b"\xff")  # decodes to U+FFFD


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({"g"}, [True, True, False, False, False, False]),
        ({"g", "ü"}, [True, True, False, True, False, False]),
        ({"\ufffd"}, [False, False, False, False, True, False]),
        ({"\ufffd", "g"}, [True, True, False, False, True, False]),
        (set(), [False] * 6),
    ],
)
def test_keys_are_of_a_group_by_its_whole_id(groups: set[str], expected: list[bool]) -> None:
    keys = [commit_key("g", "t", 1), group_key(5, "g", "m"), commit_key("gg"), commit_key("ü", version=0), MALFORMED]
    column = pa.chunked_array([keys[:2], [*keys[2:], b"\x00"]], pa.binary())
    assert are_keys_of(column, groups).tolist() == expected
    assert all(map(has_one_prefix, groups)) == ("\ufffd" not in groups)


def test_rows_of_groups_come_with_all_control_records() -> None:
    log = LogPartition()
    log.commit(("g", "t", 0), 1, producer_id=7)
    log.commit(("h", "t", 0), 1, producer_id=7)
    log.record(None, b"no key")
    log.end_commit(7)
    rows = input_table(log.rows)
    assert of_groups(rows, {"g"})["record_offset"].to_pylist() == [0, 3]
    assert of_groups(rows, {"\ufffd"})["record_offset"].to_pylist() == [3]
    assert of_groups(rows.slice(3), {"g"}) == rows.slice(3)
