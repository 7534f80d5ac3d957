"""Primitives of the wire format."""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsets_pipeline.errors import OffsetsError
from offsets_pipeline.kafka.record import wire
from offsets_pipeline.kafka.record.corrupt import CorruptRecord
from offsets_pipeline.kafka.record.wire import Reader, Serde
from tests.record_batches import read_varint, write_varint, write_varlong

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable


def written(write: Callable[[bytearray, int], None], value: int) -> bytes:
    out = bytearray()
    write(out, value)
    return bytes(out)


FIXED = [(wire.INT8, ">b"), (wire.INT16, ">h"), (wire.UINT16, ">H"), (wire.INT32, ">i"), (wire.INT64, ">q")]


@pytest.mark.parametrize(("kind", "layout"), FIXED)
@given(number=st.integers(0, 2**64 - 1))
def test_fixed_integers_are_big_endian(kind: Serde, layout: str, number: int) -> None:
    size = struct.calcsize(layout)
    data = (number % 2 ** (8 * size)).to_bytes(size, "big")
    value = struct.unpack(layout, data)[0]
    out = bytearray()
    kind.write(out, value, "field")
    assert out == data
    assert kind.read(Reader(data), "field") == value


@pytest.mark.parametrize(("kind", "layout"), FIXED)
def test_a_missing_byte_is_named_with_expected_and_actual_size(kind: Serde, layout: str) -> None:
    size = struct.calcsize(layout)
    reader = Reader(bytes(3 + size - 1), 3)
    with pytest.raises(
        CorruptRecord, match=f"^some field: expected {size} bytes at position 3, found {size - 1}$"
    ) as error:
        kind.read(reader, "some field")
    assert isinstance(error.value, OffsetsError)
    assert error.value.field == "some field"


def test_elements_that_do_not_fit_are_not_read() -> None:
    reader = Reader(bytes(3 + 8), 3)
    reader.expect(2, 4, "field")
    with pytest.raises(CorruptRecord, match=r"^field: array of 3 elements, but only 8 bytes are left$"):
        reader.expect(3, 4, "field")


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("00", 0),
        ("7f", 127),
        ("8001", 128),
        ("ff7f", 16383),
        ("ffffffff07", 2**31 - 1),
        ("8080808008", -(2**31)),
        ("ffffffff0f", -1),
    ],
)
def test_unsigned_varints(data: str, value: int) -> None:
    assert Reader(bytes.fromhex(data)).uvarint("n") == value
    assert written(wire.write_uvarint, value) == bytes.fromhex(data)


@pytest.mark.parametrize(
    ("data", "value"),
    [("00", 0), ("01", -1), ("02", 1), ("7e", 63), ("8001", 64), ("ffffffff0f", -(2**31)), ("feffffff0f", 2**31 - 1)],
)
def test_zigzag_varints(data: str, value: int) -> None:
    assert read_varint(Reader(bytes.fromhex(data))) == value
    assert written(write_varint, value) == bytes.fromhex(data)
    assert written(write_varlong, value) == bytes.fromhex(data)


@given(value=st.integers(-(2**63), 2**63 - 1))
def test_varlongs_come_back(value: int) -> None:
    data = written(write_varlong, value)
    reader = Reader(data)
    assert read_varint(reader) == value
    assert reader.position == reader.end


def test_a_varint_without_an_end_is_corrupt() -> None:
    with pytest.raises(CorruptRecord, match="n: varint at position 0 is longer than 5 bytes"):
        Reader(b"\x80" * 11).uvarint("n")
    with pytest.raises(CorruptRecord, match="n: expected 1 bytes at position 2, found 0"):
        Reader(b"\x80\x80").uvarint("n")


def test_a_negative_length_is_corrupt() -> None:
    with pytest.raises(CorruptRecord, match="blob: length -1 is negative"):
        Reader(b"abc").raw(-1, "blob")


def test_a_uuid_is_shown_as_kafka_does() -> None:
    data = bytes.fromhex("fee2a8ce12904611a14e3ba38e19397d")
    text = wire.UUID.read(Reader(data), "id")
    assert text == base64.urlsafe_b64encode(data).decode().rstrip("=")
    assert len(text) == 22
    out = bytearray()
    wire.UUID.write(out, text, "id")
    assert out == data


@given(value=st.uuids())
def test_uuids_come_back(value: uuid.UUID) -> None:
    assert wire.uuid_from_text(wire.uuid_to_text(value.bytes)) == value.bytes


@pytest.mark.parametrize("text", ["", "abc", "!" * 22, "A" * 21, "A" * 44, "AAAAAAAAAAAAAAAAAAAA+/"])
def test_invalid_uuid_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a UUID in Kafka's text form"):
        wire.uuid_from_text(text)


# What `new String(bytes, UTF_8)` gives on Java 17
JAVA_STRINGS = [
    (b"plain", "plain"),
    ("méta ☃ 𝄞".encode(), "méta ☃ 𝄞"),
    (b"nul\x00", "nul\x00"),
    (b"a\xffb", "a\ufffdb"),
    (b"\xc0\x80", "\ufffd\ufffd"),
    (b"\xe2\x98", "\ufffd"),
    (b"\xe2\x98A", "\ufffdA"),
    (b"\xe0\x80\x80", "\ufffd\ufffd\ufffd"),
    (b"\xf0\x9f\x98", "\ufffd"),
    (b"\xf0\x9f\x98A", "\ufffdA"),
    (b"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"),
    (b"\xf5\x80\x80\x80", "\ufffd\ufffd\ufffd\ufffd"),
    # an encoded surrogate half is one malformed sequence of three bytes to Java
    (b"\xed\xa0\x80", "\ufffd"),
    (b"x\xed\xbf\xbfy", "x\ufffdy"),
    (b"\xed\xa0\x80\xed\xb0\x80", "\ufffd\ufffd"),
    (b"\xed\xa0A", "\ufffdA"),
    (b"\xed\xa0", "\ufffd"),
    (b"\xed", "\ufffd"),
    (b"\xedA", "\ufffdA"),
    (b"\xed\xa0\xff", "\ufffd\ufffd"),
    (b"\xed\xa0\x80\x80", "\ufffd\ufffd"),
]


@pytest.mark.parametrize(("data", "text"), JAVA_STRINGS)
def test_malformed_utf8_is_replaced_as_java_does(data: bytes, text: str) -> None:
    assert wire.decode_utf8(data) == text


@given(data=st.binary(max_size=40))
def test_any_bytes_are_text(data: bytes) -> None:
    text = wire.decode_utf8(data)
    try:
        assert text == data.decode()
    except UnicodeDecodeError:
        assert "\ufffd" in text


@given(text=st.text())
def test_text_comes_back(text: str) -> None:
    assert wire.decode_utf8(wire.encode_utf8(text)) == text


def test_a_lone_surrogate_is_written_as_a_question_mark() -> None:
    assert wire.encode_utf8("a\ud800b") == b"a?b"


def test_the_error_handler_serves_decoding_only() -> None:
    with pytest.raises(UnicodeEncodeError):
        "a\ud800".encode("utf-8", "offsets-java-replace")
