"""Record batches of format 2 with any header, offsets and timestamps, for tests of their readers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from offsets_pipeline.kafka.record import batch as b
from offsets_pipeline.kafka.record.columns import BATCH_HEADER, NONE, Headers
from offsets_pipeline.kafka.record.compression import Codec, compress
from offsets_pipeline.kafka.record.log_batches import CONTROL_KEYS, CONTROL_VALUE, encode_records, frame_batches
from offsets_pipeline.kafka.record.wire import Reader, write_uvarint

if TYPE_CHECKING:
    from offsets_pipeline.kafka.record.records import Int64s

#: Attribute bit of a batch whose base timestamp is a delete horizon.
DELETE_HORIZON = 0x40


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
            | (DELETE_HORIZON if self.delete_horizon_ms is not None else 0)
        )


DEFAULT = BatchOptions()


def encode_batch(
    keys: pa.Array,
    values: pa.Array,
    *,
    base_offset: int,
    offsets: Int64s | None = None,
    last_offset: int | None = None,
    timestamps: Int64s | int = 0,
    options: BatchOptions = DEFAULT,
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


def encode_batches(
    keys: pa.Array,
    values: pa.Array,
    *,
    records_per_batch: int,
    base_offset: int = 0,
    timestamps: Int64s | int = 0,
    options: BatchOptions = DEFAULT,
) -> bytes:
    """Encode batches of `records_per_batch` records each; the last may have fewer. Offsets have no gaps."""
    times = np.broadcast_to(np.asarray(timestamps, dtype=np.int64), (len(keys),))
    parts = [slice(start, start + records_per_batch) for start in range(0, len(keys), records_per_batch)]
    return b"".join(
        encode_batch(
            keys[each], values[each], base_offset=base_offset + each.start, timestamps=times[each], options=options
        )
        for each in parts
    )


def encode_control_batch(*, offset: int, commit: bool, producer_id: int, producer_epoch: int = 0) -> bytes:
    """Encode a batch with a transaction marker: COMMIT or ABORT of a producer."""
    options = BatchOptions(
        producer_id=producer_id, producer_epoch=producer_epoch, is_transactional=True, is_control=True
    )
    return encode_batch(
        pa.array([CONTROL_KEYS["COMMIT" if commit else "ABORT"]], pa.binary()),
        pa.array([CONTROL_VALUE], pa.binary()),
        base_offset=offset,
        options=options,
    )


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


def read_varint(reader: Reader) -> int:
    """Read a zigzag varint of up to 64 bits."""
    bits = shift = 0
    while (byte := reader.raw(1, "varint")[0]) >= 128:
        bits |= (byte & 127) << shift
        shift += 7
    bits = (bits | byte << shift) & (2**64 - 1)
    return (bits >> 1) ^ -(bits & 1)


def write_varint(out: bytearray, value: int) -> None:
    """Write a zigzag varint (32 bits)."""
    write_uvarint(out, (value << 1) ^ (value >> 31))


def write_varlong(out: bytearray, value: int) -> None:
    """Write a zigzag varint (64 bits)."""
    bits = ((value << 1) ^ (value >> 63)) & (2**64 - 1)
    while bits >= 128:
        out.append(bits & 127 | 128)
        bits >>= 7
    out.append(bits)
