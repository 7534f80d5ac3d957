"""The last record of each key, over columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offsets_pipeline.semantics.compaction import gathered, highest_of_each, last_of_each, paired
from offsets_pipeline.semantics.log_row import codes_of

FIXED = settings(max_examples=150)


def int64s(numbers: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(numbers, dtype=np.int64)


@pytest.mark.parametrize("keys", [pa.array([b"a", b"b", b"a"]), pa.chunked_array([[b"a"], [b"b", b"a"]])])
def test_equal_keys_have_equal_codes(keys: pa.Array) -> None:
    first, second, third = codes_of(keys).tolist()
    assert first == third != second


def test_no_keys_have_no_codes() -> None:
    assert codes_of(pa.array([], pa.binary())).tolist() == []
    assert paired(int64s([]), int64s([])).tolist() == []
    assert last_of_each(int64s([]), int64s([])).tolist() == []
    assert highest_of_each(int64s([]), int64s([]), int64s([])).tolist() == []


def test_highest_record_offset_of_each_code_is_kept() -> None:
    assert last_of_each(int64s([0, 1, 0, 2]), int64s([5, 6, 7, 8])).tolist() == [1, 2, 3]


def test_order_of_rows_does_not_matter_and_the_result_ascends() -> None:
    assert last_of_each(int64s([0, 0, 1]), int64s([9, 2, 5])).tolist() == [2, 0]


def test_highest_position_counts_and_then_the_highest_rank() -> None:  # R10c: -1 is the rank of a tombstone
    found = highest_of_each(int64s([0, 0, 0, 1, 1]), int64s([5, 5, 4, 9, 7]), int64s([-1, 3, 8, -1, 7]))
    assert found.tolist() == [1, 3]
    assert highest_of_each(int64s([0, 1]), int64s([6, 5]), int64s([6, 5])).tolist() == [1, 0]


def test_row_that_is_there_twice_counts_once() -> None:
    assert len(last_of_each(int64s([0, 0, 1]), int64s([3, 3, 3]))) == 2


@FIXED
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 20)), max_size=20))
def test_last_of_each_is_the_maximum_of_each(rows: list[tuple[int, int]]) -> None:
    kept = last_of_each(int64s([code for code, _ in rows]), int64s([offset for _, offset in rows])).tolist()
    highest: dict[int, int] = {}
    for code, offset in rows:
        highest[code] = max(offset, highest.get(code, -1))
    assert {rows[at][0]: rows[at][1] for at in kept} == highest
    assert len(kept) == len(highest)
    assert [rows[at][1] for at in kept] == sorted(highest.values())


@FIXED
@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from([0, 1, 2, 49, 7918])), max_size=20))
def test_pairs_are_equal_where_both_are(rows: list[tuple[int, int]]) -> None:
    codes = paired(int64s([code for code, _ in rows]), int64s([other for _, other in rows])).tolist()
    assert len(set(zip(codes, rows, strict=True))) == len(set(codes)) == len(set(rows))
    assert all(0 <= code <= max(8 * len(rows), 1) for code in codes)


def test_tables_are_gathered_up_to_rows_or_bytes() -> None:
    tables = [pa.table({"a": pa.array(range(count), pa.int64())}) for count in (1, 2, 3, 4)]
    assert [each.num_rows for each in gathered(tables, rows=3)] == [3, 3, 4]
    assert [each.num_rows for each in gathered(tables, size_bytes=32)] == [6, 4]
    assert [each.num_rows for each in gathered(tables)] == [10]
    assert list(gathered([])) == []


def test_many_small_files_are_gathered_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sized: list[int] = []

    class File:
        num_rows = 1

        @property
        def nbytes(self) -> int:
            sized.append(1)
            return 8

    monkeypatch.setattr(pa, "concat_tables", list)
    (together,) = gathered(File() for _ in range(100))
    assert len(together) == len(sized) == 100
