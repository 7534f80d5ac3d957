"""Batches as Arrow columns: the form in which all code above the wire format sees a segment's records."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from offsets_pipeline.kafka.record import batch as b
from offsets_pipeline.kafka.record.batch import MAX_BATCH_RECORDS, LegacyRecord
from offsets_pipeline.kafka.record.compression import CODEC_MASK, Codec, decompress, decompress_frames
from offsets_pipeline.kafka.record.corrupt import CorruptRecord
from offsets_pipeline.kafka.record.records import (
    MIN_RECORD_BYTES,
    Bools,
    Bytes,
    Int64s,
    RecordPlaces,
    locate_records,
    parse_records,
)

SEGMENT_SCHEMA = pa.schema(
    [
        pa.field("record_offset", pa.int64(), nullable=False),
        pa.field("record_timestamp", pa.timestamp("ms", tz="UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("producer_id", pa.int64()),
        pa.field("producer_epoch", pa.int16()),
        pa.field("is_transactional", pa.bool_(), nullable=False),
        pa.field("control_type", pa.string()),
    ]
)

NONE = -1  # producer id, producer epoch and timestamp
CONTROL_TYPES = ("ABORT", "COMMIT", "OTHER")  # by the type in a control record's key
_CONTROL_OTHER = 2
# control record key: version int16, type int16
_CONTROL_KEY_BYTES = 4
_CONTROL_TYPE_OFFSET = 2
#: First and last timestamp that the log's tables can hold: they store microseconds in an int64 (R6).
LAST_TIMESTAMP_MS = 2**63 // 1000
FIRST_TIMESTAMP_MS = -LAST_TIMESTAMP_MS
_NAMED_RECORDS = 5  # a reason names at most this many record offsets of a batch

#: Uncompressed size of one part of the columns, in bytes. A larger batch is a part of its own. This bounds the memory.
_PART_BYTES = 32 * 1024 * 1024
_FRAMES_AT_ONCE = 1000
_PACKED_BYTES_AT_ONCE = 1024 * 1024

BATCH_HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("batch_length", ">i4"),
        ("partition_leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)
#: Header of a message of formats 0 and 1, which ends behind these fields or behind a timestamp.
MESSAGE_HEADER = np.dtype(
    [("base_offset", ">i8"), ("batch_length", ">i4"), ("crc", ">u4"), ("magic", "i1"), ("attributes", "i1")]
)
Headers = npt.NDArray[np.void]


#: Records of batches in SEGMENT_SCHEMA, and the batches that they lack, in whole or in part, although their checksums
#: are good: by index in the list of batches that the caller passed, why.
Columns = tuple[pa.RecordBatch, dict[int, str]]


def legacy_columns(messages: Sequence[Sequence[LegacyRecord]]) -> Columns:
    """Return messages of formats 0 and 1 in SEGMENT_SCHEMA, with the records that each wraps, and those left out."""
    records = [record for wrapped in messages for record in wrapped]
    count = len(records)
    offset, timestamp = (np.fromiter((record[field] for record in records), np.int64, count) for field in (0, 1))
    columns = [
        pa.array(offset),
        _timestamps(timestamp),
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        pa.nulls(count, pa.int64()),
        pa.nulls(count, pa.int16()),
        pa.array(np.zeros(count, dtype=np.bool_)),
        pa.nulls(count, pa.string()),
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=SEGMENT_SCHEMA)
    fits = _fits(timestamp)
    if fits.all():
        return rows, {}
    message = np.repeat(np.arange(len(messages)), [len(wrapped) for wrapped in messages])
    return rows.filter(pa.array(fits)), _beyond_time(message, offset, timestamp, fits)


def batch_columns(data: memoryview, positions: list[int]) -> Iterator[Columns]:
    """Yield the records of format-2 batches in SEGMENT_SCHEMA, and the batches and records left out.

    `positions` ascend; a whole batch starts at each. Leaves out batches that do not decode, and records that the
    columns cannot hold. The columns come in parts, which bounds the memory that compressed batches take.
    """
    if not positions:
        return
    position = np.array(positions, dtype=np.int64)
    headers = headers_at(data, position)
    for part in _parts(data, position, headers):
        yield _part_columns(part)


def _part_columns(part: "_Part") -> Columns:
    places = locate_records(part.buffer, part.start, part.end, part.count)
    control_type = _control_types(part, places)
    places.bad[:] |= _out_of_order(part, places.offset_delta)
    left_out = {
        index: part.reason.get(index) or _reason(part, index)
        for index in sorted({*np.flatnonzero(places.bad).tolist(), *part.reason})
    }
    good = np.repeat(~places.bad, part.count)
    offset = part.of_each_record("base_offset") + places.offset_delta
    # a delete horizon (bit 6) replaces the base timestamp, and the deltas are relative to it
    attributes = part.of_each_record("attributes")
    timestamp = np.where(
        attributes & b.ATTRIBUTE_LOG_APPEND_TIME,
        part.of_each_record("max_timestamp"),
        part.of_each_record("base_timestamp") + places.timestamp_delta,
    )
    fits = _fits(timestamp)
    if not fits.all():
        batch = np.repeat(np.arange(len(part.count)), part.count)
        left_out |= _beyond_time(batch[good], offset[good], timestamp[good], fits[good])
        good &= fits
    columns = _assemble(part, places, (offset, timestamp, attributes), control_type, good)
    return columns, {part.first + index: reason for index, reason in left_out.items()}


def _fits(timestamp: Int64s) -> Bools:
    fits: Bools = (timestamp >= FIRST_TIMESTAMP_MS) & (timestamp <= LAST_TIMESTAMP_MS)
    return fits


def _beyond_time(batch: Int64s, offset: Int64s, timestamp: Int64s, fits: Bools) -> dict[int, str]:
    """Report the records whose timestamp does not fit, by batch. The batch keeps its other records."""
    left_out = {}
    affected = np.unique(batch[~fits])
    starts, ends = (np.searchsorted(batch, affected, side).tolist() for side in ("left", "right"))
    for index, start, end in zip(affected.tolist(), starts, ends, strict=True):
        beyond = start + np.flatnonzero(~fits[start:end])
        named = ", ".join(map(str, offset[beyond[:_NAMED_RECORDS]].tolist()))
        left_out[index] = (
            f"{len(beyond)} of {end - start} records have a timestamp that the table cannot hold, as "
            f"{int(timestamp[beyond[0]])} ms: record offsets {named}{', ...' if len(beyond) > _NAMED_RECORDS else ''}"
        )
    return left_out


def headers_at(data: memoryview, position: Int64s, kind: np.dtype[np.void] = BATCH_HEADER) -> Headers:
    """Return the headers of the batches at these positions, or of the messages (``kind`` MESSAGE_HEADER)."""
    # a view with a header at every byte; indexing copies only those at the positions
    at_every_byte: Headers = np.ndarray(len(data) - kind.itemsize + 1, dtype=kind, buffer=data, strides=1)
    return at_every_byte[position]


class _Part:
    """Consecutive batches, and the bounds of their records in one buffer.

    `first` is the index of the first batch. `count` is 0 for a batch that cannot be read; `reason` says why.
    """

    def __init__(
        self, first: int, headers: Headers, data: pa.Buffer, bounds: tuple[Int64s, Int64s], reason: dict[int, str]
    ) -> None:
        self.first = first
        self.headers = headers
        self.data = data
        self.buffer: Bytes = np.frombuffer(data, dtype=np.uint8)
        self.start, self.end = bounds
        self.reason = reason
        self.count: Int64s = headers["record_count"].astype(np.int64)
        too_many = (self.count * MIN_RECORD_BYTES > self.end - self.start) | (self.count > MAX_BATCH_RECORDS)
        for index in np.flatnonzero(too_many).tolist():
            size, count = int(self.end[index] - self.start[index]), int(self.count[index])
            wrong = "are more than a batch may have" if count > MAX_BATCH_RECORDS else f"do not fit into {size} bytes"
            reason.setdefault(index, f"{count} records {wrong}")
        self.count[list(reason)] = 0

    def of_each_record(self, name: str) -> Int64s:
        """Repeat a header field of each batch for each of its records."""
        values: Int64s = np.repeat(self.headers[name].astype(np.int64), self.count)
        return values


def _parts(data: memoryview, position: Int64s, headers: Headers) -> Iterator[_Part]:
    """Yield the batches in parts, in order. Without compression there is one part, over the file itself."""
    start = position + b.BATCH_HEADER_BYTES
    end = position + b.LOG_OVERHEAD + headers["batch_length"]
    codec = headers["attributes"] & CODEC_MASK
    if not codec.any():
        stored = pa.py_buffer(data[int(position[0]) : int(end[-1])])
        yield _Part(0, headers, stored, (start - position[0], end - position[0]), {})
        return
    frames = [data[first:last] for first, last in zip(start.tolist(), end.tolist(), strict=True)]
    first, size = 0, 0
    waiting: list[bytes | memoryview] = []
    reason: dict[int, str] = {}
    for index, unpacked in enumerate(_payloads(codec.tolist(), frames)):
        payload = b"" if isinstance(unpacked, CorruptRecord) else unpacked
        if waiting and size + len(payload) > _PART_BYTES:
            yield _unpacked(first, headers[first:index], waiting, reason)
            first, size, waiting, reason = index, 0, [], {}
        if isinstance(unpacked, CorruptRecord):
            reason[index - first] = str(unpacked)
        waiting.append(payload)
        size += len(payload)
    yield _unpacked(first, headers[first:], waiting, reason)


def _unpacked(first: int, headers: Headers, payloads: list[bytes | memoryview], reason: dict[int, str]) -> _Part:
    data = pa.py_buffer(b"".join([*payloads, b"\x00"]))  # never empty: numpy takes from it
    end: Int64s = np.cumsum(np.fromiter(map(len, payloads), np.int64, len(payloads)))
    start: Int64s = np.concatenate([np.zeros(1, dtype=np.int64), end[:-1]])
    return _Part(first, headers, data, (start, end), reason)


def _payloads(codec: list[int], frames: list[memoryview]) -> Iterator[bytes | memoryview | CorruptRecord]:
    """Yield the decompressed payload of each batch, or the error."""
    # small payloads are decompressed in one call; large ones gain nothing from it
    size = np.fromiter(map(len, frames), np.int64, len(frames))
    together_with = np.cumsum(size) // _PACKED_BYTES_AT_ONCE + np.arange(len(frames)) // _FRAMES_AT_ONCE
    bounds = [0, *(np.flatnonzero(np.diff(together_with)) + 1).tolist(), len(frames)]
    for some in (range(first, end) for first, end in pairwise(bounds)):
        zstd = [index for index in some if codec[index] == Codec.ZSTD]
        together = decompress_frames([frames[each] for each in zstd], _PART_BYTES) if len(zstd) > 1 else None
        unpacked = dict(zip(zstd, together or (), strict=False))
        for index in some:
            yield unpacked[index] if index in unpacked else _payload(codec[index], frames[index])


def _payload(codec: int, data: memoryview) -> bytes | memoryview | CorruptRecord:
    if codec == Codec.NONE:
        return data
    try:
        return decompress(codec, bytes(data))
    except CorruptRecord as error:
        return error


def _control_types(part: _Part, places: RecordPlaces) -> pa.Array:
    """Control type of each record, null for data. A control key too short to hold a type makes its batch bad."""
    is_control = np.repeat(part.headers["attributes"] & b.ATTRIBUTE_CONTROL != 0, part.count)
    rows = np.flatnonzero(is_control)
    if not rows.size:
        return pa.nulls(len(is_control), pa.string())
    batch = np.repeat(np.arange(len(part.count)), part.count)
    places.bad[batch[rows[places.key_length[rows] < _CONTROL_KEY_BYTES]]] = True
    type_position = places.key_start[rows] + _CONTROL_TYPE_OFFSET
    high = part.buffer.take(type_position, mode="clip").astype(np.int64)
    control_type = (high << 8) | part.buffer.take(type_position + 1, mode="clip")
    code = np.zeros(len(is_control), dtype=np.int64)
    code[rows] = np.minimum(control_type, _CONTROL_OTHER)
    return pa.array(CONTROL_TYPES, pa.string()).take(pa.array(code, mask=~is_control))


def _out_of_order(part: _Part, offset_delta: Int64s) -> Bools:
    """Batches whose record offsets do not increase, or lie outside base offset to last offset (R2)."""
    count = part.count
    batch = np.repeat(np.arange(len(count)), count)
    wrong = (offset_delta < 0) | (offset_delta > part.headers["last_offset_delta"][batch])
    wrong[1:] |= (offset_delta[1:] <= offset_delta[:-1]) & (batch[1:] == batch[:-1])
    out_of_order = np.zeros(len(count), dtype=np.bool_)
    out_of_order[batch[wrong]] = True
    return out_of_order


def _reason(part: _Part, index: int) -> str:
    start, end = int(part.start[index]), int(part.end[index])
    count = int(part.count[index])
    try:
        parse_records(part.buffer[start:end].tobytes(), count)
    except CorruptRecord as error:
        return str(error)
    if part.headers["attributes"][index] & b.ATTRIBUTE_CONTROL:
        return f"control record whose key is shorter than {_CONTROL_KEY_BYTES} bytes, or offsets that do not increase"
    return f"offsets of its {count} records do not increase from 0 to {part.headers['last_offset_delta'][index]}"


def _assemble(
    part: _Part, places: RecordPlaces, of_each: tuple[Int64s, Int64s, Int64s], control_type: pa.Array, good: Bools
) -> pa.RecordBatch:
    offset, timestamp, attributes = of_each
    key, value = _keys_and_values(part, places, good)
    columns = {
        "record_offset": pa.array(offset),
        "record_timestamp": _timestamps(timestamp),
        "producer_id": _null_if_none(part.of_each_record("producer_id"), pa.int64()),
        "producer_epoch": _null_if_none(part.of_each_record("producer_epoch"), pa.int16()),
        "is_transactional": pa.array(attributes & b.ATTRIBUTE_TRANSACTIONAL != 0),
        "control_type": control_type,
    }
    if not good.all():
        keep = pa.array(good)
        columns = {name: column.filter(keep) for name, column in columns.items()}
    columns |= {"key": key, "value": value}
    return pa.RecordBatch.from_arrays([columns[name] for name in SEGMENT_SCHEMA.names], schema=SEGMENT_SCHEMA)


def _keys_and_values(part: _Part, places: RecordPlaces, good: Bools) -> tuple[pa.Array, pa.Array]:
    """Keys and values of the good records, cut out of the buffer by Arrow.

    Records are in file order, so the bounds of keys and values ascend. They serve as the offsets of one binary array
    over the whole buffer. Each record has four elements there: key, bytes between, value, bytes between; the last one
    has three.
    """
    key_start, key_length = places.key_start[good], places.key_length[good]
    value_start, value_length = places.value_start[good], places.value_length[good]
    count = len(key_start)
    bounds = np.empty(4 * count, dtype=np.int32)
    bounds[0::4] = key_start
    bounds[1::4] = key_start + np.maximum(key_length, 0)
    bounds[2::4] = value_start
    bounds[3::4] = value_start + np.maximum(value_length, 0)
    parts = pa.Array.from_buffers(pa.binary(), max(len(bounds) - 1, 0), [None, pa.py_buffer(bounds), part.data])
    element = np.arange(0, 4 * count, 4, dtype=np.int32)
    return (
        parts.take(pa.array(element, mask=_mask(key_length < 0))),
        parts.take(pa.array(element + 2, mask=_mask(value_length < 0))),
    )


def _mask(null: Bools) -> Bools | None:
    return null if null.any() else None


def _null_if_none(values: Int64s, type_: pa.DataType) -> pa.Array:
    return pa.array(values, mask=_mask(values == NONE)).cast(type_)


def _timestamps(milliseconds: Int64s) -> pa.Array:
    return _null_if_none(milliseconds, pa.int64()).view(SEGMENT_SCHEMA.field("record_timestamp").type)
