"""Offset commits, decoded a column at a time: numpy finds the fields in the Arrow buffers.

`decode.py` is the specification. This module decodes whole columns of records of types 0 and 1 with the same result.
It leaves rare cases to `decode.py`: the reason why a record is corrupt, and tagged fields other than a lone topic id.

Key, versions 0 and 1:      version int16, group string, topic string, partition int32
Value, versions 0 to 3:     version int16, offset int64, [leader_epoch int32: 3], metadata string,
                            commit_timestamp int64, [expire_timestamp int64: 1]
Value, version 4:           version int16, offset int64, leader_epoch int32, metadata compact string,
                            commit_timestamp int64, tagged fields [0: topic_id uuid]

A string is an int16 length and that many bytes; a compact string is an unsigned varint of length + 1 and the
bytes. Neither may be null (R7). Bytes after the last field are tolerated (R8).
"""

from __future__ import annotations

import base64
import struct
from copy import copy

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.kafka.record.corrupt import CorruptRecord
from offsets_pipeline.kafka.record.decode import decode_value
from offsets_pipeline.kafka.record.wire import MAX_STRING_BYTES, NO_TOPIC_ID, decode_utf8, encode_utf8, uuid_to_text

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: Wire value of an absent leader epoch or expire timestamp (R7).
NONE_ON_WIRE = -1
_SLACK = 16  # padding after the data: a fixed-width read may reach past the last value
_MOST = 4  # of a span in bytes for each byte of its slices
_UVARINT_BYTES = 5
_TOPIC_ID_BYTES = 16
_NO_VERSION = 255
_BLOCK_ROWS = 32_768  # decoded at once: what they need stays in the processor's cache
_INT16, _INT32, _TWO_WORDS = struct.Struct(">h"), struct.Struct(">i"), struct.Struct("=qq")
_LONE_TOPIC_ID = bytes((1, 0, _TOPIC_ID_BYTES))  # one tagged field; its tag; its size


class BinaryColumn:
    """A binary Arrow array as positions into one byte buffer. The buffer is padded: reads may pass its end a little."""

    def __init__(self, array: pa.Array) -> None:
        array = array.cast(pa.large_binary())
        _validity, offsets, data = array.buffers()
        bounds = np.frombuffer(offsets, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
        first, last = (int(bounds[0]), int(bounds[-1])) if len(array) else (0, 0)
        self.data = np.zeros(last - first + _SLACK, dtype=np.uint8)
        if data is not None:
            self.data[: last - first] = np.frombuffer(data, dtype=np.uint8)[first:last]
        self.start: Int64s = bounds[:-1] - first
        self.length: Int64s = np.diff(bounds)
        self.present: Bools = (
            array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else np.ones(len(array), dtype=np.bool_)
        )

    def integers(self, dtype: str, position: Int64s) -> Int64s:
        """Big-endian integers of ``dtype`` (for example ">i8") at byte positions. Beyond the end they are arbitrary."""
        width = np.dtype(dtype).itemsize
        window: npt.NDArray[np.generic] = np.ndarray(
            (len(self.data) - width + 1,), dtype=dtype, buffer=self.data, strides=(1,)
        )
        # not `take`: it copies the whole window first, eight times the data
        return window[np.minimum(np.maximum(position, 0), len(window) - 1)].astype(np.int64)

    def slices(self, position: Int64s, length: Int64s) -> pa.Array:
        """The bytes at ``position`` of ``length`` each, as a large_binary array."""
        bounds = np.zeros(len(position) + 1, dtype=np.int64)
        np.cumsum(length, out=bounds[1:])
        data = self._in_order(position, length, int(bounds[-1]))
        if data is None:
            source = np.arange(bounds[-1], dtype=np.int64) + np.repeat(position - bounds[:-1], length)
            data = self.data[source]
        return pa.Array.from_buffers(
            pa.large_binary(), len(position), [None, pa.py_buffer(bounds), pa.py_buffer(data)], null_count=0
        )

    def _in_order(self, position: Int64s, length: Int64s, size: int) -> npt.NDArray[np.uint8] | None:
        """The bytes of slices that follow each other and have most bytes of their span; None for other slices.

        A mask takes one byte of memory for each byte of data, and indices take sixteen.
        """
        end = position + length
        if not size or (position[1:] < end[:-1]).any():
            return None
        first, span = int(position[0]), int(end[-1] - position[0])
        if span > _MOST * size:
            return None
        edges = np.zeros(span + 1, dtype=np.int8)
        filled = length > 0
        edges[position[filled] - first] += 1
        edges[end[filled] - first] -= 1
        inside = np.cumsum(edges[:-1], dtype=np.int8).view(np.bool_)
        return self.data[first : first + span][inside]


def as_text(raw: pa.Array) -> pa.Array:
    """Cast a large_binary array to strings. Malformed UTF-8 is replaced, as Java does."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if item is None else decode_utf8(item) for item in raw.to_pylist()], pa.string())


def _is_utf8(raw: pa.Array) -> bool:
    try:
        raw.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _with_length(text: str) -> bytes:
    """Encode a text with its length, as in a key.

    Replacement characters may make a text too long for a key. It then gets a prefix that no key contains.
    """
    raw = encode_utf8(text)
    return (_INT16.pack(len(raw)) if len(raw) <= MAX_STRING_BYTES else b"\xff" + _INT32.pack(len(raw))) + raw


class CommitColumns:
    """Positions and values of the fields of n offset commits. Positions count from the start of the column's buffer.

    ``valid`` is false for a record that does not decode (R6); its other columns have no meaning. ``tombstone`` is
    true for a null value; the columns of the value have no meaning then.
    """

    def __init__(self, keys: pa.Array, values: pa.Array) -> None:
        """Find the fields of records whose key starts with type 0 or 1. A corrupt record raises no error.

        ``keys`` and ``values`` are binary arrays of one length. A key has at least two bytes.
        """
        key, value = BinaryColumn(keys), BinaryColumn(values)
        self.keys, self.values = key, value
        of_key, of_value = _KeyLayout(key), _ValueLayout(value)
        decodes, topic_id_position = of_value.decode(
            value, key.integers(">i2", key.start) == 0, of_key.valid & value.present
        )
        self.tombstone: Bools = ~value.present
        self.valid: Bools = of_key.valid & (self.tombstone | decodes)
        self.group_position, self.group_length = of_key.group_position, of_key.group_length
        self.topic_position, self.topic_length = of_key.topic_position, of_key.topic_length
        self.partition = key.integers(">i4", of_key.partition_position)
        self.committed_offset = value.integers(">i8", value.start + 2)
        self.leader_epoch: Int64s = np.where(of_value.has_epoch, value.integers(">i4", value.start + 10), NONE_ON_WIRE)
        self.metadata_position, self.metadata_length = of_value.metadata_position, of_value.metadata_length
        self.commit_timestamp_ms = value.integers(">i8", of_value.timestamp_position)
        self.expire_timestamp_ms: Int64s = np.where(
            of_value.version == 1, value.integers(">i8", of_value.timestamp_position + 8), NONE_ON_WIRE
        )
        self.topic_id_position = topic_id_position  # -1: none, also of a tombstone or a record that does not decode

    def take(self, rows: Int64s) -> CommitColumns:
        """The commits at these positions, over the same buffers."""
        taken = copy(self)
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray):
                setattr(taken, name, column[rows])
        return taken

    def group_ids(self) -> pa.Array:
        """The group of each, as string."""
        return as_text(self.keys.slices(self.group_position, self.group_length))

    def topics(self) -> pa.Array:
        """The topic of each, as string."""
        return as_text(self.keys.slices(self.topic_position, self.topic_length))

    def identities(self) -> pa.Array:
        """Identity of each key as large_binary: equal if and only if group, topic and partition are (R9).

        Key versions 0 and 1 give the same bytes. The bytes start with the group's length: without it, a topic with
        NULs could make two different keys equal.
        """
        start = self.group_position - 2
        raw = self.keys.slices(start, self.topic_position + self.topic_length + 4 - start)
        if (self.keys.data < 0x80).all():  # ASCII
            return raw
        group = self.keys.slices(self.group_position, self.group_length)
        topic = self.keys.slices(self.topic_position, self.topic_length)
        if _is_utf8(group) and _is_utf8(topic):
            return raw
        # different malformed bytes can decode to the same text, and so name the same group or topic
        texts = zip(as_text(group).to_pylist(), as_text(topic).to_pylist(), self.partition.tolist(), strict=True)
        return pa.array(
            [_with_length(group) + _with_length(topic) + _INT32.pack(partition) for group, topic, partition in texts],
            pa.large_binary(),
        )

    def metadata(self) -> pa.Array:
        """The metadata of each, as string, null for a tombstone."""
        text = as_text(self.values.slices(self.metadata_position, np.where(self.tombstone, 0, self.metadata_length)))
        if not self.tombstone.any():
            return text
        return pc.if_else(pa.array(self.tombstone), pa.scalar(None, text.type), text)

    def topic_names(self) -> set[tuple[str, str]]:
        """Pairs of the topic id in a value and the topic name in its key (R35)."""
        rows = np.flatnonzero(self.topic_id_position >= 0)
        if not len(rows):
            return set()
        naming = self.take(rows)
        high, low = _words(naming.values, naming.topic_id_position)
        raw = naming.keys.slices(naming.topic_position, naming.topic_length)
        pairs = pa.table({"high": high, "low": low, "topic": raw}).group_by(["high", "low", "topic"]).aggregate([])
        topics = as_text(pairs["topic"].combine_chunks()).to_pylist()
        words = zip(pairs["high"].to_pylist(), pairs["low"].to_pylist(), strict=True)
        ids = [uuid_to_text(_TWO_WORDS.pack(*pair)) for pair in words]
        return {pair for pair in zip(ids, topics, strict=True) if pair[0] != NO_TOPIC_ID}

    def topic_ids(self) -> pa.Array:
        """The topic id of each, as string in Kafka's notation (URL-safe base64), null where it has none (R7)."""
        found = self.topic_id_position >= 0
        length = np.where(found, _TOPIC_ID_BYTES, 0)
        encoded = self.values.slices(np.where(found, self.topic_id_position, 0), length).dictionary_encode()
        # all zero is Kafka's "no topic id"; rows without the field have empty bytes
        texts = [uuid_to_text(raw) if any(raw) else None for raw in encoded.dictionary.to_pylist()]
        return pa.array(texts, pa.string()).take(encoded.indices)

    def optional(self, column: Int64s, dtype: pa.DataType) -> pa.Array:
        """A column of the value, null where it is -1 on the wire (R7) or the record is a tombstone."""
        return pa.array(column, mask=self.tombstone | (column == NONE_ON_WIRE)).cast(dtype)

    def required(self, column: Int64s, dtype: pa.DataType) -> pa.Array:
        """A column of the value, null where the record is a tombstone."""
        return pa.array(column, mask=self.tombstone).cast(dtype)


def decodable_keys(keys: pa.Array) -> tuple[Bools, Bools]:
    """Return which binary keys belong to offset commits and decode, and which keys have version 0."""
    key = BinaryColumn(keys)
    version = key.integers(">i2", key.start)
    valid = _KeyLayout(key).valid & ((version == 0) | (version == 1)) & key.present
    return valid, version == 0


def decodable_values(values: pa.Array, legacy_key: Bools) -> tuple[Bools, tuple[Int64s, Int64s] | None]:
    """Return which values of offset commits decode or are tombstones, and their topic ids.

    ``legacy_key``: the key has version 0. A topic id is two int64, both 0 for a value without one. The second result
    is None if no value has a topic id.
    """
    valid = np.empty(len(values), dtype=np.bool_)
    high, low = np.zeros((2, len(values)), dtype=np.int64)
    for start in range(0, len(values), _BLOCK_ROWS):
        value = BinaryColumn(values.slice(start, _BLOCK_ROWS))
        block = slice(start, start + len(value.start))
        decodes, position = _ValueLayout(value).decode(value, legacy_key[block], value.present)
        valid[block] = decodes | ~value.present
        found = position >= 0
        if found.any():
            high[block], low[block] = (np.where(found, word, 0) for word in _words(value, position))
    return valid, (high, low) if high.any() or low.any() else None


def _words(value: BinaryColumn, topic_id_position: Int64s) -> tuple[Int64s, Int64s]:
    """The two halves of topic ids, as `_TWO_WORDS` packs them."""
    window = np.ndarray((len(value.data) - 15,), dtype=f"V{_TOPIC_ID_BYTES}", buffer=value.data, strides=(1,))
    raw = window[np.maximum(topic_id_position, 0)]
    high, low = raw.view(np.int64).reshape(-1, 2).T
    return high, low


class _KeyLayout:
    """Positions of the fields of keys, and which keys have all fields."""

    def __init__(self, key: BinaryColumn) -> None:
        end = key.start + key.length
        self.group_length = key.integers(">i2", key.start + 2)
        self.group_position = key.start + 4
        self.topic_length = key.integers(">i2", self.group_position + self.group_length)
        self.topic_position = self.group_position + self.group_length + 2
        self.partition_position = self.topic_position + self.topic_length
        # positions only grow: if the last one is within the key, so are all before it
        self.valid: Bools = (self.group_length >= 0) & (self.topic_length >= 0) & (self.partition_position + 4 <= end)


class _ValueLayout:
    """Positions of the fields of values. `decode` finds which values have all fields."""

    def __init__(self, value: BinaryColumn) -> None:
        high, low = value.data[value.start], value.data[value.start + 1]
        self.version = np.where(high == 0, low, _NO_VERSION)
        if len(self.version) and (self.version == self.version[0]).all():  # the usual log: less to compute
            self.version = self.version[:1]
        self.has_epoch: Bools = self.version >= 3
        self.flexible: Bools = self.version == 4
        metadata_at = value.start + np.where(self.has_epoch, 14, 10)
        if self.flexible.all():
            encoded, width = _uvarints(value, metadata_at)
            self.metadata_length, self.metadata_position = encoded - 1, metadata_at + width
        else:
            self.metadata_length, self.metadata_position = value.integers(">i2", metadata_at), metadata_at + 2
            rows = np.flatnonzero(self.flexible)
            encoded, width = _uvarints(value, metadata_at[rows])
            self.metadata_length[rows] = encoded - 1
            self.metadata_position[rows] = metadata_at[rows] + width
        self.timestamp_position = self.metadata_position + self.metadata_length

    def decode(self, value: BinaryColumn, legacy_key: Bools, wanted: Bools) -> tuple[Bools, Int64s]:
        """Return which values decode, and the positions of their topic ids: -1 for none or a row not ``wanted``."""
        end = value.start + value.length
        fixed_end = self.timestamp_position + (np.where(self.version == 1, 16, 8) + self.flexible)
        decodes = (
            (self.metadata_length >= 0)
            & (self.metadata_length <= MAX_STRING_BYTES)
            & (fixed_end <= end)
            & (self.version <= 4)
            & ~(legacy_key & (self.version != 0))  # R7: key version 0 goes with value version 0 only
        )
        topic_id_position = np.full(len(decodes), -1, dtype=np.int64)
        if self.flexible.any():
            tagged = np.flatnonzero(decodes & self.flexible & wanted)
            decodes[tagged] = _tagged_fields(
                value, self.timestamp_position[tagged] + 8, end[tagged], tagged, topic_id_position
            )
        return decodes, topic_id_position


def _uvarints(column: BinaryColumn, position: Int64s) -> tuple[Int64s, Int64s]:
    """Return unsigned varints as int32, as Java reads them, and their widths in bytes.

    A varint of more than five bytes reads as -1.
    """
    first = column.data[np.minimum(position, len(column.data) - 1)].astype(np.int64)
    number, width = first & 0x7F, np.ones(len(position), dtype=np.int64)
    open_rows = np.flatnonzero(first >= 0x80)
    for index in range(1, _UVARINT_BYTES):
        byte = column.data[np.clip(position[open_rows] + index, 0, len(column.data) - 1)].astype(np.int64)
        number[open_rows] |= (byte & 0x7F) << (7 * index)
        width[open_rows] = index + 1
        open_rows = open_rows[byte >= 0x80]
    number[open_rows] = -1
    return number.astype(np.int32).astype(np.int64), width  # the bits beyond 32 are dropped


def _tagged_fields(
    value: BinaryColumn, position: Int64s, end: Int64s, rows: Int64s, topic_id_position: Int64s
) -> Bools:
    """Return whether the tagged fields at ``position`` decode.

    Sets ``topic_id_position`` of the ``rows`` that have a topic id.
    """
    head = value.integers(">i4", position) >> 8
    none = head >> 16 == 0
    topic_id_at = position + len(_LONE_TOPIC_ID)
    lone = (head == int.from_bytes(_LONE_TOPIC_ID)) & (topic_id_at + _TOPIC_ID_BYTES <= end)
    topic_id_position[rows[lone]] = topic_id_at[lone]
    decodes: Bools = none | lone
    for index in np.flatnonzero(~decodes).tolist():
        start, stop = int(value.start[rows[index]]), int(end[index])
        raw = value.data[start:stop].tobytes()
        try:
            topic_id = decode_value(1, raw).fields.get("topic_id")
        except CorruptRecord:
            continue
        decodes[index] = True
        if topic_id is not None:
            bare = base64.urlsafe_b64decode(topic_id + "==")
            topic_id_position[rows[index]] = start + raw.index(bare, int(position[index]) - start)
    return decodes
