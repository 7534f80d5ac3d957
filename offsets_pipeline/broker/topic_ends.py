"""What a live cluster adds to descriptions of groups: the ends of topics, and who coordinates a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.broker.log_offsets import LATEST, list_offsets

if TYPE_CHECKING:
    from collections.abc import Collection

    from offsets_pipeline.broker.cluster import Cluster


def topic_ends(cluster: Cluster, topics: Collection[str]) -> dict[tuple[str, int], int]:
    """Log end offsets by topic and partition. Leaves out topics that do not exist. Raises the errors of `Cluster`."""
    ends: dict[tuple[str, int], int] = {}
    for topic in sorted(cluster.topic_ids().keys() & set(topics)):
        found = list_offsets(cluster, topic, dict.fromkeys(cluster.topic(topic).partitions, LATEST))
        ends |= {(topic, partition): end for partition, end in found.items() if end is not None}
    return ends


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
