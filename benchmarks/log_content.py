"""The content of a generated log: groups, topics, batches in the order of the log, and the state after all of them."""

from __future__ import annotations

import base64
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from offsets_pipeline.kafka.record.compression import Codec
from offsets_pipeline.semantics.partitioning import partitions_for

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

START_MS = 1_750_000_000_000
UPGRADED_AFTER = 0.25  # share of the commits that the broker wrote before it was upgraded
COMMITTED = 0.9  # share of the transactions that commit
_MARKER_LAG = 20  # a transaction's marker comes at most so many batches of the whole log after its records
_TOPICS = 500
_MAX_RECORDS_PER_BATCH = 64  # an offset delta takes one byte
_FIRST_PRODUCER_ID = 1000
#: No producer id, no marker, no row.
NONE = -1

_SERVICES = ("orders", "payments", "billing", "inventory", "shipping", "fraud-detection", "search", "notifications")
_EVENTS = ("created", "updated", "deleted", "events", "commands", "snapshots-v2", "dlq")
METADATA = (*[""] * 17, "AgAAAZfH2QoA", "AgAAAZfH2QoAAAAAAQAAAAEAAAA=", '{"host":"worker-17","version":"2.14.1"}')

#: The records of a batch of commits: values of version 3, of version 4, or tombstones.
VALUE_3, VALUE_4, TOMBSTONE = range(3)
#: The marker of a batch.
COMMIT_MARKER, ABORT_MARKER = range(2)


@dataclass(frozen=True)
class Shape:
    """Size and kind of a log. ``tombstones`` and ``transactional`` are shares of the commits."""

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
        """Raises ValueError for an impossible shape."""
        most = min(self.identities_per_group, _MAX_RECORDS_PER_BATCH)
        if not 1 <= self.records_per_batch <= most:
            raise ValueError(f"a batch holds 1 to {most} commits of one group, not {self.records_per_batch}")

    @property
    def identities_per_group(self) -> int:
        """Number of partitions that a group commits."""
        return self.topics_per_group * self.partitions_per_topic

    @property
    def identities(self) -> int:
        """Number of identities (group, topic, partition)."""
        return self.groups * self.identities_per_group


class Names:
    """The groups, and the properties of each identity; identities of one group are neighbours."""

    def __init__(self, shape: Shape, random: np.random.Generator) -> None:
        self.groups = [f"{_SERVICES[index % len(_SERVICES)]}-consumer-{index}" for index in range(shape.groups)]
        self.topics = [
            f"{_SERVICES[index % len(_SERVICES)]}.{_EVENTS[index % len(_EVENTS)]}.{index}" for index in range(_TOPICS)
        ]
        self.topic_ids = [random.bytes(16) for _ in range(_TOPICS)]
        self.log_partition_of_group = partitions_for(pa.array(self.groups, pa.string()), shape.offsets_partitions)
        self.metadata_of_group = random.integers(len(METADATA), size=shape.groups)
        self.group_sends_topic_ids = random.random(shape.groups) < 0.5
        identity = np.arange(shape.identities)
        self.group = identity // shape.identities_per_group
        which_topic = identity % shape.identities_per_group // shape.partitions_per_topic
        self.topic = (self.group + which_topic) % _TOPICS
        self.partition = identity % shape.partitions_per_topic
        self.leader_epoch = random.integers(0, 30, size=_TOPICS)[self.topic]
        self.first_offset = random.integers(0, 1_000_000_000, size=shape.identities)


@dataclass(frozen=True)
class Batches:
    """The batches of the log in the order of log partition and base offset."""

    log_partition: Int64s
    base_offset: Int64s
    count: Int64s  # records
    marker: Int64s  # COMMIT_MARKER, ABORT_MARKER, or -1: commits
    group: Int64s
    first: Int64s  # of the group's identities: the records go on from there, and around
    template: Int64s  # VALUE_3, VALUE_4, TOMBSTONE
    commit: Int64s  # number of the first record among all commits, by time
    timestamp: Int64s
    producer_id: Int64s  # -1: not transactional
    visible: Bools  # to readers, once the log is loaded

    def take(self, rows: Int64s | slice) -> Batches:
        """Return these batches."""
        return Batches(*(getattr(self, each.name)[rows] for each in fields(self)))

    def records(self, shape: Shape) -> tuple[Int64s, Int64s, Int64s]:
        """Return for each record its batch, its place in the batch, and its identity (a marker has any)."""
        batch = np.repeat(np.arange(len(self.count)), self.count)
        place = np.arange(len(batch)) - np.repeat(np.cumsum(self.count) - self.count, self.count)
        within = (self.first[batch] + place) % shape.identities_per_group
        return batch, place, self.group[batch] * shape.identities_per_group + within


def draw_batches(shape: Shape, names: Names, random: np.random.Generator) -> Batches:
    """Draw the batches of commits at random, and add the markers of their transactions."""
    size = -(-shape.commits // shape.records_per_batch)
    count = np.full(size, shape.records_per_batch)
    count[-1] = shape.commits - shape.records_per_batch * (size - 1)
    group = random.integers(shape.groups, size=size)
    number = np.arange(size)
    fate = random.random(size)
    is_tombstone = fate < shape.tombstones
    transactional = np.flatnonzero(~is_tombstone & (fate < shape.tombstones + shape.transactional))
    commits = random.random(len(transactional)) < COMMITTED
    producer_id = np.full(size, NONE)
    producer_id[transactional] = _FIRST_PRODUCER_ID + np.arange(len(transactional))
    visible = np.ones(size, dtype=np.bool_)
    visible[transactional] = commits
    template = np.where(is_tombstone, TOMBSTONE, np.where(number < UPGRADED_AFTER * size, VALUE_3, VALUE_4))
    data = Batches(
        log_partition=names.log_partition_of_group[group].astype(np.int64),
        base_offset=np.zeros(size, dtype=np.int64),
        count=count,
        marker=np.full(size, NONE),
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
    markers = Batches(
        log_partition=data.log_partition[transactional],
        base_offset=nothing,
        count=nothing + 1,
        marker=np.where(commits, COMMIT_MARKER, ABORT_MARKER),
        group=nothing,
        first=nothing,
        template=nothing,
        commit=nothing,
        timestamp=START_MS + after,
        producer_id=producer_id[transactional],
        visible=nothing.astype(np.bool_),
    )
    everything = Batches(
        *(np.concatenate([getattr(data, each.name), getattr(markers, each.name)]) for each in fields(Batches))
    )
    sorted_batches = everything.take(
        np.lexsort((np.concatenate([number, after]), everything.log_partition))  # stable: a marker comes after
    )
    before = np.cumsum(sorted_batches.count) - sorted_batches.count
    start = before[np.searchsorted(sorted_batches.log_partition, sorted_batches.log_partition)]
    sorted_batches.base_offset[:] = before - start
    return sorted_batches


def final_state(batches: Batches, names: Names, shape: Shape) -> pa.Table:
    """Return the committed offsets after all batches, as GeneratedLog has them."""
    batch, place, identity = batches.records(shape)
    rows = np.flatnonzero(batches.visible[batch])
    last = np.full(shape.identities, NONE)
    last[identity[rows]] = rows  # of equal indices numpy keeps the last, which has the highest record offset
    row = last[last != NONE]
    row = row[batches.template[batch[row]] != TOMBSTONE]
    batch, place, identity = batch[row], place[row], identity[row]
    group, topic = names.group[identity], names.topic[identity]
    ids = [base64.urlsafe_b64encode(raw).rstrip(b"=").decode() for raw in names.topic_ids]
    no_id = ~names.group_sends_topic_ids[group] | (batches.template[batch] != VALUE_4)
    return pa.table(
        {
            "log_partition": pa.array(batches.log_partition[batch], pa.int32()),
            "group_id": pa.array(names.groups).take(pa.array(group)),
            "topic": pa.array(names.topics).take(pa.array(topic)),
            "partition": pa.array(names.partition[identity], pa.int32()),
            "committed_offset": names.first_offset[identity] + batches.commit[batch] + place,
            "leader_epoch": pa.array(names.leader_epoch[identity], pa.int32()),
            "metadata": pa.array(METADATA).take(pa.array(names.metadata_of_group[group])),
            "commit_timestamp_ms": batches.timestamp[batch],
            "topic_id": pa.array(ids).take(pa.array(topic, mask=no_id)),
            "record_offset": batches.base_offset[batch] + place,
        }
    )
