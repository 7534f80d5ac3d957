"""`OffsetsListener`, with progress events as Spark posts them, and targets that fail."""

from __future__ import annotations

import threading
import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent

from offsets_pipeline.errors import ConfigError, InvalidGroupId, KafkaFailed
from offsets_pipeline.semantics.partition_state import TopicPartition
from offsets_pipeline.spark_query import offsets_listener
from offsets_pipeline.spark_query.kafka_source_offsets import BatchMark, CompletedBatch, parse_kafka_offsets
from offsets_pipeline.spark_query.offsets_listener import NewestCommits, OffsetsListener, _completed_batches
from tests.unit.spark_query.checkpoints import QUERY_ID, kafka
from tests.unit.spark_query.progress_events import progress
from tests.unit.spark_query.test_checkpoint_import import offsets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from offsets_pipeline.coordinator.requests import OffsetAndMetadata
    from offsets_pipeline.spark_query.offsets_listener import StoreTarget

FIRST_ID, SECOND_ID = (str(uuid.UUID(int=number)) for number in (1, 2))


class FailingTarget:
    """Takes commits, but only while it is up."""

    name = "a target"

    def __init__(self) -> None:
        self.is_up = True
        self.is_closed = False
        self.commits: list[dict[tuple[str, int], int]] = []
        self.tried = threading.Event()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def commit(self, _: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.tried.set()
        assert self.goes_on.wait(10)
        if not self.is_up:
            raise KafkaFailed("it is down")
        self.commits.append({where: each.offset for where, each in offsets.items()})

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def _no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most tests post events without a session: then no more events come."""
    monkeypatch.setattr(offsets_listener, "_completed_batches", lambda: None)


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> FailingTarget:
    """The only target of a new listener."""
    made = FailingTarget()
    monkeypatch.setattr(offsets_listener, "StoreTarget", lambda *_: made)
    return made


def test_thread_that_has_nothing_to_do_ends_when_it_is_closed() -> None:
    before = set(threading.enumerate())
    target = FailingTarget()
    commits = NewestCommits(cast("StoreTarget", target), "g")
    commits.add(QUERY_ID, CompletedBatch(1, None, {"0": {}}))
    assert commits.close(10)
    assert set(threading.enumerate()) <= before
    assert target.is_closed


def test_completed_batch_is_committed_to_an_owned_store(store: Path) -> None:
    before = set(threading.enumerate())
    listener = OffsetsListener(store, "g")
    listener.onQueryProgress(progress(4, kafka(orders=[5, 7]), '{"logOffset":3}', kafka(payments=[1])))
    listener.onQueryProgress(progress(5, kafka(orders=[6, 7]), '{"logOffset":4}', kafka(payments=[2])))
    assert listener.flush()
    assert offsets_of(store) == {("orders", 0): 6, ("orders", 1): 7, ("payments", 0): 2}
    assert listener.close()
    assert set(threading.enumerate()) <= before
    listener.onQueryProgress(progress(6, kafka(orders=[9, 9])))  # Spark may still post events
    assert listener.close()
    assert offsets_of(store)["orders", 0] == 6


def test_commit_says_of_which_batch_it_is(store: Path) -> None:
    from offsets_pipeline.coordinator.coordinator import Coordinator  # noqa: PLC0415

    listener = OffsetsListener(store, "g")
    listener.onQueryProgress(progress(4, kafka(orders=[5])))
    assert listener.close()
    with Coordinator.open(store) as coordinator:
        (found,) = coordinator.fetch_offsets("g").values()
    assert BatchMark.parse(found.metadata) == BatchMark(QUERY_ID, None, 4)


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ('{"query":"q","source":"0","batch":0}', BatchMark("q", "0", 0)),
        ('{"query":null,"source":null,"batch":7}', BatchMark(None, None, 7)),
        *((each, None) for each in ("", "a note", "[]", "7", '{"query":"q","batch":1}')),
        *((f'{{"query":{each}}}', None) for each in ('1,"source":null,"batch":1', 'null,"source":1,"batch":1')),
        *((f'{{"query":null,"source":null,"batch":{each}}}', None) for each in ("true", "null", '"1"', "1.5")),
    ],
)
def test_metadata_of_others_have_no_mark_of_a_batch(text: str, mark: BatchMark | None) -> None:
    assert BatchMark.parse(text) == mark


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ('{"t":{"0":0,"2147483647":9223372036854775807}}', {("t", 0): 0, ("t", 2**31 - 1): 2**63 - 1}),
        *((each, None) for each in ("{}", "[1]", "42", '{"t":{}}', '{"t":{"0":true}}', '{"t":{"0":"1"}}')),
        *((each, None) for each in ('{"t":{"2147483648":0}}', '{"t":{"x":0}}', '{"t":{"0":1},"u":{}}')),
    ],
)
def test_offsets_of_a_source_that_is_not_kafkas_are_none(text: str, offsets: object) -> None:
    assert parse_kafka_offsets(text) == offsets
    with pytest.raises(ValueError, match="9223372036854775808 is not an offset of t-0"):
        parse_kafka_offsets('{"t":{"0":9223372036854775808}}')


def test_completed_batches_are_those_that_ran_in_active_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    def query(run_id: int, *ran: bool) -> SimpleNamespace:
        found = [
            SimpleNamespace(batchId=each, durationMs={"addBatch": 1} if has_run else {})
            for each, has_run in enumerate(ran)
        ]
        return SimpleNamespace(runId=run_id, recentProgress=found)

    active = [query(1, True, True, False), query(2, False), query(3)]
    session = SimpleNamespace(streams=SimpleNamespace(active=active))
    monkeypatch.setattr(offsets_listener, "SparkSession", SimpleNamespace(active=lambda: session))
    assert _completed_batches() == {"1": 1, "2": -1, "3": -1}
    del session.streams.active  # as after the JVM has ended: any error of py4j
    monkeypatch.setattr(offsets_listener, "PySparkException", AttributeError)
    assert _completed_batches() is None


def test_failed_commit_is_one_warning_and_is_retried_with_the_newest_offsets(
    target: FailingTarget, capsys: pytest.CaptureFixture[str]
) -> None:
    listener = OffsetsListener("owned", "g")
    target.is_up = False
    for batch in range(20):
        listener.onQueryProgress(progress(batch, kafka(orders=[batch])))
        assert not listener.flush(0.01)
    target.goes_on.clear()
    listener.onQueryProgress(progress(20, kafka(orders=[20])))
    target.is_up = True
    target.goes_on.set()
    assert listener.flush()
    assert target.commits[-1] == {("orders", 0): 20}
    assert len(target.commits) <= 2
    assert listener.close()
    assert capsys.readouterr().err == (
        "offsets: warning: cannot commit offsets of group g to a target: it is down; will retry\n"
        "offsets: warning: commits offsets of group g to a target again\n"
    )


def test_query_never_waits_for_a_commit(target: FailingTarget) -> None:
    listener = OffsetsListener("owned", "g")
    target.goes_on.clear()
    for batch in range(100):
        listener.onQueryProgress(progress(batch, kafka(orders=[batch])))
    assert target.tried.wait(10)
    assert not target.commits
    target.goes_on.set()
    assert listener.close()
    assert target.commits[-1] == {("orders", 0): 99}
    assert len(target.commits) <= 2


def test_job_that_ends_says_what_is_not_committed(target: FailingTarget, capsys: pytest.CaptureFixture[str]) -> None:
    listener = OffsetsListener("owned", "g")
    target.is_up = False
    listener.onQueryProgress(progress(0, kafka(orders=[1, 2])))
    assert not listener.close(0.1)
    assert not listener.close(0.1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "offsets: warning: 2 offsets of group g are not committed to a target: the job ends"


def test_flush_retries_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_listener, "_BACKOFF_SECONDS", 3600)
    failing = FailingTarget()
    failing.is_up = False
    commits = NewestCommits(cast("StoreTarget", failing), "g")
    commits.add("q", CompletedBatch(0, None, {"0": {}}))  # nothing to commit is no failure
    assert commits.flush(10)
    listener = OffsetsListener("owned", "g")
    listener._commits = [commits]
    commits.add("q", CompletedBatch(1, None, {"0": {TopicPartition("orders", 0): 1}}))
    assert not listener.flush(0.05)
    failing.is_up = True
    assert listener.flush(10)
    assert failing.commits == [{("orders", 0): 1}]
    assert failing.is_closed  # so the next try connects anew


def test_retries_wait_longer_each_time_up_to_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    class Hasty(threading.Condition):
        """Notes the waits of the thread for its next try, and ends them."""

        def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> object:  # type: ignore[override]
            if threading.current_thread().name != "offsets-listener" or timeout is None:
                return super().wait_for(predicate, timeout)
            waits.append(timeout)
            failing.is_up = len(waits) in {7, 9}
            return True

    failing = FailingTarget()
    failing.is_up = False
    with monkeypatch.context() as patched:
        patched.setattr(threading, "Condition", Hasty)
        commits = NewestCommits(cast("StoreTarget", failing), "g")
    for batch in range(2):
        commits.add("q", CompletedBatch(batch, None, {"0": {TopicPartition("orders", 0): batch}}))
        assert commits.flush(10)
        failing.is_up = False
    assert commits.close(10)
    assert failing.commits == [{("orders", 0): 0}, {("orders", 0): 1}]
    assert waits == [1, 2, 4, 8, 16, 30, 30, 1, 2]  # after a success a second again


@pytest.mark.parametrize("way", ["flush", "close"])
@pytest.mark.parametrize("is_active", [True, False])
def test_listener_waits_for_progress_that_spark_delivers_late(
    target: FailingTarget, monkeypatch: pytest.MonkeyPatch, way: str, *, is_active: bool
) -> None:
    run_id, looks = uuid.uuid4(), 0
    listener = OffsetsListener("owned", "g")
    listener.onQueryStarted(QueryStartedEvent(uuid.UUID(QUERY_ID), run_id, None, "2026-11-22T17:00:00.000Z", set()))

    def deliver() -> dict[str, int]:
        """Deliver an event at each look of the listener, so that none comes before the listener waits."""
        nonlocal looks
        looks += 1
        if looks in {2, 3}:
            listener.onQueryProgress(progress(looks, kafka(orders=[10 * looks]), runId=str(run_id)))
        elif looks == 4 and not is_active:
            listener.onQueryTerminated(QueryTerminatedEvent(uuid.UUID(QUERY_ID), run_id, None, None))
        return {str(run_id): 3} if is_active else {}

    monkeypatch.setattr(offsets_listener, "_completed_batches", deliver)
    assert getattr(listener, way)(30)
    assert target.commits[-1] == {("orders", 0): 30}
    assert listener.close()


def test_listener_that_closes_before_spark_has_delivered_the_progress_warns(
    target: FailingTarget, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = uuid.uuid4()
    monkeypatch.setattr(offsets_listener, "_completed_batches", lambda: {str(run_id): 7})
    listener = OffsetsListener("owned", "g")
    listener.onQueryProgress(progress(6, kafka(orders=[6]), runId=str(run_id)))
    assert not listener.close(0.3)
    assert target.commits == [{("orders", 0): 6}]
    assert capsys.readouterr().err == (
        "offsets: warning: group g lacks offsets: Spark has not delivered the progress of the last batch\n"
    )


@pytest.mark.parametrize(
    "event",
    [
        progress(4, kafka(orders=[5]), durationMs={"latestOffset": 1}),  # no batch ran
        progress(4, kafka(orders=[5]), description="RateStreamV2[rowsPerSecond=1]"),
        progress(4, '{"0":{"offset":5,"leader_epoch":1}}', description="kafka_record_batches"),  # of the offsets log
        progress(4, "null"),
        progress(4),
    ],
)
def test_other_progress_is_not_committed(event: QueryProgressEvent, target: FailingTarget) -> None:
    listener = OffsetsListener("owned", "g")
    listener.onQueryProgress(event)
    assert listener.close()
    assert not target.tried.is_set()


@pytest.mark.parametrize("event", [None, progress(4, '{"orders":{"0":'), progress(4, '{"orders":{"0":-1}}')])
def test_progress_that_cannot_be_read_is_a_warning(
    event: QueryProgressEvent | None, target: FailingTarget, capsys: pytest.CaptureFixture[str]
) -> None:
    listener = OffsetsListener("owned", "g")
    for _ in range(2):
        listener.onQueryProgress(event)  # type: ignore[arg-type]
    assert listener.close()
    assert capsys.readouterr().err.startswith("offsets: warning: group g gets no offsets: ")
    assert not target.tried.is_set()


def test_sources_or_queries_of_one_topic_need_a_choice(
    target: FailingTarget, capsys: pytest.CaptureFixture[str]
) -> None:
    two = progress(4, kafka(orders=[5]), kafka(orders=[3]), name="joined")
    listener = OffsetsListener("owned", "g")
    for _ in range(3):
        listener.onQueryProgress(two)
    listener.onQueryProgress(progress(1, kafka(orders=[5]), query_id=FIRST_ID))
    listener.onQueryProgress(progress(1, kafka(orders=[3]), query_id=SECOND_ID, name="other"))
    assert listener.flush()
    assert target.commits == [{("orders", 0): 5}]
    assert capsys.readouterr().err == (
        "offsets: warning: group g gets no offsets: query joined has two Kafka sources with topic orders, 0 and 1, but "
        "a group has one offset for each partition; add a listener with source=NUMBER and a group for each\n"
        f"offsets: warning: group g gets no offsets: query other reads topic orders, which query {FIRST_ID} reads too; "
        "add a listener with query=NAME and a group for each\n"
    )
    OffsetsListener("owned", "g").onQueryProgress(progress(4, kafka(orders=[5]), kafka(orders=[3])))
    assert f"gets no offsets: query {QUERY_ID} has two Kafka sources" in capsys.readouterr().err  # it has no name
    chosen = OffsetsListener("owned", "g", query="joined", source=1)
    for event in (two, progress(1, kafka(orders=[8]), kafka(orders=[9]), query_id=SECOND_ID, name="other")):
        chosen.onQueryProgress(event)
    assert (listener.close(), chosen.close()) == (True, True)
    assert target.commits == [{("orders", 0): 5}, {("orders", 0): 3}]


def test_query_may_follow_another_one(target: FailingTarget) -> None:
    listener = OffsetsListener("owned", "g")
    first = str(uuid.uuid4())
    listener.onQueryProgress(progress(1, kafka(orders=[5]), query_id=first))
    listener.onQueryTerminated(QueryTerminatedEvent(uuid.UUID(first), uuid.uuid4(), None, None))
    assert listener.flush()
    listener.onQueryProgress(progress(0, kafka(orders=[6])))
    assert listener.close()
    assert target.commits == [{("orders", 0): 5}, {("orders", 0): 6}]


def test_wrong_arguments_fail_at_once() -> None:
    with pytest.raises(ConfigError, match="give a store or bootstrap servers"):
        OffsetsListener(None, "g")
    with pytest.raises(ConfigError, match=r"the Kafka option fetch\.wait is not supported"):
        OffsetsListener("localhost:9092", "g", options={"fetch.wait": "1"})
    with pytest.raises(InvalidGroupId):
        OffsetsListener("owned", None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "targets"),
    [
        (("localhost:9092", "g"), ["localhost:9092"]),
        (("b1.example.com:9092,[::1]:9093", "g"), ["b1.example.com:9092,[::1]:9093"]),
        (("owned", "g"), ["owned"]),
        (("s3://bucket/owned", "g"), ["s3://bucket/owned"]),
        (("owned", "g", "localhost:9092"), ["owned", "localhost:9092"]),
        ((None, "g", "localhost:9092"), ["localhost:9092"]),
    ],
)
def test_store_and_bootstrap_servers_are_told_apart(arguments: tuple[str, ...], targets: list[str]) -> None:
    listener = OffsetsListener(*arguments)
    assert [each._target.name for each in listener._commits] == targets
    assert listener.close()
