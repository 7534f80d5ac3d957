"""Metadata of a cluster: its brokers, its topics, and the leaders of their partitions."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offsets_pipeline.kafka.broker.connection import NONE, Message, or_none
from offsets_pipeline.kafka.record.wire import uuid_from_text, uuid_to_text

if TYPE_CHECKING:
    from collections.abc import Iterable

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

    def is_before(self, epoch: int) -> bool:
        """Whether the leader has only epochs before this one: a topic without an id was created again."""
        return self.epoch is not None and self.epoch < epoch


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """Id and partitions of a topic. The id is in Kafka's notation; None if the cluster has no topic ids."""

    name: str
    topic_id: str | None
    partitions: dict[int, PartitionLeader]

    @property
    def uuid(self) -> uuid.UUID | None:
        """The topic's id as Kafka's protocol has it."""
        return None if self.topic_id is None else uuid.UUID(bytes=uuid_from_text(self.topic_id))

    def current_leader_epoch(self, partition: int) -> int:
        """The epoch of a partition's leader as requests name it; NONE if the broker does not send epochs."""
        epoch = self.partitions[partition].epoch
        return NONE if epoch is None else epoch

    def led(self, partitions: Iterable[int]) -> list[int]:
        """Those of these partitions that have a leader, in the order given."""
        return [each for each in partitions if self.partitions[each].node_id is not None]

    def by_leader(self, partitions: Iterable[int]) -> dict[int, list[int]]:
        """The partitions of each leader, by node id, in the order given; leaves out partitions without a leader."""
        found: dict[int, list[int]] = {}
        for partition in partitions:
            node_id = self.partitions[partition].node_id
            if node_id is not None:
                found.setdefault(node_id, []).append(partition)
        return found


def topic_metadata(topic: Message) -> TopicMetadata:
    """Return the metadata of one topic in a response."""
    return TopicMetadata(
        name=topic.name,
        topic_id=None if topic.topic_id is None else uuid_to_text(topic.topic_id.bytes),
        partitions={
            each.partition_index: PartitionLeader(or_none(each.leader_id), or_none(each.leader_epoch))
            for each in sorted(topic.partitions, key=lambda each: each.partition_index)
        },
    )
