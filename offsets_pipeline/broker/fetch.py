"""Fetch raw record batches from a partition's leader: the same bytes as its segment files have.

The isolation level is read_uncommitted, so the bytes include control records, and records of open and aborted
transactions. `offsets_pipeline.record` decodes them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Self

from kafka.protocol.consumer import FetchRequest

from offsets_pipeline.broker.broker_errors import (
    NO_ERROR,
    OFFSET_OUT_OF_RANGE,
    STALE_METADATA,
    TRY_LATER,
    broker_error,
)
from offsets_pipeline.broker.connection import NONE, or_none
from offsets_pipeline.errors import KafkaFailed
from offsets_pipeline.record.batch import LOG_OVERHEAD, MAGIC_2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsets_pipeline.broker.client_settings import FetchLimits
    from offsets_pipeline.broker.cluster import Cluster, TopicMetadata
    from offsets_pipeline.broker.connection import Message

_LAST_VERSION_WITH_NAMES = 12  # later versions name a topic by its id
_NO_SESSION_EPOCH = -1
_READ_UNCOMMITTED = 0
# offset, length, magic; in a batch of format 2 also the delta of its last offset, at byte 23
_BATCH = struct.Struct(">qi4xb6xi")
_BATCH_PREFIX = struct.Struct(">qi4xb")


class Problem(Enum):
    """Why a partition returned no records."""

    STALE_METADATA = "the broker does not lead the partition, or in another epoch: refresh the metadata and retry"
    OUT_OF_RANGE = "the position is below the log start offset or above the log end offset"


@dataclass(frozen=True, slots=True)
class Position:
    """Where to fetch: a record offset, and the leader epoch of the metadata; None leaves the epoch unchecked."""

    offset: int
    leader_epoch: int | None


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one partition returned.

    `records` are whole batches. The first may start below the position that was asked for: skip these records.
    `next_offset` is the position after the last batch; the position asked for if there are no batches. The offsets are
    None if there is a problem, and the broker does not tell them.
    """

    records: bytes
    next_offset: int
    high_watermark: int | None
    last_stable_offset: int | None
    log_start_offset: int | None
    problem: Problem | None = None


class Fetcher:
    """Fetches partitions of one topic from one broker, over a connection of its own.

    One thread uses it. Another may call `close`: a fetch that waits then raises BrokerUnreachable.
    """

    def __init__(self, cluster: Cluster, topic: TopicMetadata, node_id: int) -> None:
        self._topic = topic
        self._limits = cluster.settings.fetch
        self._connection = cluster.connect(node_id)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fetch(self, positions: Mapping[int, Position], limits: FetchLimits | None = None) -> dict[int, Fetched]:
        """Fetch from these positions, in this order: the broker stops at its limit of bytes.

        Waits up to `max_wait_ms` while there are fewer than `min_bytes`. A broker returns at least the first batch of
        the first partition that has records, whatever its size.

        Raises NotAuthorized, KafkaFailed for other errors of the broker, and the errors of `Connection`.
        """
        chosen = limits or self._limits
        # a broker older than topic ids, or metadata from one
        max_version = None if self._topic.uuid is not None else _LAST_VERSION_WITH_NAMES
        answer = self._connection.send(
            self._request(positions, chosen), max_version=max_version, wait_seconds=chosen.max_wait_ms / 1000
        )
        if answer.error_code in STALE_METADATA:
            return {partition: _without_records(each, Problem.STALE_METADATA) for partition, each in positions.items()}
        if answer.error_code:
            raise self._error(answer.error_code)
        fetched = {
            each.partition_index: self._fetched(each, positions[each.partition_index])
            for topic in answer.responses
            for each in topic.partitions
        }
        return {partition: fetched[partition] for partition in positions if partition in fetched}

    def _request(self, positions: Mapping[int, Position], limits: FetchLimits) -> Message:
        of_topic = FetchRequest.FetchTopic
        partitions = [
            of_topic.FetchPartition(
                partition=partition,
                current_leader_epoch=NONE if each.leader_epoch is None else each.leader_epoch,
                fetch_offset=each.offset,
                last_fetched_epoch=NONE,
                log_start_offset=NONE,
                partition_max_bytes=limits.max_partition_bytes,
            )
            for partition, each in positions.items()
        ]
        return FetchRequest(
            max_wait_ms=limits.max_wait_ms,
            min_bytes=limits.min_bytes,
            max_bytes=limits.max_bytes,
            isolation_level=_READ_UNCOMMITTED,
            session_id=0,
            session_epoch=_NO_SESSION_EPOCH,
            topics=[of_topic(topic=self._topic.name, topic_id=self._topic.uuid, partitions=partitions)],
            forgotten_topics_data=[],
            rack_id="",  # with a rack a leader may refer us to a follower
        )

    def _fetched(self, answer: Message, position: Position) -> Fetched:
        if answer.error_code == OFFSET_OUT_OF_RANGE:
            return _without_records(position, Problem.OUT_OF_RANGE, answer)
        if answer.error_code in STALE_METADATA or answer.error_code in TRY_LATER:
            return _without_records(position, Problem.STALE_METADATA, answer)
        if answer.error_code != NO_ERROR:
            raise self._error(answer.error_code, answer.partition_index)
        data = answer.records or b""
        end, next_offset = whole_batches(data)
        if data and not end:
            raise KafkaFailed(
                f"{self._connection.at} returned a part of a batch for partition {answer.partition_index} of topic "
                f"{self._topic.name} at record offset {position.offset}: set max.partition.fetch.bytes above "
                f"{len(data)}"
            )
        return Fetched(
            records=data if end == len(data) else data[:end],
            next_offset=position.offset if next_offset is None else max(next_offset, position.offset),
            high_watermark=or_none(answer.high_watermark),
            last_stable_offset=or_none(answer.last_stable_offset),
            log_start_offset=or_none(answer.log_start_offset),
        )

    def _error(self, code: int, partition: int | None = None) -> Exception:
        place = (
            f"topic {self._topic.name}" if partition is None else f"partition {partition} of topic {self._topic.name}"
        )
        return broker_error(code, self._connection.at, f"read {place}", "READ on it", self._topic.name)


def whole_batches(data: bytes) -> tuple[int, int | None]:
    """End of the last whole batch, and the record offset after it; None if there is no whole batch.

    A broker cuts the last batch off where its limit of bytes is.
    """
    position, size, last = 0, len(data), None
    while position + _BATCH_PREFIX.size <= size:
        length = _BATCH_PREFIX.unpack_from(data, position)[1]
        end = position + LOG_OVERHEAD + length
        if length < 0 or end > size:
            break
        last, position = position, end
    if last is None:
        return 0, None
    offset, _, magic = _BATCH_PREFIX.unpack_from(data, last)
    # the offset of a compressed message of formats 0 and 1 is that of its last record
    delta = _BATCH.unpack_from(data, last)[3] if magic == MAGIC_2 else 0
    return position, offset + delta + 1


def _without_records(position: Position, problem: Problem, answer: Message | None = None) -> Fetched:
    if answer is None:
        return Fetched(b"", position.offset, None, None, None, problem)
    return Fetched(
        b"",
        position.offset,
        or_none(answer.high_watermark),
        or_none(answer.last_stable_offset),
        or_none(answer.log_start_offset),
        problem,
    )
