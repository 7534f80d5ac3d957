"""Which rows of the state count, by Arrow, as readers and publishings ask, by DuckDB and by the query for Spark.

streaming/test_writers_of_state.py asks Spark itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.fold.state.fold_progress import PartitionProgress
from offsets_pipeline.fold.state.merge_on_read import DESCRIBED, OFFSETS, RECORDS, StateTable
from offsets_pipeline.store.delta.table_folder import TableFolder
from tests.unit.state.state_files import in_duckdb, in_order, in_spark, of_a_reader, offset, places, put, write

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.state.state_files import Query

    Offsets = list[tuple[str, int, int | None]]


@pytest.fixture(params=[of_a_reader, in_duckdb, in_spark])
def query(request: pytest.FixtureRequest) -> Query:
    """Each query for the rows that count."""
    chosen: Query = request.param
    return chosen


def stored(
    folder: Path, table: StateTable, *files: tuple[int, list[dict[str, Any]]]
) -> tuple[TableFolder, TableFolder | None]:
    """The tables of facts and of published rows; each file has an incarnation and rows, incarnation 0 is published."""
    facts = TableFolder(str(folder / table.name), table.table)
    facts.create()
    published = None
    if table.published is not None:
        published = TableFolder(str(folder / table.published.name), table.published)
        published.create()
    for incarnation, rows in files:
        if incarnation:
            write(facts, rows, incarnation=incarnation)
        elif published is not None:
            put(published, [{name: row[name] for name in row if name in published.table.names()} for row in rows])
    return facts, published


def progress(*published_to: int, incarnation: int = 1) -> dict[int, PartitionProgress]:
    """Log partitions that are published to these record offsets."""
    return {
        at: PartitionProgress(at, incarnation=incarnation, folded_to=100, published_to=end)
        for at, end in enumerate(published_to)
    }


def counting(query: Query, rows: Offsets) -> Offsets:
    """What a query answers of the rows that count: Spark's only has the answered ones."""
    return [row for row in rows if query is not in_spark or row[2] is not None]


PUBLISHED = (0, [offset(where, at) for where, at in (("a0", 5), ("a1", 6), ("b0", 7), ("b1", 8))])


def test_row_with_the_highest_record_offset_counts_and_each_key_once(place: Path, query: Query) -> None:  # R10
    tables = stored(
        place,
        OFFSETS,
        PUBLISHED,
        (1, [offset("a0", 9), offset("b1", 11, is_tombstone=True), offset("c0", 10)]),
        (1, [offset("a1", 6), offset("c0", 2), offset("a0", 8)]),  # a fold that another overtook writes late
        (1, [offset("b0", 3), offset("c0", 10)]),
    )
    rows = [("a0", 9, 9), ("a1", 6, 6), ("b0", 7, 7), ("b1", 11, None), ("c0", 10, 10)]
    assert places(query(OFFSETS, *tables, progress(9))) == counting(query, rows)


def test_late_facts_change_nothing_of_what_is_published(place: Path, query: Query) -> None:  # R15
    late = [offset(where, at) for where, at in (("a0", 1), ("a1", 2), ("b0", 7), ("b1", 4))]
    tables = stored(place, OFFSETS, PUBLISHED, (1, late))
    assert places(query(OFFSETS, *tables, progress(9))) == [("a0", 5, 5), ("a1", 6, 6), ("b0", 7, 7), ("b1", 8, 8)]


def test_fact_and_published_row_that_are_equal_count_once(place: Path, query: Query) -> None:
    """A publishing died before it removed the facts."""
    tables = stored(place, OFFSETS, PUBLISHED, (1, PUBLISHED[1]))
    for published_to in (0, 6, 9):
        found = places(query(OFFSETS, *tables, progress(published_to)))
        assert found == [("a0", 5, 5), ("a1", 6, 6), ("b0", 7, 7), ("b1", 8, 8)]


@pytest.mark.parametrize("published_to", [9, 10, 11, 12])
def test_progress_in_duckdb_may_be_older_than_its_rows_and_hides_none(
    place: Path, query: Query, published_to: int
) -> None:
    """The rows have all records before 12; a reader that found the progress before them merges both."""
    tables = stored(
        place,
        OFFSETS,
        (0, [offset(where, at) for where, at in (("a0", 5), ("a1", 6), ("b0", 9), ("b1", 8), ("c0", 10), ("c1", 11))]),
        (1, [offset("a0", 4), offset("b0", 9), offset("c0", 10), offset("c1", 11)]),
        (
            1,
            [offset("a0", 12), offset("b1", 3), offset("c0", 2)],
        ),  # a0: once newer and once older than what is published
    )
    rows = [("a0", 12, 12), ("a1", 6, 6), ("b0", 9, 9), ("b1", 8, 8), ("c0", 10, 10), ("c1", 11, 11)]
    assert places(query(OFFSETS, *tables, progress(published_to))) == rows


def test_tombstone_that_is_not_answered_hides_what_is_published(place: Path, query: Query) -> None:
    tables = stored(place, OFFSETS, PUBLISHED, (1, [offset("a0", 6, is_tombstone=True), offset("b0", 20)]))
    for published_to in (0, 6, 9):
        rows = [("a0", 6, None), ("a1", 6, 6), ("b0", 20, 20), ("b1", 8, 8)]
        assert places(query(OFFSETS, *tables, progress(published_to))) == counting(query, rows)


def test_marker_brings_back_an_offset_in_front_of_its_tombstone(place: Path, query: Query) -> None:  # R10c
    rows = [offset("a0", 10, is_tombstone=True), offset("a0", 4, position=10)]
    tables = stored(place, OFFSETS, PUBLISHED, (1, rows))
    for published_to in (0, 8, 11):
        assert places(query(OFFSETS, *tables, progress(published_to)))[0] == ("a0", 4, 4)


@pytest.mark.parametrize(
    ("incarnations", "expected"),
    [
        ((1, 1), [("a0", 9, 9), ("d0", 4, 4)]),
        ((2, 2), [("a0", 20, 20), ("d0", 30, 30)]),
        ((1, 2), [("a0", 9, 9), ("d0", 30, 30)]),
        ((2, 1), [("a0", 20, 20), ("d0", 4, 4)]),
        ((3, 1), [("d0", 4, 4)]),
    ],
)
def test_only_facts_of_the_incarnation_that_the_progress_names_count(
    place: Path, query: Query, incarnations: tuple[int, int], expected: Offsets
) -> None:
    tables = stored(
        place,
        OFFSETS,
        (1, [offset("a0", 5), offset("d0", 4, log_partition=1)]),
        (1, [offset("a0", 9)]),
        (2, [offset("a0", 20), offset("d0", 30, log_partition=1)]),
    )
    named = {at: PartitionProgress(at, incarnation=each, folded_to=100) for at, each in enumerate(incarnations)}
    assert places(query(OFFSETS, *tables, named)) == expected


def test_groups_compare_by_their_newest_record(place: Path, query: Query) -> None:
    def group(group_id: str, record_offset: int, state: str = "Empty") -> dict[str, Any]:
        row = {"log_partition": 0, "group_id": group_id, "state": state, "record_offset": record_offset}
        return row | {"misplaced": False, "assignor": "", "member_count": 0}

    def fact(*arguments: Any) -> dict[str, Any]:  # noqa: ANN401
        return {name: value for name, value in group(*arguments).items() if name not in ("assignor", "member_count")}

    tables = stored(
        place,
        DESCRIBED,
        (0, [group("changed", 5), group("late", 6), group("removed", 7)]),
        (1, [fact("changed", 9, "Stable"), fact("late", 2, "Stable"), fact("removed", 10, "Dead"), fact("new", 11)]),
    )
    found = [(row["group_id"], row["state"]) for row in in_order(DESCRIBED, query(DESCRIBED, *tables, progress(8)))]
    rows = [("changed", "Stable"), ("late", "Empty"), ("new", "Empty"), ("removed", "Dead")]
    assert found == [row for row in rows if query is not in_spark or row[1] != "Dead"]


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
    ("earlier", "later", "expected"),
    [
        ((5, None), (5, 9), (5, 9)),
        ((5, 9), (5, None), (5, 9)),
        ((5, 9), (10, 9), (10, 9)),
        ((None, 9), (5, None), (None, 9)),
        ((None, 3), (5, 3), (5, 3)),
    ],
)
def test_group_record_with_the_highest_value_or_tombstone_counts(
    place: Path,
    query: Query,
    earlier: tuple[int | None, int | None],
    later: tuple[int | None, int | None],
    expected: tuple[int | None, int | None],
) -> None:  # R14
    tables = stored(place, RECORDS, (1, [record(*earlier)]), (1, [record(*later)]))
    (found,) = in_order(RECORDS, query(RECORDS, *tables, progress(0)))
    assert (found["value_offset"], found["tombstone_offset"]) == expected
