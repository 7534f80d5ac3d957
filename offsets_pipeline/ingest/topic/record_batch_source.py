"""A streaming source of Spark that plans the reading of a topic up to the high watermark of its partitions.

Its driver asks for offsets only. Its rows are ranges, one row for each task. A `TopicReader` fetches and decodes them
in the same task as raw record batches: so records do not go from one Python process through the JVM to another.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from offsets_pipeline.errors import BrokerUnreachable, KafkaFailed, NoSuchTopic
from offsets_pipeline.ingest.topic.topic_append import RANGES_SCHEMA, ranges_row
from offsets_pipeline.kafka.broker.cluster import Cluster, answered
from offsets_pipeline.kafka.broker.fetch import Fetcher, FetchPosition
from offsets_pipeline.kafka.broker.log_offsets import LATEST, list_offsets
from offsets_pipeline.kafka.broker.offset_ranges import OffsetRange, require_same_log

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from offsets_pipeline.kafka.broker.cluster import TopicMetadata
    from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions

FORMAT = "kafka_record_batches"
_REGISTERING = threading.Lock()
_LOOK_SECONDS = 0.2  # between two looks whether enough records are there
_FEW_OFFSETS = 20_000  # a batch of no more is read by one task
_UNEVEN = 1.25  # times its share that a task may read so that no range is cut
#: Errors that a cluster may return for a while: the source waits, and the ingest reports them and retries. Errors of
#: authentication and authorization persist.
MAY_PASS = (BrokerUnreachable, KafkaFailed, NoSuchTopic)

Positions = dict[int, FetchPosition]
Offsets = dict[str, dict[str, int]]


@dataclass(frozen=True)
class SourceOptions:
    """The options of the source."""

    topic: str
    kafka: KafkaOptions
    starts: Positions
    max_offsets: int  # largest number of record offsets in a batch
    tasks: int = 2  # largest number of tasks of a batch
    wait_ms: int = 1000  # how long a look for new records waits for the brokers
    min_offsets: int = 1  # number of record offsets for which a batch waits
    min_offsets_wait_ms: int = 0  # how long it waits for them, from the first new record on


def parsed(offsets: Mapping[str, Mapping[str, int]]) -> Positions:
    """Offsets of the source as positions."""
    return {
        int(partition): FetchPosition(each["offset"], each["leader_epoch"] if each["leader_epoch"] >= 0 else None)
        for partition, each in offsets.items()
    }


def rendered(positions: Mapping[int, FetchPosition]) -> Offsets:
    """Positions as offsets of the source, which may hold numbers and texts only."""
    return {
        str(partition): {"offset": each.offset, "leader_epoch": -1 if each.leader_epoch is None else each.leader_epoch}
        for partition, each in sorted(positions.items())
    }


def planned_ends(checkpoint: Path, batch_id: int) -> Positions:
    """The ends of a batch. Spark writes them to the query's checkpoint before it runs the batch."""
    of_source = (checkpoint / "offsets" / str(batch_id)).read_text(encoding="utf-8").splitlines()[-1]
    return parsed(json.loads(of_source))


class RecordBatchSource(DataSource):
    """The source; see the module."""

    source_options: SourceOptions

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> str:
        """RANGES_SCHEMA."""
        return RANGES_SCHEMA

    def streamReader(self, schema: object) -> RecordBatchStreamReader:  # noqa: ARG002, N802 - Spark's
        """The reader."""
        return RecordBatchStreamReader(self.source_options)


def read_stream(spark: SparkSession, options: SourceOptions) -> DataFrame:
    """Return the stream of the source with these options.

    Registers a class that holds them: options of Spark are texts, and passwords are better not among them.
    """

    class Source(RecordBatchSource):
        source_options = options

    with _REGISTERING:  # another thread may read another topic in this session
        spark.dataSource.register(Source)
        return spark.readStream.format(FORMAT).load()


class RecordBatchStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets and reads of the source. Its offsets are those of `rendered`."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._cluster: Cluster | None = None
        self._target: Positions | None = None
        self._turn = 0
        self._waiting = _LongPolls()

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordBatchStreamReader, (self._options,)  # a task makes its own connections

    # --- in the driver

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's
        """Return the start of the first batch."""
        return rendered(self._options.starts)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """The limit of the option max_offsets."""
        return ReadMaxRows(self._options.max_offsets)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Limit the reading to the present end of the log."""
        starts = self._options.starts
        self._target = self._ends(self._topic(starts), starts)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802 - Spark's
        """Return the end of the next batch; wait for new records if there are none.

        A partition without a leader stays where it is. Returns ``start`` while no broker answers. Raises LogTruncated
        if the log before ``start`` is no longer there.
        """
        positions = parsed(start)
        try:
            if self._target is not None:
                ends = {each: self._target.get(each, position) for each, position in positions.items()}
            else:
                topic = self._topic(positions)
                ends = self._led_ends(topic, positions)
                if not _ahead(positions, ends):
                    self._waiting.wait(self._client, topic, positions, self._options.wait_ms)
                    ends = self._led_ends(self._topic(positions), positions)  # a leader may have moved meanwhile
                ends = self._gathered(positions, ends)
            limited = self._limited(positions, ends, limit)
        except MAY_PASS:
            if self._target is not None:
                raise
            time.sleep(self._options.wait_ms / 1000)
            return start
        return rendered(limited)

    def _gathered(self, positions: Positions, ends: Positions) -> Positions:
        """The ends when enough record offsets are there, or after the wait for them."""
        until = time.monotonic() + self._options.min_offsets_wait_ms / 1000
        while 0 < sum(_ahead(positions, ends).values()) < self._options.min_offsets and time.monotonic() < until:
            time.sleep(min(_LOOK_SECONDS, max(0, until - time.monotonic())))
            ends = self._led_ends(self._topic(positions), positions)
        return ends

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """The tasks of a batch: with as many record offsets each, about."""
        ranges = ranges_between(parsed(start), parsed(end))
        return [InputPartition(task) for task in shared_out(ranges, self._options.tasks)]

    def stop(self) -> None:
        """Close the connections."""
        self._waiting.close()
        if self._cluster is not None:
            self._cluster.close()

    @property
    def _client(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._options.kafka)
        return self._cluster

    def _topic(self, known: Mapping[int, FetchPosition]) -> TopicMetadata:
        """The topic, whose log still has the records before these positions."""
        topic = self._client.topic(self._options.topic)
        require_same_log(self._client, topic, known)
        return topic

    def _led_ends(self, topic: TopicMetadata, known: Mapping[int, FetchPosition]) -> Positions:
        """The present ends of those partitions of ``known`` that have a leader; if none has one, waits for all."""
        return self._ends(topic, topic.led(known) or known)

    def _ends(self, topic: TopicMetadata, wanted: Iterable[int]) -> Positions:
        """The present ends of these partitions."""
        found = answered(list_offsets(self._client, {(topic.name, each): LATEST for each in wanted}))
        return {each: FetchPosition(offset or 0, topic.partitions[each].epoch) for (_, each), offset in found.items()}

    def _limited(self, positions: Positions, ends: Positions, limit: ReadLimit) -> Positions:
        """The ends, no further than the limit allows. A log partition never goes back."""
        ahead = _ahead(positions, ends)
        if isinstance(limit, ReadMaxRows):
            ahead = shared(ahead, limit.max_rows, self._turn)
            self._turn += len(ahead)
        return {
            each: replace(ends[each], offset=at.offset + ahead[each]) if each in ahead else at
            for each, at in positions.items()
        }

    # --- in a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The row of a task."""
        yield ranges_row(partition.value)


def ranges_between(starts: Mapping[int, FetchPosition], ends: Mapping[int, FetchPosition]) -> list[OffsetRange]:
    """The ranges of a batch, by partition."""
    return [
        OffsetRange(each, starts[each].offset, ends[each].offset, ends[each].leader_epoch)
        for each in sorted(ends)
        if ends[each].offset > starts[each].offset
    ]


def are_few(ranges: Sequence[OffsetRange]) -> bool:
    """Whether one task reads the ranges."""
    return sum(each.end - each.start for each in ranges) <= _FEW_OFFSETS


def are_undivided(tasks: Sequence[Sequence[OffsetRange]]) -> bool:
    """Whether no two tasks read the same log partition."""
    partitions = [each.partition for task in tasks for each in task]
    return len(set(partitions)) == len(partitions)


def shared(ahead: Mapping[int, int], most: int, turn: int) -> dict[int, int]:
    """These numbers of record offsets, reduced to at most so many: each log partition in proportion, at least one.

    If there are more log partitions than that, they take turns: those from number ``turn`` on get one each.
    """
    count = len(ahead)
    if sum(ahead.values()) <= most:
        return dict(ahead)
    if most < count:
        in_turn = sorted(ahead)
        return {in_turn[(turn + each) % count]: 1 for each in range(most)}
    rest, whole = most - count, sum(ahead.values()) - count
    parts = {each: divmod((number - 1) * rest, whole) for each, number in ahead.items()}
    found = {each: 1 + part for each, (part, _) in parts.items()}
    left = most - sum(found.values())
    for each in sorted(parts, key=lambda each: (-parts[each][1], each))[:left]:  # the largest remainders
        found[each] += 1
    return found


def shared_out(ranges: Sequence[OffsetRange], tasks: int) -> list[list[OffsetRange]]:
    """The ranges in order; each task has as many record offsets as the others, about.

    Cuts ranges only if the tasks would have very different numbers else: a task folds whole log partitions.
    """
    count = 1 if are_few(ranges) else max(1, tasks)
    sizes = [each.end - each.start for each in ranges]
    share = -(-sum(sizes) // count)
    whole: dict[int, list[OffsetRange]] = {}
    for each, size, end in zip(ranges, sizes, accumulate(sizes), strict=True):
        whole.setdefault(int((end - size / 2) // max(1, share)), []).append(each)
    if all(sum(each.end - each.start for each in task) <= _UNEVEN * share for task in whole.values()):
        return list(whole.values())
    found: list[list[OffsetRange]] = []
    room = 0
    for each in ranges:
        start = each.start
        while start < each.end:
            if not room:
                found.append([])
                room = share
            end = min(each.end, start + room)
            found[-1].append(replace(each, start=start, end=end))
            room -= end - start
            start = end
    return found


def _ahead(positions: Mapping[int, FetchPosition], ends: Mapping[int, FetchPosition]) -> dict[int, int]:
    """Number of new record offsets of each partition that has any, from these positions to these ends."""
    return {each.partition: each.end - each.start for each in ranges_between(positions, ends)}


class _LongPolls:
    """Fetches that wait for new records, one with each broker; the next wait goes on with those that have none yet."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._fetchers: dict[int, Fetcher] = {}
        self._polls: dict[int, Future[object]] = {}

    def wait(self, cluster: Cluster, topic: TopicMetadata, positions: Positions, wait_ms: int) -> None:
        """Wait until a leader has records from these positions on, or for this time."""
        leaders = topic.by_leader(positions)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(thread_name_prefix="long-poll")
        limits = replace(cluster.settings.fetch, min_bytes=1, max_bytes=1, max_partition_bytes=1, max_wait_ms=wait_ms)
        for node_id, partitions in leaders.items():
            if node_id not in self._polls:
                at_node = {each: FetchPosition(positions[each].offset, None) for each in partitions}
                if node_id not in self._fetchers:
                    self._fetchers[node_id] = Fetcher(cluster, topic, node_id)
                self._polls[node_id] = self._threads.submit(self._fetchers[node_id].fetch, at_node, limits)
        wait(self._polls.values(), timeout=wait_ms / 1000, return_when=FIRST_COMPLETED)
        for node_id, poll in list(self._polls.items()):
            if poll.done():
                del self._polls[node_id]
                if poll.exception() is not None or node_id not in leaders:
                    self._fetchers.pop(node_id).close()

    def close(self) -> None:
        """End the fetches and close their connections."""
        for fetcher in self._fetchers.values():
            with suppress(OSError):
                fetcher.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False)
