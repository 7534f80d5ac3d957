"""Primitives of Kafka's wire format over one buffer.

All integers of fixed width are big-endian. A `Reader` reads bytes in order; the `write_*` functions append to a
`bytearray`. A read past the end of the buffer raises `CorruptRecord` with the field, the expected and the actual size
(R6).
"""

import base64
import codecs
import re
import struct

from offsets_pipeline.kafka.record.corrupt import CorruptRecord

_INT16 = struct.Struct(">h")
_UINT16 = struct.Struct(">H")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")

UUID_BYTES = 16
_UUID_TEXT = re.compile(r"[A-Za-z0-9_-]{22}")
MAX_STRING_BYTES = 0x7FFF
#: Maximum number of array elements and tagged fields in a value; a value with more is corrupt. By default brokers cap a
#: batch at 1 MiB (`message.max.bytes`), which holds fewer. A decoded element of one byte takes 100 bytes of memory.
MAX_ELEMENTS = 1_000_000  # R6
_VARINT_MAX_BYTES = 5
_VARINT_PAYLOAD = 0x7F
_VARINT_MORE = 0x80
_MASK_32 = 0xFFFF_FFFF

# Java decodes a UTF-8 encoded surrogate half (ED A0..BF xx) to one replacement character, Python to three.
_SURROGATE_LEAD = 0xED
_SURROGATE_SECOND_MIN = 0xA0
_CONTINUATION_MASK = 0xC0
_CONTINUATION = 0x80


def _replace_as_java(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    data, start = error.object, error.start
    follow = data[start + 1 : start + 3]
    if data[start] == _SURROGATE_LEAD and follow and follow[0] >= _SURROGATE_SECOND_MIN:
        length = 1
        while length <= len(follow) and follow[length - 1] & _CONTINUATION_MASK == _CONTINUATION:
            length += 1
        return "\ufffd", start + length
    return "\ufffd", error.end


_JAVA_REPLACE = "offsets-java-replace"
codecs.register_error(_JAVA_REPLACE, _replace_as_java)


def decode_utf8(data: bytes) -> str:
    """Decode UTF-8. Malformed sequences become U+FFFD exactly as in Java. Never fails."""
    return data.decode("utf-8", _JAVA_REPLACE)


def encode_utf8(text: str) -> bytes:
    """Encode text as UTF-8. A lone surrogate becomes "?", as in Java."""
    return text.encode("utf-8", "replace")


def uuid_to_text(data: bytes) -> str:
    """A 16-byte UUID as Kafka prints it: URL-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(data)[:-2].decode("ascii")


#: Kafka's "no topic id", all zero.
NO_TOPIC_ID = uuid_to_text(bytes(UUID_BYTES))


def uuid_from_text(text: str) -> bytes:
    """The 16 bytes of a UUID in Kafka's text form. Raises ValueError for any other text."""
    if not _UUID_TEXT.fullmatch(text):
        raise ValueError(f"{text!r} is not a UUID in Kafka's text form: 22 characters of URL-safe base64")
    return base64.urlsafe_b64decode(text + "==")


class Reader:
    """Reader of primitives from `data`; `position` is the next byte to read."""

    __slots__ = ("data", "elements", "end", "position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position
        self.end = len(data)
        self.elements = 0

    @property
    def remaining(self) -> int:
        """Number of bytes not yet read."""
        return self.end - self.position

    def _advance(self, size: int, field: str) -> int:
        position = self.position
        if size > self.end - position:
            raise CorruptRecord(field, f"expected {size} bytes at position {position}, found {self.end - position}")
        self.position = position + size
        return position

    def expect(self, count: int, size: int, field: str) -> None:
        """Check an element count before reading the elements.

        Raises CorruptRecord if ``count`` elements of ``size`` bytes do not fit, or the value exceeds MAX_ELEMENTS.
        """
        if count * size > self.remaining:
            raise CorruptRecord(field, f"array of {count} elements, but only {self.remaining} bytes are left")
        self.elements += max(count, 0)
        if self.elements > MAX_ELEMENTS:
            raise CorruptRecord(field, f"more than {MAX_ELEMENTS} elements in one record")

    def int8(self, field: str) -> int:
        """int8, big-endian."""
        value = self.data[self._advance(1, field)]
        return value - 0x100 if value > 0x7F else value

    def int16(self, field: str) -> int:
        """int16, big-endian."""
        value: int = _INT16.unpack_from(self.data, self._advance(2, field))[0]
        return value

    def uint16(self, field: str) -> int:
        """uint16, big-endian."""
        value: int = _UINT16.unpack_from(self.data, self._advance(2, field))[0]
        return value

    def int32(self, field: str) -> int:
        """int32, big-endian."""
        value: int = _INT32.unpack_from(self.data, self._advance(4, field))[0]
        return value

    def int64(self, field: str) -> int:
        """int64, big-endian."""
        value: int = _INT64.unpack_from(self.data, self._advance(8, field))[0]
        return value

    def uvarint(self, field: str) -> int:
        """Unsigned varint as an int32, as in Java: a value of 2^31 or more becomes negative."""
        # base-128 groups, least significant first; the high bit of a byte says that more follow
        bits = 0
        for group in range(_VARINT_MAX_BYTES):
            byte = self.data[self._advance(1, field)]
            bits |= (byte & _VARINT_PAYLOAD) << (7 * group)
            if byte < _VARINT_MORE:
                value = bits & _MASK_32
                return value - (1 << 32) if value >> 31 else value
        start = self.position - _VARINT_MAX_BYTES
        raise CorruptRecord(field, f"varint at position {start} is longer than {_VARINT_MAX_BYTES} bytes")

    def raw(self, size: int, field: str) -> bytes:
        """The next `size` bytes."""
        if size < 0:
            raise CorruptRecord(field, f"length {size} is negative")
        position = self._advance(size, field)
        return self.data[position : position + size]

    def uuid(self, field: str) -> str:
        """A UUID in Kafka's text form."""
        return uuid_to_text(self.raw(UUID_BYTES, field))

    def compact_length(self, field: str) -> int:
        """Length in a flexible version: unsigned varint of length + 1. Wire value 0 means null and returns -1."""
        return self.uvarint(field) - 1


def write_int8(out: bytearray, value: int) -> None:
    """int8, big-endian."""
    out += value.to_bytes(1, "big", signed=True)


def write_int16(out: bytearray, value: int) -> None:
    """int16, big-endian."""
    out += _INT16.pack(value)


def write_uint16(out: bytearray, value: int) -> None:
    """uint16, big-endian."""
    out += _UINT16.pack(value)


def write_int32(out: bytearray, value: int) -> None:
    """int32, big-endian."""
    out += _INT32.pack(value)


def write_int64(out: bytearray, value: int) -> None:
    """int64, big-endian."""
    out += _INT64.pack(value)


def write_uvarint(out: bytearray, value: int) -> None:
    """Unsigned varint of an int32. The bits of a negative value count as unsigned, as in Java."""
    value &= _MASK_32
    while value >= _VARINT_MORE:
        out.append(value & _VARINT_PAYLOAD | _VARINT_MORE)
        value >>= 7
    out.append(value)


def write_uuid(out: bytearray, value: str) -> None:
    """A UUID from Kafka's text form."""
    out += uuid_from_text(value)


def write_compact_length(out: bytearray, length: int) -> None:
    """Length in a flexible version; -1 for null."""
    write_uvarint(out, length + 1)
