"""Read ranges of record offsets from the leaders of their partitions, as raw record batches."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offsets_pipeline.errors import BrokerUnreachable, KafkaFailed, LogTruncated
from offsets_pipeline.kafka.broker.cluster import Cluster, answered
from offsets_pipeline.kafka.broker.fetch import Fetched, Fetcher, FetchPosition, FetchProblem
from offsets_pipeline.kafka.broker.log_offsets import epoch_ends

if TYPE_CHECKING:
    from offsets_pipeline.kafka.broker.cluster import TopicMetadata


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Record offsets of one partition, from `start` to before `end`.

    `leader_epoch` is the epoch of the leader that had all of them; None if the broker sends no epochs.
    """

    partition: int
    start: int
    end: int
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """Whole record batches of one partition, fetched at a record offset: only the range's own records count.

    The batch at the byte `good_at` has a good checksum.
    """

    range: OffsetRange
    position: int
    records: bytes
    good_at: int | None = None


def read_ranges(cluster: Cluster, topic: str, ranges: Iterable[OffsetRange]) -> Iterator[FetchedBatches]:
    """Fetch these ranges, of one partition in order, of several by turns; retries while leaders move.

    Raises LogTruncated if a new leader lacks records of a range, KafkaFailed if the log now starts behind one, and
    the errors of `Cluster`.
    """
    reader = _RangeReader(cluster, topic, ranges)
    while reader.waiting:
        with ExitStack() as fetchers:
            yield from reader.read(fetchers)
        reader.pause()


class _RangeReader:
    """Reads until nothing is `waiting`: the ranges of each partition that are not read yet, in order."""

    def __init__(self, cluster: Cluster, topic: str, ranges: Iterable[OffsetRange]) -> None:
        self._cluster = cluster
        self._topic = topic
        self.waiting: dict[int, list[OffsetRange]] = {}
        for each in ranges:
            if each.start < each.end:
                self.waiting.setdefault(each.partition, []).append(each)
        self._positions = {partition: of_partition[0].start for partition, of_partition in self.waiting.items()}
        self._failed: BrokerUnreachable | None = None
        self._is_stale = False
        self._made_progress()

    def read(self, fetchers: ExitStack) -> Iterator[FetchedBatches]:
        """Read until the metadata is stale, with new connections, which ``fetchers`` will close."""
        metadata = self._cluster.topic(self._topic)
        known = {each: FetchPosition(found[-1].end, found[-1].leader_epoch) for each, found in self.waiting.items()}
        require_same_log(self._cluster, metadata, known)
        connected: dict[int, Fetcher] = {}
        self._is_stale = False
        while not self._is_stale:
            leaders = metadata.by_leader(self.waiting)  # empty: no leader, or nothing left to read
            for node_id, partitions in leaders.items():
                try:
                    if node_id not in connected:
                        connected[node_id] = fetchers.enter_context(Fetcher(self._cluster, metadata, node_id))
                    positions = {
                        each: FetchPosition(self._positions[each], metadata.partitions[each].epoch)
                        for each in partitions
                    }
                    answers = connected[node_id].fetch(positions)
                except BrokerUnreachable as error:
                    self._failed, self._is_stale = error, True
                    continue
                is_full = False
                for partition, fetched in answers.items():
                    yield from self._take(partition, fetched, is_full=is_full)
                    # a partition with a problem may have used it up, too: the broker sent what it cannot tell
                    is_full = is_full or bool(fetched.records) or fetched.problem is not None
            self._is_stale = self._is_stale or not leaders or time.monotonic() > self._deadline

    def pause(self) -> None:
        """Wait before the metadata is asked for again. Raises BrokerUnreachable if nothing came for too long."""
        if not self.waiting:
            return
        if time.monotonic() > self._deadline:
            self._cluster.distrust()
            raise self._failed or BrokerUnreachable(
                f"cannot read partition {min(self.waiting)} of topic {self._topic}: no leader answers at "
                f"{self._cluster.settings.at}; check the brokers"
            )
        time.sleep(self._cluster.settings.backoff_seconds)

    def _take(self, partition: int, fetched: Fetched, *, is_full: bool) -> Iterator[FetchedBatches]:
        """Take one partition's answer. ``is_full``: an earlier partition may have used up the limit of bytes."""
        position, ranges = self._positions[partition], self.waiting[partition]
        if fetched.problem is FetchProblem.OUT_OF_RANGE:
            raise KafkaFailed(
                f"cannot read record {position} of partition {partition} of topic {self._topic}: the log at "
                f"{self._cluster.settings.at} no longer has it"
            )
        if fetched.problem is not None:
            self._is_stale = True
            return
        if fetched.records:
            if fetched.next_offset <= position:
                raise KafkaFailed(
                    f"cannot read record {position} of partition {partition} of topic {self._topic}: the record batch "
                    f"that {self._cluster.settings.at} returned does not reach it; check the broker's log with "
                    "kafka-dump-log.sh"
                )
            yield FetchedBatches(ranges[0], position, fetched.records, fetched.good_at)
            self._made_progress()  # only now: the caller may have taken longer than a request may
        # A cleaner may have removed the last records of the range. Then the answer is empty, whatever its limit.
        at_end = not fetched.records and not is_full and (fetched.high_watermark or 0) >= ranges[0].end
        # The next range may start within the last batch.
        position = ranges[0].end if at_end else min(fetched.next_offset, ranges[0].end)
        left = [each for each in ranges if each.end > position]
        if fetched.records or not left:
            del self.waiting[partition]
        if left:
            self.waiting[partition] = left  # as the last one after records: the broker fills its answer in this order
            self._positions[partition] = max(position, left[0].start)

    def _made_progress(self) -> None:
        self._deadline = time.monotonic() + self._cluster.settings.api_seconds


def require_same_log(cluster: Cluster, metadata: TopicMetadata, known: Mapping[int, FetchPosition]) -> None:
    """Raise LogTruncated if a partition is gone, or a later leader lacks records before one of these positions.

    An unclean election may choose a leader that lacks records, also committed ones. Its log may have grown past the
    position since: only the end of the old leader's epoch reveals it. A partition without a leader has no answer yet.
    """
    gone = known.keys() - metadata.partitions.keys()
    if gone:
        raise LogTruncated(f"topic {metadata.name} has no partition {min(gone)} now: it was created again")
    doubtful = {
        (metadata.name, partition): known_epoch
        for partition in metadata.led(known)
        if (known_epoch := known[partition].leader_epoch) is not None
        and metadata.partitions[partition].epoch != known_epoch
    }
    for (topic, partition), end in answered(epoch_ends(cluster, doubtful)).items():
        epoch, leader = doubtful[topic, partition], metadata.partitions[partition]
        if end is not None and end < known[partition].offset:
            raise LogTruncated(
                f"partition {partition} of topic {topic} has another log before record "
                f"{known[partition].offset}: its new leader has only the records before {end} of leader epoch {epoch}"
            )
        if end is None and leader.is_before(epoch):
            raise LogTruncated(
                f"partition {partition} of topic {topic} has another log: its leader epoch is {leader.epoch}, and was "
                f"{epoch}"
            )
