"""Every way in which a record can be corrupt, unknown or not writable."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsets_pipeline.kafka.record.corrupt import CorruptRecord, UnknownRecordType, UnwritableRecord
from offsets_pipeline.kafka.record.decode import DecodedKey, DecodedValue, decode_key, decode_value
from offsets_pipeline.kafka.record.encode import encode_key, encode_value
from offsets_pipeline.kafka.record.message_types import MESSAGE_TYPES
from offsets_pipeline.kafka.record.schema import UNKNOWN_TAGGED_FIELDS
from tests.unit.record.hand_worked import CLIENT, ID, ID_TEXT, OFFSET_42, TIME, commit, group, hexed, member


@pytest.mark.parametrize("record_type", [-1, 18, 24, 99, 32767, -32768])
def test_other_record_types_are_unknown_and_not_corrupt(record_type: int) -> None:
    # R6
    key = record_type.to_bytes(2, "big", signed=True) + b"whatever"
    with pytest.raises(UnknownRecordType, match=f"unknown record type {record_type}") as error:
        decode_key(key)
    assert error.value.record_type == record_type
    assert not issubclass(UnknownRecordType, CorruptRecord)
    with pytest.raises(UnknownRecordType):
        decode_key(key[:2])
    with pytest.raises(UnknownRecordType):
        decode_value(record_type, b"\x00\x00")
    with pytest.raises(UnknownRecordType):
        encode_key(DecodedKey(record_type, {}))


@pytest.mark.parametrize(("key", "reason"), [(None, "no key"), (b"", "found 0"), (b"\x00", "found 1")])
def test_a_key_without_a_type_is_corrupt(key: bytes | None, reason: str) -> None:
    # R3, R6
    with pytest.raises(CorruptRecord, match=reason):
        decode_key(key)


@pytest.mark.parametrize(
    ("record_type", "version"), [(0, 1), (0, 4), (1, 5), (1, 9), (1, -1), (2, 5), (2, -1), (3, 1), (16, 1), (23, 1)]
)
def test_an_unknown_version_of_a_known_type_is_corrupt(record_type: int, version: int) -> None:
    # R7, R8
    with pytest.raises(CorruptRecord, match=f"unknown version {version} of record type {record_type}"):
        decode_value(record_type, version.to_bytes(2, "big", signed=True) + bytes(100))
    with pytest.raises(UnwritableRecord, match=f"unknown version {version}"):
        encode_value(record_type, DecodedValue(version))


CORRUPT = {
    "group is null": (None, hexed("0002", "ffff"), "GroupMetadataKey.group: non-nullable string is null"),
    "metadata is null": (
        1,
        hexed("0003", OFFSET_42, "ffffffff", "ffff", TIME),
        "OffsetCommitValue.metadata: non-nullable string is null",
    ),
    "compact metadata is null": (
        1,
        hexed("0004", OFFSET_42, "ffffffff", "00", TIME, "00"),
        "OffsetCommitValue.metadata: non-nullable string is null",
    ),
    "string beyond the end": (
        1,
        hexed("0003", OFFSET_42, "ffffffff", "7fff", "61"),
        "OffsetCommitValue.metadata: expected 32767 bytes at position 16, found 1",
    ),
    "string longer than any": (
        1,
        hexed("0004", OFFSET_42, "ffffffff", "818002", TIME),
        "OffsetCommitValue.metadata: string length 32768 is above 32767",
    ),
    "members are null": (
        2,
        hexed("0003", "0000", "00000000", "ffff", "ffff", TIME, "ffffffff"),
        "GroupMetadataValue.members: non-nullable array is null",
    ),
    "more members than bytes": (
        2,
        hexed("0003", "0000", "00000000", "ffff", "ffff", TIME, "7fffffff"),
        "GroupMetadataValue.members: array of 2147483647 elements, but only 0 bytes are left",
    ),
    "subscription is null": (
        2,
        hexed("0003", "0000", "00000000", "ffff", "ffff", TIME, "00000001", "000161", "ffff", CLIENT)
        + hexed("0000000000000000", "ffffffff", "00000000"),
        "GroupMetadataValue.members.subscription: non-nullable bytes are null",
    ),
    "neither of two layouts": (  # says why it is not the newer one
        15,
        hexed("0000", "01"),
        "ShareGroupStatePartitionMetadataValue.initialized_topics: expected 1 bytes at position 3, found 0",
    ),
    "tagged field beyond the end": (
        1,
        hexed("0004", OFFSET_42, "ffffffff", "01", TIME, "01", "07", "05", "00"),
        "OffsetCommitValue.tag 7: expected 5 bytes at position 26, found 1",
    ),
    "topic id that is cut short, whatever its size says": (
        1,
        hexed("0004", OFFSET_42, "ffffffff", "01", TIME, "01", "00", "0f", ID[:-2]),
        "OffsetCommitValue.topic_id: expected 16 bytes at position 26, found 15",
    ),
}


@pytest.mark.parametrize("name", CORRUPT)
def test_corrupt_records_say_where_and_why(name: str) -> None:
    record_type, data, message = CORRUPT[name]
    with pytest.raises(CorruptRecord) as error:
        decode_key(data) if record_type is None else decode_value(record_type, data)
    assert str(error.value) == message
    assert f"{error.value.field}: {error.value.reason}" == message


UNWRITABLE: dict[str, tuple[int, DecodedKey | DecodedValue, str]] = {
    "null group": (2, DecodedKey(2, {"group": None}), "GroupMetadataKey.group: is not nullable"),
    "missing field": (3, DecodedKey(3, {}), "group_id: is not nullable"),
    "number too large": (
        1,
        DecodedKey(1, {"group": "g", "topic": "t", "partition": 2**31}),
        "OffsetCommitKey.partition: ",
    ),
    "string too long": (1, DecodedValue(3, commit(metadata="x" * 32768)), "string length 32768"),
    "field of another version": (1, DecodedValue(3, commit(expire_timestamp=5)), "version 3 has no such field"),
    "tag of another version": (1, DecodedValue(3, commit(topic_id=ID_TEXT)), "version 3 has no such field"),
    "no uuid": (1, DecodedValue(4, commit(topic_id="nonsense")), "OffsetCommitValue.topic_id: .*is not a UUID"),
    "no number": (2, DecodedValue(3, group(members=[member()])), "members.rebalance_timeout: "),
    "null array": (2, DecodedValue(3, group(members=None)), "members: is not nullable"),
    "null bytes": (
        2,
        DecodedValue(3, group(members=[member(rebalance_timeout=9, subscription=None)])),
        "subscription: is not nullable",
    ),
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_what_does_not_fit_is_not_written(name: str) -> None:
    record_type, decoded, message = UNWRITABLE[name]
    with pytest.raises(UnwritableRecord, match=message):
        encode_key(decoded) if isinstance(decoded, DecodedKey) else encode_value(record_type, decoded)


@pytest.mark.parametrize("version", [3, 4])
def test_the_longest_string_is_written_and_read(version: int) -> None:
    fields = commit(metadata="x" * 32767, leader_epoch=1)
    assert decode_value(1, encode_value(1, DecodedValue(version, fields))) == DecodedValue(version, fields)


def test_tags_are_written_in_ascending_order() -> None:
    tags = {UNKNOWN_TAGGED_FIELDS: [(9, b"z"), (3, b"y")]}
    data = encode_value(1, DecodedValue(4, commit(topic_id=ID_TEXT) | tags))
    assert data.endswith(hexed("03", "00", "10", ID, "03", "01", "79", "09", "01", "7a"))


def test_malformed_utf8_never_makes_a_record_corrupt() -> None:
    assert decode_key(hexed("0002", "0002", "61ff")).group_id == "a\ufffd"


def test_errors_survive_a_trip_between_processes() -> None:
    for error in (CorruptRecord("f", "r"), UnknownRecordType(7), UnwritableRecord("f", "r")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


@given(data=st.binary(max_size=120), record_type=st.sampled_from(sorted(MESSAGE_TYPES)))
def test_any_bytes_decode_or_are_corrupt(data: bytes, record_type: int) -> None:
    try:
        value = decode_value(record_type, b"\x00\x00" + data)
    except CorruptRecord:
        return
    again = decode_value(record_type, encode_value(record_type, value))
    assert again.fields == value.fields
