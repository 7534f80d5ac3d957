"""What all message formats share: where a batch lies, its header, and whether it stands whole at a position.

Format 2 (magic 2) writes record batches; formats 0 and 1 write messages, which may wrap a compressed set of messages.
Here both are called a batch. All three start alike:

    offset int64 (format 2: base offset), length int32 (of what follows), 4 bytes, magic int8 at byte 16
"""

import struct
import zlib
from dataclasses import dataclass

import crc32c
import numpy as np

from offsets_pipeline.record.compression import MAX_BATCH_BYTES
from offsets_pipeline.record.corrupt import CorruptRecord
from offsets_pipeline.record.legacy import (
    LEGACY_HEADER_BYTES,
    LEGACY_MIN_LENGTH,
    LEGACY_TIMESTAMP_BYTES,
    MAX_OFFSET,
    LegacyRecord,
    decode_message,
)
from offsets_pipeline.record.records import Bytes, Int64s

LOG_OVERHEAD = 12  # offset and length; the length does not count them
MAGIC_OFFSET = 16
MAGIC_END = 17
MAGIC_2 = 2

# format 2    base_offset int64, batch_length int32, partition_leader_epoch int32, magic int8, crc uint32 (crc32c of
#             all that follows), attributes int16, last_offset_delta int32, base_timestamp int64, max_timestamp int64,
#             producer_id int64, producer_epoch int16, base_sequence int32, record_count int32, records
BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
BATCH_HEADER_BYTES = 61
BATCH_MIN_LENGTH = BATCH_HEADER_BYTES - LOG_OVERHEAD
CRC_START = 21
# only what walking over batches needs: base_offset, batch_length, magic, crc, attributes, last_offset_delta, count
WALK_HEADER = struct.Struct(">qi4xbIhi30xi")

ATTRIBUTE_LOG_APPEND_TIME = 0x08
ATTRIBUTE_TRANSACTIONAL = 0x10
ATTRIBUTE_CONTROL = 0x20
ATTRIBUTE_DELETE_HORIZON = 0x40
ATTRIBUTES_KNOWN = 0x7F

_LENGTH_OFFSET = 8
_LAST_OFFSET_DELTA_OFFSET = 23
_RECORD_COUNT_OFFSET = 57
_POSITIVE = 0x7F  # the most that the first byte of an integer has which is not negative

_PREFIX = struct.Struct(">qi4xb")
_MIN_LENGTH = {0: LEGACY_MIN_LENGTH[0], 1: LEGACY_MIN_LENGTH[1], MAGIC_2: BATCH_MIN_LENGTH}
_LEAST_BYTES = LOG_OVERHEAD + np.array([_MIN_LENGTH[magic] for magic in range(MAGIC_2 + 1)], dtype=np.int64)
_CRC32 = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Found:
    """A whole batch with a good checksum. `records` of formats 0 and 1 only; `record_count` of format 2 only."""

    position: int
    end: int
    magic: int
    base_offset: int
    last_offset: int
    record_count: int
    records: list[LegacyRecord] | None


@dataclass(frozen=True, slots=True)
class Incomplete:
    """The buffer ends before the batch that starts here does."""

    reason: str


@dataclass(frozen=True, slots=True)
class Broken:
    """A whole batch by its length, up to `end`, that does not hold what it should.

    `is_certain`: its checksum is good, so that it does end there, and nothing else begins before.
    """

    end: int
    reason: str
    is_certain: bool = False


@dataclass(frozen=True, slots=True)
class NoBatch:
    """What lies here cannot be the start of a batch."""

    reason: str


def examine(data: memoryview, position: int, *, may_be_good: bool = True) -> Found | Incomplete | Broken | NoBatch:
    """What lies at a position. Decodes the messages of formats 0 and 1, but not the records of format 2.

    `may_be_good`: false where the checksum is known not to be, and need not be computed.
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
        return NoBatch(f"batch length {length}, at least {_MIN_LENGTH[magic]} expected")
    if LOG_OVERHEAD + length > remaining:
        return Incomplete(f"batch of {LOG_OVERHEAD + length} bytes cut short: {remaining} bytes")
    if LOG_OVERHEAD + length > MAX_BATCH_BYTES:
        return NoBatch(f"batch length {length}, no batch has more than {MAX_BATCH_BYTES}")
    end = position + LOG_OVERHEAD + length
    if not may_be_good:
        return Broken(end, "checksum is wrong")
    return _examine_batch(data, position, end) if magic == MAGIC_2 else _examine_message(data, position, end)


def checked_stretch(data: memoryview, position: int) -> tuple[int, int, int, int]:
    """The magic of a whole batch by its length, its checksum, and from where to where the checksum is computed."""
    _, length, magic = _PREFIX.unpack_from(data, position)
    end = position + LOG_OVERHEAD + length
    if magic == MAGIC_2:
        return magic, WALK_HEADER.unpack_from(data, position)[3], position + CRC_START, end
    return magic, _CRC32.unpack_from(data, position + LOG_OVERHEAD)[0], position + MAGIC_OFFSET, end


def offset_of(data: memoryview, position: int) -> int:
    """The base offset of a batch, or the offset of a message: in a wrapper that of the last one inside."""
    offset: int = _PREFIX.unpack_from(data, position)[0]
    return offset


def length_of(data: memoryview, position: int) -> int:
    """What a batch or message says of its length; its offset and the length itself do not count."""
    length: int = _PREFIX.unpack_from(data, position)[1]
    return length


def shaped(raw: Bytes, start: Int64s) -> Int64s:
    """Which of these positions, ascending, whole batches of plausible fields may start at; checksums aside.

    Behind each of them lie as many bytes as up to the magic, at least.
    """
    start = start[(raw[start + MAGIC_OFFSET] <= MAGIC_2) & (raw[start] <= _POSITIVE)]
    magic = raw[start + MAGIC_OFFSET]
    end = start + LOG_OVERHEAD + _int32s(raw, start + _LENGTH_OFFSET)
    # fewer bytes than a message takes at least are none; the others are checked below
    fits = (end <= len(raw)) & (end - start <= MAX_BATCH_BYTES) & (end - start >= _LEAST_BYTES[magic])
    start, end, magic = start[fits], end[fits], magic[fits]
    plausible = np.ones(len(start), dtype=np.bool_)
    of_batch = magic == MAGIC_2
    at = start[of_batch]
    plausible[of_batch] = (
        # attribute bits that nothing uses are zero in every batch so far
        (raw[at + CRC_START] == 0)
        & (raw[at + CRC_START + 1] <= ATTRIBUTES_KNOWN)
        & (raw[at + _LAST_OFFSET_DELTA_OFFSET] <= _POSITIVE)
        & (raw[at + _RECORD_COUNT_OFFSET] <= _POSITIVE)
    )
    # key and value of a message fill what its length says
    end_of_message = end[~of_batch]
    key = start[~of_batch] + LEGACY_HEADER_BYTES + np.where(magic[~of_batch] == 1, LEGACY_TIMESTAMP_BYTES, 0)
    value = key + 4 + np.maximum(_int32s(raw, key), 0)
    behind = value + 4 + np.maximum(_int32s(raw, value), 0)
    plausible[~of_batch] = (value + 4 <= end_of_message) & (behind == end_of_message)
    return start[plausible]


def _int32s(raw: Bytes, position: Int64s) -> Int64s:
    """Big-endian integers; any value beyond the end."""
    value: Int64s = raw.take(position, mode="clip").astype(np.int8).astype(np.int64)
    for byte in range(1, 4):
        value = value << 8 | raw.take(position + byte, mode="clip")
    return value


def _examine_batch(data: memoryview, position: int, end: int) -> Found | Broken:
    base_offset, _, magic, crc, _, last_offset_delta, record_count = WALK_HEADER.unpack_from(data, position)
    actual = crc32c.crc32c(data[position + CRC_START : end])
    if crc != actual:
        return Broken(end, f"checksum is {actual:#010x}, {crc:#010x} expected")
    if last_offset_delta < 0 or record_count < 0:
        reason = f"last offset delta {last_offset_delta}, record count {record_count}: negative"
        return Broken(end, reason, is_certain=True)
    if base_offset + last_offset_delta > MAX_OFFSET:
        return Broken(end, f"last offset {base_offset + last_offset_delta} is beyond {MAX_OFFSET}", is_certain=True)
    return Found(position, end, magic, base_offset, base_offset + last_offset_delta, record_count, None)


def _examine_message(data: memoryview, position: int, end: int) -> Found | Broken:
    (crc,) = _CRC32.unpack_from(data, position + LOG_OVERHEAD)
    actual = zlib.crc32(data[position + MAGIC_OFFSET : end])
    if crc != actual:
        return Broken(end, f"checksum is {actual:#010x}, {crc:#010x} expected")
    try:
        records = decode_message(bytes(data[position:end]))
    except CorruptRecord as error:
        return Broken(end, str(error), is_certain=True)
    magic = data[position + MAGIC_OFFSET]
    return Found(position, end, magic, records[0].offset, records[-1].offset, len(records), records)
