"""Queries that read a topic of our own broker into a store. Without Spark: a stand-in runs their batches."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import StreamingQueryException

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.common.config.sections import LogSettings, TopicSettings
from offsets_pipeline.errors import (
    BrokerUnreachable,
    KafkaFailed,
    LogTruncated,
    NotAuthorized,
    OffsetsError,
    StoreMismatch,
    WrongRecords,
)
from offsets_pipeline.ingest.topic import record_batch_source, topic_ingest
from offsets_pipeline.ingest.topic.record_batch_source import (
    RecordBatchSource,
    RecordBatchStreamReader,
    SourceOptions,
)
from offsets_pipeline.ingest.topic.topic_append import TopicAppender
from offsets_pipeline.ingest.topic.topic_client import TopicClient, TopicDescription
from offsets_pipeline.ingest.topic.topic_ingest import TopicIngest
from offsets_pipeline.ingest.topic.topic_progress import TopicObserver, TopicProgress
from offsets_pipeline.ingest.topic.topic_watch import TopicWatch
from offsets_pipeline.kafka.broker.fetch import FetchPosition
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.properties import MIRRORED, OWNED, StoreProperties
from offsets_pipeline.store.delta.store_folder import create_tables
from tests.folded_stores import opened
from tests.logs import commit_key, commit_value
from tests.record_batches import BatchOptions, encode_batch
from tests.unit.broker.fake_broker import TOPIC
from tests.unit.broker.fake_topic import FakeBatch, FakePartition, FakeTopic, batch, fake_topic, options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from offsets_pipeline.store.log.append import Append
    from offsets_pipeline.store.store import Store

CLASSIC = CoordinatorSemantics.CLASSIC
STOP_TIMEOUT = "spark.sql.streaming.stopTimeout"


def commits(first: int, count: int) -> FakeBatch:
    """A record batch of commits."""
    offsets = range(first, first + count)
    keys = pa.array([commit_key("g")] * count, pa.binary())
    values = pa.array([commit_value(each) for each in offsets], pa.binary())
    data = encode_batch(keys, values, base_offset=first, timestamps=1000, options=BatchOptions())
    return FakeBatch(first, first + count - 1, data)


class Time:
    """Time that passes while a test's program sleeps, and in no other way."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Rows:
    """Stands for a DataFrame of tasks."""

    def __init__(self, spark: Spark, tasks: list[pa.RecordBatch]) -> None:
        self.sparkSession = spark
        self._tasks = tasks

    def coalesce(self, tasks: int) -> Rows:
        assert tasks == 2
        return self

    def mapInArrow(self, run: Callable[..., Iterator[pa.RecordBatch]], _: str) -> SimpleNamespace:  # noqa: N802 - Spark's
        found = [row for each in self._tasks for batch in run([each]) for row in batch.to_pylist()]
        return SimpleNamespace(collect=lambda: found)


class Spark:
    """Stands for a session and its query, which runs a batch each time it is asked whether it is active."""

    def __init__(self) -> None:
        self.sparkContext: object = SimpleNamespace(defaultParallelism=2)
        self.registered: list[type[RecordBatchSource]] = []
        self.dataSource = SimpleNamespace(register=self.registered.append)
        self.confs: dict[str, str] = {}
        of_name = self.confs
        self.conf = SimpleNamespace(
            get=of_name.get, set=of_name.__setitem__, unset=lambda name: of_name.pop(name, None)
        )
        self.streams = SimpleNamespace(active=[])
        self.readStream = self.writeStream = self
        self.errors: list[Exception | None] = []  # one for each query
        self.source_errors: list[StreamingQueryException] = []  # of the source, when the topic is read
        self.stop_timeouts: list[str | None] = []
        self.fails_to_stop: Exception | None = None
        self.land: Callable[[Any, int], None]

    def __getattr__(self, _: str) -> Callable[..., Spark]:
        return lambda *_: self

    def queryName(self, name: str) -> Spark:  # noqa: N802 - Spark's
        self.name = name
        return self

    def option(self, name: str, value: str) -> Spark:
        assert (name, value[:8]) == ("checkpointLocation", "file:///")
        self.checkpoint = Path(value.removeprefix("file://"))
        return self

    def foreachBatch(self, land: Callable[[Any, int], None]) -> Spark:  # noqa: N802 - Spark's
        self.land = land
        return self

    def trigger(self, **trigger: Any) -> Spark:  # noqa: ANN401 - Spark's
        self.triggered = trigger
        return self

    def start(self) -> Spark:
        self.given: SourceOptions = self.registered[-1].source_options
        self._reader = RecordBatchStreamReader(replace(self.given, wait_ms=1))
        self._at, self._number, self._waits, self._ended = self._reader.initialOffset(), 0, False, False
        self.errors.append(None)
        if self.triggered == {"availableNow": True}:
            self._reader.prepareForTriggerAvailableNow()
        return self

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's
        if not self._ended and not self._waits:
            end = self._reader.latestOffset(self._at, self._reader.getDefaultReadLimit())
            if end != self._at:
                self._run(end)
            elif self.source_errors:
                self.errors[-1], self._ended = self.source_errors.pop(0), True
            else:
                self._ended = self.triggered == {"availableNow": True}
                self._waits = True  # the topic gets no more records
        return not self._ended

    def _run(self, end: dict[str, dict[str, int]]) -> None:
        offsets = self.checkpoint / "offsets"
        offsets.mkdir(exist_ok=True)
        (offsets / str(self._number)).write_text("v1\n{}\n" + json.dumps(end))
        tasks = [each for task in self._reader.partitions(self._at, end) for each in self._reader.read(task)]
        try:
            self.land(Rows(self, tasks), self._number)
        except Exception as error:  # noqa: BLE001 - as Spark does
            self.errors[-1], self._ended = error, True
        self._at, self._number = end, self._number + 1

    def awaitTermination(self) -> None:  # noqa: N802 - Spark's
        if self.errors[-1] is not None:
            error = self.errors[-1]
            if isinstance(error, StreamingQueryException):
                raise error
            raise StreamingQueryException(f"[STREAM_FAILED] {error!r}")

    def stop(self) -> None:
        self._reader.stop()
        self.stop_timeouts.append(self.confs.get(STOP_TIMEOUT))
        if self.fails_to_stop is not None:
            raise self.fails_to_stop


class Following(TopicObserver):
    """An ingest of the topic into a store, and what it and its folds reported."""

    def __init__(self, topic: FakeTopic, store: Path, time: Time, **options: Any) -> None:  # noqa: ANN401 - settings
        self.events: list[object] = []
        self.spark, self.time, self.stop_after = Spark(), time, 0.0
        settings = Settings(
            topic=TopicSettings(**{"min_records_wait_ms": 0} | options.pop("of_topic", {})),
            log=LogSettings(**options.pop("of_log", {})),
        )
        spark = cast("SparkSession", self.spark)
        self.ingest = TopicIngest(spark, str(store), options_of(topic), settings, FixedClock(5_000), self, **options)

    def run(self, folding: Following | None = None, **options: bool) -> int:
        self.ingest.prepare()
        return self.ingest.run(folding=folding, **options)

    def seconds(self) -> float:
        return round(self.time.now - 1_000, 3)

    def connected(self, address: str, cluster_id: str | None) -> None:
        self.events.append(("connected", address, cluster_id))

    def landed(self, records: int) -> None:
        self.events.append(("landed", records))

    def looked(self, _: TopicProgress) -> None:
        self.events.append(("looked", self.seconds()))
        if self.stop_after and self.seconds() >= self.stop_after:
            self.ingest.stop()

    def unreachable(self, error: OffsetsError) -> None:
        self.events.append(error)

    def warned(self, text: str) -> None:
        self.events.append(text)

    def next_fold(self, _: Store, log_incarnation: int) -> Any:  # noqa: ANN401 - a function
        return lambda batches: (log_incarnation, sum(each.num_rows for each in batches))

    def fold(self, _: Store, append: Append | None = None) -> None:
        self.events.append(("fold", self.seconds()) if append is None else ("fold", *append.folded))


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    """The ingest's time."""
    found = Time()
    monkeypatch.setattr(topic_ingest, "time", found)
    return found


@pytest.fixture
def topic() -> Iterator[FakeTopic]:
    """Five commits in log partition 0, none in the other."""
    with fake_topic({0: FakePartition([commits(0, 3), commits(3, 2)]), 1: FakePartition([])}) as found:
        yield found


def places(store: Path) -> list[tuple[int, int, str]]:
    rows = opened(store).table("log").snapshot().rows().to_pylist()
    return sorted((row["log_partition"], row["record_offset"], row["source"]) for row in rows)


FIVE = [(0, offset, f"kafka://c/{TOPIC}") for offset in range(5)]


# --- a query


def test_a_query_reads_what_the_topic_has_now_and_leaves_nothing_behind(
    topic: FakeTopic, tmp_path: Path, time: Time
) -> None:
    settings = {"max_records_per_batch": 2, "min_records_per_batch": 3, "min_records_wait_ms": 4}
    following = Following(topic, tmp_path / "s", time, of_topic=settings)
    spark = following.spark
    spark.confs[STOP_TIMEOUT] = "7s"
    assert following.run(available_now=True) == following.ingest.added == 5
    assert places(tmp_path / "s") == FIVE
    assert following.events == [
        ("connected", topic.brokers[1].address, "c"),
        *[("landed", 2), ("landed", 2), ("landed", 1)],
        ("looked", 0.3),  # once more after the query has ended
    ]
    assert (spark.name, len(spark.registered), spark.errors) == ("ingest-topic", 1, [None])
    starts = dict.fromkeys((0, 1), FetchPosition(0, 3))
    sizes = {"max_offsets": 2, "min_offsets": 3, "min_offsets_wait_ms": 4, "tasks": 2}
    assert spark.given.kafka.bootstrap_server == topic.brokers[1].address
    assert spark.given == SourceOptions(TOPIC, spark.given.kafka, starts, **sizes)
    assert not spark.checkpoint.exists()
    assert (spark.stop_timeouts, spark.confs) == (["10s"], {STOP_TIMEOUT: "7s"})
    assert Following(topic, tmp_path / "s", time).run(available_now=True) == 0


@pytest.mark.parametrize("few", [20_000, 0])
def test_records_come_to_the_driver_or_to_tasks_and_are_folded_there(
    topic: FakeTopic, tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(record_batch_source, "_FEW_OFFSETS", few)
    for name, sizes, folded in (("even", (5, 5), [(0, 5), (0, 5)]), ("uneven", (9, 1), [None, None])):
        for at, size in enumerate(sizes):
            topic.partitions[at].batches = [commits(0, size)]
        following = Following(topic, tmp_path / name, time)
        assert following.run(following, available_now=True) == 10
        # two tasks that read one log partition do not fold it
        assert following.events[1:3] == [("landed", 10), ("fold", *([(0, 10)] if few else folded))]


def test_a_query_is_watched_and_appends_of_others_are_folded(topic: FakeTopic, tmp_path: Path, time: Time) -> None:
    following = Following(topic, tmp_path / "s", time, of_topic={"watch_interval_ms": 3_000})
    following.stop_after = 4.0
    assert following.run(following) == 5
    assert following.spark.triggered == {"processingTime": "0 seconds"}
    assert following.events[1:] == [
        *[("landed", 5), ("fold", (0, 5))],
        *[("fold", 1.0), ("looked", 1.0)],  # the first look comes soon
        *[("fold", 2.0), ("fold", 3.0), ("fold", 4.0), ("looked", 4.0)],
    ]
    assert (following.ingest._is_steady, following.spark.confs) == (False, {})


@pytest.mark.parametrize(("seconds", "passing_ms"), [(59, 100), (60, 100), (60, 0)])
def test_a_query_that_brings_the_log_on_for_a_minute_is_steady(
    topic: FakeTopic, tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch, seconds: int, passing_ms: int
) -> None:
    following = Following(topic, tmp_path / "s", time, of_topic={"watch_interval_ms": 1_000 * (seconds - 1)})
    clock: Any = following.ingest._clock

    def sleep(each: float) -> None:
        time.now = round(time.now + each, 3)
        clock.advance_ms(passing_ms)  # else the log is complete as of the same time

    monkeypatch.setattr(time, "sleep", sleep)
    following.stop_after = seconds
    following.run()
    assert following.ingest._is_steady == ((seconds, passing_ms) == (60, 100))


# --- failures of a query


def test_first_records_of_a_topic_that_was_empty_are_checked_before_they_are_written(
    topic: FakeTopic, tmp_path: Path, time: Time
) -> None:
    """They may be secrets of a worker, which only a store of configurations removes."""
    store, here = tmp_path / "s", topic.partitions[0]
    right, here.batches = here.batches, []
    assert Following(topic, store, time).run(available_now=True) == 0
    here.batches = [batch(0, 3)]  # their key is b"key"
    for _ in range(2):
        following = Following(topic, store, time)
        with pytest.raises(WrongRecords) as refused:
            following.run(available_now=True)
        assert str(refused.value) == (
            f"topic {TOPIC} does not have records of a group coordinator: 3 of the first 3 records are others (record "
            "0 of partition 0 has the key b'key'); name __consumer_offsets, or a copy of its log; "
            f"{store} has no records: remove it, or name another store"
        )
    assert places(store) == []
    here.batches = right
    assert Following(topic, store, time).run(available_now=True) == 5
    here.batches = [*right, batch(5, 3)]  # the log has records: others go to the quarantine
    assert Following(topic, store, time).run(available_now=True) == 3


def test_a_changed_topic_is_planned_again_and_nothing_is_appended_before(
    topic: FakeTopic, tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = Following(topic, tmp_path / "s", time)
    following.ingest.prepare()
    described, answers = TopicClient.describe, [TopicDescription("c", None, 2), TopicDescription("c", None, 3)]
    monkeypatch.setattr(TopicClient, "describe", lambda self: answers.pop(0) if answers else described(self))
    assert following.ingest.run(available_now=True) == 5
    assert [each is None for each in following.spark.errors] == [False, True]
    assert following.events[1:] == [("landed", 5), ("looked", 0.1)]
    assert places(tmp_path / "s") == FIVE


def test_an_error_of_a_batch_is_raised_as_it_was(
    topic: FakeTopic, tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = Following(topic, tmp_path / "s", time)
    errors: list[Exception] = [ValueError("a defect\nat a line"), NotAuthorized("no")]

    def failing(*_: object) -> None:
        raise errors.pop(0)

    monkeypatch.setattr(TopicAppender, "append", failing)
    with pytest.raises(NotAuthorized, match=r"^no$"):
        following.run()
    (warning,) = following.events[1:]
    assert str(warning).startswith(f"reading topic {TOPIC} failed: [STREAM_FAILED] ValueError(")
    assert str(warning).endswith("; trying again")
    assert len(following.spark.stop_timeouts) == 2


def _raised_by_source(error: OffsetsError) -> StreamingQueryException:
    """What Spark 4.2 reports of an exception in the source's `latestOffset`."""
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    return StreamingQueryException(
        "[STREAM_FAILED] Query [id = 7, runId = 8] terminated with exception: "
        "[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform latestOffset: "
        f'Traceback (most recent call last):\n  File "runner.py", line 265, in main\n    at_end()\n{name}: {error}\n'
    )


def test_a_source_that_finds_records_lost_has_its_topic_planned_again_without_a_failure(
    topic: FakeTopic, tmp_path: Path, time: Time
) -> None:
    following = Following(topic, tmp_path / "s", time)
    following.stop_after = 1.0
    following.spark.source_errors = [_raised_by_source(LogTruncated("another log before record 5"))] * 9
    following.run()
    assert not [each for each in following.events if isinstance(each, str)]
    assert len(following.spark.errors) == 10


def test_an_error_of_the_source_is_told_without_sparks_words(topic: FakeTopic, tmp_path: Path, time: Time) -> None:
    following = Following(topic, tmp_path / "s", time)
    following.stop_after = 3.0
    following.spark.source_errors = [_raised_by_source(KafkaFailed("the log now starts at 9"))]
    following.run()
    said = f"reading topic {TOPIC} failed: the log now starts at 9; trying again"
    assert [each for each in following.events if isinstance(each, str)] == [said]


def test_a_cluster_that_is_away_for_a_look_does_not_end_the_query(
    topic: FakeTopic, tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = Following(topic, tmp_path / "s", time, of_topic={"watch_interval_ms": 1_000})
    following.stop_after = 2.0
    look, away = TopicWatch.look, [error := BrokerUnreachable("away")]

    def looking(*arguments: Any) -> bool:  # noqa: ANN401 - of the original
        if away:
            raise away.pop()
        return look(*arguments)

    monkeypatch.setattr(TopicWatch, "look", looking)
    following.run()
    assert following.events[1:] == [("landed", 5), error, ("looked", 2.0)]
    assert following.spark.errors == [None]


@pytest.mark.parametrize("kind", ["java.util.concurrent.TimeoutException", "java.lang.Error"])
def test_a_query_that_waits_for_a_broker_is_left_and_keeps_its_name(
    topic: FakeTopic, tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(Py4JJavaError, "__str__", lambda _: kind)
    error = Py4JJavaError.__new__(Py4JJavaError)
    error.java_exception = SimpleNamespace(getClass=lambda: SimpleNamespace(getName=lambda: kind))
    following = Following(topic, tmp_path / "s", time)
    spark = following.spark
    spark.fails_to_stop = error
    if "Timeout" in kind:
        assert following.run(available_now=True) == 5
    else:
        with pytest.raises(Py4JJavaError):
            following.run(available_now=True)
    assert spark.confs == {}
    spark.fails_to_stop, spark.streams.active = None, [SimpleNamespace(name=spark.name)]
    following.run(available_now=True)
    assert re.fullmatch("ingest-topic-[0-9a-f]{8}", spark.name)


# --- the store


def test_a_new_store_has_the_identity_and_the_kind_of_its_topic(topic: FakeTopic, tmp_path: Path, time: Time) -> None:
    def properties(name: str, **options: Any) -> StoreProperties:  # noqa: ANN401 - settings
        Following(topic, tmp_path / name, time, **options).ingest.prepare()
        return opened(tmp_path / name).properties

    of_topic = StoreProperties(MIRRORED, 2, "c", None, TOPIC, CLASSIC)  # by the versions of the broker's requests
    assert properties("found") == of_topic
    assert properties("asked", semantics=MODERN) == replace(of_topic, coordinator_semantics=MODERN)
    assert properties("set", of_log={"coordinator_semantics": "modern"}).coordinator_semantics == MODERN
    key, value = b'["files",{"filename":"/a"}]', b"{}"
    data = encode_batch(pa.array([key]), pa.array([value]), base_offset=0, options=BatchOptions())
    topic.partitions[0].batches = [FakeBatch(0, 0, data)]
    of_connect = replace(of_topic, coordinator_semantics=MODERN, topic_kind=TopicKind.CONNECT_OFFSETS)
    assert properties("connect", semantics=CLASSIC) == of_connect


OF_CLASSIC = StoreProperties(MIRRORED, 2, coordinator_semantics=CLASSIC)


@pytest.mark.parametrize(
    ("known", "semantics", "said"),
    [
        (StoreProperties(OWNED, 2), None, "is an owned store, but this command needs a mirrored one"),
        (StoreProperties(MIRRORED, 2, "other"), None, "mirrors cluster other, not c"),
        (OF_CLASSIC, MODERN, "has classic coordinator semantics, not modern"),
        (OF_CLASSIC, CLASSIC, None),
        (OF_CLASSIC, None, None),
    ],
)
def test_a_store_of_another_log_is_refused(
    topic: FakeTopic,
    tmp_path: Path,
    time: Time,
    known: StoreProperties,
    semantics: CoordinatorSemantics | None,
    said: str | None,
) -> None:
    create_tables(str(tmp_path / "s"), known)
    following = Following(topic, tmp_path / "s", time, semantics=semantics)
    if said is None:
        assert following.ingest.prepare() is following.ingest.store
        assert opened(tmp_path / "s").properties == known  # the topic is noted with its first reading
        assert following.events == [("connected", topic.brokers[1].address, "c")]
    else:
        with pytest.raises(StoreMismatch, match=said):
            following.ingest.prepare()


def test_a_broker_with_another_coordinator_changes_the_semantics(topic: FakeTopic, tmp_path: Path, time: Time) -> None:
    create_tables(str(tmp_path / "s"), StoreProperties(MIRRORED, 2, topic_name=TOPIC))
    following = Following(topic, tmp_path / "s", time)
    assert following.ingest.prepare().properties.coordinator_semantics == CLASSIC
    assert opened(tmp_path / "s").properties.coordinator_semantics == CLASSIC
    warning = f"the broker's coordinator is classic, that of {tmp_path / 's'} is modern: it changes"
    assert following.events[1:] == [warning]


def test_a_run_to_the_end_needs_all_leaders(topic: FakeTopic, tmp_path: Path, time: Time) -> None:
    assert Following(topic, tmp_path / "s", time).run(available_now=True) == 5
    topic.partitions[1].leader = None
    with pytest.raises(BrokerUnreachable, match=r"partition 1 of topic .* has no leader"):
        Following(topic, tmp_path / "s", time).run(available_now=True)
