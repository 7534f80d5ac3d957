"""Makes an offsets log of any size: segment files in folders as a broker keeps them, the same for the same seed.

    python benchmarks/generate.py FOLDER --commits 5000000 --records-per-batch 3

The log is one of consumers that commit: a batch holds offsets of one group, one batch comes a millisecond after the
other. Its broker was upgraded a quarter into the log: it wrote values of version 3, then of version 4, these with the
topic's id for groups whose clients send it. Metadata is empty but for some groups.

Of an identity all records are alike but for a few numbers at known places. So a template is made of each, Arrow
strings templates and empty batch headers together, and numpy writes the numbers into the whole.
"""

from __future__ import annotations

import argparse
import base64
import struct
from dataclasses import dataclass, fields
from pathlib import Path

import crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from offsets_pipeline.record import batch as b
from offsets_pipeline.record.columns import BATCH_HEADER
from offsets_pipeline.record.compression import Codec, compress
from offsets_pipeline.semantics.partitioning import partitions_for

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

START_MS = 1_750_000_000_000
UPGRADED_AFTER = 0.25  # share of the commits that the broker wrote before it was upgraded
COMMITTED = 0.9  # share of the transactions that commit
_MARKER_LAG = 20  # a transaction's marker comes at most so many batches of the whole log after its records
_TOPICS = 500
_SEGMENT_BYTES = 100 * 1024 * 1024  # segment.bytes of __consumer_offsets
_BLOCK_BATCHES = 100_000
_MAX_RECORDS_PER_BATCH = 64  # an offset delta takes one byte
_FIRST_PRODUCER_ID = 1000
_NONE = -1

_SERVICES = ("orders", "payments", "billing", "inventory", "shipping", "fraud-detection", "search", "notifications")
_EVENTS = ("created", "updated", "deleted", "events", "commands", "snapshots-v2", "dlq")
_METADATA = (*[""] * 17, "AgAAAZfH2QoA", "AgAAAZfH2QoAAAAAAQAAAAEAAAA=", '{"host":"worker-17","version":"2.14.1"}')

# The templates: of every identity its value of version 3, of every identity that of version 4, of every identity its
# tombstone, then the markers and an empty header.
_VALUE_3, _VALUE_4, _TOMBSTONE, _KINDS_OF_TEMPLATES = range(4)
_COMMIT_MARKER, _ABORT_MARKER, _HEADER_TEMPLATE = range(3)


@dataclass(frozen=True)
class Shape:
    """What kind of log. ``tombstones`` and ``transactional`` are shares of the commits."""

    commits: int = 5_000_000
    groups: int = 20_000
    topics_per_group: int = 2
    partitions_per_topic: int = 5
    offsets_partitions: int = 50
    records_per_batch: int = 3
    codec: Codec = Codec.NONE
    tombstones: float = 0.0
    transactional: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        """Refuse a shape that cannot be made."""
        most = min(self.identities_per_group, _MAX_RECORDS_PER_BATCH)
        if not 1 <= self.records_per_batch <= most:
            raise ValueError(f"a batch holds 1 to {most} commits of one group, not {self.records_per_batch}")

    @property
    def identities_per_group(self) -> int:
        """What one group commits: so many topics and partitions."""
        return self.topics_per_group * self.partitions_per_topic

    @property
    def identities(self) -> int:
        """(group, topic, partition)s there are to commit."""
        return self.groups * self.identities_per_group


@dataclass(frozen=True)
class GeneratedLog:
    """What was written. ``records`` counts markers too; ``state`` is what a broker holds after loading it.

    ``state`` has a row for each identity with a visible commit that no tombstone removed, by the generator's own
    reckoning: the columns of `committed_offsets` that such a log fills, timestamps in milliseconds.
    """

    shape: Shape
    folder: Path
    records: int
    segment_bytes: int
    state: pa.Table

    @property
    def bytes_per_record(self) -> float:
        """Bytes of segment files for each record."""
        return self.segment_bytes / self.records


def generate(shape: Shape, folder: Path) -> GeneratedLog:
    """Write a log below ``folder``: a folder for each log partition, segment files of 100 MB in it."""
    random = np.random.default_rng(shape.seed)
    names = _Names(shape, random)
    batches = _draw_batches(shape, names, random)
    templates = _Templates(shape, names)
    segment_bytes = 0
    for log_partition in range(shape.offsets_partitions):
        writer = _SegmentWriter(folder / f"__consumer_offsets-{log_partition}")
        first, last = np.searchsorted(batches.log_partition, [log_partition, log_partition + 1]).tolist()
        for start in range(first, last, _BLOCK_BATCHES):
            block = batches.take(slice(start, min(start + _BLOCK_BATCHES, last)))
            writer.write(*_encode(block, templates, names, shape), block.base_offset)
        segment_bytes += writer.close()
    return GeneratedLog(shape, folder, int(batches.count.sum()), segment_bytes, _state(batches, names, shape))


# --- what is in the log


class _Names:
    """The groups, and what belongs to each identity; those of one group are neighbours."""

    def __init__(self, shape: Shape, random: np.random.Generator) -> None:
        self.groups = [f"{_SERVICES[index % len(_SERVICES)]}-consumer-{index}" for index in range(shape.groups)]
        self.topics = [
            f"{_SERVICES[index % len(_SERVICES)]}.{_EVENTS[index % len(_EVENTS)]}.{index}" for index in range(_TOPICS)
        ]
        self.topic_ids = [random.bytes(16) for _ in range(_TOPICS)]
        self.log_partition_of_group = partitions_for(pa.array(self.groups, pa.string()), shape.offsets_partitions)
        self.metadata_of_group = random.integers(len(_METADATA), size=shape.groups)
        self.group_sends_topic_ids = random.random(shape.groups) < 0.5
        identity = np.arange(shape.identities)
        self.group = identity // shape.identities_per_group
        which_topic = identity % shape.identities_per_group // shape.partitions_per_topic
        self.topic = (self.group + which_topic) % _TOPICS
        self.partition = identity % shape.partitions_per_topic
        self.leader_epoch = random.integers(0, 30, size=_TOPICS)[self.topic]
        self.first_offset = random.integers(0, 1_000_000_000, size=shape.identities)


@dataclass(frozen=True)
class _Batches:
    """The batches of the log in the order of log partition and base offset."""

    log_partition: Int64s
    base_offset: Int64s
    count: Int64s  # records
    marker: Int64s  # _COMMIT_MARKER, _ABORT_MARKER, or -1: commits
    group: Int64s
    first: Int64s  # of the group's identities: the records go on from there, and around
    template: Int64s  # _VALUE_3, _VALUE_4, _TOMBSTONE
    commit: Int64s  # number of the first record among all commits, by time
    timestamp: Int64s
    producer_id: Int64s  # -1: not transactional
    visible: Bools  # to readers, once the log is loaded

    def take(self, rows: Int64s | slice) -> _Batches:
        return _Batches(*(getattr(self, each.name)[rows] for each in fields(self)))

    def records(self, shape: Shape) -> tuple[Int64s, Int64s, Int64s]:
        """Of each record its batch here, its place in that, and its identity (any, of a marker)."""
        batch = np.repeat(np.arange(len(self.count)), self.count)
        place = np.arange(len(batch)) - np.repeat(np.cumsum(self.count) - self.count, self.count)
        within = (self.first[batch] + place) % shape.identities_per_group
        return batch, place, self.group[batch] * shape.identities_per_group + within


def _draw_batches(shape: Shape, names: _Names, random: np.random.Generator) -> _Batches:
    size = -(-shape.commits // shape.records_per_batch)
    count = np.full(size, shape.records_per_batch)
    count[-1] = shape.commits - shape.records_per_batch * (size - 1)
    group = random.integers(shape.groups, size=size)
    number = np.arange(size)
    fate = random.random(size)
    is_tombstone = fate < shape.tombstones
    transactional = np.flatnonzero(~is_tombstone & (fate < shape.tombstones + shape.transactional))
    commits = random.random(len(transactional)) < COMMITTED
    producer_id = np.full(size, _NONE)
    producer_id[transactional] = _FIRST_PRODUCER_ID + np.arange(len(transactional))
    visible = np.ones(size, dtype=np.bool_)
    visible[transactional] = commits
    template = np.where(is_tombstone, _TOMBSTONE, np.where(number < UPGRADED_AFTER * size, _VALUE_3, _VALUE_4))
    data = _Batches(
        log_partition=names.log_partition_of_group[group].astype(np.int64),
        base_offset=np.zeros(size, dtype=np.int64),
        count=count,
        marker=np.full(size, _NONE),
        group=group,
        first=random.integers(shape.identities_per_group, size=size),
        template=template,
        commit=number * shape.records_per_batch,
        timestamp=START_MS + number,
        producer_id=producer_id,
        visible=visible,
    )
    after = transactional + random.integers(1, _MARKER_LAG + 1, size=len(transactional))
    nothing = np.zeros(len(transactional), dtype=np.int64)
    markers = _Batches(
        log_partition=data.log_partition[transactional],
        base_offset=nothing,
        count=nothing + 1,
        marker=np.where(commits, _COMMIT_MARKER, _ABORT_MARKER),
        group=nothing,
        first=nothing,
        template=nothing,
        commit=nothing,
        timestamp=START_MS + after,
        producer_id=producer_id[transactional],
        visible=nothing.astype(np.bool_),
    )
    everything = _Batches(
        *(np.concatenate([getattr(data, each.name), getattr(markers, each.name)]) for each in fields(_Batches))
    )
    sorted_batches = everything.take(
        np.lexsort((np.concatenate([number, after]), everything.log_partition))  # stable: a marker comes after
    )
    before = np.cumsum(sorted_batches.count) - sorted_batches.count
    start = before[np.searchsorted(sorted_batches.log_partition, sorted_batches.log_partition)]
    sorted_batches.base_offset[:] = before - start
    return sorted_batches


def _state(batches: _Batches, names: _Names, shape: Shape) -> pa.Table:
    batch, place, identity = batches.records(shape)
    rows = np.flatnonzero(batches.visible[batch])
    last = np.full(shape.identities, _NONE)
    last[identity[rows]] = rows  # of equal indices numpy keeps the last, which has the highest record offset
    row = last[last != _NONE]
    row = row[batches.template[batch[row]] != _TOMBSTONE]
    batch, place, identity = batch[row], place[row], identity[row]
    group, topic = names.group[identity], names.topic[identity]
    ids = [base64.urlsafe_b64encode(raw).rstrip(b"=").decode() for raw in names.topic_ids]
    no_id = ~names.group_sends_topic_ids[group] | (batches.template[batch] != _VALUE_4)
    return pa.table(
        {
            "log_partition": pa.array(batches.log_partition[batch], pa.int32()),
            "group_id": pa.array(names.groups).take(pa.array(group)),
            "topic": pa.array(names.topics).take(pa.array(topic)),
            "partition": pa.array(names.partition[identity], pa.int32()),
            "committed_offset": names.first_offset[identity] + batches.commit[batch] + place,
            "leader_epoch": pa.array(names.leader_epoch[identity], pa.int32()),
            "metadata": pa.array(_METADATA).take(pa.array(names.metadata_of_group[group])),
            "commit_timestamp_ms": batches.timestamp[batch],
            "topic_id": pa.array(ids).take(pa.array(topic, mask=no_id)),
            "record_offset": batches.base_offset[batch] + place,
        }
    )


# --- its bytes


class _Templates:
    """The bytes of a record of each identity, and where in them the numbers stand that change."""

    def __init__(self, shape: Shape, names: _Names) -> None:
        self.identities = shape.identities
        self.committed_offset_at = np.zeros(_TOMBSTONE * shape.identities, dtype=np.int64)
        self.commit_timestamp_at = np.zeros_like(self.committed_offset_at)
        self._records: list[bytes] = []
        groups = [_string(name) for name in names.groups]
        topics = [_string(name) for name in names.topics]
        metadata = [text.encode() for text in _METADATA]
        columns = zip(
            names.group.tolist(),
            names.topic.tolist(),
            names.partition.tolist(),
            names.leader_epoch.tolist(),
            strict=True,
        )
        identities = [
            (b"\x00\x01" + groups[group] + topics[topic] + partition.to_bytes(4, "big"), group, topic, epoch)
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
        self.array = pa.array(self._records, pa.binary())
        # behind the record's own length, which is one byte up to 63, its attributes and its timestamp delta
        self.offset_delta_at = np.where(np.array([len(record) for record in self._records]) <= 64, 3, 4)

    def rows(self, template: Int64s, identity: Int64s, marker: Int64s) -> Int64s:
        """Where the template of each record stands in ``array``."""
        others = _KINDS_OF_TEMPLATES * self.identities
        return np.where(marker == _NONE, template * self.identities + identity, others + marker)

    @property
    def header(self) -> int:
        """Where the empty header stands in ``array``."""
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
    body = b"\x00\x00\x00" + _varint(len(key)) + key + _varint(_NONE if value is None else len(value)) + (value or b"")
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


def _encode(block: _Batches, templates: _Templates, names: _Names, shape: Shape) -> tuple[Bytes, Int64s]:
    """Batches as they stand in a file, and where each starts."""
    batch, place, identity = block.records(shape)
    template, marker = block.template[batch], block.marker[batch]
    row = templates.rows(template, identity, marker)
    # each batch is its header, then its records
    in_sequence = np.arange(len(batch)) + batch + 1
    sequence = np.full(len(batch) + len(block.count), templates.header)
    sequence[in_sequence] = row
    taken = templates.array.take(pa.array(sequence))
    data: Bytes = np.frombuffer(taken.buffers()[2], dtype=np.uint8).copy()
    bounds = np.frombuffer(taken.buffers()[1], dtype=np.int32).astype(np.int64)
    record_at = bounds[in_sequence]
    data[record_at + templates.offset_delta_at[row]] = 2 * place  # zigzag
    values = np.flatnonzero((marker == _NONE) & (template != _TOMBSTONE))
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
        np.where(block.marker == _NONE, shape.codec, b.ATTRIBUTE_CONTROL)
        | (block.producer_id != _NONE) * b.ATTRIBUTE_TRANSACTIONAL
    )
    header["last_offset_delta"] = block.count - 1
    header["base_timestamp"] = header["max_timestamp"] = block.timestamp
    header["producer_id"] = block.producer_id
    header["producer_epoch"] = np.where(block.producer_id == _NONE, _NONE, 0)
    header["base_sequence"] = _NONE
    header["record_count"] = block.count
    _put(data, header_at, header)
    view, crc = data.data, crc32c.crc32c
    header["crc"] = [
        crc(view[start:stop]) for start, stop in zip((header_at + b.CRC_START).tolist(), end.tolist(), strict=True)
    ]
    _put(data, header_at, header)
    return data, header_at


def _put(data: Bytes, at: Int64s, items: npt.NDArray[np.generic]) -> None:
    """Write each item's bytes where it belongs."""
    width = items.dtype.itemsize
    data[at[:, None] + np.arange(width)] = items.view(np.uint8).reshape(-1, width)


def _compressed(
    data: Bytes, header_at: Int64s, end: Int64s, codec: Codec, marker: Int64s
) -> tuple[Bytes, Int64s, Int64s]:
    """The same with the records of each batch but markers compressed; headers are still empty."""
    parts: list[bytes] = []
    for start, stop, which in zip(header_at.tolist(), end.tolist(), marker.tolist(), strict=True):
        payload = data[start + b.BATCH_HEADER_BYTES : stop].tobytes()
        parts += [bytes(b.BATCH_HEADER_BYTES), payload if which != _NONE else compress(codec, payload)]
    stops = np.cumsum([len(part) for part in parts])[1::2]
    starts = np.concatenate([np.zeros(1, dtype=np.int64), stops[:-1]])
    return np.frombuffer(b"".join(parts), dtype=np.uint8).copy(), starts, stops


class _SegmentWriter:
    """Writes the segment files of one log partition; a file that is full is followed by the next."""

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
        """The bytes written."""
        return self._written

    def _file_of(self, base_offset: int) -> Path:
        return self._folder / f"{base_offset:020d}.log"


def add_shape_options(parser: argparse.ArgumentParser, default: Shape) -> None:
    """The options that make a Shape; `shape_of` reads them back."""
    for each in fields(Shape):
        option = f"--{each.name.replace('_', '-')}"
        value = getattr(default, each.name)
        if each.name == "codec":
            parser.add_argument(option, choices=[codec.name.lower() for codec in Codec], default=value.name.lower())
        else:
            parser.add_argument(option, type=type(value), default=value, metavar="N")


def shape_of(options: argparse.Namespace) -> Shape:
    """The Shape that the options say."""
    given = {each.name: getattr(options, each.name) for each in fields(Shape)}
    return Shape(**given | {"codec": Codec[given["codec"].upper()]})


def main() -> None:
    """Write a log where the command line says."""
    parser = argparse.ArgumentParser(
        description="Write a log of consumers' commits, as segment files.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="a folder that is not there yet, or empty")
    add_shape_options(parser, Shape())
    options = parser.parse_args()
    log = generate(shape_of(options), options.folder)
    print(
        f"{log.records} records in {log.segment_bytes} bytes ({log.bytes_per_record:.1f} bytes a record), "
        f"{log.state.num_rows} committed offsets, {log.shape.offsets_partitions} log partitions: {log.folder}"
    )


if __name__ == "__main__":
    main()
