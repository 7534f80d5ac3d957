"""Metadata of a cluster: its brokers, its topics, and the leaders of their partitions."""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offsets_pipeline.broker.connection import Message, or_none

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: A topic and a partition.
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Broker:
    """Id and address of a broker."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class PartitionLeader:
    """Node id and epoch of a partition's leader; None if it has no leader, or the broker does not send the epoch."""

    node_id: int | None
    epoch: int | None


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """Id and partitions of a topic. The id is in Kafka's notation; None if the cluster has no topic ids."""

    name: str
    topic_id: str | None
    partitions: dict[int, PartitionLeader]

    @property
    def uuid(self) -> uuid.UUID | None:
        """The topic's id as Kafka's protocol has it."""
        return None if self.topic_id is None else uuid.UUID(bytes=base64.urlsafe_b64decode(self.topic_id + "=="))


def by_leader(metadata: TopicMetadata, partitions: Iterable[int]) -> dict[int, list[int]]:
    """Return the partitions of each leader, by node id; leaves out partitions without a leader."""
    found: dict[int, list[int]] = {}
    for partition in sorted(partitions):
        leader = metadata.partitions.get(partition)
        if leader is not None and leader.node_id is not None:
            found.setdefault(leader.node_id, []).append(partition)
    return found


def by_leader_of_topics(
    metadata: Mapping[str, TopicMetadata], places: Iterable[Place]
) -> tuple[dict[int, list[Place]], list[Place]]:
    """Return the partitions of each leader, by node id, and those without a leader; leaves out unknown partitions."""
    found: dict[int, list[Place]] = {}
    without_leader = []
    for topic, partition in places:
        leader = metadata[topic].partitions.get(partition) if topic in metadata else None
        if leader is None:
            continue
        if leader.node_id is None:
            without_leader.append((topic, partition))
        else:
            found.setdefault(leader.node_id, []).append((topic, partition))
    return found, without_leader


def topic_metadata(topic: Message) -> TopicMetadata:
    """Return the metadata of one topic in a response."""
    return TopicMetadata(
        name=topic.name,
        topic_id=None if topic.topic_id is None else _in_kafkas_notation(topic.topic_id),
        partitions={
            each.partition_index: PartitionLeader(or_none(each.leader_id), or_none(each.leader_epoch))
            for each in sorted(topic.partitions, key=lambda each: each.partition_index)
        },
    )


def _in_kafkas_notation(topic_id: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
