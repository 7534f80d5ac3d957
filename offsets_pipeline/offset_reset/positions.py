"""Where the partitions of topics begin and end, and which of their records came first at or after a time.

An offsets log does not tell: a broker does (`broker_positions`), or a file that was written where there is one. The
file is CSV with a header: `topic,partition,earliest,latest`, then as many columns as wanted that are named by a time
(ISO 8601, or milliseconds since 1970) and hold the offset of the first record at or after it, nothing where no record
is that young. It is what `kafka-get-offsets --time` answers for earliest, latest and each of the times.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.clock import parse_time_ms
from offsets_pipeline.coordinator.requests import validated_partition
from offsets_pipeline.errors import InvalidTime, MalformedFile, UnknownTopicOrPartition
from offsets_pipeline.offset_reset.csv_file import malformed, number, read_rows

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from offsets_pipeline.semantics.partition_state import TopicPartition

_HEADER = ["topic", "partition", "earliest", "latest"]


class TimedOffset(NamedTuple):
    """The offset of the first record at or after a time (ms); None where no record is that young."""

    time_ms: int
    offset: int | None


class Position(NamedTuple):
    """Where a partition begins (its first record) and ends (the next one that is written); times in order."""

    earliest: int
    latest: int
    times: tuple[TimedOffset, ...] = ()


@dataclass(frozen=True)
class Positions:
    """Positions by partition, and who told them."""

    source: str
    by_partition: Mapping[TopicPartition, Position]

    @cached_property
    def _by_topic(self) -> dict[str, list[TopicPartition]]:
        found: dict[str, list[TopicPartition]] = {}
        for where in self.by_partition:
            found.setdefault(where.topic, []).append(where)
        return found

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic. Raises UnknownTopicOrPartition for a topic that is not known."""
        found = self._by_topic.get(topic)
        if found is None:
            raise UnknownTopicOrPartition(f"{self.source} knows no topic {topic!r}")
        return found

    def of(self, where: TopicPartition) -> Position:
        """The position of a partition. Raises UnknownTopicOrPartition for one that is not known."""
        found = self.by_partition.get(where)
        if found is None:
            raise UnknownTopicOrPartition(f"{self.source} knows no partition {where.topic}-{where.partition}")
        return found


def read_positions(path: Path) -> Positions:
    """The positions that a file tells. Raises NoSuchPath, and MalformedFile with the line that is wrong."""
    rows = read_rows(path)
    line, header = next(rows, (1, []))
    if [name.strip() for name in header[: len(_HEADER)]] != _HEADER:
        raise malformed(path, line, f"the header has to begin with {','.join(_HEADER)}")
    times = [_time(path, line, name.strip()) for name in header[len(_HEADER) :]]
    if len(set(times)) < len(times):
        raise malformed(path, line, "the header names a time twice")
    found: dict[TopicPartition, Position] = {}
    for line, row in rows:
        if len(row) != len(header):
            raise malformed(path, line, f"{len(row)} fields, the header has {len(header)}")
        try:
            where = validated_partition((row[0], number(path, line, "partition", row[1])))
        except UnknownTopicOrPartition as error:
            raise malformed(path, line, str(error)) from None
        if where in found:
            raise malformed(path, line, f"{where.topic}-{where.partition} has a line already")
        found[where] = _position(path, line, row[len(_HEADER) - 2 :], times)
    if not found:
        raise MalformedFile(f"{path} tells of no partition")
    return Positions(str(path), found)


def _time(path: Path, line: int, name: str) -> int:
    try:
        return parse_time_ms(name)
    except InvalidTime as error:
        raise malformed(path, line, str(error)) from None


def _position(path: Path, line: int, fields: list[str], times: list[int]) -> Position:
    earliest, latest = (number(path, line, name, text) for name, text in zip(_HEADER[2:], fields[:2], strict=True))
    if earliest > latest:
        raise malformed(path, line, f"earliest {earliest} lies behind latest {latest}")
    timed = sorted(
        TimedOffset(time_ms, number(path, line, "offset", text) if text.strip() else None)
        for time_ms, text in zip(times, fields[2:], strict=True)
    )
    reached = earliest
    for each in timed:
        offset = latest if each.offset is None else each.offset
        if not reached <= offset <= latest:
            raise malformed(
                path, line, f"offset {offset} is not from {reached} to {latest}: with time, offsets go up to the latest"
            )
        reached = offset
    return Position(earliest, latest, tuple(timed))
