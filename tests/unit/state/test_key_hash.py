"""The hash that joins base and delta: each test against a computation of one row at a time in plain integers."""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pytest
from offsets_pipeline.state.key_hash import with_key_hash

MASK = 2**64 - 1
STARTS = (0x243F6A8885A308D3, 0x13198A2E03707344)  # digits of pi
KEY = ("log_partition", "group_id", "topic", "partition")


def mixed(number: int) -> int:
    number = (number + 0x9E3779B97F4A7C15) & MASK
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & MASK
    return number ^ number >> 31


def halves(*key: int | str) -> list[int]:
    found = list(STARTS)
    for value in key:
        if isinstance(value, int):
            added = [value & MASK] * 2
        else:
            digest = hashlib.blake2b(value.encode(), digest_size=16).digest()
            added = [int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")]
        found = [mixed((half + each) & MASK) for half, each in zip(found, added, strict=True)]
    return [half - 2**64 if half >= 2**63 else half for half in found]


def rows(*keys: tuple[int, str, str, int]) -> pa.Table:
    columns = [*zip(*keys, strict=True)]
    types = [pa.int32(), pa.string(), pa.string(), pa.int32()]
    return pa.table([pa.array(each, type_) for each, type_ in zip(columns, types, strict=True)], names=KEY)


def hashed(table: pa.Table) -> list[list[int]]:
    with_hash = with_key_hash(table, KEY)
    assert with_hash.column_names == [*KEY, "key_hash_high", "key_hash_low"]
    return [
        list(pair) for pair in zip(*(with_hash[name].to_pylist() for name in with_hash.column_names[4:]), strict=True)
    ]


@pytest.mark.parametrize("partition", [0, 1, -1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("group", ["", "g", "Grüße, 消费者", "\0", "a" * 249])
def test_hash_of_a_key_is_the_same_in_every_version(group: str, partition: int) -> None:
    assert hashed(rows((partition, group, "t", 3))) == [halves(partition, group, "t", 3)]


def test_hash_depends_on_the_key_and_not_on_the_rows_beside_it() -> None:
    keys = [(at % 3, f"g{at % 7}", f"t{at % 11}", at % 13) for at in range(3003)]
    together = hashed(rows(*keys))
    assert together == [halves(*key) for key in keys]
    chunks = pa.concat_tables([rows(*keys[2000:]), rows(*keys[:2000])])
    assert hashed(chunks) == together[2000:] + together[:2000]
    assert len({tuple(each) for each in together}) == len({high for high, _ in together}) == 3003


def test_columns_of_a_key_do_not_run_together() -> None:
    pairs = hashed(rows((0, "ab", "c", 1), (0, "a", "bc", 1), (0, "c", "ab", 1), (1, "ab", "c", 0)))
    assert len({tuple(each) for each in pairs}) == 4


def test_no_rows_have_no_hashes() -> None:
    assert hashed(rows((0, "g", "t", 0)).slice(0, 0)) == []
