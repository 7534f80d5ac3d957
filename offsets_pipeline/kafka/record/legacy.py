"""Messages of formats 0 and 1, which brokers before 0.11 wrote.

The value of a compressed message wraps a set of messages. The wrapper has the offset of its last inner message.
Cleaners of brokers 0.10 left wrappers of one format around messages of the other one (KAFKA-4298): offsets are then as
the format of the wrapper has them, timestamps as that of the message.
"""

import struct
import zlib
from itertools import pairwise
from typing import NamedTuple

from offsets_pipeline.kafka.record.compression import CODEC_MASK, Codec, decompress
from offsets_pipeline.kafka.record.corrupt import CorruptRecord

NO_TIMESTAMP = -1
#: Highest record offset whose successor fits into an int64.
MAX_OFFSET = 2**63 - 2
#: Maximum number of records in a batch or wrapper. A few kilobytes could hold millions of empty records.
MAX_BATCH_RECORDS = 500_000

_LOG_HEADER = struct.Struct(">qiIbb")
LEGACY_HEADER_BYTES = _LOG_HEADER.size
_LOG_OVERHEAD = 12
_CRC_END = 16
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
LEGACY_TIMESTAMP_BYTES = _INT64.size
_LOG_APPEND_TIME = 0x08
# smallest length field: crc, magic, attributes, key length, value length; format 1 also has a timestamp
LEGACY_MIN_LENGTH = (14, 22)


class LegacyRecord(NamedTuple):
    """One message: record offset, timestamp (-1 for none), key and value."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def decode_message(data: bytes) -> list[LegacyRecord]:
    """Return the record of an uncompressed message, or the records that a compressed message wraps.

    `data` is one whole message with a good checksum. Raises CorruptRecord.
    """
    wrapper = _parse(data)
    _, _, _, magic, attributes = _LOG_HEADER.unpack_from(data)
    codec = attributes & CODEC_MASK
    if codec == Codec.NONE:
        return _increasing([wrapper])
    if wrapper.value is None:
        raise CorruptRecord("message", "compressed, but has no value")
    is_of_append = magic == 1 and attributes & _LOG_APPEND_TIME
    inner = decompress(codec, wrapper.value, legacy_lz4=magic == 0)
    records = _parse_set(inner, wrapper.timestamp if is_of_append else None)
    if magic == 0:  # inner offsets are absolute
        return _increasing(records)
    # format 1: inner offsets are relative, and the wrapper has the absolute offset of the last one
    base = wrapper.offset - records[-1].offset
    return _increasing([each._replace(offset=base + each.offset) for each in records])


# message set    messages one after another; as for a broker, one that is cut short at the end is not there
def _parse_set(data: bytes, append_time: int | None) -> list[LegacyRecord]:
    messages: list[LegacyRecord] = []
    position = 0
    while position < len(data):
        if len(messages) == MAX_BATCH_RECORDS:
            raise CorruptRecord("message", f"holds more than {MAX_BATCH_RECORDS} messages")
        remaining = len(data) - position
        if remaining < LEGACY_HEADER_BYTES:
            if messages:
                break
            raise CorruptRecord("inner message", f"header cut short: {remaining} bytes")
        _, size, crc, magic, attributes = _LOG_HEADER.unpack_from(data, position)
        end = position + _LOG_OVERHEAD + size
        if magic not in (0, 1) or attributes & CODEC_MASK:
            raise CorruptRecord("inner message", f"magic {magic}, codec {attributes & CODEC_MASK} in a message")
        if size >= LEGACY_MIN_LENGTH[magic] and end > len(data) and messages:
            break
        if size < LEGACY_MIN_LENGTH[magic] or end > len(data):
            raise CorruptRecord("inner message", f"length {size}, but only {remaining - _LOG_OVERHEAD} bytes are left")
        if zlib.crc32(data[position + _CRC_END : end]) != crc:
            raise CorruptRecord("inner message", f"checksum is not {crc:#010x}")
        messages.append(_parse(data[position:end], append_time))
        position = end
    if not messages:
        raise CorruptRecord("message", "compressed, but holds no messages")
    return messages


# message        offset int64, length int32, crc uint32 (crc32 of all that follows), magic int8, attributes int8,
#                [timestamp int64: format 1], key bytes, value bytes       (bytes: int32 length, -1 for null)
def _parse(data: bytes, append_time: int | None = None) -> LegacyRecord:
    offset, _, _, magic, _ = _LOG_HEADER.unpack_from(data)
    position = LEGACY_HEADER_BYTES
    timestamp = NO_TIMESTAMP
    if magic == 1:
        timestamp = _INT64.unpack_from(data, position)[0] if append_time is None else append_time
        position += _INT64.size
    key, position = _parse_bytes(data, position, "key")
    value, position = _parse_bytes(data, position, "value")
    if position != len(data):
        raise CorruptRecord("message", f"{len(data) - position} bytes after the value")
    return LegacyRecord(offset, timestamp, key, value)


def _parse_bytes(data: bytes, position: int, field: str) -> tuple[bytes | None, int]:
    if len(data) - position < _INT32.size:
        raise CorruptRecord(f"message {field}", f"expected {_INT32.size} bytes of length, found {len(data) - position}")
    (size,) = _INT32.unpack_from(data, position)
    position += _INT32.size
    if size < 0:
        return None, position
    if size > len(data) - position:
        raise CorruptRecord(f"message {field}", f"expected {size} bytes, found {len(data) - position}")
    return data[position : position + size], position + size


def _increasing(records: list[LegacyRecord]) -> list[LegacyRecord]:
    # R2; a negative first offset means that the wrapper's offset is too small for its messages
    offsets = [record.offset for record in records]
    if offsets[0] < 0 or any(low >= high for low, high in pairwise(offsets)):
        raise CorruptRecord("message", "offsets of the inner messages do not increase")
    if offsets[-1] > MAX_OFFSET:
        raise CorruptRecord("message", f"offset {offsets[-1]} is beyond {MAX_OFFSET}")
    return records
