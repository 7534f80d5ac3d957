"""Write format-2 record batches, byte for byte as a broker does.

Arrow encodes the records of many batches at once, and numpy their headers. Compression and checksums run per batch.
"""

import struct
from collections.abc import Sequence

import crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.kafka.record import batch as b
from offsets_pipeline.kafka.record.columns import BATCH_HEADER, Headers
from offsets_pipeline.kafka.record.records import Int64s

NONE = -1
_NO_ATTRIBUTES = b"\x00"
_NO_HEADERS = b"\x00"
_CRC_AT = 17
_CRC_BYTES = 4

_CONTROL_KEY = struct.Struct(">hh")  # version, type
_CONTROL_VALUE = struct.Struct(">hi")  # version, coordinator epoch
_CONTROL_TYPE = {"ABORT": 0, "COMMIT": 1}


def control_key(control_type: str) -> bytes:
    """Key of a transaction marker: COMMIT or ABORT."""
    return _CONTROL_KEY.pack(0, _CONTROL_TYPE[control_type])


def control_value() -> bytes:
    """Value of a transaction marker, of coordinator epoch 0."""
    return _CONTROL_VALUE.pack(0, 0)


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
