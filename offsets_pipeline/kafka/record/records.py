"""Records of format-2 batches, decoded for many batches at once.

A record's start is known only after its predecessor is read, so one batch cannot be read in parallel. But many batches
can be read in lock step: step k reads the k-th record of every batch, with numpy over arrays of positions. When few
batches are left, a plain loop over their records is faster.

The result has the positions of keys and values in the buffer. It copies no bytes.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from offsets_pipeline.kafka.record.corrupt import CorruptRecord

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

MIN_RECORD_BYTES = 7  # one byte for each varint, and one for the attributes
_LOCK_STEP_MIN_BATCHES = 40  # measured: the plain loop is faster for fewer
_VARINT_MAX_BYTES = 5
_VARLONG_MAX_BYTES = 10
_MASK_32 = 0xFFFF_FFFF
_MASK_64 = 0xFFFF_FFFF_FFFF_FFFF

_RecordPlace = tuple[int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class RecordPlaces:
    """One element for each record, in batch order. Length -1 is null. `bad[b]`: batch b does not decode."""

    offset_delta: Int64s
    timestamp_delta: Int64s
    key_start: Int64s
    key_length: Int64s
    value_start: Int64s
    value_length: Int64s
    bad: Bools


def locate_records(buffer: Bytes, start: Int64s, end: Int64s, count: Int64s) -> RecordPlaces:
    """Find the records of batches: batch i has `count[i]` records in `buffer[start[i]:end[i]]`.

    A batch that does not decode is marked bad; its elements have no meaning.
    """
    first_record = np.cumsum(count) - count
    places = np.zeros((6, int(count.sum())), dtype=np.int64)
    order = np.argsort(-count, kind="stable")
    sorted_count = count[order]
    bad = np.zeros(len(count), dtype=np.bool_)
    position = start[order]
    step = 0
    while (active := int(np.searchsorted(-sorted_count, -step, side="left"))) >= _LOCK_STEP_MIN_BATCHES:
        batches = order[:active]
        located, wrong, position[:active] = _locate_next(buffer, position[:active], end[batches])
        rows = first_record[batches] + step
        for column, values in zip(places, located, strict=True):
            column[rows] = values
        bad[batches] |= wrong
        step += 1
    done = order[active:]
    bad[done] |= position[active:] != end[done]
    for index, batch in enumerate(order[:active].tolist()):
        if bad[batch]:
            continue
        rest = slice(int(first_record[batch]) + step, int(first_record[batch] + count[batch]))
        offset = int(position[index])
        try:
            found = parse_records(buffer[offset : int(end[batch])].tobytes(), rest.stop - rest.start)
        except CorruptRecord:
            bad[batch] = True
        else:
            places[:, rest] = np.array(found, dtype=np.int64).reshape(-1, 6).T
            places[2, rest] += offset
            places[4, rest] += offset
    return RecordPlaces(places[0], places[1], places[2], places[3], places[4], places[5], bad)


# record    length varint, attributes int8, timestamp_delta varlong, offset_delta varint, key_length varint, key,
#           value_length varint, value, header_count varint, headers   (lengths: -1 for null)
# header    key_length varint, key, value_length varint, value
def _locate_next(buffer: Bytes, position: Int64s, batch_end: Int64s) -> tuple[tuple[Int64s, ...], Bools, Int64s]:
    """Read one record at each position. Returns its places, whether it is wrong, and the position after it."""
    wrong = np.zeros(len(position), dtype=np.bool_)
    length, position = _varints(buffer, position, wrong)
    end = position + length
    wrong |= end > batch_end
    timestamp_delta, position = _varints(buffer, position + 1, wrong, _VARLONG_MAX_BYTES)
    offset_delta, position = _varints(buffer, position, wrong)
    key_length, key_start = _varints(buffer, position, wrong)
    value_length, value_start = _varints(buffer, key_start + np.maximum(key_length, 0), wrong)
    header_count, position = _varints(buffer, value_start + np.maximum(value_length, 0), wrong)
    # positions only grow: if the last one is within the record, so are all before it, and its length is not negative
    wrong |= (header_count < 0) | ((header_count == 0) & (position != end)) | (position > end)
    for index in np.flatnonzero((header_count > 0) & ~wrong).tolist():
        headers = buffer[position[index] : end[index]].tobytes()
        try:
            wrong[index] = _skip_headers(headers, 0, int(header_count[index])) != len(headers)
        except CorruptRecord:
            wrong[index] = True
    return (offset_delta, timestamp_delta, key_start, key_length, value_start, value_length), wrong, end


def _varints(
    buffer: Bytes, position: Int64s, wrong: Bools, max_bytes: int = _VARINT_MAX_BYTES
) -> tuple[Int64s, Int64s]:
    # positions in broken batches may be out of bounds: clipping makes the read safe, `wrong` drops the result
    byte = buffer.take(position, mode="clip")
    next_position = position + 1
    value = byte.astype(np.uint64)
    more = np.flatnonzero(byte > 0x7F)
    if more.size:
        value[more] &= np.uint64(0x7F)
        for group in range(1, max_bytes):
            byte = buffer.take(position[more] + group, mode="clip")
            value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * group)
            next_position[more] += 1
            more = more[byte > 0x7F]
            if not more.size:
                break
        wrong[more] = True
        if max_bytes == _VARINT_MAX_BYTES:
            value &= np.uint64(_MASK_32)
    return (value >> np.uint64(1)).view(np.int64) ^ -(value & np.uint64(1)).view(np.int64), next_position


def parse_records(payload: bytes, count: int) -> list[_RecordPlace]:
    """Find `count` records in a payload that they must fill.

    Each is (offset_delta, timestamp_delta, key_start, key_length, value_start, value_length). Raises CorruptRecord.
    """
    places = []
    position = 0
    try:
        for index in range(count):
            length, position = _varint(payload, position)
            end = position + length
            if length < 0 or end > len(payload):
                raise CorruptRecord(f"record {index}", f"expected {length} bytes, found {len(payload) - position}")
            timestamp_delta, position = _varint(payload, position + 1, _VARLONG_MAX_BYTES)
            offset_delta, position = _varint(payload, position)
            key_length, key_start = _varint(payload, position)
            value_length, value_start = _varint(payload, key_start + max(key_length, 0))
            header_count, position = _varint(payload, value_start + max(value_length, 0))
            if header_count:
                position = _skip_headers(payload, position, header_count)
            if position != end:
                raise CorruptRecord(f"record {index}", f"ends at byte {position}, by its length at {end}")
            places.append((offset_delta, timestamp_delta, key_start, key_length, value_start, value_length))
    except IndexError:
        raise CorruptRecord(f"record {len(places)}", "reaches beyond its batch") from None
    if position != len(payload):
        raise CorruptRecord("batch", f"{len(payload) - position} bytes after its {count} records")
    return places


def _varint(payload: bytes, position: int, max_bytes: int = _VARINT_MAX_BYTES) -> tuple[int, int]:
    byte = payload[position]
    if byte <= 0x7F:
        return byte >> 1 ^ -(byte & 1), position + 1
    value = byte & 0x7F
    for group in range(1, max_bytes):
        byte = payload[position + group]
        value |= (byte & 0x7F) << 7 * group
        if byte <= 0x7F:
            value &= _MASK_32 if max_bytes == _VARINT_MAX_BYTES else _MASK_64
            return value >> 1 ^ -(value & 1), position + group + 1
    raise CorruptRecord("record", f"varint at byte {position} is longer than {max_bytes} bytes")


def _skip_headers(payload: bytes, position: int, count: int) -> int:
    """Return the position after the headers. Raises CorruptRecord."""
    try:
        for _ in range(count):
            key_length, position = _varint(payload, position)
            if key_length < 0:
                raise CorruptRecord("record header", "has no key")
            value_length, position = _varint(payload, position + key_length)
            position += max(value_length, 0)
    except IndexError:
        raise CorruptRecord("record header", "reaches beyond its record") from None
    if count < 0 or position > len(payload):
        raise CorruptRecord("record header", f"{count} headers end at byte {position} of {len(payload)}")
    return position
