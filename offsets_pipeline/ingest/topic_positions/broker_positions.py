"""Positions from a running broker, for a reset of offsets or the start of a consumer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from offsets_pipeline.common.input_text import opened_text, shown
from offsets_pipeline.errors import MalformedFile
from offsets_pipeline.ingest.topic_positions.positions import Position, Positions, TimedOffset
from offsets_pipeline.kafka.broker.cluster import Cluster, answered
from offsets_pipeline.kafka.broker.log_offsets import bounds_of_topics, epoch_ends, list_offsets
from offsets_pipeline.semantics.partition_state import TopicPartition

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.kafka.broker.cluster import Place
    from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions


def ask_broker(
    options: KafkaOptions,
    topics: Collection[str],
    time_ms: int | None = None,
    leader_epochs: Mapping[Place, int] = MappingProxyType({}),
) -> Positions:
    """Return start and end of the partitions of these topics, and their first records at or after a time (ms).

    ``leader_epochs`` are epochs whose ends are asked, too. Leaves out topics that do not exist. Raises the errors of
    `Cluster`, also if one partition does not answer.
    """
    with Cluster(options) as cluster:
        found = positions_of(cluster, topics, time_ms)
        known = {place: epoch for place, epoch in leader_epochs.items() if TopicPartition(*place) in found.by_partition}
        ends = answered(epoch_ends(cluster, known)) if known else {}
    by_partition = {
        where: position._replace(epoch_end=ends.get(where), is_epoch_ahead=ends.get(where, 0) is None)
        for where, position in found.by_partition.items()
    }
    return Positions(found.source, by_partition)


def positions_of(cluster: Cluster, topics: Collection[str], time_ms: int | None = None) -> Positions:
    """Do as `ask_broker`, with a connected cluster."""
    bounds = answered(bounds_of_topics(cluster, topics))
    since = {} if time_ms is None else answered(list_offsets(cluster, dict.fromkeys(bounds, time_ms)))
    found = {}
    for place, each in bounds.items():
        times = () if time_ms is None else (TimedOffset(time_ms, since.get(place)),)
        found[TopicPartition(*place)] = Position(each.start, each.end, times)
    return Positions(f"the broker at {cluster.settings.at}", found)


def read_client_properties(path: Path) -> dict[str, str]:
    """Return the properties of a file with lines `name=value`. Raises NoSuchPath, MalformedFile."""
    with opened_text(path) as file:
        lines = file.read().splitlines()
    properties: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, equals, value = line.partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not equals:
            raise MalformedFile(f"{path}, line {number}: {shown(line)} is not of the form name=value")
        properties[name.strip()] = value.strip()
    return properties
