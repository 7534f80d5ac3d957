"""Encode rows of the table `log` as format-2 record batches, as a coordinator would have appended them.

Arrow encodes the records of many batches at once, and numpy their headers. Compression and checksums run per batch.

A broker's log has one batch for each append. Here consecutive rows share a batch where the format allows it: a batch
has one producer, and a control record has its own batch. The table lacks the base sequence and the leader epoch. They
get the values that coordinators write: base sequence 0 for data and -1 for markers, leader epoch 0 (docs/adr/0012).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.kafka.record import batch as b
from offsets_pipeline.kafka.record.columns import BATCH_HEADER, NONE, Headers
from offsets_pipeline.kafka.record.compression import Codec, compress

if TYPE_CHECKING:
    from offsets_pipeline.kafka.record.records import Bools, Int64s

#: Uncompressed bytes of records that fill a batch: a sixteenth of a broker's default limit.
BATCH_BYTES = 64 * 1024
_RECORD_OVERHEAD_BYTES = 20  # maximum size of a record without key and value, unless timestamps lie far apart
_LEAST_COMPRESSED_BYTES = 1024  # compression hardly shrinks a smaller batch, and costs as much
_SPAN_BITS = 30  # record offsets of one batch differ only in the lowest bits: its deltas are an int32
_DATA_BASE_SEQUENCE = 0
_EPOCH_UNKNOWN = 0  # for a producer id without an epoch
# control record key: version int16, type int16; value: version int16, coordinator epoch int32
_CONTROL_TYPE_START, _CONTROL_TYPE_END = 2, 4
#: Key of each transaction marker.
CONTROL_KEYS = {"ABORT": struct.pack(">hh", 0, 0), "COMMIT": struct.pack(">hh", 0, 1)}
#: Value of a transaction marker, of coordinator epoch 0.
CONTROL_VALUE = struct.pack(">hi", 0, 0)
_NO_ATTRIBUTES = b"\x00"
_NO_HEADERS = b"\x00"


@dataclass(frozen=True, slots=True)
class LogBatches:
    """Consecutive batches: for each its start in ``data``, its first and its last record offset."""

    data: bytearray
    start: Int64s
    base_offset: Int64s
    last_offset: Int64s

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.start)


def encode_log(rows: pa.Table, codec: Codec = Codec.NONE, batch_bytes: int = BATCH_BYTES) -> LogBatches:
    """Encode rows of one log partition, in ascending record offsets (R2), as batches.

    Args:
        rows: record_offset int64, record_timestamp timestamp or null, key and value binary, producer_id int64,
            producer_epoch int16, control_type string, as in the table `log`. Only records of a transaction and
            control records have a producer id (R11).
        codec: compresses the records of data batches of at least 1 KiB.
        batch_bytes: uncompressed bytes of records that fill a batch.
    """
    laid = _Rows(rows)
    if not len(laid.offset):
        nothing = np.zeros(0, dtype=np.int64)
        return LogBatches(bytearray(), nothing, nothing, nothing)
    first = np.flatnonzero(_starts_batch(laid, batch_bytes))
    end = np.append(first[1:], len(laid.offset))
    count = end - first
    records = encode_records(
        laid.key,
        laid.value,
        laid.offset - np.repeat(laid.offset[first], count),
        laid.timestamp - np.repeat(laid.timestamp[first], count),
    )
    payloads = record_payloads(records, first, end)
    worth_it = np.fromiter((len(payload) >= _LEAST_COMPRESSED_BYTES for payload in payloads), np.bool_, len(payloads))
    codecs = np.where(worth_it & ~laid.is_control[first], codec, Codec.NONE)
    data, start = frame_batches(
        _headers(laid, first, end, codecs),
        [
            payload if code == Codec.NONE else compress(codec, bytes(payload))
            for code, payload in zip(codecs.tolist(), payloads, strict=True)
        ],
    )
    return LogBatches(data, start, laid.offset[first], laid.offset[end - 1])


class _Rows:
    """Rows of the log with wire values: -1 for a null producer id, epoch or timestamp."""

    def __init__(self, rows: pa.Table) -> None:
        control_type = rows["control_type"].combine_chunks()
        timestamp = rows["record_timestamp"].cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
        epoch = pc.fill_null(rows["producer_epoch"].cast(pa.int64()), _EPOCH_UNKNOWN).to_numpy()
        self.offset: Int64s = rows["record_offset"].to_numpy().astype(np.int64)
        self.timestamp: Int64s = pc.fill_null(timestamp, NONE).to_numpy().astype(np.int64)
        self.producer_id: Int64s = pc.fill_null(rows["producer_id"], NONE).to_numpy().astype(np.int64)
        self.producer_epoch: Int64s = np.where(self.producer_id == NONE, NONE, epoch)
        self.is_control: Bools = control_type.is_valid().to_numpy(zero_copy_only=False)
        self.key, self.value = _with_control_records(
            rows["key"].combine_chunks(), rows["value"].combine_chunks(), control_type
        )


def _with_control_records(key: pa.Array, value: pa.Array, control_type: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Make the key and value of each marker agree with the column `control_type`, which the fold uses (R11).

    Markers from a broker agree already. A marker without its bytes gets them here.
    """
    for marker, right in CONTROL_KEYS.items():
        of_marker = pc.fill_null(pc.equal(control_type, marker), fill_value=False)
        if not pc.any(of_marker).as_py():
            continue
        says = pc.binary_slice(key, _CONTROL_TYPE_START, _CONTROL_TYPE_END)
        is_right = pc.equal(says, right[_CONTROL_TYPE_START:_CONTROL_TYPE_END])
        wrong = pc.and_(of_marker, pc.invert(pc.fill_null(is_right, fill_value=False)))
        key = pc.if_else(wrong, pa.scalar(right, pa.binary()), key)
        short = pc.fill_null(pc.less(pc.binary_length(value), len(CONTROL_VALUE)), fill_value=True)
        value = pc.if_else(pc.and_(of_marker, short), pa.scalar(CONTROL_VALUE, pa.binary()), value)
    return key, value


def _starts_batch(rows: _Rows, batch_bytes: int) -> Bools:
    starts = np.ones(len(rows.offset), dtype=np.bool_)
    starts[1:] = rows.is_control[1:] | rows.is_control[:-1]
    for column in (rows.producer_id, rows.producer_epoch, rows.offset >> _SPAN_BITS):
        starts[1:] |= column[1:] != column[:-1]
    # a run of records becomes a new batch after each `batch_bytes` bytes
    size = _lengths(rows.key) + _lengths(rows.value) + _RECORD_OVERHEAD_BYTES
    before = np.cumsum(size) - size
    run = np.flatnonzero(starts)
    filled = (before - np.repeat(before[run], np.diff(run, append=len(starts)))) // batch_bytes
    starts[1:] |= filled[1:] != filled[:-1]
    return starts


def _lengths(array: pa.Array) -> Int64s:
    lengths: Int64s = pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def _headers(rows: _Rows, first: Int64s, end: Int64s, codecs: Int64s) -> Headers:
    is_control, producer_id = rows.is_control[first], rows.producer_id[first]
    headers: Headers = np.zeros(len(first), dtype=BATCH_HEADER)  # with leader epoch 0
    headers["base_offset"] = rows.offset[first]
    headers["attributes"] = (
        codecs
        | np.where(is_control, b.ATTRIBUTE_CONTROL, 0)
        # R11: the table has a producer id only where there is a transaction
        | np.where(producer_id != NONE, b.ATTRIBUTE_TRANSACTIONAL, 0)
    )
    headers["last_offset_delta"] = rows.offset[end - 1] - rows.offset[first]
    headers["base_timestamp"] = rows.timestamp[first]
    headers["max_timestamp"] = np.maximum.reduceat(rows.timestamp, first)
    headers["producer_id"] = producer_id
    headers["producer_epoch"] = rows.producer_epoch[first]
    headers["base_sequence"] = np.where(is_control, NONE, _DATA_BASE_SEQUENCE)
    headers["record_count"] = end - first
    return headers


def empty_batch(offset: int) -> bytes:
    """Encode a batch without records that holds one record offset, as a broker's cleaner writes it."""
    headers: Headers = np.zeros(1, dtype=BATCH_HEADER)
    headers["base_offset"] = offset
    for name in ("producer_id", "producer_epoch", "base_sequence", "base_timestamp", "max_timestamp"):
        headers[name] = NONE
    return bytes(frame_batches(headers, [b""])[0])


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
    data = bytearray(int(size.sum()))
    places = np.frombuffer(data, dtype=np.uint8)
    places[start[:, None] + np.arange(b.BATCH_HEADER_BYTES)] = headers.view(np.uint8).reshape(-1, b.BATCH_HEADER_BYTES)
    view = memoryview(data)
    checksums = np.empty(len(payloads), dtype=">u4")
    for index, (first, last, payload) in enumerate(zip(start.tolist(), end.tolist(), payloads, strict=True)):
        view[first + b.BATCH_HEADER_BYTES : last] = payload
        checksums[index] = crc32c.crc32c(view[first + b.CRC_START : last])
    checksum_at = np.arange(b.MAGIC_END, b.CRC_START)
    places[start[:, None] + checksum_at] = checksums.view(np.uint8).reshape(-1, len(checksum_at))
    return data, start


def record_payloads(records: pa.Array, first: Int64s, end: Int64s) -> list[memoryview]:
    """Uncompressed payloads of batches: batch i has the encoded records from ``first[i]`` to before ``end[i]``.

    ``records`` comes from `encode_records`.
    """
    _, bounds, data = records.buffers()
    bound = np.frombuffer(bounds, dtype=np.int32)
    payload = memoryview(data if data is not None else b"").cast("B")
    return [payload[start:stop] for start, stop in zip(bound[first].tolist(), bound[end].tolist(), strict=True)]


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
