"""The bytes of a generated log: record batches and segment files.

All records of an identity differ only in a few numbers at known places. So each identity has a template. Arrow
concatenates templates and empty batch headers, and numpy writes the numbers into the result.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.log_content import METADATA, NONE, TOMBSTONE
from offsets_pipeline.kafka.record import batch as b
from offsets_pipeline.kafka.record.columns import BATCH_HEADER
from offsets_pipeline.kafka.record.compression import Codec, compress

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.log_content import Batches, Names, Shape

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_SEGMENT_BYTES = 100 * 1024 * 1024  # segment.bytes of __consumer_offsets

# Order of the templates: the value of version 3 of each identity, that of version 4, its tombstone, then the markers
# and an empty header.
_KINDS_OF_TEMPLATES, _HEADER_TEMPLATE = 3, 2


class Templates:
    """The bytes of a record of each identity of some groups, and the positions of the numbers that change.

    Takes a kilobyte of memory for each identity.
    """

    def __init__(self, shape: Shape, names: Names, of_groups: Int64s) -> None:
        """``of_groups``: the numbers of the groups, in order."""
        self._of_groups = of_groups
        self._of_one = shape.identities_per_group
        self.identities = len(of_groups) * self._of_one
        self.committed_offset_at = np.zeros(TOMBSTONE * self.identities, dtype=np.int64)
        self.commit_timestamp_at = np.zeros_like(self.committed_offset_at)
        self._records: list[bytes] = []
        chosen = (of_groups[:, None] * self._of_one + np.arange(self._of_one)).ravel()
        topics = [_string(name) for name in names.topics]
        metadata = [text.encode() for text in METADATA]
        columns = zip(
            *(each[chosen].tolist() for each in (names.group, names.topic, names.partition, names.leader_epoch)),
            strict=True,
        )
        identities = [
            (
                b"\x00\x01" + _string(names.groups[group]) + topics[topic] + partition.to_bytes(4, "big"),
                group,
                topic,
                epoch,
            )
            for group, topic, partition, epoch in columns
        ]
        metadata_of_group, sends_topic_id = names.metadata_of_group.tolist(), names.group_sends_topic_ids.tolist()
        for key, group, _, epoch in identities:
            text = metadata[metadata_of_group[group]]
            self._add(key, b"\x00\x03" + bytes(8) + epoch.to_bytes(4, "big"), len(text).to_bytes(2, "big") + text, b"")
        for key, group, topic, epoch in identities:
            text = metadata[metadata_of_group[group]]
            tags = b"\x01\x00\x10" + names.topic_ids[topic] if sends_topic_id[group] else b"\x00"
            self._add(key, b"\x00\x04" + bytes(8) + epoch.to_bytes(4, "big"), bytes([len(text) + 1]) + text, tags)
        self._records += [_record(key, None) for key, *_ in identities]
        for control_type in (1, 0):  # COMMIT, ABORT
            self._records.append(_record(struct.pack(">hh", 0, control_type), struct.pack(">hi", 0, 0)))
        self._records.append(bytes(b.BATCH_HEADER_BYTES))
        self.array = pa.array(self._records, pa.large_binary())
        # behind the record's own length, which is one byte up to 63, its attributes and its timestamp delta
        self.offset_delta_at = np.where(np.array([len(record) for record in self._records]) <= 64, 3, 4)

    def rows(self, template: Int64s, identity: Int64s, marker: Int64s) -> Int64s:
        """Return the row of each record's template in ``array``."""
        others = _KINDS_OF_TEMPLATES * self.identities
        group, within = np.divmod(identity, self._of_one)
        place = np.searchsorted(self._of_groups, group) * self._of_one + within
        return np.where(marker == NONE, template * self.identities + place, others + marker)

    @property
    def header(self) -> int:
        """Row of the empty header in ``array``."""
        return _KINDS_OF_TEMPLATES * self.identities + _HEADER_TEMPLATE

    def _add(self, key: bytes, head: bytes, metadata: bytes, tags: bytes) -> None:
        value = head + metadata + bytes(8) + tags
        record = _record(key, value)
        row, value_at = len(self._records), len(record) - 1 - len(value)
        self.committed_offset_at[row] = value_at + 2
        self.commit_timestamp_at[row] = value_at + len(head) + len(metadata)
        self._records.append(record)


def _record(key: bytes, value: bytes | None) -> bytes:
    """A record of format 2 whose timestamp delta and offset delta are 0."""
    body = b"\x00\x00\x00" + _varint(len(key)) + key + _varint(NONE if value is None else len(value)) + (value or b"")
    return _varint(len(body) + 1) + body + b"\x00"  # no headers


def _varint(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _string(text: str) -> bytes:
    raw = text.encode()
    return len(raw).to_bytes(2, "big") + raw


def encode(block: Batches, templates: Templates, names: Names, shape: Shape) -> tuple[Bytes, Int64s]:
    """Return batches as bytes of a file, and the start of each."""
    batch, place, identity = block.records(shape)
    template, marker = block.template[batch], block.marker[batch]
    row = templates.rows(template, identity, marker)
    # each batch is its header, then its records
    in_sequence = np.arange(len(batch)) + batch + 1
    sequence = np.full(len(batch) + len(block.count), templates.header)
    sequence[in_sequence] = row
    taken = templates.array.take(pa.array(sequence))
    data: Bytes = np.frombuffer(taken.buffers()[2], dtype=np.uint8).copy()
    bounds = np.frombuffer(taken.buffers()[1], dtype=np.int64)
    record_at = bounds[in_sequence]
    data[record_at + templates.offset_delta_at[row]] = 2 * place  # zigzag
    values = np.flatnonzero((marker == NONE) & (template != TOMBSTONE))
    committed_offset = names.first_offset[identity[values]] + block.commit[batch[values]] + place[values]
    for at, number in (
        (templates.committed_offset_at, committed_offset),
        (templates.commit_timestamp_at, block.timestamp[batch[values]]),
    ):
        _put(data, record_at[values] + at[row[values]], number.astype(">i8"))
    header_at = bounds[:-1][sequence == templates.header]
    end = np.append(header_at[1:], bounds[-1])
    if shape.codec is not Codec.NONE:
        data, header_at, end = _compressed(data, header_at, end, shape.codec, block.marker)
    header = np.zeros(len(header_at), dtype=BATCH_HEADER)
    header["base_offset"] = block.base_offset
    header["batch_length"] = end - header_at - b.LOG_OVERHEAD
    header["magic"] = b.MAGIC_2
    header["attributes"] = (
        np.where(block.marker == NONE, shape.codec, b.ATTRIBUTE_CONTROL)
        | (block.producer_id != NONE) * b.ATTRIBUTE_TRANSACTIONAL
    )
    header["last_offset_delta"] = block.count - 1
    header["base_timestamp"] = header["max_timestamp"] = block.timestamp
    header["producer_id"] = block.producer_id
    header["producer_epoch"] = np.where(block.producer_id == NONE, NONE, 0)
    header["base_sequence"] = NONE
    header["record_count"] = block.count
    _put(data, header_at, header)
    view, crc = data.data, crc32c.crc32c
    header["crc"] = [
        crc(view[start:stop]) for start, stop in zip((header_at + b.CRC_START).tolist(), end.tolist(), strict=True)
    ]
    _put(data, header_at, header)
    return data, header_at


def _put(data: Bytes, at: Int64s, items: npt.NDArray[np.generic]) -> None:
    """Write the bytes of each item at its position."""
    width = items.dtype.itemsize
    data[at[:, None] + np.arange(width)] = items.view(np.uint8).reshape(-1, width)


def _compressed(
    data: Bytes, header_at: Int64s, end: Int64s, codec: Codec, marker: Int64s
) -> tuple[Bytes, Int64s, Int64s]:
    """Return the batches with compressed records, except markers; headers are still empty."""
    parts: list[bytes] = []
    for start, stop, which in zip(header_at.tolist(), end.tolist(), marker.tolist(), strict=True):
        payload = data[start + b.BATCH_HEADER_BYTES : stop].tobytes()
        parts += [bytes(b.BATCH_HEADER_BYTES), payload if which != NONE else compress(codec, payload)]
    stops = np.cumsum([len(part) for part in parts])[1::2]
    starts = np.concatenate([np.zeros(1, dtype=np.int64), stops[:-1]])
    return np.frombuffer(b"".join(parts), dtype=np.uint8).copy(), starts, stops


class SegmentWriter:
    """Writes the segment files of one log partition, and starts a new file when one is full."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._in_file = self._written = 0
        folder.mkdir(parents=True)
        self._path = self._file_of(0)
        self._path.touch()

    def write(self, data: Bytes, starts: Int64s, base_offset: Int64s) -> None:
        """Append batches, given where each starts and its base offset."""
        ends = np.append(starts[1:], len(data))
        done = 0
        while done < len(starts):
            room = starts[done] + _SEGMENT_BYTES - self._in_file
            until = int(np.searchsorted(ends, room, side="right"))
            if until <= done and self._in_file:
                self._path, self._in_file = self._file_of(int(base_offset[done])), 0
                continue
            until = max(until, done + 1)
            part = data[starts[done] : ends[until - 1]]
            with self._path.open("ab") as file:
                file.write(part.tobytes())
            self._in_file += len(part)
            self._written += len(part)
            done = until

    def close(self) -> int:
        """Return the number of bytes written."""
        return self._written

    def _file_of(self, base_offset: int) -> Path:
        return self._folder / f"{base_offset:020d}.log"
