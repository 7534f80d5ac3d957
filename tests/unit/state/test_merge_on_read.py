"""Which rows of a state table count. DataFusion answers both queries; streaming/test_writers_of_state.py asks Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.delta.table_folder import TableFolder
from offsets_pipeline.state.merge_on_read import OFFSETS, RECORDS, StateTable
from tests.unit.state.state_files import in_spark, newest, of_offsets, offset, without_spark, written

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.state.state_files import Query


@pytest.fixture(params=[without_spark, in_spark])
def query(request: pytest.FixtureRequest) -> Query:
    """Each query for the rows that count."""
    chosen: Query = request.param
    return chosen


def stored(folder: Path, table: StateTable, *files: tuple[bool, int, list[dict[str, Any]]]) -> TableFolder:
    """The table with these files: whether it is a base file, its incarnation, its rows."""
    found = TableFolder(str(folder / table.name), table.table)
    found.create()
    for is_base, incarnation, rows in files:
        added = written(found, table, rows, is_base=is_base, incarnation=incarnation)
        found.commit(add=added, seen=found.snapshot())
    return found


BASE = (True, 1, [offset(where, at) for where, at in (("a0", 5), ("a1", 6), ("b0", 7), ("b1", 8))])


def test_row_with_the_highest_record_offset_counts_and_each_key_once(tmp_path: Path, query: Query) -> None:  # R10
    folder = stored(
        tmp_path,
        OFFSETS,
        BASE,
        (False, 1, [offset("a0", 9), offset("b1", 11, is_tombstone=True), offset("c0", 10)]),
        (False, 1, [offset("a1", 6), offset("c0", 2), offset("a0", 8)]),  # a fold that another overtook writes late
        (False, 1, [offset("b0", 3), offset("c0", 10)]),
    )
    assert of_offsets(folder, {0: 1}, query) == [
        ("a0", 9, 9),
        ("a1", 6, 6),
        ("b0", 7, 7),
        ("b1", 11, None),
        ("c0", 10, 10),
    ]


def test_late_rows_of_a_compacted_table_change_nothing(tmp_path: Path, query: Query) -> None:  # R15
    late = [offset(where, at) for where, at in (("a0", 1), ("a1", 2), ("b0", 7), ("b1", 4))]
    folder = stored(tmp_path, OFFSETS, BASE, (False, 1, late))
    assert of_offsets(folder, {0: 1}, query) == [("a0", 5, 5), ("a1", 6, 6), ("b0", 7, 7), ("b1", 8, 8)]


@pytest.mark.parametrize("compacted_to", [9, 10, 11, 12, 13])
def test_end_of_the_base_may_lie_behind_it_and_hides_no_row(tmp_path: Path, compacted_to: int) -> None:
    folder = stored(
        tmp_path,
        OFFSETS,
        BASE,
        (False, 1, [offset("a0", 4), offset("a1", 6), offset("b0", 9), offset("c0", 10), offset("c1", 11)]),
        (False, 1, [offset("a0", 12), offset("b1", 3), offset("c0", 2)]),  # a0: once newer and once older than the base
    )

    def query(table: StateTable, name: str, named: str) -> str:
        return in_spark(table, name, named, str(compacted_to))

    assert of_offsets(folder, {0: 1}, query) == [
        ("a0", 12, 12),
        ("a1", 6, 6),
        ("b0", 9, 9),
        ("b1", 8, 8),
        ("c0", 10, 10),
        ("c1", 11, 11),
    ]


@pytest.mark.parametrize(
    ("incarnations", "expected"),
    [
        ({0: 1, 1: 1}, [("a0", 9, 9), ("d0", 4, 4)]),
        ({0: 2, 1: 2}, [("a0", 20, 20), ("d0", 30, 30)]),
        ({0: 1, 1: 2}, [("a0", 9, 9), ("d0", 30, 30)]),
        ({0: 2, 1: 1}, [("a0", 20, 20), ("d0", 4, 4)]),
        ({0: 3, 1: 1}, [("d0", 4, 4)]),
        ({}, []),
    ],
)
def test_only_the_incarnation_that_the_progress_names_counts(
    tmp_path: Path, query: Query, incarnations: dict[int, int], expected: list[tuple[str, int, int | None]]
) -> None:
    folder = stored(
        tmp_path,
        OFFSETS,
        (True, 1, [offset("a0", 5), offset("d0", 4, log_partition=1)]),
        (False, 1, [offset("a0", 9)]),
        (True, 2, [offset("a0", 20), offset("d0", 30, log_partition=1)]),
    )
    assert of_offsets(folder, incarnations, query) == expected


def record(value_offset: int | None, tombstone_offset: int | None) -> dict[str, Any]:
    """A row of `group_records`, all of one key."""
    return {
        "log_partition": 0,
        "group_id": "g",
        "record_type": 2,
        "record_key": "",
        "value_offset": value_offset,
        "value": None if value_offset is None else b"%d" % value_offset,
        "tombstone_offset": tombstone_offset,
    }


@pytest.mark.parametrize(
    ("base", "delta", "expected"),
    [
        ((5, None), (5, 9), (5, 9)),
        ((5, 9), (5, None), (5, 9)),
        ((5, 9), (10, 9), (10, 9)),
        ((None, 9), (5, None), (None, 9)),
        ((None, 3), (5, 3), (5, 3)),
    ],
)
def test_group_record_with_the_highest_value_or_tombstone_counts(
    tmp_path: Path,
    query: Query,
    base: tuple[int | None, int | None],
    delta: tuple[int | None, int | None],
    expected: tuple[int | None, int | None],
) -> None:  # R14
    folder = stored(tmp_path, RECORDS, (True, 1, [record(*base)]), (False, 1, [record(*delta)]))
    (found,) = newest(folder, RECORDS, {0: 1}, query)
    assert (found["value_offset"], found["tombstone_offset"]) == expected
