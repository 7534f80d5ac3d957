"""Encode rows of the table `log` as format-2 record batches, as a coordinator would have appended them.

A broker's log has one batch for each append. Here consecutive rows share a batch where the format allows it: a batch
has one producer, and a control record has its own batch. The table lacks the base sequence and the leader epoch. They
get the values that coordinators write: base sequence 0 for data and -1 for markers, leader epoch 0 (docs/adr/0012).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.kafka.record import batch as b
from offsets_pipeline.kafka.record.columns import BATCH_HEADER, Headers
from offsets_pipeline.kafka.record.compression import Codec, compress
from offsets_pipeline.kafka.record.write import (
    NONE,
    control_key,
    control_value,
    encode_records,
    frame_batches,
    record_payloads,
)

if TYPE_CHECKING:
    from offsets_pipeline.kafka.record.records import Bools, Int64s

#: Uncompressed bytes of records that fill a batch: a sixteenth of a broker's default limit.
BATCH_BYTES = 64 * 1024
_RECORD_OVERHEAD_BYTES = 20  # maximum size of a record without key and value, unless timestamps lie far apart
_LEAST_COMPRESSED_BYTES = 1024  # compression hardly shrinks a smaller batch, and costs as much
_SPAN_BITS = 30  # record offsets of one batch differ only in the lowest bits: its deltas are an int32
_DATA_BASE_SEQUENCE = 0
_PARTITION_LEADER_EPOCH = 0
_EPOCH_UNKNOWN = 0  # for a producer id without an epoch
# control record key: version int16, type int16; value: version int16, coordinator epoch int32
_CONTROL_TYPE_START, _CONTROL_TYPE_END = 2, 4
_CONTROL_VALUE_BYTES = 6


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


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of the log with wire values: -1 for a null producer id, epoch or timestamp."""

    offset: Int64s
    timestamp: Int64s
    producer_id: Int64s
    producer_epoch: Int64s
    is_control: Bools
    key: pa.Array
    value: pa.Array


def encode_log(rows: pa.Table, codec: Codec = Codec.NONE, batch_bytes: int = BATCH_BYTES) -> LogBatches:
    """Encode rows of one log partition, in ascending record offsets (R2), as batches.

    Args:
        rows: record_offset int64, record_timestamp timestamp or null, key and value binary, producer_id int64,
            producer_epoch int16, control_type string, as in the table `log`. Only records of a transaction and
            control records have a producer id (R11).
        codec: compresses the records of data batches of at least 1 KiB.
        batch_bytes: uncompressed bytes of records that fill a batch.
    """
    laid = _as_on_the_wire(rows)
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


def _as_on_the_wire(rows: pa.Table) -> _Rows:
    control_type = rows["control_type"].combine_chunks()
    producer_id = pc.fill_null(rows["producer_id"], NONE).to_numpy().astype(np.int64)
    epoch = pc.fill_null(rows["producer_epoch"].cast(pa.int64()), _EPOCH_UNKNOWN).to_numpy()
    timestamp = rows["record_timestamp"].cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
    key, value = _with_control_records(rows["key"].combine_chunks(), rows["value"].combine_chunks(), control_type)
    return _Rows(
        offset=rows["record_offset"].to_numpy().astype(np.int64),
        timestamp=pc.fill_null(timestamp, NONE).to_numpy().astype(np.int64),
        producer_id=producer_id,
        producer_epoch=np.where(producer_id == NONE, NONE, epoch),
        is_control=control_type.is_valid().to_numpy(zero_copy_only=False),
        key=key,
        value=value,
    )


def _with_control_records(key: pa.Array, value: pa.Array, control_type: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Make the key and value of each marker agree with the column `control_type`, which the fold uses (R11).

    Markers from a broker agree already. A marker without its bytes gets them here.
    """
    for marker in ("COMMIT", "ABORT"):
        of_marker = pc.fill_null(pc.equal(control_type, marker), fill_value=False)
        if not pc.any(of_marker).as_py():
            continue
        says = pc.binary_slice(key, _CONTROL_TYPE_START, _CONTROL_TYPE_END)
        right = control_key(marker)[_CONTROL_TYPE_START:_CONTROL_TYPE_END]
        wrong = pc.and_(of_marker, pc.invert(pc.fill_null(pc.equal(says, right), fill_value=False)))
        key = pc.if_else(wrong, pa.scalar(control_key(marker), pa.binary()), key)
        short = pc.fill_null(pc.less(pc.binary_length(value), _CONTROL_VALUE_BYTES), fill_value=True)
        value = pc.if_else(pc.and_(of_marker, short), pa.scalar(control_value(), pa.binary()), value)
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
    headers: Headers = np.zeros(len(first), dtype=BATCH_HEADER)
    headers["base_offset"] = rows.offset[first]
    headers["partition_leader_epoch"] = _PARTITION_LEADER_EPOCH
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
