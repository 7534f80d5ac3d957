"""`starting_offsets`: the committed offsets of a group, as the option `startingOffsets` of Spark's Kafka source."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Literal

from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.errors import InvalidRequest, NoSuchOffset
from offsets_pipeline.kafka.broker.cluster import Cluster
from offsets_pipeline.kafka.broker.groups_client import fetch_group_offsets
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions, are_bootstrap_servers
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.repair.offset_reset.group_offsets import mirrored_group_offsets, owned_group_offsets
from offsets_pipeline.semantics.partition_state import TopicPartition
from offsets_pipeline.store.delta.properties import OWNED

if TYPE_CHECKING:
    from pathlib import Path


#: Spark's numbers for the start and the end of a partition.
_RESETS = {"earliest": -2, "latest": -1}


def starting_offsets(
    store: str | Path,
    group: str,
    topics: Collection[str] | Mapping[str, int],
    missing: Literal["earliest", "latest", "none"] = "earliest",
    *,
    options: Mapping[str, str] | None = None,
) -> str:
    """The JSON for the option `startingOffsets` of Spark's Kafka source: the committed offsets of a group.

    Spark asks for all partitions of the topics. So the JSON has all up to the last one with a committed offset, or up
    to a given number of partitions; ``missing`` stands for those without a committed offset. A cluster knows the
    number of partitions of the topics.

    Args:
        store: the folder of a store: owned, mirrored or of snapshots; or bootstrap servers HOST:PORT[,HOST:PORT].
        group: the group.
        topics: names of topics, or their numbers of partitions by name.
        missing: "earliest", "latest", or "none": raise NoSuchOffset.
        options: options of Kafka's clients for the cluster, as security.protocol.

    Raises NoSuchStore, NotAStore, or for a cluster ConfigError and the errors of `Cluster`; NoSuchGroup for a share
    group; NoSuchOffset for a topic without a committed offset whose number of partitions is not known; InvalidRequest
    for another value of ``missing``.
    """
    if missing not in {*_RESETS, "none"}:
        raise InvalidRequest(f"missing={missing!r} is not allowed: it takes earliest, latest or none")
    names = [topics] if isinstance(topics, str) else list(topics)
    counts = dict(topics) if isinstance(topics, Mapping) else {}
    if are_bootstrap_servers(store):
        with Cluster(KafkaOptions(str(store), options or {})) as cluster:
            of_group = fetch_group_offsets(cluster, [group])[group]
            committed = {TopicPartition(*where): offset for where, (offset, _, _) in of_group.items()}
            for known in cluster.topics(names).values():
                counts[known.name] = max(counts.get(known.name, 0), len(known.partitions))
    else:
        committed = dict(_committed(str(store), group))
    found: dict[str, dict[str, int]] = {}
    for topic in names:
        of_topic = {where.partition: offset for where, offset in committed.items() if where.topic == topic}
        count = max([counts.get(topic, 0), *(partition + 1 for partition in of_topic)])
        if not count:
            raise NoSuchOffset(
                f"group {group} has no committed offset of topic {topic} in {store}; "
                f"name the topic's number of partitions: {{{topic!r}: 6}}"
            )
        if missing == "none" and len(of_topic) < count:
            without = next(partition for partition in range(count) if partition not in of_topic)
            raise NoSuchOffset(f"group {group} has no committed offset for {topic}-{without} in {store}; commit one")
        reset = _RESETS.get(missing, 0)
        found[topic] = {str(partition): of_topic.get(partition, reset) for partition in range(count)}
    return json.dumps(found)


def _committed(location: str, group: str) -> Mapping[TopicPartition, int]:
    reader = StateReader(location)
    if reader.properties.kind != OWNED:
        return mirrored_group_offsets(reader, [group])[group].offsets
    store = OwnedStore.open(location)
    partitions = {store.partition_for(group)}
    with Coordinator.open(store, partitions=partitions, housekeeping=False) as coordinator:
        return owned_group_offsets(coordinator, [group])[group].offsets
