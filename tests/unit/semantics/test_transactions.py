"""What a marker decides, over columns (R11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offsets_pipeline.semantics.transactions import ABORTED, COMMITTED, OPEN, outcomes

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

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


def int64s(numbers: Iterable[int]) -> npt.NDArray[np.int64]:
    return np.array(list(numbers), dtype=np.int64)


def decided(records: list[Record], markers: list[Marker]) -> list[int]:
    found: list[int] = outcomes(
        int64s(record.log_partition for record in records),
        int64s(record.producer_id for record in records),
        int64s(record.record_offset for record in records),
        int64s(marker.log_partition for marker in markers),
        int64s(marker.producer_id for marker in markers),
        int64s(marker.record_offset for marker in markers),
        np.array([marker.commits for marker in markers], dtype=np.bool_),
    ).tolist()
    return found


def one_by_one(record: Record, markers: list[Marker]) -> int:
    """R11 in so many words: the next marker of the record's producer in its log partition."""
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


@FIXED
@given(st.lists(POSITIONS, max_size=12, unique=True), st.data())
def test_columns_agree_with_one_by_one_in_any_order(positions: list[tuple[int, int, int]], data: st.DataObject) -> None:
    records, markers = [], []
    for position in positions:
        end = data.draw(st.sampled_from([None, None, True, False]))
        if end is None:
            records.append(Record(*position))
        else:
            markers.append(Marker(*position, commits=end))
    again = data.draw(st.sampled_from([markers, markers * 2]))
    assert decided(records, again) == [one_by_one(record, markers) for record in records]
