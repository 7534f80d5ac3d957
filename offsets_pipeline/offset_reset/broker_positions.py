"""Positions from a running broker, by the optional library confluent-kafka."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from offsets_pipeline.errors import BrokerUnreachable, ClientMissing, MalformedFile, NoSuchPath
from offsets_pipeline.offset_reset.positions import Position, Positions, TimedOffset
from offsets_pipeline.semantics.partition_state import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path
    from types import ModuleType

_TIMEOUT_SECONDS = 10
_NO_OFFSET = -1
#: librdkafka also writes to stderr the errors that it raises: only write those that end the process.
_QUIET = {"log_level": 0}


def ask_broker(
    bootstrap_servers: str,
    topics: Collection[str],
    time_ms: int | None = None,
    properties: Mapping[str, str] | None = None,
) -> Positions:
    """Return start and end of the partitions of these topics, and their first records at or after a time (ms).

    Leaves out topics that do not exist. ``properties`` are librdkafka's. Raises ClientMissing, BrokerUnreachable.
    """
    kafka, admin = _client()
    source = f"the broker at {bootstrap_servers}"
    try:
        asked = admin.AdminClient({**_QUIET, **(properties or {}), "bootstrap.servers": bootstrap_servers})
        # lists all topics: a request for a topic that does not exist could create it
        listed = asked.list_topics(timeout=_TIMEOUT_SECONDS).topics
        partitions = [
            TopicPartition(topic, partition)
            for topic in sorted(topics)
            if topic in listed
            for partition in listed[topic].partitions
        ]
        spec = admin.OffsetSpec
        earliest = _offsets(kafka, asked, partitions, spec.earliest())
        latest = _offsets(kafka, asked, partitions, spec.latest())
        at = {} if time_ms is None else _offsets(kafka, asked, partitions, spec.for_timestamp(time_ms))
    except kafka.KafkaException as error:
        raise BrokerUnreachable(f"{source} did not answer: {error.args[0].str()}") from None
    return Positions(
        source,
        {
            where: Position(earliest[where], latest[where], _times(time_ms, at.get(where, _NO_OFFSET)))
            for where in partitions
        },
    )


def read_client_properties(path: Path) -> dict[str, str]:
    """Return the properties of a file with lines `name=value`. Raises NoSuchPath, MalformedFile."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise NoSuchPath(f"no such file: {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise MalformedFile(f"cannot read {path}: {error}") from None
    properties: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, equals, value = line.partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not equals:
            raise MalformedFile(f"{path}, line {number}: {line!r} is not of the form name=value")
        properties[name.strip()] = value.strip()
    return properties


def _client() -> tuple[ModuleType, ModuleType]:
    try:
        return importlib.import_module("confluent_kafka"), importlib.import_module("confluent_kafka.admin")
    except ImportError:
        raise ClientMissing(
            "cannot ask a broker: confluent-kafka is not installed; run pip install confluent-kafka, "
            "or name a file with --positions"
        ) from None


def _offsets(
    kafka: ModuleType,
    admin: Any,  # noqa: ANN401 - of an optional module
    partitions: Collection[TopicPartition],
    spec: object,
) -> dict[TopicPartition, int]:
    if not partitions:
        return {}
    futures = admin.list_offsets(
        {kafka.TopicPartition(where.topic, where.partition): spec for where in partitions},
        request_timeout=_TIMEOUT_SECONDS,
    )
    return {TopicPartition(asked.topic, asked.partition): future.result().offset for asked, future in futures.items()}


def _times(time_ms: int | None, offset: int) -> tuple[TimedOffset, ...]:
    return () if time_ms is None else (TimedOffset(time_ms, None if offset == _NO_OFFSET else offset),)
