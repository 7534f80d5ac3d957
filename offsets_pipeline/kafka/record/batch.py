"""Batches of all message formats: their headers, the check whether a whole one starts at a position, and old messages.

Format 2 (magic 2) has record batches. Formats 0 and 1, which brokers before 0.11 wrote, have messages. The value of a
compressed message wraps a set of messages; the wrapper has the offset of its last inner message. Cleaners of brokers
0.10 left wrappers of one format around messages of the other one (KAFKA-4298): offsets are then as the format of the
wrapper has them, timestamps as that of the message. This module calls batches and messages a batch. All three formats
start with the same fields:

    offset int64 (format 2: base offset), length int32 (of what follows), 4 bytes, magic int8 at byte 16
"""

import struct
import zlib
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import crc32c
import numpy as np

from offsets_pipeline.kafka.record.compression import CODEC_MASK, MAX_BATCH_BYTES, Codec, decompress
from offsets_pipeline.kafka.record.corrupt import CorruptRecord
from offsets_pipeline.kafka.record.records import Bytes, Int64s

#: Highest record offset whose successor fits into an int64.
MAX_OFFSET = 2**63 - 2
#: Maximum number of records in a batch or wrapper. A few kilobytes could hold millions of empty records.
MAX_BATCH_RECORDS = 500_000
NO_TIMESTAMP = -1

LOG_OVERHEAD = 12  # offset and length fields; the length does not include them
MAGIC_OFFSET = 16
MAGIC_END = 17
MAGIC_2 = 2

# format 2    base_offset int64, batch_length int32, partition_leader_epoch int32, magic int8, crc uint32 (crc32c of
#             all that follows), attributes int16, last_offset_delta int32, base_timestamp int64, max_timestamp int64,
#             producer_id int64, producer_epoch int16, base_sequence int32, record_count int32, records
BATCH_HEADER_BYTES = 61
BATCH_MIN_LENGTH = BATCH_HEADER_BYTES - LOG_OVERHEAD
CRC_START = 21
# only the fields that the scanner needs: base_offset, batch_length, magic, crc, attributes, last_offset_delta, count
WALK_HEADER = struct.Struct(">qi4xbIhi30xi")

ATTRIBUTE_LOG_APPEND_TIME = 0x08
ATTRIBUTE_TRANSACTIONAL = 0x10
ATTRIBUTE_CONTROL = 0x20
ATTRIBUTE_DELETE_HORIZON = 0x40
ATTRIBUTES_KNOWN = 0x7F

_LENGTH_OFFSET = 8
_LAST_OFFSET_DELTA_OFFSET = 23
_RECORD_COUNT_OFFSET = 57
_POSITIVE = 0x7F  # a larger first byte makes a big-endian integer negative

_INT32, _INT64 = struct.Struct(">i"), struct.Struct(">q")
# smallest length field: crc, magic, attributes, key length, value length; format 1 also has a timestamp
_LEGACY_MIN_LENGTH = (14, 22)
_LEGACY_HEADER = struct.Struct(">qiIbb")
_TIMESTAMP_BYTES = _INT64.size
_PREFIX = struct.Struct(">qi4xb")
_MIN_LENGTH = {**dict(enumerate(_LEGACY_MIN_LENGTH)), MAGIC_2: BATCH_MIN_LENGTH}
_LEAST_BYTES = LOG_OVERHEAD + np.array([_MIN_LENGTH[magic] for magic in range(MAGIC_2 + 1)], dtype=np.int64)
_CRC32 = struct.Struct(">I")


class LegacyRecord(NamedTuple):
    """One message: record offset, timestamp (-1 for none), key and value."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Batch:
    """A whole batch with a good checksum.

    `records` is None for format 2, whose `record_count` comes from the header.
    """

    position: int
    end: int
    magic: int
    base_offset: int
    last_offset: int
    record_count: int
    records: list[LegacyRecord] | None


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A batch starts here, but the buffer ends before the batch does."""

    reason: str


@dataclass(frozen=True, slots=True)
class Broken:
    """A damaged batch: the buffer has all its bytes, but its content is wrong.

    `end`: position after the batch, from the length in its header. `is_certain`: the checksum is good, so `end` is
    right, and no other batch starts before `end`.
    """

    end: int
    reason: str
    is_certain: bool = False


@dataclass(frozen=True, slots=True)
class NoBatch:
    """The bytes here cannot be the start of a batch."""

    reason: str


def examine(data: memoryview, position: int, *, is_good: bool | None = None) -> Batch | Incomplete | Broken | NoBatch:
    """Examine the bytes at a position. Decodes the messages of formats 0 and 1, but not the records of format 2.

    `is_good`: whether the checksum is right; None: unknown, so it is computed.
    """
    remaining = len(data) - position
    if remaining < MAGIC_END:
        return Incomplete(f"batch header cut short: {remaining} bytes")
    offset, length, magic = _PREFIX.unpack_from(data, position)
    if magic not in _MIN_LENGTH:
        return NoBatch(f"unknown magic {magic}")
    if offset < 0:
        return NoBatch(f"negative offset {offset}")
    if length < _MIN_LENGTH[magic]:
        return NoBatch(f"batch length {length} is below the minimum {_MIN_LENGTH[magic]}")
    if LOG_OVERHEAD + length > remaining:
        return Incomplete(f"batch of {LOG_OVERHEAD + length} bytes cut short: {remaining} bytes")
    if LOG_OVERHEAD + length > MAX_BATCH_BYTES:
        return NoBatch(f"batch length {length} is above the maximum {MAX_BATCH_BYTES}")
    end = position + LOG_OVERHEAD + length
    wrong = _wrong_checksum(data, position, is_good=is_good)
    if wrong is not None:
        return Broken(end, wrong)
    return (_examine_batch if magic == MAGIC_2 else _examine_message)(data, position, end)


def _wrong_checksum(data: memoryview, position: int, *, is_good: bool | None) -> str | None:
    """Why the checksum of a batch is wrong; None if it is right."""
    if is_good is not None:
        return None if is_good else "checksum is wrong"
    magic, expected, start, end = checked_stretch(data, position)
    actual = (crc32c.crc32c if magic == MAGIC_2 else zlib.crc32)(data[start:end])
    return None if actual == expected else f"checksum is {actual:#010x}, {expected:#010x} expected"


def checked_stretch(data: memoryview, position: int) -> tuple[int, int, int, int]:
    """Return the magic and checksum of a batch, and start and end of the bytes that the checksum covers.

    The batch must fit into the buffer by its length.
    """
    _, length, magic = _PREFIX.unpack_from(data, position)
    end = position + LOG_OVERHEAD + length
    if magic == MAGIC_2:
        return magic, WALK_HEADER.unpack_from(data, position)[3], position + CRC_START, end
    return magic, _CRC32.unpack_from(data, position + LOG_OVERHEAD)[0], position + MAGIC_OFFSET, end


def offset_of(data: bytes | memoryview, position: int) -> int:
    """Base offset of a batch, or offset of a message. A wrapper has the offset of its last inner message."""
    offset: int = _PREFIX.unpack_from(data, position)[0]
    return offset


def length_of(data: bytes | memoryview, position: int) -> int:
    """Length field of a batch or message, in bytes. It does not include the offset and length fields."""
    length: int = _PREFIX.unpack_from(data, position)[1]
    return length


def shaped(raw: Bytes, start: Int64s) -> Int64s:
    """Keep the positions where a whole batch with plausible fields may start. Does not check checksums.

    `start` ascends, and the magic of each position must lie within `raw`.
    """
    start = start[(raw[start + MAGIC_OFFSET] <= MAGIC_2) & (raw[start] <= _POSITIVE)]
    magic = raw[start + MAGIC_OFFSET]
    end = start + LOG_OVERHEAD + _int32s(raw, start + _LENGTH_OFFSET)
    # lengths are signed: the minimum also rejects negative ones
    fits = (end <= len(raw)) & (end - start <= MAX_BATCH_BYTES) & (end - start >= _LEAST_BYTES[magic])
    start, end, magic = start[fits], end[fits], magic[fits]
    plausible = np.ones(len(start), dtype=np.bool_)
    of_batch = magic == MAGIC_2
    at = start[of_batch]
    plausible[of_batch] = (
        # Kafka leaves unused attribute bits zero
        (raw[at + CRC_START] == 0)
        & (raw[at + CRC_START + 1] <= ATTRIBUTES_KNOWN)
        & (raw[at + _LAST_OFFSET_DELTA_OFFSET] <= _POSITIVE)
        & (raw[at + _RECORD_COUNT_OFFSET] <= _POSITIVE)
    )
    # the value of a message ends where the message ends
    end_of_message = end[~of_batch]
    key = start[~of_batch] + _LEGACY_HEADER.size + np.where(magic[~of_batch] == 1, _TIMESTAMP_BYTES, 0)
    value = key + 4 + np.maximum(_int32s(raw, key), 0)
    behind = value + 4 + np.maximum(_int32s(raw, value), 0)
    plausible[~of_batch] = (value + 4 <= end_of_message) & (behind == end_of_message)
    return start[plausible]


def _int32s(raw: Bytes, position: Int64s) -> Int64s:
    """Big-endian int32 at each position. Beyond the end of `raw` the value is arbitrary."""
    value: Int64s = raw.take(position, mode="clip").astype(np.int8).astype(np.int64)
    for byte in range(1, 4):
        value = value << 8 | raw.take(position + byte, mode="clip")
    return value


def _examine_batch(data: memoryview, position: int, end: int) -> Batch | Broken:
    base_offset, _, magic, _, _, last_offset_delta, record_count = WALK_HEADER.unpack_from(data, position)
    if last_offset_delta < 0 or record_count < 0:
        reason = f"last offset delta {last_offset_delta}, record count {record_count}: negative"
        return Broken(end, reason, is_certain=True)
    if base_offset + last_offset_delta > MAX_OFFSET:
        return Broken(end, f"last offset {base_offset + last_offset_delta} is beyond {MAX_OFFSET}", is_certain=True)
    return Batch(position, end, magic, base_offset, base_offset + last_offset_delta, record_count, None)


def _examine_message(data: memoryview, position: int, end: int) -> Batch | Broken:
    try:
        records = decode_message(bytes(data[position:end]))
    except CorruptRecord as error:
        return Broken(end, str(error), is_certain=True)
    magic = data[position + MAGIC_OFFSET]
    return Batch(position, end, magic, records[0].offset, records[-1].offset, len(records), records)


# --- messages of formats 0 and 1


def decode_message(data: bytes) -> list[LegacyRecord]:
    """Return the record of an uncompressed message, or the records that a compressed message wraps.

    `data` is one whole message with a good checksum. Raises CorruptRecord.
    """
    wrapper = _parse(data)
    _, _, _, magic, attributes = _LEGACY_HEADER.unpack_from(data)
    codec = attributes & CODEC_MASK
    if codec == Codec.NONE:
        return _increasing([wrapper])
    if wrapper.value is None:
        raise CorruptRecord("message", "compressed, but has no value")
    is_of_append = magic == 1 and attributes & ATTRIBUTE_LOG_APPEND_TIME
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
        if remaining < _LEGACY_HEADER.size:
            if messages:
                break
            raise CorruptRecord("inner message", f"header cut short: {remaining} bytes")
        _, size, crc, magic, attributes = _LEGACY_HEADER.unpack_from(data, position)
        end = position + LOG_OVERHEAD + size
        if magic not in (0, 1) or attributes & CODEC_MASK:
            raise CorruptRecord("inner message", f"magic {magic}, codec {attributes & CODEC_MASK} in a message")
        if size >= _LEGACY_MIN_LENGTH[magic] and end > len(data) and messages:
            break
        if size < _LEGACY_MIN_LENGTH[magic] or end > len(data):
            raise CorruptRecord("inner message", f"length {size}, but only {remaining - LOG_OVERHEAD} bytes are left")
        if zlib.crc32(data[position + MAGIC_OFFSET : end]) != crc:
            raise CorruptRecord("inner message", f"checksum is not {crc:#010x}")
        messages.append(_parse(data[position:end], append_time))
        position = end
    if not messages:
        raise CorruptRecord("message", "compressed, but holds no messages")
    return messages


# message        offset int64, length int32, crc uint32 (crc32 of all that follows), magic int8, attributes int8,
#                [timestamp int64: format 1], key bytes, value bytes       (bytes: int32 length, -1 for null)
def _parse(data: bytes, append_time: int | None = None) -> LegacyRecord:
    offset, _, _, magic, _ = _LEGACY_HEADER.unpack_from(data)
    position = _LEGACY_HEADER.size
    timestamp = NO_TIMESTAMP
    if magic == 1:
        timestamp = _INT64.unpack_from(data, position)[0] if append_time is None else append_time
        position += _TIMESTAMP_BYTES
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
