"""Offsets of Kafka sources of a Structured Streaming query, as Spark writes them: `{"orders":{"0":42}}`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from offsets_pipeline.common.input_text import INT32_MAX, parse_json, whole_number
from offsets_pipeline.coordinator.requests import OffsetAndMetadata
from offsets_pipeline.errors import StoreMismatch
from offsets_pipeline.semantics.partition_state import TopicPartition

if TYPE_CHECKING:
    #: The next offset of each partition of a source.
    SourceOffsets = Mapping[TopicPartition, int]

_MAX_OFFSET = 2**63 - 1
#: Partitions of one commit: a broker takes the records of a commit as one batch of at most 1 MiB.
_PARTITIONS_OF_COMMIT = 2_000


@dataclass(frozen=True, slots=True)
class CompletedBatch:
    """A completed batch of a query: the end offsets of its Kafka sources.

    ``offsets`` has them by source: its name, or else its number in the query, counted from 0. ``time_ms`` is the
    batch's time in ms since 1970; None if it is unknown.
    """

    batch_id: int
    time_ms: int | None
    offsets: Mapping[str, SourceOffsets]


@dataclass(frozen=True, slots=True)
class BatchMark:
    """The metadata of a commit that a query's batch made: the ids of query, source and batch.

    ``query_id`` and ``source`` are None if they are unknown.
    """

    query_id: str | None
    source: str | None
    batch_id: int

    def as_metadata(self) -> str:
        """The text that `parse` reads."""
        return json.dumps({"query": self.query_id, "source": self.source, "batch": self.batch_id})

    @classmethod
    def parse(cls, metadata: str) -> Self | None:
        """The mark in the metadata of a commit; None for a commit of another origin."""
        try:
            found = parse_json(metadata)
            query, source, batch = found["query"], found["source"], found["batch"]
        except (ValueError, LookupError, TypeError):
            return None
        is_mark = isinstance(query, str | None) and isinstance(source, str | None) and _is_number(batch)
        return cls(query, source, batch) if is_mark else None


def parse_kafka_offsets(text: str) -> dict[TopicPartition, int] | None:
    """The offsets in the JSON of a source; None if it is not a Kafka source.

    Raises ValueError for incomplete JSON, and for an offset that no Kafka topic has.
    """
    if not text.startswith("{"):
        return None  # Kafka's are objects; other sources also write numbers and texts
    found = parse_json(text)
    if not (found and all(isinstance(each, dict) and each for each in found.values())):
        return None
    if not all(_is_partition(key) and _is_number(value) for each in found.values() for key, value in each.items()):
        return None
    offsets = {TopicPartition(topic, int(key)): value for topic, each in found.items() for key, value in each.items()}
    for where, offset in offsets.items():
        if not 0 <= offset <= _MAX_OFFSET:
            raise ValueError(f"{offset} is not an offset of {where}")
    return offsets


def _is_partition(key: str) -> bool:
    try:
        whole_number(key, INT32_MAX)
    except ValueError:
        return False
    return True


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def refuse_shared_topics(sources: Mapping[str, SourceOffsets], what: str, remedy: str) -> None:
    """Raise StoreMismatch if two sources read one topic: a group has one offset for each partition."""
    reader: dict[str, str] = {}
    for source, offsets in sorted(sources.items()):
        for topic in dict.fromkeys(where.topic for where in offsets):
            if topic in reader:
                raise StoreMismatch(
                    f"{what} has two Kafka sources with topic {topic}, {reader[topic]} and {source}, "
                    f"but a group has one offset for each partition; {remedy}"
                )
            reader[topic] = source


def commits_of(
    batch: CompletedBatch, query_id: str | None, *, names_sources: bool = True
) -> Iterator[dict[TopicPartition, OffsetAndMetadata]]:
    """The commits of a batch, each small enough for one request. Their metadata has the batch's mark.

    ``names_sources`` is false if the sources of the batch are known by their number only, though they may have names.
    """
    offsets = {
        where: OffsetAndMetadata(
            offset,
            metadata=BatchMark(query_id, source if names_sources else None, batch.batch_id).as_metadata(),
            commit_timestamp_ms=batch.time_ms,
        )
        for source, of_source in batch.offsets.items()
        for where, offset in of_source.items()
    }
    places = sorted(offsets)
    for start in range(0, len(places), _PARTITIONS_OF_COMMIT):
        yield {where: offsets[where] for where in places[start : start + _PARTITIONS_OF_COMMIT]}
