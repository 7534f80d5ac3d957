"""Write format-2 record batches, byte for byte as a broker does.

Arrow encodes the records of many batches at once, and numpy their headers. Compression and checksums run per batch.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.record import batch as b
from offsets_pipeline.record.columns import BATCH_HEADER, Headers
from offsets_pipeline.record.compression import Codec, compress
from offsets_pipeline.record.records import Int64s

NONE = -1
_RECORDS_AT_ONCE = 500_000
_NO_ATTRIBUTES = b"\x00"
_NO_HEADERS = b"\x00"
_CRC_AT = 17
_CRC_BYTES = 4

_CONTROL_KEY = struct.Struct(">hh")  # version, type
_CONTROL_VALUE = struct.Struct(">hi")  # version, coordinator epoch
_CONTROL_TYPE = {"ABORT": 0, "COMMIT": 1}


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """Header fields of a batch. `delete_horizon_ms` replaces the base timestamp (attribute bit 6)."""

    codec: Codec = Codec.NONE
    producer_id: int = NONE
    producer_epoch: int = NONE
    base_sequence: int = NONE
    partition_leader_epoch: int = 0
    is_transactional: bool = False
    is_control: bool = False
    log_append_time_ms: int | None = None
    delete_horizon_ms: int | None = None

    @property
    def attributes(self) -> int:
        """Attribute bits of the batch."""
        return (
            self.codec
            | (b.ATTRIBUTE_LOG_APPEND_TIME if self.log_append_time_ms is not None else 0)
            | (b.ATTRIBUTE_TRANSACTIONAL if self.is_transactional else 0)
            | (b.ATTRIBUTE_CONTROL if self.is_control else 0)
            | (b.ATTRIBUTE_DELETE_HORIZON if self.delete_horizon_ms is not None else 0)
        )


_DEFAULT_OPTIONS = BatchOptions()


def encode_batches(
    keys: pa.Array,
    values: pa.Array,
    *,
    records_per_batch: int,
    base_offset: int = 0,
    timestamps: Int64s | int = 0,
    options: BatchOptions = _DEFAULT_OPTIONS,
) -> bytes:
    """Encode a segment of batches, `records_per_batch` records each; the last may have fewer. Offsets have no gaps.

    `keys` and `values` are binary arrays of one length and may contain nulls. `timestamps` is in ms: one for all
    records, or one for each.
    """
    count = len(keys)
    offsets = base_offset + np.arange(count, dtype=np.int64)
    all_timestamps = np.broadcast_to(np.asarray(timestamps, dtype=np.int64), (count,))
    block = max(1, _RECORDS_AT_ONCE // records_per_batch) * records_per_batch
    out = bytearray()
    for start in range(0, count, block):
        rows = slice(start, min(start + block, count))
        out += _encode_block(
            keys[rows],
            values[rows],
            offsets[rows],
            all_timestamps[rows],
            records_per_batch=records_per_batch,
            options=options,
        )
    return bytes(out)


def encode_batch(
    keys: pa.Array,
    values: pa.Array,
    *,
    base_offset: int,
    offsets: Int64s | None = None,
    last_offset: int | None = None,
    timestamps: Int64s | int = 0,
    options: BatchOptions = _DEFAULT_OPTIONS,
) -> bytes:
    """Encode one batch as compaction may leave it: with gaps (`offsets`), a later last offset, or no records."""
    count = len(keys)
    if offsets is None:
        offsets = base_offset + np.arange(count, dtype=np.int64)
    if last_offset is None:
        last_offset = int(offsets[-1]) if count else base_offset
    all_timestamps = np.broadcast_to(np.asarray(timestamps, dtype=np.int64), (count,))
    base_timestamp = _base_timestamp(all_timestamps, options)
    records = encode_records(keys, values, offsets - base_offset, all_timestamps - base_timestamp)
    headers = _headers(1, options)
    headers["base_offset"] = base_offset
    headers["last_offset_delta"] = last_offset - base_offset
    headers["base_timestamp"] = base_timestamp
    if options.log_append_time_ms is None:
        headers["max_timestamp"] = int(all_timestamps.max()) if count else NONE
    headers["record_count"] = count
    return bytes(frame_batches(headers, [compress(options.codec, b"".join(records.to_pylist()))])[0])


def encode_control_batch(
    *,
    offset: int,
    commit: bool,
    producer_id: int,
    producer_epoch: int = 0,
    timestamp: int = 0,
    coordinator_epoch: int = 0,
) -> bytes:
    """Encode a batch with a transaction marker: COMMIT or ABORT of a producer."""
    options = BatchOptions(
        producer_id=producer_id, producer_epoch=producer_epoch, is_transactional=True, is_control=True
    )
    return encode_batch(
        pa.array([control_key("COMMIT" if commit else "ABORT")], pa.binary()),
        pa.array([control_value(coordinator_epoch)], pa.binary()),
        base_offset=offset,
        timestamps=timestamp,
        options=options,
    )


def control_key(control_type: str) -> bytes:
    """Key of a transaction marker: COMMIT or ABORT."""
    return _CONTROL_KEY.pack(0, _CONTROL_TYPE[control_type])


def control_value(coordinator_epoch: int = 0) -> bytes:
    """Value of a transaction marker."""
    return _CONTROL_VALUE.pack(0, coordinator_epoch)


# batch.py has the layout of the header, records.py the layout of a record
def frame_batches(headers: Headers, payloads: Sequence[bytes | memoryview]) -> tuple[bytearray, Int64s]:
    """Concatenate record batches, each a header and its payload. Returns the bytes and each batch's start position.

    Fills in length, magic and checksum of each header. Each payload has the records of one batch, compressed with the
    codec in its header.
    """
    size = b.BATCH_HEADER_BYTES + np.fromiter(map(len, payloads), np.int64, len(payloads))
    headers["batch_length"] = size - b.LOG_OVERHEAD
    headers["magic"] = b.MAGIC_2
    end = np.cumsum(size)
    start: Int64s = end - size
    data = bytearray(int(end[-1]) if len(end) else 0)
    places = np.frombuffer(data, dtype=np.uint8)
    places[start[:, None] + np.arange(b.BATCH_HEADER_BYTES)] = headers.view(np.uint8).reshape(-1, b.BATCH_HEADER_BYTES)
    view = memoryview(data)
    checksums = np.empty(len(payloads), dtype=">u4")
    for index, (first, last, payload) in enumerate(zip(start.tolist(), end.tolist(), payloads, strict=True)):
        view[first + b.BATCH_HEADER_BYTES : last] = payload
        checksums[index] = crc32c.crc32c(view[first + b.CRC_START : last])
    places[start[:, None] + np.arange(_CRC_AT, _CRC_AT + _CRC_BYTES)] = checksums.view(np.uint8).reshape(-1, _CRC_BYTES)
    return data, start


def record_payloads(records: pa.Array, first: Int64s, end: Int64s) -> list[memoryview]:
    """Uncompressed payloads of batches: batch i has the encoded records from ``first[i]`` to before ``end[i]``.

    ``records`` comes from `encode_records`.
    """
    _, bounds, data = records.buffers()
    bound = np.frombuffer(bounds, dtype=np.int32)
    payload = memoryview(data if data is not None else b"").cast("B")
    return [payload[start:stop] for start, stop in zip(bound[first].tolist(), bound[end].tolist(), strict=True)]


def _encode_block(
    keys: pa.Array,
    values: pa.Array,
    offsets: Int64s,
    timestamps: Int64s,
    *,
    records_per_batch: int,
    options: BatchOptions,
) -> bytearray:
    count = len(keys)
    first = np.arange(0, count, records_per_batch, dtype=np.int64)
    end = np.minimum(first + records_per_batch, count)
    size = end - first
    base_timestamp = timestamps[first] if options.delete_horizon_ms is None else np.full_like(first, _horizon(options))
    records = encode_records(
        keys, values, offsets - np.repeat(offsets[first], size), timestamps - np.repeat(base_timestamp, size)
    )
    headers = _headers(len(first), options)
    headers["base_offset"] = offsets[first]
    headers["last_offset_delta"] = size - 1
    headers["base_timestamp"] = base_timestamp
    if options.log_append_time_ms is None:
        headers["max_timestamp"] = np.maximum.reduceat(timestamps, first)
    headers["record_count"] = size
    payloads = [compress(options.codec, bytes(payload)) for payload in record_payloads(records, first, end)]
    return frame_batches(headers, payloads)[0]


def _headers(count: int, options: BatchOptions) -> Headers:
    """Headers with the fields of these options; all other fields are zero."""
    headers: Headers = np.zeros(count, dtype=BATCH_HEADER)
    headers["partition_leader_epoch"] = options.partition_leader_epoch
    headers["attributes"] = options.attributes
    headers["producer_id"] = options.producer_id
    headers["producer_epoch"] = options.producer_epoch
    headers["base_sequence"] = options.base_sequence
    headers["max_timestamp"] = options.log_append_time_ms or 0
    return headers


def _horizon(options: BatchOptions) -> int:
    return options.delete_horizon_ms if options.delete_horizon_ms is not None else NONE


def _base_timestamp(timestamps: Int64s, options: BatchOptions) -> int:
    if options.delete_horizon_ms is not None or not len(timestamps):
        return _horizon(options)
    return int(timestamps[0])


def encode_records(keys: pa.Array, values: pa.Array, offset_delta: Int64s, timestamp_delta: Int64s) -> pa.Array:
    """Encode records as a binary array. Deltas are relative to base offset and base timestamp of the record's batch."""
    key, key_length = _bytes_and_length(keys)
    value, value_length = _bytes_and_length(values)
    parts = [
        pa.scalar(_NO_ATTRIBUTES, pa.binary()),
        _varints(timestamp_delta),
        _varints(offset_delta),
        _varints(key_length),
        key,
        _varints(value_length),
        value,
        pa.scalar(_NO_HEADERS, pa.binary()),
    ]
    nothing = pa.scalar(b"", pa.binary())
    body = pc.binary_join_element_wise(*parts, nothing)
    return pc.binary_join_element_wise(_varints(pc.binary_length(body).to_numpy().astype(np.int64)), body, nothing)


def _bytes_and_length(array: pa.Array) -> tuple[pa.Array, Int64s]:
    length = pc.fill_null(pc.binary_length(array), NONE)
    return pc.fill_null(array, b""), length.to_numpy(zero_copy_only=False).astype(np.int64)


def _varints(values: Int64s) -> pa.Array:
    """Zigzag varints as a binary array."""
    bits = ((values << 1) ^ (values >> 63)).view(np.uint64)
    groups = 1
    while bits.size and int(bits.max()) >> 7 * groups:
        groups += 1
    rest = bits[:, None] >> (np.uint64(7) * np.arange(groups, dtype=np.uint64))
    present = rest > 0
    present[:, 0] = True
    more = np.zeros_like(present)
    more[:, :-1] = present[:, 1:]
    data = ((rest & np.uint64(0x7F)).astype(np.uint8) | (more.astype(np.uint8) << 7))[present]
    bounds = np.zeros(len(bits) + 1, dtype=np.int32)
    np.cumsum(present.sum(axis=1), out=bounds[1:])
    return pa.Array.from_buffers(pa.binary(), len(bits), [None, pa.py_buffer(bounds), pa.py_buffer(data)])
