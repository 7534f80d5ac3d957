"""Facts of a live cluster for descriptions of groups: the ends of topics, and the coordinator of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.broker.log_offsets import LATEST
from offsets_pipeline.broker.topics_offsets import offsets_of_topics

if TYPE_CHECKING:
    from collections.abc import Collection

    from offsets_pipeline.broker.cluster import Cluster


def topic_ends(cluster: Cluster, topics: Collection[str]) -> dict[tuple[str, int], int]:
    """Log end offsets by topic and partition.

    Leaves out topics that do not exist, and partitions that do not answer. Raises the errors of `Cluster`.
    """
    places = [(name, at) for name, topic in cluster.topics(set(topics)).items() for at in topic.partitions]
    found = offsets_of_topics(cluster, dict.fromkeys(places, LATEST))
    return {place: end for place, end in found.items() if isinstance(end, int)}


def coordinators(cluster: Cluster, offsets_topic: str) -> dict[int, str]:
    """The coordinator of each log partition's groups, as Kafka's tool shows it: HOST:PORT (ID).

    It is the leader of the log partition. Raises the errors of `Cluster`.
    """
    brokers = cluster.brokers()
    return {
        at: f"{brokers[leader.node_id].host}:{brokers[leader.node_id].port} ({leader.node_id})"
        for at, leader in cluster.topic(offsets_topic).partitions.items()
        if leader.node_id in brokers
    }
