"""Writes format-2 record batches: segments for tests and benchmarks, byte for byte as a broker would.

Records are laid out for many batches at once by Arrow; only header and checksum are done per batch.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.record import batch as b
from offsets_pipeline.record.compression import Codec, compress
from offsets_pipeline.record.records import Int64s

NONE = -1
_RECORDS_AT_ONCE = 500_000
_NO_ATTRIBUTES = b"\x00"
_NO_HEADERS = b"\x00"

_BEFORE_CRC = struct.Struct(">qiib")
_CRC = struct.Struct(">I")
_AFTER_CRC = struct.Struct(">hiqqqhii")
_CONTROL_KEY = struct.Struct(">hh")  # version, type
_CONTROL_VALUE = struct.Struct(">hi")  # version, coordinator epoch
_CONTROL_TYPE = {"ABORT": 0, "COMMIT": 1}


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """What a batch says besides its records. `delete_horizon_ms` replaces the base timestamp (attribute bit 6)."""

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
        """The batch's attributes."""
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
    """A segment of batches with `records_per_batch` records each (the last may have fewer), offsets without gaps.

    `keys` and `values` are binary arrays of one length, null for null; `timestamps` in ms, one for all or one each.
    """
    count = len(keys)
    offsets = base_offset + np.arange(count, dtype=np.int64)
    all_timestamps = np.broadcast_to(np.asarray(timestamps, dtype=np.int64), (count,))
    block = max(1, _RECORDS_AT_ONCE // records_per_batch) * records_per_batch
    out = bytearray()
    for start in range(0, count, block):
        rows = slice(start, min(start + block, count))
        parts = _encode_block(
            keys[rows],
            values[rows],
            offsets[rows],
            all_timestamps[rows],
            records_per_batch=records_per_batch,
            options=options,
        )
        for part in parts:
            out += part
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
    """One batch as compaction may leave it: with gaps (`offsets`), a later last offset, or no records at all."""
    count = len(keys)
    if offsets is None:
        offsets = base_offset + np.arange(count, dtype=np.int64)
    if last_offset is None:
        last_offset = int(offsets[-1]) if count else base_offset
    all_timestamps = np.broadcast_to(np.asarray(timestamps, dtype=np.int64), (count,))
    base_timestamp = _base_timestamp(all_timestamps, options)
    records = _encode_records(keys, values, offsets - base_offset, all_timestamps - base_timestamp)
    payload = b"".join(records.to_pylist())
    return _frame(
        base_offset=base_offset,
        last_offset_delta=last_offset - base_offset,
        base_timestamp=base_timestamp,
        max_timestamp=int(all_timestamps.max()) if count else NONE,
        count=count,
        payload=payload,
        options=options,
    )


def encode_control_batch(
    *,
    offset: int,
    commit: bool,
    producer_id: int,
    producer_epoch: int = 0,
    timestamp: int = 0,
    coordinator_epoch: int = 0,
) -> bytes:
    """A transaction marker: COMMIT or ABORT of a producer."""
    key = _CONTROL_KEY.pack(0, _CONTROL_TYPE["COMMIT" if commit else "ABORT"])
    value = _CONTROL_VALUE.pack(0, coordinator_epoch)
    options = BatchOptions(
        producer_id=producer_id, producer_epoch=producer_epoch, is_transactional=True, is_control=True
    )
    return encode_batch(
        pa.array([key], pa.binary()),
        pa.array([value], pa.binary()),
        base_offset=offset,
        timestamps=timestamp,
        options=options,
    )


def _encode_block(
    keys: pa.Array,
    values: pa.Array,
    offsets: Int64s,
    timestamps: Int64s,
    *,
    records_per_batch: int,
    options: BatchOptions,
) -> Iterator[bytes]:
    count = len(keys)
    first = np.arange(0, count, records_per_batch, dtype=np.int64)
    end = np.minimum(first + records_per_batch, count)
    size = end - first
    base_timestamp = timestamps[first] if options.delete_horizon_ms is None else np.full_like(first, _horizon(options))
    max_timestamp = np.maximum.reduceat(timestamps, first)
    records = _encode_records(
        keys, values, offsets - np.repeat(offsets[first], size), timestamps - np.repeat(base_timestamp, size)
    )
    _, bounds, data = records.buffers()
    bound = np.frombuffer(bounds, dtype=np.int32)
    payload = memoryview(data)
    for row in zip(
        offsets[first].tolist(),
        (size - 1).tolist(),
        base_timestamp.tolist(),
        max_timestamp.tolist(),
        size.tolist(),
        bound[first].tolist(),
        bound[end].tolist(),
        strict=True,
    ):
        base_offset, delta, batch_base_timestamp, batch_max_timestamp, batch_count, start, stop = row
        yield _frame(
            base_offset=base_offset,
            last_offset_delta=delta,
            base_timestamp=batch_base_timestamp,
            max_timestamp=batch_max_timestamp,
            count=batch_count,
            payload=bytes(payload[start:stop]),
            options=options,
        )


def _horizon(options: BatchOptions) -> int:
    return options.delete_horizon_ms if options.delete_horizon_ms is not None else NONE


def _base_timestamp(timestamps: Int64s, options: BatchOptions) -> int:
    if options.delete_horizon_ms is not None or not len(timestamps):
        return _horizon(options)
    return int(timestamps[0])


# the layout of the header stands in batch.py, that of a record in records.py
def _frame(
    *,
    base_offset: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    count: int,
    payload: bytes,
    options: BatchOptions,
) -> bytes:
    if options.log_append_time_ms is not None:
        max_timestamp = options.log_append_time_ms
    payload = compress(options.codec, payload)
    checked = _AFTER_CRC.pack(
        options.attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        options.producer_id,
        options.producer_epoch,
        options.base_sequence,
        count,
    )
    length = b.BATCH_MIN_LENGTH + len(payload)
    before = _BEFORE_CRC.pack(base_offset, length, options.partition_leader_epoch, b.MAGIC_2)
    crc = crc32c.crc32c(payload, crc32c.crc32c(checked))
    return b"".join((before, _CRC.pack(crc), checked, payload))


def _encode_records(keys: pa.Array, values: pa.Array, offset_delta: Int64s, timestamp_delta: Int64s) -> pa.Array:
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
