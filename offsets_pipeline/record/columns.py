"""Batches as Arrow columns: what a segment's records look like to everything above the wire format."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from offsets_pipeline.record import batch as b
from offsets_pipeline.record.compression import CODEC_MASK, Codec, decompress, decompress_frames
from offsets_pipeline.record.corrupt import CorruptRecord
from offsets_pipeline.record.legacy import LegacyRecord
from offsets_pipeline.record.records import (
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
_MAX_BINARY_BYTES = 2**31 - 1  # Arrow's binary has int32 offsets

_FRAMES_AT_ONCE = 1000

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
Headers = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Undecodable:
    """The index of a batch, among those asked for, that has a good checksum but does not decode."""

    index: int
    reason: str


def legacy_columns(records: list[LegacyRecord]) -> pa.RecordBatch:
    """Messages of formats 0 and 1 in SEGMENT_SCHEMA."""
    count = len(records)
    timestamp = np.fromiter((record.timestamp for record in records), dtype=np.int64, count=count)
    return pa.RecordBatch.from_arrays(
        [
            pa.array((record.offset for record in records), pa.int64(), size=count),
            _timestamps(timestamp),
            pa.array([record.key for record in records], pa.binary()),
            pa.array([record.value for record in records], pa.binary()),
            pa.nulls(count, pa.int64()),
            pa.nulls(count, pa.int16()),
            pa.array(np.zeros(count, dtype=np.bool_)),
            pa.nulls(count, pa.string()),
        ],
        schema=SEGMENT_SCHEMA,
    )


def batch_columns(data: memoryview, positions: list[int]) -> tuple[list[pa.RecordBatch], list[Undecodable]]:
    """The records of format-2 batches that stand whole at `positions`, ascending, in SEGMENT_SCHEMA.

    A batch that does not decode is left out as a whole and returned as undecodable.
    """
    position = np.array(positions, dtype=np.int64)
    headers = _headers(data, position)
    payloads = _Payloads(data, position, headers)
    if len(payloads.buffer) > _MAX_BINARY_BYTES and len(positions) > 1:
        half = len(positions) // 2
        left, left_bad = batch_columns(data, positions[:half])
        right, right_bad = batch_columns(data, positions[half:])
        return left + right, left_bad + [Undecodable(bad.index + half, bad.reason) for bad in right_bad]
    places = locate_records(payloads.buffer, payloads.start, payloads.end, payloads.count)
    control_type = _control_types(payloads, headers, places)
    places.bad[:] |= _out_of_order(headers, payloads.count, places.offset_delta)
    undecodable = [
        Undecodable(index, payloads.reason.get(index) or _reason(payloads, headers, index))
        for index in sorted({*np.flatnonzero(places.bad).tolist(), *payloads.reason})
    ]
    good = np.repeat(~places.bad, payloads.count)
    return [_assemble(headers, payloads, places, control_type, good)], undecodable


def _headers(data: memoryview, position: Int64s) -> Headers:
    # a view of a header at every byte, of which those at the positions are copied
    at_every_byte: Headers = np.ndarray(
        len(data) - b.BATCH_HEADER_BYTES + 1, dtype=BATCH_HEADER, buffer=data, strides=1
    )
    return at_every_byte[position]


class _Payloads:
    """Where the records of each batch lie in one buffer: the file itself if no batch is compressed.

    `count` is 0 for a batch that cannot be read; `reason` says why.
    """

    def __init__(self, data: memoryview, position: Int64s, headers: Headers) -> None:
        self.reason: dict[int, str] = {}
        self.count: Int64s = headers["record_count"].astype(np.int64)
        start = position + b.BATCH_HEADER_BYTES
        end = position + b.LOG_OVERHEAD + headers["batch_length"]
        codec = headers["attributes"] & CODEC_MASK
        if codec.any():
            frames = [data[first:last] for first, last in zip(start.tolist(), end.tolist(), strict=True)]
            payloads = self._payloads(codec, frames)
            self.data = pa.py_buffer(b"".join([*payloads, b"\x00"]))  # never empty: numpy takes from it
            self.end: Int64s = np.cumsum(np.fromiter(map(len, payloads), np.int64, len(payloads)))
            self.start: Int64s = np.concatenate([np.zeros(1, dtype=np.int64), self.end[:-1]])
        else:
            self.data = pa.py_buffer(data[int(position[0]) : int(end[-1])])
            self.start, self.end = start - position[0], end - position[0]
        self.buffer: Bytes = np.frombuffer(self.data, dtype=np.uint8)
        too_many = self.count * MIN_RECORD_BYTES > self.end - self.start
        for index in np.flatnonzero(too_many & (self.count > 0)).tolist():
            size = int(self.end[index] - self.start[index])
            self.reason.setdefault(index, f"{self.count[index]} records do not fit into {size} bytes")
        self.count[list(self.reason)] = 0

    def _payloads(self, codec: Int64s, frames: list[memoryview]) -> list[bytes | memoryview]:
        together: dict[int, bytes] = {}
        zstd = np.flatnonzero(codec == Codec.ZSTD).tolist()
        for first in range(0, len(zstd), _FRAMES_AT_ONCE):
            some = zstd[first : first + _FRAMES_AT_ONCE]
            together.update(zip(some, decompress_frames([frames[each] for each in some]) or (), strict=False))
        return [
            together[index] if index in together else self._payload(index, batch_codec, frames[index])
            for index, batch_codec in enumerate(codec.tolist())
        ]

    def _payload(self, index: int, codec: int, data: memoryview) -> bytes | memoryview:
        if codec == Codec.NONE:
            return data
        try:
            return decompress(codec, bytes(data))
        except CorruptRecord as error:
            self.reason[index] = str(error)
            return b""


def _control_types(payloads: _Payloads, headers: Headers, places: RecordPlaces) -> pa.Array:
    """The control type of each record, null for data; a control key too short to have one makes its batch bad."""
    is_control = np.repeat(headers["attributes"] & b.ATTRIBUTE_CONTROL != 0, payloads.count)
    rows = np.flatnonzero(is_control)
    if not rows.size:
        return pa.nulls(len(is_control), pa.string())
    batch = np.repeat(np.arange(len(payloads.count)), payloads.count)
    places.bad[batch[rows[places.key_length[rows] < _CONTROL_KEY_BYTES]]] = True
    type_position = places.key_start[rows] + _CONTROL_TYPE_OFFSET
    high = payloads.buffer.take(type_position, mode="clip").astype(np.int64)
    control_type = (high << 8) | payloads.buffer.take(type_position + 1, mode="clip")
    code = np.zeros(len(is_control), dtype=np.int64)
    code[rows] = np.minimum(control_type, _CONTROL_OTHER)
    return pa.array(CONTROL_TYPES, pa.string()).take(pa.array(code, mask=~is_control))


def _out_of_order(headers: Headers, count: Int64s, offset_delta: Int64s) -> Bools:
    """R2: within a batch too, record offsets increase, from the base offset to the last offset at most."""
    batch = np.repeat(np.arange(len(count)), count)
    wrong = (offset_delta < 0) | (offset_delta > headers["last_offset_delta"][batch])
    wrong[1:] |= (offset_delta[1:] <= offset_delta[:-1]) & (batch[1:] == batch[:-1])
    out_of_order = np.zeros(len(count), dtype=np.bool_)
    out_of_order[batch[wrong]] = True
    return out_of_order


def _reason(payloads: _Payloads, headers: Headers, index: int) -> str:
    start, end = int(payloads.start[index]), int(payloads.end[index])
    count = int(payloads.count[index])
    try:
        parse_records(payloads.buffer[start:end].tobytes(), count)
    except CorruptRecord as error:
        return str(error)
    if headers["attributes"][index] & b.ATTRIBUTE_CONTROL:
        return f"control record whose key is shorter than {_CONTROL_KEY_BYTES} bytes, or offsets that do not increase"
    return f"offsets of its {count} records do not increase from 0 to {headers['last_offset_delta'][index]}"


def _assemble(
    headers: Headers, payloads: _Payloads, places: RecordPlaces, control_type: pa.Array, good: Bools
) -> pa.RecordBatch:
    def of_batch(name: str) -> Int64s:
        values: Int64s = np.repeat(headers[name].astype(np.int64), payloads.count)
        return values

    attributes = of_batch("attributes")
    # the delete horizon (bit 6) stands in the base timestamp, and the deltas count from it as from any other
    timestamp = np.where(
        attributes & b.ATTRIBUTE_LOG_APPEND_TIME,
        of_batch("max_timestamp"),
        of_batch("base_timestamp") + places.timestamp_delta,
    )
    key, value = _keys_and_values(payloads, places, good)
    columns = {
        "record_offset": pa.array(of_batch("base_offset") + places.offset_delta),
        "record_timestamp": _timestamps(timestamp),
        "producer_id": _null_if_none(of_batch("producer_id"), pa.int64()),
        "producer_epoch": _null_if_none(of_batch("producer_epoch"), pa.int16()),
        "is_transactional": pa.array(attributes & b.ATTRIBUTE_TRANSACTIONAL != 0),
        "control_type": control_type,
    }
    if not good.all():
        keep = pa.array(good)
        columns = {name: column.filter(keep) for name, column in columns.items()}
    columns |= {"key": key, "value": value}
    return pa.RecordBatch.from_arrays([columns[name] for name in SEGMENT_SCHEMA.names], schema=SEGMENT_SCHEMA)


def _keys_and_values(payloads: _Payloads, places: RecordPlaces, good: Bools) -> tuple[pa.Array, pa.Array]:
    """Keys and values of the good records, cut out of the buffer by Arrow.

    Records lie in file order, so the bounds of keys and values ascend: they are the offsets of a binary array over
    the whole buffer, in which every fourth element is a key, every fourth a value, and the others what lies between.
    """
    key_start, key_length = places.key_start[good], places.key_length[good]
    value_start, value_length = places.value_start[good], places.value_length[good]
    count = len(key_start)
    bounds = np.empty(4 * count + 1, dtype=np.int32)
    bounds[0:-1:4] = key_start
    bounds[1::4] = key_start + np.maximum(key_length, 0)
    bounds[2::4] = value_start
    bounds[3::4] = value_start + np.maximum(value_length, 0)
    bounds[-1] = bounds[-2] if count else 0
    parts = pa.Array.from_buffers(pa.binary(), 4 * count, [None, pa.py_buffer(bounds), payloads.data])
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
