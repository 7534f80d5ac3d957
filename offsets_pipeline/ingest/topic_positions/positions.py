"""Start and end of topics' partitions, and offsets of the first records at or after a time.

The offsets log does not have them. They come from a broker (`broker_positions`) or from a CSV file. The header of the
file is `topic,partition,earliest,latest` and any number of times (ISO 8601, or milliseconds since 1970). A column with
a time as its name has the offset of the first record at or after it, empty if no record is that late.
`kafka-get-offsets --time` prints these numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.common.clock import parse_time_ms
from offsets_pipeline.coordinator.requests import validated_partition
from offsets_pipeline.errors import MalformedFile, UnknownTopicOrPartition
from offsets_pipeline.ingest.topic_positions.csv_file import CsvRow, read_rows

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.semantics.partition_state import TopicPartition

_HEADER = ["topic", "partition", "earliest", "latest"]


class TimedOffset(NamedTuple):
    """Offset of the first record at or after a time (ms), None if no record is that late."""

    time_ms: int
    offset: int | None


class Position(NamedTuple):
    """Offsets of a partition's first record and of its next record; times in order.

    ``epoch_end`` is the end of the leader epoch in which an offset was committed; None if not asked for or not known.
    ``is_epoch_ahead``: the leader does not have that epoch, because it is later than its own.
    """

    earliest: int
    latest: int
    times: tuple[TimedOffset, ...] = ()
    epoch_end: int | None = None
    is_epoch_ahead: bool = False


@dataclass(frozen=True)
class Positions:
    """Positions by partition; ``source`` is the file or broker, for messages."""

    source: str
    by_partition: Mapping[TopicPartition, Position]

    @cached_property
    def _by_topic(self) -> dict[str, list[TopicPartition]]:
        found: dict[str, list[TopicPartition]] = {}
        for where in self.by_partition:
            found.setdefault(where.topic, []).append(where)
        return found

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of a topic. Raises UnknownTopicOrPartition."""
        found = self._by_topic.get(topic)
        if found is None:
            raise UnknownTopicOrPartition(f"{self.source} has no topic {topic!r}")
        return found

    def of(self, where: TopicPartition) -> Position:
        """Return the position of a partition. Raises UnknownTopicOrPartition."""
        found = self.by_partition.get(where)
        if found is None:
            raise UnknownTopicOrPartition(f"{self.source} has no partition {where}")
        return found


def read_positions(path: Path) -> Positions:
    """Return the positions of a file. Raises NoSuchPath, and MalformedFile with the number of the wrong line."""
    rows = read_rows(path)
    header = next(rows, CsvRow(path, 1, []))
    if [name.strip() for name in header.fields[: len(_HEADER)]] != _HEADER:
        raise header.malformed(f"the header has to begin with {','.join(_HEADER)}")
    with header.checked():
        times = [parse_time_ms(name.strip()) for name in header.fields[len(_HEADER) :]]
    if len(set(times)) < len(times):
        raise header.malformed("the header names a time twice")
    found: dict[TopicPartition, Position] = {}
    for row in rows:
        if len(row.fields) != len(header.fields):
            raise row.malformed(f"{len(row.fields)} fields, the header has {len(header.fields)}")
        with row.checked():
            where = validated_partition((row.fields[0], row.number("partition", row.fields[1])))
        if where in found:
            raise row.malformed(f"{where} has a line already")
        found[where] = _position(row, times)
    if not found:
        raise MalformedFile(f"{path} has no partitions: add a line for each")
    return Positions(str(path), found)


def _position(row: CsvRow, times: list[int]) -> Position:
    fields = row.fields[len(_HEADER) - 2 :]
    earliest, latest = (row.number(name, text) for name, text in zip(_HEADER[2:], fields[:2], strict=True))
    if earliest > latest:
        raise row.malformed(f"earliest {earliest} is above latest {latest}")
    timed = sorted(
        TimedOffset(time_ms, row.number("offset", text) if text.strip() else None)
        for time_ms, text in zip(times, fields[2:], strict=True)
    )
    reached = earliest
    for each in timed:
        offset = latest if each.offset is None else each.offset
        if not reached <= offset <= latest:
            raise row.malformed(
                f"offset {offset} is not from {reached} to {latest}: offsets grow with time, up to the latest"
            )
        reached = offset
    return Position(earliest, latest, tuple(timed))
