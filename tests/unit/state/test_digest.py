"""Equal rows have equal digests, however they lie in memory; any other value gives another digest."""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa
import pytest

from offsets_pipeline.fold.state.verify import digests

SCHEMA = pa.schema(
    [
        ("log_partition", pa.int32()),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("hides", pa.bool_()),
        ("members", pa.list_(pa.struct([("id", pa.string()), ("topics", pa.list_(pa.string()))]))),
    ]
)
MEMBERS = [{"id": "m", "topics": ["t", "ü"]}, {"id": "n", "topics": None}]
ROWS: list[dict[str, Any]] = [
    {"log_partition": 3, "name": "ab", "raw": b"\x00", "at": 5, "hides": True, "members": MEMBERS},
    {"log_partition": 3, "name": "", "raw": None, "at": None, "hides": None, "members": []},
    {"log_partition": 4, "name": "ab", "raw": b"\x00", "at": 5, "hides": True, "members": MEMBERS},
    {"log_partition": 4, "name": "", "raw": None, "at": None, "hides": None, "members": []},
    {"log_partition": 5, "name": None, "raw": b"", "at": 0, "hides": False, "members": None},
]


def table(rows: list[dict[str, Any]] = ROWS) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA)


def test_a_digest_is_the_sha256_of_counts_names_nulls_and_values() -> None:
    rows = pa.table({"log_partition": pa.array([7, 7], pa.int32()), "offset": pa.array([258, None], pa.int64())})
    spelled_out = (2).to_bytes(8, "little") + b"offset\n" + b"\x01\x00" + (258).to_bytes(8, "little")
    assert digests(rows) == {7: hashlib.sha256(spelled_out).hexdigest()[:16]}


def test_equal_rows_of_two_log_partitions_have_one_digest() -> None:
    found = digests(table())
    assert found[3] == found[4] != found[5]
    assert digests(table([])) == {}


def test_batches_slices_columns_and_what_stands_under_nulls_make_no_difference() -> None:
    whole = table()
    in_batches = pa.Table.from_batches([whole.slice(at, 1).to_batches()[0] for at in range(whole.num_rows)])
    sliced = (
        pa.concat_tables([table(ROWS[::-1]), whole, table(ROWS[::-1])]).combine_chunks().slice(len(ROWS), len(ROWS))
    )
    for other in (in_batches, sliced, whole.select(SCHEMA.names[::-1])):
        assert digests(other) == digests(whole)
    numbers, hidden = pa.array([1, 2], pa.int64()), pa.py_buffer(b"\x01")
    with_rest = pa.Array.from_buffers(pa.int64(), 2, [hidden, numbers.buffers()[1]])
    without = pa.array([1, None], pa.int64())
    assert with_rest.equals(without)
    partition = pa.array([0, 0], pa.int32())
    assert digests(pa.table([partition, with_rest], ["log_partition", "n"])) == digests(
        pa.table([partition, without], ["log_partition", "n"])
    )


@pytest.mark.parametrize(
    "change",
    [
        {"name": "a"},
        {"name": None},
        {"raw": b"\x01"},
        {"raw": b"\x00\x00"},
        {"at": 6},
        {"hides": False},
        {"hides": None},
        {"members": MEMBERS[:1]},
        {"members": None},
        {"members": [{"id": "m", "topics": ["tü"]}, MEMBERS[1]]},
        {"members": [MEMBERS[0], {"id": "n", "topics": []}]},
        {"members": [MEMBERS[0], None]},
    ],
)
def test_another_value_gives_another_digest(change: dict[str, Any]) -> None:
    changed = digests(table([ROWS[0] | change, *ROWS[1:]]))
    assert changed.pop(3) != digests(table())[3]
    assert changed == {at: each for at, each in digests(table()).items() if at != 3}


def test_texts_that_share_their_letters_otherwise_differ() -> None:
    first, second = (table([ROWS[0] | {"name": a}, ROWS[0] | {"name": b}]) for a, b in (("ab", "c"), ("a", "bc")))
    assert digests(first) != digests(second)
