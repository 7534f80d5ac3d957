"""Leaders change while `follow` reads, and `follow` is killed before it notes its progress. Without Spark."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.ingest.batch_barrier import BatchBarrier
from offsets_pipeline.ingest.topic.record_batch_source import RecordBatchStreamReader, SourceOptions
from offsets_pipeline.ingest.topic.topic_append import TopicAppender
from offsets_pipeline.ingest.topic.topic_client import TopicClient
from offsets_pipeline.ingest.topic.topic_ingest import TopicIngest
from offsets_pipeline.ingest.topic.topic_plan import CompleteReads, KnownLog
from offsets_pipeline.ingest.topic.topic_progress import TopicObserver, TopicProgress
from offsets_pipeline.ingest.topic.topic_watch import TopicWatch
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.log.append import Append
from tests.unit.broker.fake_broker import TOPIC
from tests.unit.broker.fake_topic import FakePartition, FakeTopic, batch, fake_topic, options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from offsets_pipeline.ingest.topic.topic_plan import Reading
    from offsets_pipeline.semantics.retention import Retention

NOW_MS = 1_795_000_000_000


class Query:
    """Stands for Spark: takes the function of a query's batches, which the test calls."""

    def __init__(self) -> None:
        self.land: Callable[[DataFrame, int], None]
        self.dataSource = self.readStream = self.writeStream = self
        self.sparkContext = SimpleNamespace(defaultParallelism=1)
        self.streams = SimpleNamespace(active=[])

    def trigger(self, **options: object) -> Query:
        self.triggered = options
        return self

    def foreachBatch(self, land: Callable[[DataFrame, int], None]) -> Query:  # noqa: N802 - Spark's
        self.land = land
        return self

    def __getattr__(self, _: str) -> Callable[..., Query]:
        return lambda *_, **__: self


class Stored:
    """What a store keeps of a topic with one log partition: the end of the log, and what was noted of the reading."""

    def __init__(self, log_end: int) -> None:
        self.log_end = log_end
        self.log_incarnation = 0
        self.noted = 0
        self.adopted: list[Retention | None] = []
        complete = CompleteReads(NOW_MS - 1000, NOW_MS - 1000)
        self._known = KnownLog(1, 0, {}, {0: log_end}, {0: 3}, complete)
        properties = SimpleNamespace(
            topic_id=None, topic_name=TOPIC, cluster_id=None, topic_kind=TopicKind.CONSUMER_OFFSETS
        )
        self.store: Any = SimpleNamespace(properties=properties, location="store", in_session=lambda _: None)
        self.store.refreshed = lambda: self.store

    def watched(self, observer: TopicObserver) -> TopicWatch:
        """A watch of the topic that reads and writes here."""
        watch = TopicWatch(self.store, TOPIC, Settings(), FixedClock(NOW_MS), observer, print)
        vars(watch).update(known=self.known, note=self.note, adopt=self.adopt, names=self.names)
        return watch

    def note(self, progress: TopicProgress) -> None:
        self.noted += 1
        epochs = {at: epoch for at, epoch in progress.leader_epochs.items() if epoch is not None}
        self._known = KnownLog(1, 0, {}, dict(progress.read_to), epochs, progress.complete)

    def adopt(self, _: object, retention: Retention | None) -> None:
        self.adopted.append(retention)

    def names(self, _: object) -> None:
        """It keeps no names of topics."""

    def known(self) -> KnownLog:
        known = self._known
        ends = {self.log_incarnation: {0: self.log_end}}
        return KnownLog(1, 0, ends, known.read_to, known.leader_epochs, known.complete)


class Observer(TopicObserver):
    """Keeps the readings that were planned."""

    def __init__(self) -> None:
        self.readings: list[Reading] = []

    def planned(self, progress: TopicProgress) -> None:
        self.readings.append(progress.reading)


class Follow:
    """A process that follows the topic; the next one starts after a kill."""

    def __init__(self, topic: FakeTopic, stored: Stored, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._query = Query()
        spark = cast("SparkSession", self._query)
        self._options = options_of(topic)
        self.observer = Observer()
        self._ingest = TopicIngest(spark, "store", self._options, Settings(), FixedClock(NOW_MS), topic=TOPIC)
        self._ingest._topic_watch = stored.watched(self.observer)
        self.plan()

    def plan(self, *, available_now: bool = False) -> None:
        """Plan a reading, and start its query."""
        with TopicClient(self._options, TOPIC) as admin:
            described = admin.describe()
            progress = self._ingest._prepared.plan(admin, described)
            self.reading: Reading = progress.reading
            self._ingest._start(
                progress, described, admin, BatchBarrier(), str(self._checkpoint), available_now=available_now
            )

    def run_batch(self, number: int = 0) -> None:
        """Plan a batch as Spark does, and append it."""
        source = RecordBatchStreamReader(SourceOptions(TOPIC, self._options, {}, 100, wait_ms=1))
        start: Any = {"0": {"offset": self.reading.starts[0], "leader_epoch": 3}}
        end = source.latestOffset(start, source.getDefaultReadLimit())
        source.stop()
        (self._checkpoint / "offsets").mkdir(exist_ok=True)
        (self._checkpoint / "offsets" / str(number)).write_text("v1\n{}\n" + json.dumps(end))
        self._query.land(cast("DataFrame", SimpleNamespace(sparkSession=None)), number)


@pytest.fixture
def topic() -> Iterator[FakeTopic]:
    """Ten records of leader epoch 3, on two brokers."""
    with fake_topic({0: FakePartition([batch(each) for each in range(10)])}, brokers=(1, 2)) as found:
        yield found


def test_a_reading_that_goes_on_notes_the_brokers_retention_at_once(topic: FakeTopic, tmp_path: Path) -> None:
    topic.broker_configs[1] = {"offsets.retention.minutes": "60", "offsets.retention.check.interval.ms": "600000"}
    stored = Stored(10)
    process = Follow(topic, stored, tmp_path)
    (retention,) = stored.adopted
    assert retention is not None
    assert (retention.retention_ms, retention.check_interval_ms) == (60 * 60_000, 600_000)
    assert (process.observer.readings, stored.noted) == ([process.reading], 1)
    anew = Stored(12)  # the topic lacks two of these records
    assert Follow(topic, anew, tmp_path).reading.anew is not None
    assert (anew.adopted, anew.noted) == ([], 0)


def move(topic: FakeTopic, epoch: int, epoch_ends: dict[int, int], end: int) -> None:
    """Another broker leads, and has appended records up to this offset."""
    at = topic.partitions[0]
    with topic.changing():
        at.leader, at.epoch, at.epoch_ends = 2, epoch, epoch_ends
        at.batches = [batch(each) for each in range(end)]


def appending(monkeypatch: pytest.MonkeyPatch, topic: FakeTopic, stored: Stored, *, is_killed: bool) -> None:
    """An append of all that the topic has; the process may be killed before or after it."""

    def append(*_: object) -> Append:
        if is_killed:
            raise KeyboardInterrupt
        added, stored.log_end = topic.partitions[0].end - stored.log_end, topic.partitions[0].end
        return Append(0, added)

    monkeypatch.setattr(TopicAppender, "append", append)


@pytest.mark.parametrize("is_killed", [False, True])
def test_kill_after_a_clean_leader_change_reads_nothing_again(
    topic: FakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    stored = Stored(10)
    appending(monkeypatch, topic, stored, is_killed=is_killed)
    process = Follow(topic, stored, tmp_path)
    move(topic, 4, {3: 10}, 15)
    if is_killed:
        with pytest.raises(KeyboardInterrupt):
            process.run_batch()
    else:
        process.run_batch()
    reading = Follow(topic, stored, tmp_path).reading
    assert (reading.anew, reading.log_incarnation, reading.starts) == (None, 0, {0: 10 if is_killed else 15})


def test_records_that_only_a_leader_had_that_is_gone_are_still_noticed_after_a_kill(
    topic: FakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = Stored(10)
    appending(monkeypatch, topic, stored, is_killed=False)
    process = Follow(topic, stored, tmp_path)
    move(topic, 4, {3: 10}, 15)
    process.run_batch()
    move(topic, 5, {3: 10, 4: 12}, 20)  # an unclean election
    assert Follow(topic, stored, tmp_path).reading.anew == (
        "a new leader of log partition 0 has the records of leader epoch 4 only up to 12, but it was read up to 15"
    )


@pytest.mark.parametrize("is_clean", [False, True])
def test_first_reading_of_a_log_incarnation_starts_again_if_a_new_leader_lacks_its_records(
    topic: FakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_clean: bool
) -> None:
    stored = Stored(12)  # the topic lacks two of these records
    appending(monkeypatch, topic, stored, is_killed=False)
    process = Follow(topic, stored, tmp_path)
    assert process.reading.log_incarnation == 1
    stored.log_incarnation, stored.log_end = 1, 0
    process.run_batch()
    move(topic, 4, {3: 10 if is_clean else 6}, 20)
    process.plan()
    assert (process.reading.log_incarnation, process.reading.starts) == ((1, {0: 10}) if is_clean else (2, {0: 0}))


def test_a_query_waits_for_records_or_ends_with_those_of_now(topic: FakeTopic, tmp_path: Path) -> None:
    process = Follow(topic, Stored(10), tmp_path)
    assert process._query.triggered == {"processingTime": "0 seconds"}
    process.plan(available_now=True)
    assert process._query.triggered == {"availableNow": True}


def test_batches_of_one_leader_note_nothing(topic: FakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Stored(10)
    appending(monkeypatch, topic, stored, is_killed=False)
    process = Follow(topic, stored, tmp_path)
    noted = stored.noted
    for number in range(3):
        with topic.changing():
            topic.partitions[0].batches.append(batch(10 + number))
        process.run_batch(number)
    assert stored.noted == noted
