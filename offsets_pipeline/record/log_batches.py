"""Rows of the log as format-2 record batches, as a coordinator would have appended them.

A broker's log holds a batch for each append; here neighbours share one as far as the format lets them: a batch has one
producer, and a control record has a batch to itself. What the log does not tell is what coordinators write there:
base sequence 0 for data and -1 for markers, leader epoch 0 (docs/adr/0012).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.record import batch as b
from offsets_pipeline.record.columns import BATCH_HEADER, Headers
from offsets_pipeline.record.compression import Codec, compress
from offsets_pipeline.record.write import (
    NONE,
    control_key,
    control_value,
    encode_records,
    frame_batches,
    record_payloads,
)

if TYPE_CHECKING:
    from offsets_pipeline.record.records import Bools, Int64s

#: A batch is full with so many bytes of records, uncompressed: a sixteenth of what a broker takes in one by default.
BATCH_BYTES = 64 * 1024
_RECORD_OVERHEAD_BYTES = 20  # of a record beside its key and value, at the most but for far timestamps
_LEAST_COMPRESSED_BYTES = 1024  # a smaller batch hardly gets any smaller, and costs as much
_SPAN_BITS = 30  # a batch lies within so many bits of record offsets: its deltas are an int32
_DATA_BASE_SEQUENCE = 0
_PARTITION_LEADER_EPOCH = 0
_EPOCH_UNKNOWN = 0  # of a producer id that came without an epoch
# control record key: version int16, type int16; value: version int16, coordinator epoch int32
_CONTROL_TYPE_START, _CONTROL_TYPE_END = 2, 4
_CONTROL_VALUE_BYTES = 6


@dataclass(frozen=True, slots=True)
class LogBatches:
    """Batches one after the other; of each where it starts in ``data``, its first and its last record offset."""

    data: bytearray
    start: Int64s
    base_offset: Int64s
    last_offset: Int64s

    def __len__(self) -> int:
        """How many batches."""
        return len(self.start)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of the log as the wire has them: no producer id, epoch or timestamp is -1."""

    offset: Int64s
    timestamp: Int64s
    producer_id: Int64s
    producer_epoch: Int64s
    is_control: Bools
    key: pa.Array
    value: pa.Array


def encode_log(rows: pa.Table, codec: Codec = Codec.NONE, batch_bytes: int = BATCH_BYTES) -> LogBatches:
    """Batches that hold these rows of one log partition, in ascending record offsets (R2).

    Args:
        rows: record_offset int64, record_timestamp timestamp or null, key and value binary, producer_id int64,
            producer_epoch int16, control_type string: as in the table `log`, where a producer id stands with records
            of a transaction and control records alone (R11).
        codec: compresses the records of data batches that are worth it.
        batch_bytes: where a batch ends.
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
    """Keys and values in which a marker says what the column `control_type` says, which the fold goes by (R11).

    That is so in whatever a broker wrote. A marker that came without its bytes gets them here.
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
    # full batches: by how many bytes of its run lie before a record
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
