"""Open transactions of a topic's partitions: which producer holds back the last stable offset, and since when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka.protocol.admin import DescribeProducersRequest, DescribeTransactionsRequest, ListTransactionsRequest

from offsets_pipeline.errors import BrokerUnreachable, KafkaFailed, NotAuthorized
from offsets_pipeline.kafka.broker.broker_errors import NO_ERROR
from offsets_pipeline.kafka.broker.cluster import Cluster, answered
from offsets_pipeline.kafka.broker.connection import NONE, Connection, Message, or_none
from offsets_pipeline.kafka.broker.log_offsets import by_topic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offsets_pipeline.kafka.broker.cluster_metadata import Place


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
            producers[each.transactional_id]: (
                each.transactional_id,
                or_none(each.transaction_start_time_ms),
            )
            for each in described.transaction_states
            if each.error_code == NO_ERROR and each.transactional_id in producers
        }

    try:
        return {producer_id: each for at_broker in cluster.ask_all(ask) for producer_id, each in at_broker.items()}
    except (BrokerUnreachable, KafkaFailed, NotAuthorized):
        return {}
