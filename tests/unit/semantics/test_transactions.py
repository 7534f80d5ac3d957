"""Decisions of markers, over columns (R11)."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offsets_pipeline.semantics.log_row import ABORT, COMMIT
from offsets_pipeline.semantics.transactions import ABORTED, COMMITTED, OPEN, endings, endings_within

FIXED = settings(max_examples=150)


class Record(NamedTuple):
    log_partition: int
    producer_id: int
    record_offset: int


class Marker(NamedTuple):
    log_partition: int
    producer_id: int
    record_offset: int
    commits: bool = True


def table_of(records: list[Record], markers: list[Marker]) -> pa.Table:
    rows: list[Record | Marker] = [*records, *markers]
    return pa.table(
        {
            "log_partition": pa.array([row.log_partition for row in rows], pa.int32()),
            "record_offset": pa.array([row.record_offset for row in rows], pa.int64()),
            "producer_id": pa.array([row.producer_id for row in rows], pa.int64()),
            "control_type": pa.array(
                [None] * len(records) + [COMMIT if marker.commits else ABORT for marker in markers], pa.string()
            ),
        }
    )


def decided(records: list[Record], markers: list[Marker]) -> list[int]:
    found: list[int] = endings(table_of(records, markers)).outcome[: len(records)].tolist()
    return found


def one_by_one(record: Record, markers: list[Marker]) -> int:
    """R11 literally: the next marker of the record's producer in its log partition."""
    later = [m for m in markers if m[:2] == record[:2] and m.record_offset > record.record_offset]
    if not later:
        return OPEN
    return COMMITTED if min(later, key=lambda marker: marker.record_offset).commits else ABORTED


def test_record_without_a_marker_is_open() -> None:
    assert decided([Record(0, 7, 1)], []) == [OPEN]


def test_nothing_is_decided_for_nothing() -> None:
    assert decided([], []) == decided([], [Marker(0, 7, 1)]) == []


@pytest.mark.parametrize(("commits", "outcome"), [(True, COMMITTED), (False, ABORTED)])
def test_next_marker_decides(commits: bool, outcome: int) -> None:
    markers = [Marker(0, 7, 5, commits), Marker(0, 7, 9, not commits)]
    assert decided([Record(0, 7, 1)], markers) == [outcome]


def test_earlier_marker_decides_nothing() -> None:
    assert decided([Record(0, 7, 5)], [Marker(0, 7, 4)]) == [OPEN]


def test_records_between_markers_are_of_different_transactions() -> None:
    markers = [Marker(0, 7, 3, commits=False), Marker(0, 7, 6)]
    assert decided([Record(0, 7, at) for at in (1, 4, 7)], markers) == [ABORTED, COMMITTED, OPEN]


@pytest.mark.parametrize("marker", [Marker(0, 8, 5), Marker(1, 7, 5)])
def test_marker_of_another_producer_or_log_partition_decides_nothing(marker: Marker) -> None:
    assert decided([Record(0, 7, 1)], [marker]) == [OPEN]


POSITIONS = st.tuples(st.integers(0, 1), st.sampled_from([-1, 7, 2**62]), st.integers(0, 15))


def drawn(positions: list[tuple[int, int, int]], data: st.DataObject) -> tuple[list[Record], list[Marker]]:
    """A record or a marker at each position."""
    records, markers = [], []
    for position in positions:
        end = data.draw(st.sampled_from([None, None, True, False]))
        if end is None:
            records.append(Record(*position))
        else:
            markers.append(Marker(*position, commits=end))
    return records, markers


@FIXED
@given(st.lists(POSITIONS, max_size=12, unique=True), st.data())
def test_columns_agree_with_one_by_one_in_any_order(positions: list[tuple[int, int, int]], data: st.DataObject) -> None:
    records, markers = drawn(positions, data)
    again = data.draw(st.sampled_from([markers, markers * 2]))
    assert decided(records, again) == [one_by_one(record, markers) for record in records]


def decided_within(records: list[Record], markers: list[Marker]) -> list[int]:
    found: list[int] = endings_within(table_of(records, markers)).outcome[: len(records)].tolist()
    return found


def test_marker_behind_a_gap_decides_nothing_within_some_rows() -> None:
    records = [Record(0, 7, 1), Record(0, 7, 3), Record(0, 8, 4)]
    assert decided_within(records, [Marker(0, 7, 5)]) == [OPEN, COMMITTED, OPEN]
    assert decided_within(records[:1], [Marker(0, 7, 2)]) == [COMMITTED]
    assert decided_within(records[:1], [Marker(1, 7, 2)]) == [OPEN]  # R11: of another log partition


def test_rows_of_another_log_partition_between_two_are_no_gap() -> None:
    assert decided_within([Record(0, 7, 1), Record(1, 8, 5)], [Marker(0, 7, 2)]) == [COMMITTED, OPEN]


@FIXED
@given(st.lists(POSITIONS, max_size=25, unique_by=lambda each: (each[0], each[2])), st.data())
def test_what_is_decided_within_some_rows_is_what_all_rows_say(
    positions: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    records, markers = drawn(positions, data)
    taken = data.draw(st.sets(st.sampled_from([*records, *markers]))) if positions else set()
    some = [record for record in records if record in taken]
    within = decided_within(some, [marker for marker in markers if marker in taken])
    for record, outcome in zip(some, within, strict=True):
        assert outcome in {OPEN, one_by_one(record, markers)}
