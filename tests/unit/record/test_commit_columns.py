"""Commits decoded a column at a time against `decode.py`, on valid bytes of every version and on damaged ones."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offsets_pipeline.kafka.record import commit_columns
from offsets_pipeline.kafka.record.commit_columns import (
    BinaryColumn,
    CommitColumns,
    decodable_keys,
    decodable_values,
)
from offsets_pipeline.kafka.record.corrupt import CorruptRecord
from offsets_pipeline.kafka.record.decode import DecodedValue, decode_key, decode_value
from offsets_pipeline.kafka.record.encode import encode_value
from offsets_pipeline.kafka.record.schema import UNKNOWN_TAGGED_FIELDS
from offsets_pipeline.kafka.record.wire import uuid_from_text, uuid_to_text, write_uvarint
from tests.logs import CAPTURE_NAMES, NO_TOPIC_ID, capture_rows, commit_key, commit_value

if TYPE_CHECKING:
    from collections.abc import Sequence

TOPIC_ID = uuid_to_text(bytes(range(16)))
HEAD = b"\x00\x04" + bytes(8) + bytes(4)  # of a value of version 4: version, offset, leader epoch
FIXED = settings(max_examples=150)


class Fields(NamedTuple):
    """Fields of a commit; None in place of the value's fields for a tombstone."""

    group_id: str
    topic: str
    partition: int
    value: tuple[int, int | None, str, int, int | None, str | None] | None


def decoded(key: bytes, value: bytes | None) -> Fields | None:
    """By `decode.py`; None for a corrupt record."""
    try:
        read = decode_key(key)
        found = None if value is None else decode_value(read.record_type, value).fields
    except CorruptRecord:
        return None
    identity = read.group_id, read.fields["topic"], read.fields["partition"]
    if found is None:
        return Fields(*identity, None)
    topic_id = found.get("topic_id")
    return Fields(
        *identity,
        (
            found["offset"],
            found["leader_epoch"],
            found["metadata"],
            found["commit_timestamp"],
            found.get("expire_timestamp"),
            None if topic_id == NO_TOPIC_ID else topic_id,
        ),
    )


def parsed(records: Sequence[tuple[bytes, bytes | None]]) -> list[Fields | None]:
    """By `commit_columns.py`; None for a corrupt record."""
    keys, values = zip(*records, strict=True)
    columns = CommitColumns(pa.array(keys, pa.binary()), pa.array(values, pa.binary()))
    rows = columns.valid.nonzero()[0]
    result: list[Fields | None] = [None] * len(records)
    taken = columns.take(rows)
    value_columns = (
        taken.required(taken.committed_offset, pa.int64()),
        taken.optional(taken.leader_epoch, pa.int32()),
        taken.metadata(),
        taken.required(taken.commit_timestamp_ms, pa.int64()),
        taken.optional(taken.expire_timestamp_ms, pa.int64()),
        taken.topic_ids(),
    )
    values_of = list(zip(*(column.to_pylist() for column in value_columns), strict=True))
    names = zip(taken.group_ids().to_pylist(), taken.topics().to_pylist(), taken.partition.tolist(), strict=True)
    for row, name, value, tombstone in zip(rows.tolist(), names, values_of, taken.tombstone.tolist(), strict=True):
        assert not tombstone or set(value) == {None}
        result[row] = Fields(*name, None if tombstone else value)
    return result


def assert_agree(records: Sequence[tuple[bytes, bytes | None]]) -> None:
    expected = [decoded(key, value) for key, value in records]
    assert parsed(records) == expected
    columns = CommitColumns(*(pa.array(column, pa.binary()) for column in zip(*records, strict=True)))
    valid = columns.take(columns.valid.nonzero()[0])
    names = [fields[:3] for fields in expected if fields is not None]
    assert len(set(valid.identities().to_pylist())) == len(set(names))  # R9: one for one
    assert len(set(zip(valid.identities().to_pylist(), names, strict=True))) == len(set(names))
    assert columns.topic_names() == {  # R35
        (fields.value[5], fields.topic)
        for fields in expected
        if fields is not None and fields.value and fields.value[5]
    }
    assert_decodable(records)


def assert_decodable(records: Sequence[tuple[bytes, bytes | None]]) -> None:
    """The checks of keys and values alone agree, too, also if they take two rows at once."""
    keys, values = (pa.array(column, pa.binary()) for column in zip(*records, strict=True))
    valid, legacy = decodable_keys(keys)
    assert valid.tolist() == [decoded(key, None) is not None for key, _ in records]
    assert legacy.tolist() == [key.startswith(b"\0\0") for key, _ in records]
    of_values = [decoded(commit_key("g", version=int(key[1])), value) for key, value in records]
    ids = [fields.value[5] if fields is not None and fields.value else None for fields in of_values]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(commit_columns, "_BLOCK_ROWS", 2)
        found, words = decodable_values(values, legacy)
    assert found.tolist() == [fields is not None for fields in of_values]
    packed = (
        [bytes(16)] * len(records)
        if words is None
        else [struct.pack("=qq", *pair) for pair in zip(*words, strict=True)]
    )
    assert [raw for raw, is_valid in zip(packed, found, strict=True) if is_valid] == [
        bytes(16) if each is None else uuid_from_text(each)
        for each, is_valid in zip(ids, found, strict=True)
        if is_valid
    ]
    assert words is not None or not any(ids)


def identities(keys: pa.Array) -> list[bytes]:
    found: list[bytes] = CommitColumns(keys, pa.nulls(len(keys), pa.binary())).identities().to_pylist()
    return found


def version_4(metadata_length: bytes, metadata: bytes, tagged: bytes = b"\x00") -> bytes:
    """A value of version 4 from its parts: the metadata's encoded length, its bytes, and the tagged fields."""
    return HEAD + metadata_length + metadata + bytes(8) + tagged


def uvarint(value: int) -> bytes:
    out = bytearray()
    write_uvarint(out, value)
    return bytes(out)


@pytest.mark.parametrize("name", CAPTURE_NAMES)
def test_recorded_commits_agree(name: str) -> None:
    records = [
        (row.key, row.value)
        for rows in capture_rows(name).values()
        for row in rows
        if row.control_type is None and row.key is not None and row.key[:2] in {b"\x00\x00", b"\x00\x01"}
    ]
    assert records
    assert_agree(records)


@pytest.mark.parametrize("version", range(5))
def test_every_version_agrees(version: int) -> None:  # R7
    extra: dict[int, dict[str, object]] = {
        1: {"expire_timestamp": 77},
        3: {"leader_epoch": 5},
        4: {"leader_epoch": 5, "topic_id": TOPIC_ID},
    }
    value = commit_value(2**62, version, metadata="größe \U0001f600", commit_timestamp=9, **extra.get(version, {}))
    found = parsed([(commit_key("g", "t", 3), value)])[0]
    assert found is not None
    assert found.value == (
        2**62,
        5 if version >= 3 else None,
        "größe \U0001f600",
        9,
        77 if version == 1 else None,
        TOPIC_ID if version == 4 else None,
    )
    assert_agree([(commit_key("g", "t", 3), value), (commit_key("g", "t", 3, version=0), value)])


def flips(data: bytes) -> list[bytes]:
    """The data with each single bit flipped."""
    number = int.from_bytes(data, "big")
    return [(number ^ 1 << bit).to_bytes(len(data), "big") for bit in range(8 * len(data))]


@pytest.mark.parametrize("version", range(5))
def test_every_length_and_every_flipped_bit_agree(version: int) -> None:  # R6
    """The key after its type; the type decides whether it is a commit."""
    value = commit_value(5, version, metadata="m", **({"topic_id": TOPIC_ID} if version == 4 else {}))
    key = commit_key("gr", "to", 3, version=min(version, 1))
    keys = [key[:length] for length in range(2, len(key))] + [key[:2] + rest for rest in flips(key[2:])]
    values = [value[:length] for length in range(len(value))] + flips(value)
    assert_agree([(each, value) for each in keys] + [(key, each) for each in values])
    assert_agree([(each, None) for each in keys])


@pytest.mark.parametrize(
    "tagged",
    [
        pytest.param(b"\x00", id="none"),
        pytest.param(b"", id="no count"),
        pytest.param(b"\x01\x00\x10" + bytes(range(16)), id="topic id"),
        pytest.param(b"\x01\x00\x10" + bytes(range(15)), id="short topic id"),
        pytest.param(b"\x01\x00\x10" + bytes(16), id="topic id of zeros"),
        pytest.param(b"\x01\x00\x11" + bytes(range(17)), id="topic id too long"),
        pytest.param(b"\x01\x09\x02ab", id="unknown tag"),
        pytest.param(b"\x02\x00\x10" + bytes(range(16)) + b"\x09\x02ab", id="topic id and unknown tag"),
        pytest.param(b"\x02\x09\x02ab\x00\x10" + bytes(range(16)), id="unknown tag and topic id"),
        pytest.param(b"\x02\x00\x10" + bytes(range(16)) + b"\x00\x10" + bytes(range(1, 17)), id="topic id twice"),
        pytest.param(b"\x81\x00\x00\x10" + bytes(range(16)), id="count longer than need be"),
        pytest.param(b"\x01\x09\x7fab", id="tag beyond the end"),
        pytest.param(b"\xff\xff\xff\xff\xff\x01", id="endless count"),
        pytest.param(b"\xff\xff\xff\xff\x0f", id="negative count"),
    ],
)
def test_tagged_fields_agree(tagged: bytes) -> None:  # R8
    value = version_4(b"\x02", b"m", tagged)
    assert_agree(
        [(commit_key("g"), value), (commit_key("g"), value + b"behind"), (commit_key("g"), commit_value(1, 4))]
    )


@pytest.mark.parametrize(
    "length",
    [
        pytest.param(b"\x00", id="null"),
        pytest.param(b"\x01", id="empty"),
        pytest.param(b"\x82\x00", id="longer than need be"),
        pytest.param(b"\x82\x80\x80\x80\x00", id="five bytes"),
        pytest.param(b"\x82\x80\x80\x80\x10", id="bits beyond 32, which Java drops"),
        pytest.param(b"\x82\x80\x80\x80\x80\x00", id="six bytes"),
        pytest.param(b"\xff\xff\xff\xff\x0f", id="-1"),
        pytest.param(b"\x80\x80\x80\x80\x08", id="-2^31"),
    ],
)
def test_compact_length_agrees(length: bytes) -> None:  # R7
    assert_agree([(commit_key("g"), version_4(length, b"m")), (commit_key("g"), version_4(length, b"") + bytes(64))])


@pytest.mark.parametrize("length", [32767, 32768, 40000])
def test_longest_metadata_agrees(length: int) -> None:
    value = version_4(uvarint(length + 1), b"m" * length)
    assert_agree([(commit_key("g"), value), (commit_key("g"), version_4(b"\x02", b"m"))])


@pytest.mark.parametrize(
    "raw", [b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xed\xa0\x80\xed\xb0\x80", b"\xf8\x88\x80\x80\x80"]
)
def test_malformed_text_agrees_and_is_one_identity_with_its_replacement(raw: bytes) -> None:  # R9
    key = b"\x00\x01" + len(raw).to_bytes(2, "big") + raw + b"\x00\x01t" + bytes(4)
    replaced = decode_key(key).group_id
    records: list[tuple[bytes, bytes | None]] = [(key, commit_value(1)), (commit_key(replaced), commit_value(2))]
    assert_agree(records)
    apart = [identities(pa.array([key], pa.binary())) for key, _ in records]
    assert apart[0] == apart[1]
    together = identities(pa.array([key for key, _ in records], pa.binary()))
    assert together == apart[0] + apart[1]


def test_text_that_grows_too_long_for_a_key_has_an_identity() -> None:
    key = b"\x00\x01\x7f\xff" + b"\xff" * 32767 + b"\x00\x01t" + bytes(4)
    assert_agree([(key, None), (commit_key("g"), None)])


def test_identity_is_the_same_for_both_key_versions_only() -> None:  # R9
    keys = [
        commit_key("a", "bc", 1, version=0),
        commit_key("a", "bc", 1),
        commit_key("a", "bc", 1) + b"behind",
        commit_key("ab", "c", 1),
        commit_key("a", "bc", 2),
        commit_key("a", "\0\0", 1),  # R9: ends in the same bytes as the next
        commit_key("a\0\2", "", 1),
    ]
    found = identities(pa.array(keys, pa.binary()))
    assert found[0] == found[1] == found[2]
    assert len(set(found)) == 5


@pytest.mark.parametrize("binary", [pa.binary(), pa.large_binary()], ids=str)
def test_slices_of_longer_arrays_are_read_in_place(binary: pa.DataType) -> None:
    keys = pa.array([commit_key(name) for name in "abcd"], binary).slice(1, 2)
    values = pa.array([commit_value(offset) if offset != 2 else None for offset in range(4)], binary).slice(1, 2)
    columns = CommitColumns(keys, values)
    assert columns.group_ids().to_pylist() == ["b", "c"]
    assert columns.required(columns.committed_offset, pa.int64()).to_pylist() == [1, None]


@pytest.mark.parametrize(
    "places",
    [
        [(0, 3), (3, 4), (7, 1), (8, 5)],  # one after the other
        [(0, 3), (3, 0), (3, 0), (3, 2), (6, 0), (7, 6), (13, 0)],  # empty ones, and gaps
        [(1, 2), (12, 1)],  # few bytes of their span
        [(5, 3), (0, 2), (4, 6)],  # in any order, and overlapping
        [(2, 0), (2, 0)],
        [],
    ],
)
def test_slices_have_the_bytes_of_their_places(places: list[tuple[int, int]]) -> None:
    text = b"abcdefghijklm"
    column = BinaryColumn(pa.array([text[:4], None, text[4:9], b"", text[9:]], pa.binary()))
    position, length = (np.array([each[at] for each in places], dtype=np.int64) for at in (0, 1))
    expected = [text[start : start + size] for start, size in places]
    assert column.slices(position, length).to_pylist() == expected


def test_no_records_are_no_columns() -> None:
    columns = CommitColumns(pa.array([], pa.binary()), pa.array([], pa.binary()))
    assert len(columns.valid) == 0
    assert columns.identities().to_pylist() == columns.metadata().to_pylist() == []


TEXT = st.text(max_size=5)
INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)


@st.composite
def commits(draw: st.DrawFn) -> tuple[bytes, bytes | None]:
    """Valid keys and values of every version, also of pairs that do not go together."""
    key = commit_key(draw(TEXT), draw(TEXT), draw(INT32), version=draw(st.sampled_from([0, 1, 1])))
    version = draw(st.integers(-1, 4))
    if version < 0:
        return key, None
    fields = {"offset": draw(INT64), "metadata": draw(TEXT), "commit_timestamp": draw(INT64)}
    if version == 1:
        fields["expire_timestamp"] = draw(INT64)
    if version >= 3:
        fields["leader_epoch"] = draw(INT32)
    if version == 4:
        fields["topic_id"] = draw(st.none() | st.binary(min_size=16, max_size=16).map(uuid_to_text))
        if draw(st.booleans()):
            fields[UNKNOWN_TAGGED_FIELDS] = [(draw(st.integers(1, 300)), draw(st.binary(max_size=3)))]
    return key, encode_value(1, DecodedValue(version, fields))


@st.composite
def damaged(draw: st.DrawFn) -> tuple[bytes, bytes | None]:
    """A commit with some bytes changed, cut off or added; its type stays a commit's."""
    key, value = draw(commits())
    if draw(st.booleans()):
        key = key[:2] + draw(_damage(key[2:]))
    return key, value if value is None else draw(_damage(value))


@st.composite
def _damage(draw: st.DrawFn, data: bytes) -> bytes:
    changed = bytearray(data)
    for at in draw(st.lists(st.integers(0, max(0, len(data) - 1)), max_size=3)):
        if at < len(changed):
            changed[at] = draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    return bytes(changed[: draw(st.integers(0, len(data)) | st.just(len(data)))]) + draw(st.binary(max_size=3))


@FIXED
@given(st.lists(commits(), min_size=1, max_size=8))
def test_valid_commits_agree(records: list[tuple[bytes, bytes | None]]) -> None:
    assert_agree(records)


@FIXED
@given(st.lists(damaged(), min_size=1, max_size=8))
def test_damaged_commits_agree(records: list[tuple[bytes, bytes | None]]) -> None:  # R6
    assert_agree(records)
