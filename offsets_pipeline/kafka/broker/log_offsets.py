"""Record offsets of partitions: log start, last stable offset, high watermark, by time, ends of leader epochs.

Also the open transactions that hold back the last stable offset. Each function sends one request to each leader,
however many topics there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kafka.protocol.admin import DescribeProducersRequest, DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest

from offsets_pipeline.errors import BrokerUnreachable, KafkaFailed, NotAuthorized, OffsetsError
from offsets_pipeline.kafka.broker.broker_errors import NO_ERROR
from offsets_pipeline.kafka.broker.cluster import Cluster, answered
from offsets_pipeline.kafka.broker.connection import NONE, Connection, Message, or_none

if TYPE_CHECKING:
    from offsets_pipeline.kafka.broker.cluster import Metadata, Place

EARLIEST, LATEST = -2, -1
_CONSUMER = -1  # replica id of a consumer


class LogBounds(NamedTuple):
    """Log start offset and high watermark of a partition."""

    start: int
    end: int


def list_offsets(
    cluster: Cluster, times_ms: Mapping[Place, int], *, read_committed: bool = False
) -> dict[Place, int | OffsetsError | None]:
    """Record offset for a time in each partition: EARLIEST, LATEST, or the first record at or after a time in ms.

    With ``read_committed`` LATEST is the last stable offset, else the high watermark. The offset is None if no record
    is that late. A partition that does not answer has its error. Raises the errors of `Cluster`.
    """
    of_topic = ListOffsetsRequest.ListOffsetsTopic

    def ask(connection: Connection, metadata: Metadata, at_leader: list[Place]) -> dict[Place, tuple[int, int | None]]:
        def partition(name: str, at: int) -> Message:
            epoch, time_ms = metadata[name].current_leader_epoch(at), times_ms[name, at]
            return of_topic.ListOffsetsPartition(partition_index=at, current_leader_epoch=epoch, timestamp=time_ms)

        request = ListOffsetsRequest(
            replica_id=_CONSUMER,
            isolation_level=int(read_committed),
            topics=[
                of_topic(name=name, partitions=[partition(name, at) for at in each])
                for name, each in by_topic(at_leader).items()
            ],
            timeout_ms=int(cluster.settings.request_seconds * 1000),
        )
        return {
            (topic.name, each.partition_index): (each.error_code, or_none(each.offset))
            for topic in connection.send(request).topics
            for each in topic.partitions
        }

    return cluster.ask_leaders(times_ms, ask, "list the offsets")


def log_bounds(cluster: Cluster, places: Collection[Place]) -> dict[Place, LogBounds | OffsetsError]:
    """Log start offset and high watermark of each partition. Errors as `list_offsets`."""
    starts = list_offsets(cluster, dict.fromkeys(places, EARLIEST))
    ends = list_offsets(cluster, dict.fromkeys(places, LATEST))
    found: dict[Place, LogBounds | OffsetsError] = {}
    for place, start in starts.items():
        end = ends[place]
        if isinstance(start, OffsetsError):
            found[place] = start
        elif isinstance(end, OffsetsError):
            found[place] = end
        else:
            first = start or 0
            found[place] = LogBounds(first, max(end or first, first))
    return found


def bounds_of_topics(cluster: Cluster, topics: Collection[str] | None) -> dict[Place, LogBounds | OffsetsError]:
    """`log_bounds` of all partitions of these topics; None: of all topics. Leaves out topics that do not exist."""
    return log_bounds(
        cluster, [(name, at) for name, topic in cluster.topics(topics).items() for at in topic.partitions]
    )


def epoch_ends(cluster: Cluster, leader_epochs: Mapping[Place, int]) -> dict[Place, int | OffsetsError | None]:
    """Record offset at which a leader epoch ends in each partition, or the largest epoch below it that the leader has.

    The offset is None if the leader has no such epoch. A reader whose position is above it has read records that a new
    leader does not have. Errors as `list_offsets`.
    """
    of_topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic

    def ask(connection: Connection, metadata: Metadata, at_leader: list[Place]) -> dict[Place, tuple[int, int | None]]:
        def partition(name: str, at: int) -> Message:
            current, epoch = metadata[name].current_leader_epoch(at), leader_epochs[name, at]
            return of_topic.OffsetForLeaderPartition(partition=at, current_leader_epoch=current, leader_epoch=epoch)

        topics = [
            of_topic(topic=name, partitions=[partition(name, at) for at in each])
            for name, each in by_topic(at_leader).items()
        ]
        answer = connection.send(OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=topics))
        return {
            (topic.topic, each.partition): (each.error_code, or_none(each.end_offset))
            for topic in answer.topics
            for each in topic.partitions
        }

    return cluster.ask_leaders(leader_epochs, ask, "find the leader epochs")


def by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    """The partitions of each topic, in the order given."""
    found: dict[str, list[int]] = defaultdict(list)
    for topic, partition in places:
        found[topic].append(partition)
    return found


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


# --- open transactions


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open transaction with records in a partition; times are in ms since 1970.

    `transactional_id` and `started_ms` are None if the broker does not send them: it is older than Kafka 3.0, or we
    may not DESCRIBE the transactional id.
    """

    partition: int
    producer_id: int
    first_offset: int
    last_write_ms: int
    transactional_id: str | None = None
    started_ms: int | None = None


def open_transactions(cluster: Cluster, topic: str, partitions: Iterable[int]) -> list[OpenTransaction]:
    """The open transactions of these partitions, by partition and first offset.

    Needs READ on the topic. Raises the errors of `Cluster`; KafkaFailed for a broker older than Kafka 2.8.
    """
    of_topic = DescribeProducersRequest.TopicRequest

    def ask(connection: Connection, _: object, at_leader: list[Place]) -> dict[Place, tuple[int, list[Message]]]:
        topics = [of_topic(name=name, partition_indexes=each) for name, each in by_topic(at_leader).items()]
        return {
            (found.name, each.partition_index): (each.error_code, each.active_producers)
            for found in connection.send(DescribeProducersRequest(topics=topics)).topics
            for each in found.partitions
        }

    places = [(topic, partition) for partition in partitions]
    found = [
        (partition, each)
        for (_, partition), producers in answered(cluster.ask_leaders(places, ask, "describe the producers")).items()
        for each in producers
        if each.current_txn_start_offset != NONE
    ]
    if not found:
        return []
    known = _transactional_ids(cluster, {each.producer_id for _, each in found})
    opened = [
        OpenTransaction(
            partition,
            each.producer_id,
            each.current_txn_start_offset,
            each.last_timestamp,
            *known.get(each.producer_id, (None, None)),
        )
        for partition, each in found
    ]
    return sorted(opened, key=lambda each: (each.partition, each.first_offset))


def _transactional_ids(cluster: Cluster, producer_ids: set[int]) -> dict[int, tuple[str, int | None]]:
    """Transactional id and start of the transaction of each producer, as far as the brokers report them.

    Every broker coordinates some transactions, and leaves out those that we may not DESCRIBE.
    """

    def ask(connection: Connection) -> dict[int, tuple[str, int | None]]:
        listed = connection.send(ListTransactionsRequest(state_filters=[], producer_id_filters=sorted(producer_ids)))
        cluster.check(listed.error_code, connection, "list the transactions")
        producers = {each.transactional_id: each.producer_id for each in listed.transaction_states}
        if not producers:
            return {}
        described = connection.send(DescribeTransactionsRequest(transactional_ids=list(producers)))
        return {
            producers[each.transactional_id]: (each.transactional_id, or_none(each.transaction_start_time_ms))
            for each in described.transaction_states
            if each.error_code == NO_ERROR and each.transactional_id in producers
        }

    try:
        return {producer_id: each for at_broker in cluster.ask_all(ask) for producer_id, each in at_broker.items()}
    except (BrokerUnreachable, KafkaFailed, NotAuthorized):
        return {}
