"""Timestamps of the first records at or after given offsets, in batched fetches: one batch a partition is enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.errors import KafkaFailed, OffsetsError
from offsets_pipeline.kafka.broker.broker_errors import NO_ERROR, OFFSET_OUT_OF_RANGE
from offsets_pipeline.kafka.broker.fetch import (
    LAST_VERSION_WITH_NAMES,
    FetchPosition,
    fetch_request,
    fetch_topic,
    whole_batches,
)
from offsets_pipeline.kafka.broker.log_offsets import LogBounds, by_topic, log_bounds
from offsets_pipeline.kafka.record.segment import read_segment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsets_pipeline.kafka.broker.cluster import Cluster, Place, TopicMetadata
    from offsets_pipeline.kafka.broker.connection import Connection

_FIRST_BYTES = 16 * 1024  # of a partition: holds the batch of most producers
_MOST_BYTES = 2**30
_GROWTH = 16
_PARTITIONS = 1_000  # of a request


class FirstRecord(NamedTuple):
    """The first data record at or after an offset; the timestamp is in ms, None if the record has none."""

    offset: int
    timestamp_ms: int | None


class _Fetched(NamedTuple):
    """``records`` may end with a part of a batch.

    ``is_first``: of the first partition of its request, which gets a whole batch if there is any.
    """

    records: bytes
    high_watermark: int
    is_first: bool


#: The first record; None if there is none: only control records follow, or nothing does.
FoundRecord = FirstRecord | OffsetsError | None


def first_records(cluster: Cluster, offsets: Mapping[Place, int]) -> dict[Place, FoundRecord]:
    """The first data record at or after an offset of each partition; None if no such record follows.

    Control records do not count: they are markers of transactions. Records of open and aborted transactions do. An
    offset that the log no longer holds stands for the log start. A partition that does not answer has its error.

    Raises the errors of `Cluster`.
    """
    search = _Search(offsets)
    while search.positions:
        # a broker returns a whole batch, whatever its size, of the first partition only
        order = sorted(search.positions, key=lambda place: -search.limits[place])
        answers = _fetched(cluster, {place: search.positions[place] for place in order}, search.limits)
        search.take(answers)
        search.move(log_bounds(cluster, [place for place, answer in answers.items() if answer is None]))
    return search.found


class _Search:
    """Position and size of the next fetch by partition, and the records found so far."""

    def __init__(self, offsets: Mapping[Place, int]) -> None:
        self.positions = dict(offsets)
        self.limits = dict.fromkeys(offsets, _FIRST_BYTES)
        self.found: dict[Place, FoundRecord] = {}

    def take(self, answers: Mapping[Place, _Fetched | OffsetsError | None]) -> None:
        """Take the answers of one round; None is one out of range."""
        for place, answer in answers.items():
            if isinstance(answer, OffsetsError):
                self._end(place, answer)
            elif answer is not None:
                record, position = _first_in(answer.records, self.positions[place])
                if record is not None or (position >= answer.high_watermark and not answer.records):
                    self._end(place, record)
                elif position > self.positions[place]:
                    self.positions[place] = position
                else:
                    self._fetch_more(place, answer)

    def move(self, bounds: Mapping[Place, LogBounds | OffsetsError]) -> None:
        """Continue at the log start where the log no longer holds a position."""
        for place, each in bounds.items():
            if isinstance(each, OffsetsError):
                self._end(place, each)
            elif each.start > self.positions[place]:
                self.positions[place] = each.start
            else:
                self._end(place, None)

    def _fetch_more(self, place: Place, answer: _Fetched) -> None:
        is_last = answer.is_first or self.limits[place] >= _MOST_BYTES
        if not answer.records and is_last:
            self._end(place, None)  # a cleaner removed the records up to the end
        elif is_last or whole_batches(answer.records):
            damaged = f"the record batch at offset {self.positions[place]} of partition {place[1]} of topic {place[0]}"
            self._end(place, KafkaFailed(f"{damaged} is damaged; check the broker's log with kafka-dump-log.sh"))
        else:
            self.limits[place] = min(_GROWTH * self.limits[place], _MOST_BYTES)

    def _end(self, place: Place, found: FoundRecord) -> None:
        self.found[place] = found
        del self.positions[place]


def _first_in(data: bytes, position: int) -> tuple[FirstRecord | None, int]:
    """The first data record at or after a position, and the position after the batches without such a record."""
    for batch in whole_batches(data):
        segment = read_segment(data[batch.start : batch.end], source="a fetch", max_records=2**31)
        for rows in segment.batches():
            columns = rows.select(["record_offset", "record_timestamp", "control_type"]).columns
            offsets, control_types = columns[0].to_pylist(), columns[2].to_pylist()
            for row, (offset, control_type) in enumerate(zip(offsets, control_types, strict=True)):
                if control_type is None and offset >= position:
                    return FirstRecord(offset, columns[1][row].value), position
        if segment.end_offset is not None:
            position = max(position, segment.end_offset)
    return None, position


def _fetched(
    cluster: Cluster, positions: Mapping[Place, int], limits: Mapping[Place, int]
) -> dict[Place, _Fetched | OffsetsError | None]:
    """An answer for each position; None if the log does not hold it."""

    def ask(
        connection: Connection, metadata: Mapping[str, TopicMetadata], at_leader: list[Place]
    ) -> dict[Place, tuple[int, _Fetched | None]]:
        topics = []
        for name, partitions in by_topic(at_leader).items():
            epochs = {at: metadata[name].partitions[at].epoch for at in partitions}
            wanted = {at: (FetchPosition(positions[name, at], epochs[at]), limits[name, at]) for at in partitions}
            topics.append(fetch_topic(metadata[name], wanted))
        request = fetch_request(topics, min_bytes=0, max_wait_ms=0, max_bytes=_MOST_BYTES)
        found: dict[Place, tuple[int, _Fetched | None]] = {}
        for topic in connection.send(request, max_version=LAST_VERSION_WITH_NAMES).responses:
            for each in topic.partitions:
                place = (topic.topic, each.partition_index)
                fetched = _Fetched(bytes(each.records or b""), each.high_watermark, place == at_leader[0])
                is_out = each.error_code == OFFSET_OUT_OF_RANGE
                found[place] = (NO_ERROR, None) if is_out else (each.error_code, fetched)
        return found

    return cluster.ask_leaders(positions, ask, "read the records", _PARTITIONS)
