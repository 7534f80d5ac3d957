"""A connector's offsets as a worker's REST API shows them (R32)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: Prefix of the consumer group of a sink connector.
SINK_GROUP_PREFIX = "connect-"


@dataclass(frozen=True)
class ConnectorOffset:
    """The offset of one source partition, both as JSON text.

    ``raw_keys`` are all keys under which the log has a value for it; a reset has to delete each.
    """

    source_partition: str
    source_offset: str
    raw_keys: tuple[str, ...]


def source_answer(offsets: Iterable[tuple[str, str]]) -> dict[str, list[Any]]:
    """The answer to `GET /connectors/{name}/offsets` of a source connector, by pairs of partition and offset in JSON.

    As a worker does, leaves out an offset without a source partition.
    """
    return {
        "offsets": [
            {"partition": json.loads(partition), "offset": json.loads(offset)}
            for partition, offset in offsets
            if partition != "null"
        ]
    }


def sink_answer(offsets: Mapping[tuple[str, int], int]) -> dict[str, list[Any]]:
    """The answer to `GET /connectors/{name}/offsets` of a sink connector, by its group's offsets."""
    return {
        "offsets": [
            {"partition": {"kafka_partition": partition, "kafka_topic": topic}, "offset": {"kafka_offset": offset}}
            for (topic, partition), offset in sorted(offsets.items())
        ]
    }


def connector_type(settings: Mapping[str, object]) -> str:
    """``source`` or ``sink``, by a connector's settings: the class's name, or topics to read.

    MirrorMaker gives all its connectors, which are sources, the topics that it mirrors.
    """
    name = str(settings.get("connector.class", "")).rpartition(".")[2]
    if "Source" in name or name.startswith(("MirrorCheckpoint", "MirrorHeartbeat")):
        return "source"
    return "sink" if "Sink" in name or "topics" in settings or "topics.regex" in settings else "source"


def sink_group(connector: str) -> str:
    """The consumer group of a sink connector without `consumer.override.group.id` (R32)."""
    return f"{SINK_GROUP_PREFIX}{connector}"
