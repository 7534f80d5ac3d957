"""What all message formats share: where a batch lies, its header, and whether it stands whole at a position.

Format 2 (magic 2) writes record batches; formats 0 and 1 write messages, which may wrap a compressed set of messages.
Here both are called a batch. All three start alike:

    offset int64 (format 2: base offset), length int32 (of what follows), 4 bytes, magic int8 at byte 16
"""

import struct
import zlib
from dataclasses import dataclass

import crc32c

from offsets_pipeline.record.corrupt import CorruptRecord
from offsets_pipeline.record.legacy import LEGACY_MIN_LENGTH, LegacyRecord, decode_message, has_message_shape

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

_PREFIX = struct.Struct(">qi4xb")
_MIN_LENGTH = {0: LEGACY_MIN_LENGTH[0], 1: LEGACY_MIN_LENGTH[1], MAGIC_2: BATCH_MIN_LENGTH}
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
    """A whole batch by its length, up to `end`, that does not hold what it should."""

    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class NoBatch:
    """What lies here cannot be the start of a batch."""

    reason: str


def examine(data: memoryview, position: int) -> Found | Incomplete | Broken | NoBatch:
    """What lies at a position. Decodes the messages of formats 0 and 1, but not the records of format 2."""
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
    end = position + LOG_OVERHEAD + length
    return _examine_batch(data, position, end) if magic == MAGIC_2 else _examine_message(data, position, end)


def has_batch_shape(data: memoryview, position: int) -> bool:
    """Whether a whole batch by its length, of known magic, also has plausible fields; says nothing of its checksum."""
    offset, length, magic = _PREFIX.unpack_from(data, position)
    if offset < 0 or length < _MIN_LENGTH[magic]:
        return False
    if magic != MAGIC_2:
        return has_message_shape(data, position, position + LOG_OVERHEAD + length)
    _, _, _, _, attributes, last_offset_delta, record_count = WALK_HEADER.unpack_from(data, position)
    # attribute bits that nothing uses are zero in every batch so far
    return not attributes & ~ATTRIBUTES_KNOWN and last_offset_delta >= 0 and record_count >= 0


def _examine_batch(data: memoryview, position: int, end: int) -> Found | Broken:
    base_offset, _, magic, crc, _, last_offset_delta, record_count = WALK_HEADER.unpack_from(data, position)
    actual = crc32c.crc32c(data[position + CRC_START : end])
    if crc != actual:
        return Broken(end, f"checksum is {actual:#010x}, {crc:#010x} expected")
    if last_offset_delta < 0 or record_count < 0:
        return Broken(end, f"last offset delta {last_offset_delta}, record count {record_count}: negative")
    return Found(position, end, magic, base_offset, base_offset + last_offset_delta, record_count, None)


def _examine_message(data: memoryview, position: int, end: int) -> Found | Broken:
    (crc,) = _CRC32.unpack_from(data, position + LOG_OVERHEAD)
    actual = zlib.crc32(data[position + MAGIC_OFFSET : end])
    if crc != actual:
        return Broken(end, f"checksum is {actual:#010x}, {crc:#010x} expected")
    try:
        records = decode_message(bytes(data[position:end]))
    except CorruptRecord as error:
        return Broken(end, str(error))
    magic = data[position + MAGIC_OFFSET]
    return Found(position, end, magic, records[0].offset, records[-1].offset, len(records), records)
