"""The answering record of each offset, and a connector's offsets as a worker's REST API shows them (R30, R32)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Prefix of the consumer group of a sink connector.
SINK_GROUP_PREFIX = "connect-"


class OffsetRecord(NamedTuple):
    """The last record of a raw key of an offset, in one log partition; a ``value`` of None is a tombstone."""

    connector: str
    source_partition: str
    raw_key: str
    value: str | None
    record_timestamp_us: int | None
    record_offset: int
    log_partition: int


@dataclass(frozen=True)
class ConnectorOffset:
    """The offset of one source partition, both as JSON text.

    ``raw_keys`` are all keys under which the log has a value for it; a reset has to delete each.
    """

    source_partition: str
    source_offset: str
    raw_keys: tuple[str, ...]


def answering_offsets(records: Iterable[OffsetRecord], *, is_owned: bool = False) -> dict[str, list[ConnectorOffset]]:
    """The offsets of each connector, by connector and source partition; an empty list if all are deleted.

    Of several records of one identity the one with the latest timestamp answers, then the higher record offset; in an
    owned store only the record offset counts (R30).
    """
    age = attrgetter("record_offset") if is_owned else _age
    by_identity: dict[tuple[str, str], list[OffsetRecord]] = {}
    for record in records:
        by_identity.setdefault((record.connector, record.source_partition), []).append(record)
    found: dict[str, list[ConnectorOffset]] = {}
    for (connector, source_partition), each in sorted(by_identity.items()):
        offsets = found.setdefault(connector, [])
        newest = max(each, key=age)
        if newest.value is not None:
            raw_keys = tuple(sorted({record.raw_key for record in each if record.value is not None}))
            offsets.append(ConnectorOffset(source_partition, newest.value, raw_keys))
    return found


def _age(record: OffsetRecord) -> tuple[int, int, int]:
    timestamp = -1 if record.record_timestamp_us is None else record.record_timestamp_us
    return timestamp, record.record_offset, record.log_partition


def source_answer(offsets: Iterable[ConnectorOffset]) -> dict[str, list[Any]]:
    """The answer to `GET /connectors/{name}/offsets` of a source connector.

    As a worker does, leaves out an offset without a source partition.
    """
    return {
        "offsets": [
            {"partition": json.loads(each.source_partition), "offset": json.loads(each.source_offset)}
            for each in offsets
            if each.source_partition != "null"
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
