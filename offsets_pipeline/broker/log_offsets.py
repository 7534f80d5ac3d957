"""Record offsets of a topic's partitions: start, last stable and end offset, offsets by time, ends of leader epochs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, TypeVar

from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest

from offsets_pipeline.broker.connection import NONE, or_none

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from offsets_pipeline.broker.cluster import Cluster
    from offsets_pipeline.broker.cluster_metadata import TopicMetadata
    from offsets_pipeline.broker.connection import Connection, Message

EARLIEST, LATEST = -2, -1
#: Replica id of a consumer.
CONSUMER = -1

_Answer = TypeVar("_Answer")


class Isolation(IntEnum):
    """Kafka's isolation levels: the end of the log is the high watermark, or the last stable offset."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, slots=True)
class Bounds:
    """Log start offset, last stable offset and high watermark of a partition."""

    start: int
    stable: int
    end: int


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """The leader epoch found, and the record offset at which it ends; None if the leader has no such epoch."""

    leader_epoch: int | None
    end_offset: int | None


def list_offsets(
    cluster: Cluster,
    topic: str,
    times_ms: Mapping[int, int],
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> dict[int, int | None]:
    """Record offset for a time in each partition: EARLIEST, LATEST, or the first record at or after a time in ms.

    The offset is None if no record is that late. Raises the errors of `Cluster`.
    """

    def request(leader_epochs: Mapping[int, int]) -> Message:
        of_topic = ListOffsetsRequest.ListOffsetsTopic
        wanted = [
            of_topic.ListOffsetsPartition(
                partition_index=partition, current_leader_epoch=epoch, timestamp=times_ms[partition]
            )
            for partition, epoch in leader_epochs.items()
        ]
        return ListOffsetsRequest(
            replica_id=CONSUMER,
            isolation_level=int(isolation),
            topics=[of_topic(name=topic, partitions=wanted)],
            timeout_ms=int(cluster.settings.request_seconds * 1000),
        )

    def answer(found: Message) -> tuple[int, int | None]:
        return found.partition_index, or_none(found.offset)

    return _ask_leaders(cluster, topic, times_ms, request, answer, "list the offsets")


def bounds(cluster: Cluster, topic: str, partitions: Iterable[int]) -> dict[int, Bounds]:
    """Log start offset, last stable offset and high watermark of each partition. Raises the errors of `Cluster`."""
    wanted = list(partitions)
    starts = list_offsets(cluster, topic, dict.fromkeys(wanted, EARLIEST))
    stable = list_offsets(cluster, topic, dict.fromkeys(wanted, LATEST), Isolation.READ_COMMITTED)
    ends = list_offsets(cluster, topic, dict.fromkeys(wanted, LATEST))
    return {each: Bounds(starts[each] or 0, stable[each] or 0, ends[each] or 0) for each in wanted}


def epoch_ends(cluster: Cluster, topic: str, leader_epochs: Mapping[int, int]) -> dict[int, EpochEnd]:
    """The end of a leader epoch in each partition, or of the largest epoch below it that the leader has.

    A reader whose position is above the end has read records that a new leader does not have. Raises the errors of
    `Cluster`.
    """

    def request(known_epochs: Mapping[int, int]) -> Message:
        of_topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        wanted = [
            of_topic.OffsetForLeaderPartition(
                partition=partition, current_leader_epoch=epoch, leader_epoch=leader_epochs[partition]
            )
            for partition, epoch in known_epochs.items()
        ]
        return OffsetForLeaderEpochRequest(replica_id=CONSUMER, topics=[of_topic(topic=topic, partitions=wanted)])

    def answer(found: Message) -> tuple[int, EpochEnd]:
        return found.partition, EpochEnd(or_none(found.leader_epoch), or_none(found.end_offset))

    return _ask_leaders(cluster, topic, leader_epochs, request, answer, "find the leader epochs")


def _ask_leaders(
    cluster: Cluster,
    topic: str,
    partitions: Iterable[int],
    request: Callable[[Mapping[int, int]], Message],
    answer: Callable[[Message], tuple[int, _Answer]],
    action: str,
) -> dict[int, _Answer]:
    """Send one request to the leader of each partition; returns the answers by partition.

    ``request`` makes a broker's request from the known leader epochs of its partitions, -1 if unknown. ``answer``
    returns a partition and its answer. ``action`` is what the request is for, for errors.
    """

    def ask(connection: Connection, metadata: TopicMetadata, of_leader: list[int]) -> dict[int, tuple[int, _Answer]]:
        epochs = {each: metadata.partitions[each].epoch for each in of_leader}
        response = connection.send(request({at: NONE if epoch is None else epoch for at, epoch in epochs.items()}))
        answers = {}
        for found in (each for of_topic in response.topics for each in of_topic.partitions):
            partition, value = answer(found)
            answers[partition] = found.error_code, value
        return answers

    return cluster.ask_leaders(topic, partitions, ask, action)
