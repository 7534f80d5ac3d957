"""Record offsets of partitions of many topics: one request to each leader, however many topics there are."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from kafka.protocol.consumer import ListOffsetsRequest

from offsets_pipeline.broker.connection import NONE, or_none
from offsets_pipeline.broker.log_offsets import CONSUMER, EARLIEST, LATEST, Isolation
from offsets_pipeline.errors import OffsetsError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from offsets_pipeline.broker.cluster import Cluster
    from offsets_pipeline.broker.cluster_metadata import Place, TopicMetadata
    from offsets_pipeline.broker.connection import Connection, Message


class LogBounds(NamedTuple):
    """Log start offset and high watermark of a partition."""

    start: int
    end: int


def bounds_of_topics(cluster: Cluster, topics: Collection[str] | None) -> dict[Place, LogBounds | OffsetsError]:
    """Log start offset and high watermark of all partitions of these topics; None: of all topics.

    Leaves out topics that do not exist. A partition that does not answer has its error. Raises the errors of `Cluster`.
    """
    places = [(name, at) for name, topic in cluster.topics(topics).items() for at in topic.partitions]
    starts = offsets_of_topics(cluster, dict.fromkeys(places, EARLIEST))
    ends = offsets_of_topics(cluster, dict.fromkeys(places, LATEST))
    found: dict[Place, LogBounds | OffsetsError] = {}
    for place in places:
        start, end = starts[place], ends[place]
        if isinstance(start, OffsetsError):
            found[place] = start
        elif isinstance(end, OffsetsError):
            found[place] = end
        else:
            found[place] = LogBounds(start or 0, max(end or 0, start or 0))
    return found


def offsets_of_topics(
    cluster: Cluster, times_ms: Mapping[Place, int], isolation: Isolation = Isolation.READ_UNCOMMITTED
) -> dict[Place, int | OffsetsError | None]:
    """Record offset for a time in each partition: EARLIEST, LATEST, or the first record at or after a time in ms.

    The offset is None if no record is that late. A partition that does not answer has its error. Raises the errors of
    `Cluster`.
    """

    def ask(
        connection: Connection, metadata: Mapping[str, TopicMetadata], at_leader: list[Place]
    ) -> dict[Place, tuple[int, int | None]]:
        of_topic = ListOffsetsRequest.ListOffsetsTopic
        topics = [
            of_topic(
                name=name,
                partitions=[
                    of_topic.ListOffsetsPartition(
                        partition_index=at,
                        current_leader_epoch=_epoch(metadata, name, at),
                        timestamp=times_ms[name, at],
                    )
                    for at in partitions
                ],
            )
            for name, partitions in by_topic(at_leader).items()
        ]
        answer: Message = connection.send(
            ListOffsetsRequest(
                replica_id=CONSUMER,
                isolation_level=int(isolation),
                topics=topics,
                timeout_ms=int(cluster.settings.request_seconds * 1000),
            )
        )
        return {
            (topic.name, each.partition_index): (each.error_code, or_none(each.offset))
            for topic in answer.topics
            for each in topic.partitions
        }

    return cluster.ask_leaders_of_topics(times_ms, ask, "list the offsets")


def by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    """The partitions of each topic, in the order given."""
    found: dict[str, list[int]] = defaultdict(list)
    for topic, partition in places:
        found[topic].append(partition)
    return found


def _epoch(metadata: Mapping[str, TopicMetadata], topic: str, partition: int) -> int:
    epoch = metadata[topic].partitions[partition].epoch
    return NONE if epoch is None else epoch


def rounds_of(points: Iterable[tuple[Place, int]]) -> list[dict[Place, int]]:
    """The points in as few parts as possible, each with one point of a partition: a request names it once."""
    rounds: list[dict[Place, int]] = []
    used: dict[Place, int] = {}
    for place, number in dict.fromkeys(points):
        index = used.get(place, 0)
        used[place] = index + 1
        if index == len(rounds):
            rounds.append({})
        rounds[index][place] = number
    return rounds
