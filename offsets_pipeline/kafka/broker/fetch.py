"""Fetch raw record batches from a partition's leader: the same bytes as its segment files have.

The isolation level is read_uncommitted, so the bytes include control records, and records of open and aborted
transactions. `offsets_pipeline.kafka.record` decodes them.

`first_records` finds timestamps of records in batched fetches: one batch a partition is enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from kafka.protocol.consumer import FetchRequest

from offsets_pipeline.common.closing import Closing
from offsets_pipeline.errors import KafkaFailed, OffsetsError
from offsets_pipeline.kafka.broker.broker_errors import NO_ERROR, OFFSET_OUT_OF_RANGE, broker_error, is_retriable
from offsets_pipeline.kafka.broker.client_settings import FetchLimits
from offsets_pipeline.kafka.broker.connection import NONE, Message
from offsets_pipeline.kafka.broker.log_offsets import LogBounds, by_topic, log_bounds
from offsets_pipeline.kafka.record.batch import LOG_OVERHEAD, MAGIC_END, Batch, examine, length_of, offset_of
from offsets_pipeline.kafka.record.segment import read_segment

if TYPE_CHECKING:
    from offsets_pipeline.kafka.broker.cluster import Cluster, Place, TopicMetadata
    from offsets_pipeline.kafka.broker.connection import Connection

LAST_VERSION_WITH_NAMES = 12  # later versions name a topic by its id
_NO_SESSION_EPOCH = -1
_READ_UNCOMMITTED = 0
_MOST_BYTES = 2**30  # of a fetch, whose limits are int32
_FIRST_BYTES = 16 * 1024  # of a partition: holds the batch of most producers
_GROWTH = 16
_PARTITIONS = 1_000  # of a request


class FetchProblem(Enum):
    """Why a partition returned no records."""

    STALE_METADATA = "the broker does not lead the partition, or in another epoch: refresh the metadata and retry"
    OUT_OF_RANGE = "the position is below the log start offset or above the log end offset"


@dataclass(frozen=True, slots=True)
class FetchPosition:
    """Start of a fetch: a record offset, and the leader epoch of the metadata; with None the epoch is not checked."""

    offset: int
    leader_epoch: int | None


@dataclass(frozen=True, slots=True)
class Fetched:
    """Response of one partition.

    `records` are whole batches. The first may start below the position that was asked for: skip these records. The
    last batch has a valid checksum, unless none has; it starts at the byte `good_at`. `next_offset` is the position
    after the last batch, or the requested position if there are no batches. The high watermark is None for a problem.
    """

    records: bytes
    next_offset: int
    high_watermark: int | None
    problem: FetchProblem | None = None
    good_at: int | None = None


class Fetcher(Closing):
    """Fetches partitions of one topic from one broker, over a connection of its own.

    One thread uses it. Another may call `close`: a fetch that waits then raises BrokerUnreachable.
    """

    def __init__(self, cluster: Cluster, topic: TopicMetadata, node_id: int) -> None:
        self._topic = topic
        self._limits = cluster.settings.fetch
        self._connection = cluster.connect(node_id)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def fetch(self, positions: Mapping[int, FetchPosition], limits: FetchLimits | None = None) -> dict[int, Fetched]:
        """Fetch from these positions, in this order: the broker stops at its limit of bytes.

        Waits up to `max_wait_ms` while there are fewer than `min_bytes`. A broker returns at least the first batch of
        the first partition that has records, whatever its size.

        Raises NotAuthorized, KafkaFailed for other errors of the broker, and the errors of `Connection`.
        """
        chosen = limits or self._limits
        answers = self._send(positions, chosen)
        if answers is None:
            stale = FetchProblem.STALE_METADATA
            return {at: Fetched(b"", each.offset, None, stale) for at, each in positions.items()}
        return {
            partition: self._fetched(answers[partition], each, chosen)
            for partition, each in positions.items()
            if partition in answers
        }

    def _send(self, positions: Mapping[int, FetchPosition], limits: FetchLimits) -> dict[int, Message] | None:
        """The answers by partition; None if the metadata is stale."""
        # a broker older than topic ids, or metadata from one
        max_version = None if self._topic.uuid is not None else LAST_VERSION_WITH_NAMES
        partitions = {partition: (each, limits.max_partition_bytes) for partition, each in positions.items()}
        request = fetch_request([fetch_topic(self._topic, partitions)], limits)
        answer = self._connection.send(request, max_version=max_version, wait_seconds=limits.max_wait_ms / 1000)
        if is_retriable(answer.error_code):
            return None
        if answer.error_code:
            raise self._error(answer.error_code)
        return {each.partition_index: each for topic in answer.responses for each in topic.partitions}

    def _fetched(self, answer: Message, position: FetchPosition, limits: FetchLimits) -> Fetched:
        if answer.error_code == OFFSET_OUT_OF_RANGE:
            return Fetched(b"", position.offset, None, FetchProblem.OUT_OF_RANGE)
        if is_retriable(answer.error_code):
            return Fetched(b"", position.offset, None, FetchProblem.STALE_METADATA)
        if answer.error_code != NO_ERROR:
            raise self._error(answer.error_code, answer.partition_index)
        data = answer.records or b""
        batches = whole_batches(data)
        if data and not batches:
            raise KafkaFailed(
                f"{self._connection.at} returned a part of a batch for partition {answer.partition_index} of topic "
                f"{self._topic.name} at record offset {position.offset}: set max.partition.fetch.bytes above "
                f"{len(data)}"
            )
        good, next_offset = last_good(data, batches)
        if batches and next_offset <= position.offset and not isinstance(_examined(data, batches[0]), Batch):
            return self._fetched_damage(answer.partition_index, position, limits)
        good_at = good.start if good.end else None
        return Fetched(data[: good.end], max(next_offset, position.offset), answer.high_watermark, good_at=good_at)

    def _fetched_damage(self, partition: int, position: FetchPosition, limits: FetchLimits) -> Fetched:
        """Fetch a partition that answered with a damaged batch, and with no sound one that reaches the position.

        The header of a damaged batch is not enough to continue after it: its last offset may be wrong. So this fetches
        more, up to the next sound batch.
        """
        size = limits.max_partition_bytes
        while True:
            size = min(2 * size, _MOST_BYTES)
            larger = replace(limits, max_wait_ms=0, max_bytes=size, max_partition_bytes=size)
            answer = self._alone(partition, position, larger)
            if answer is None:
                return Fetched(b"", position.offset, None, FetchProblem.STALE_METADATA)
            data = answer.records or b""
            batches = whole_batches(data)
            good, next_offset = last_good(data, batches)
            end = good.end
            if next_offset <= position.offset and batches and len(data) < size:
                # the end of the log, or of its segment: a broker does not read on in the next one
                returned = {offset_of(data, each.start) for each in batches}
                next_offset = self._first_behind(partition, position, returned, answer.high_watermark, limits)
                end = batches[-1].end
            if next_offset > position.offset or size == _MOST_BYTES:
                return Fetched(data[:end], max(next_offset, position.offset), answer.high_watermark)

    def _first_behind(
        self,
        partition: int,
        position: FetchPosition,
        batches: AbstractSet[int],
        high_watermark: int,
        limits: FetchLimits,
    ) -> int:
        """The lowest record offset for which the broker returns none of these batches first, by their base offsets."""
        before, behind = position.offset, high_watermark
        one_batch = replace(limits, max_wait_ms=0, max_bytes=1, max_partition_bytes=1)
        while behind - before > 1:
            middle = (before + behind) // 2
            answer = self._alone(partition, replace(position, offset=middle), one_batch)
            if answer is not None and answer.records and offset_of(answer.records, 0) in batches:
                before = middle
            else:
                behind = middle
        return behind

    def _alone(self, partition: int, position: FetchPosition, limits: FetchLimits) -> Message | None:
        """The answer of one partition; None if it has an error."""
        answer = (self._send({partition: position}, limits) or {}).get(partition)
        return answer if answer is not None and answer.error_code == NO_ERROR else None

    def _error(self, code: int, partition: int | None = None) -> Exception:
        place = (
            f"topic {self._topic.name}" if partition is None else f"partition {partition} of topic {self._topic.name}"
        )
        return broker_error(code, self._connection.at, f"read {place}", "READ on it", self._topic.name)


def fetch_topic(topic: TopicMetadata, partitions: Mapping[int, tuple[FetchPosition, int]]) -> Message:
    """Return the part of a fetch request for one topic: by partition, the position and the largest number of bytes."""
    of_topic = FetchRequest.FetchTopic
    return of_topic(
        topic=topic.name,
        topic_id=topic.uuid,
        partitions=[
            of_topic.FetchPartition(
                partition=partition,
                current_leader_epoch=NONE if position.leader_epoch is None else position.leader_epoch,
                fetch_offset=position.offset,
                last_fetched_epoch=NONE,
                log_start_offset=NONE,
                partition_max_bytes=max_bytes,
            )
            for partition, (position, max_bytes) in partitions.items()
        ],
    )


def fetch_request(topics: list[Message], limits: FetchLimits) -> Message:
    """Return a request for the results of `fetch_topic`, outside of a fetch session."""
    return FetchRequest(
        max_wait_ms=limits.max_wait_ms,
        min_bytes=limits.min_bytes,
        max_bytes=limits.max_bytes,
        isolation_level=_READ_UNCOMMITTED,
        session_id=0,
        session_epoch=_NO_SESSION_EPOCH,
        topics=topics,
        forgotten_topics_data=[],
        rack_id="",  # with a rack a leader may refer us to a follower
    )


class BatchBytes(NamedTuple):
    """Start and end of a batch in a fetch, by the length in its header."""

    start: int
    end: int


def whole_batches(data: bytes) -> list[BatchBytes]:
    """The whole batches. A broker cuts the last batch off where its limit of bytes is."""
    found, position, size = [], 0, len(data)
    while position + MAGIC_END <= size:
        length = length_of(data, position)
        end = position + LOG_OVERHEAD + length
        if length < 0 or end > size:
            break
        found.append(BatchBytes(position, end))
        position = end
    return found


def last_good(data: bytes, batches: Sequence[BatchBytes]) -> tuple[BatchBytes, int]:
    """The last batch with a good checksum, and the record offset after it; no bytes and 0 without such a batch."""
    for each in reversed(batches):
        found = _examined(data, each)
        if isinstance(found, Batch):
            return each, found.last_offset + 1
    return BatchBytes(0, 0), 0


def _examined(data: bytes, batch: BatchBytes) -> object:
    return examine(memoryview(data)[: batch.end], batch.start)


# --- first records


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
        request = fetch_request(topics, FetchLimits(0, 0, _MOST_BYTES, _MOST_BYTES))
        found: dict[Place, tuple[int, _Fetched | None]] = {}
        for topic in connection.send(request, max_version=LAST_VERSION_WITH_NAMES).responses:
            for each in topic.partitions:
                place = (topic.topic, each.partition_index)
                fetched = _Fetched(bytes(each.records or b""), each.high_watermark, place == at_leader[0])
                is_out = each.error_code == OFFSET_OUT_OF_RANGE
                found[place] = (NO_ERROR, None) if is_out else (each.error_code, fetched)
        return found

    return cluster.ask_leaders(positions, ask, "read the records", _PARTITIONS)
