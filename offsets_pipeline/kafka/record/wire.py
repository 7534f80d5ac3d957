"""Primitives of Kafka's wire format over one buffer.

A `Reader` reads bytes in order; writing appends to a `bytearray`. A read past the end of the buffer raises
`CorruptRecord` with the field, the expected and the actual size (R6).
"""

import base64
import codecs
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from offsets_pipeline.kafka.record.corrupt import CorruptRecord

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

# Java decodes an encoded surrogate half, also one that is cut short, to one U+FFFD; Python decodes each byte to one.
_SURROGATE_HALF = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def _replace_as_java(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    half = _SURROGATE_HALF.match(error.object, error.start)
    return "\ufffd", error.end if half is None else half.end()


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

    def advance(self, size: int, field: str) -> int:
        """Go on by `size` bytes; returns the position before them."""
        position = self.position
        if size > self.end - position:
            raise CorruptRecord(field, f"expected {size} bytes at position {position}, found {self.end - position}")
        self.position = position + size
        return position

    def expect(self, count: int, size: int, field: str) -> None:
        """Check an element count before reading the elements.

        Raises CorruptRecord if ``count`` elements of ``size`` bytes do not fit, or the value exceeds MAX_ELEMENTS.
        """
        left = self.end - self.position
        if count * size > left:
            raise CorruptRecord(field, f"array of {count} elements, but only {left} bytes are left")
        self.elements += max(count, 0)
        if self.elements > MAX_ELEMENTS:
            raise CorruptRecord(field, f"more than {MAX_ELEMENTS} elements in one record")

    def uvarint(self, field: str) -> int:
        """Unsigned varint as an int32, as in Java: a value of 2^31 or more becomes negative."""
        # base-128 groups, least significant first; the high bit of a byte says that more follow
        bits = 0
        for group in range(_VARINT_MAX_BYTES):
            byte = self.data[self.advance(1, field)]
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
        position = self.advance(size, field)
        return self.data[position : position + size]


def write_uvarint(out: bytearray, value: int) -> None:
    """Unsigned varint of an int32. The bits of a negative value count as unsigned, as in Java."""
    value &= _MASK_32
    while value >= _VARINT_MORE:
        out.append(value & _VARINT_PAYLOAD | _VARINT_MORE)
        value >>= 7
    out.append(value)


@dataclass(frozen=True, slots=True)
class Serde:
    """Functions that read and write one type. Both take the field's name for errors."""

    read: Callable[[Reader, str], Any]
    write: Callable[[bytearray, Any, str], None]


def _number(layout: str) -> Serde:
    number = struct.Struct(f">{layout}")
    size, unpack_from, pack = number.size, number.unpack_from, number.pack

    def read(reader: Reader, field: str) -> int:
        value: int = unpack_from(reader.data, reader.advance(size, field))[0]
        return value

    def write(out: bytearray, value: int, _field: str) -> None:
        out += pack(value)

    return Serde(read, write)


# big-endian integers of fixed width
INT8, INT16, UINT16, INT32, INT64 = map(_number, "bhHiq")
#: A UUID in Kafka's text form.
UUID = Serde(
    lambda reader, field: uuid_to_text(reader.raw(UUID_BYTES, field)),
    lambda out, text, _field: out.extend(uuid_from_text(text)),
)
#: Length in a flexible version: unsigned varint of length + 1; -1 for null.
COMPACT_LENGTH = Serde(
    lambda reader, field: reader.uvarint(field) - 1,
    lambda out, length, _field: write_uvarint(out, length + 1),
)
