"""`follow` survives outages, errors of the cluster, and a new topic of the same name."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.common.clock import SystemClock
from offsets_pipeline.errors import KafkaFailed, WriteConflict, WrongRecords
from offsets_pipeline.ingest.topic import topic_ingest
from offsets_pipeline.ingest.topic.record_batch_source import SourceOptions, read_stream
from offsets_pipeline.ingest.topic.topic_append import TopicAppender
from offsets_pipeline.ingest.topic.topic_client import TopicClient
from offsets_pipeline.ingest.topic.topic_ingest import TopicIngest
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from tests.kafka.following import Heard, log_places
from tests.kafka.live import TOPIC, live_broker, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.ingest.topic.topic_client import TopicDescription
    from offsets_pipeline.store.log.append import Append
    from tests.kafka.brokers import KafkaJvm
    from tests.kafka.live import LiveBroker
    from tests.spark.stores import Workbench

pytestmark = [pytest.mark.streaming, pytest.mark.slow]

STOPPED_SECONDS = 60
QUICK = {"default.api.timeout.ms": "3000", "request.timeout.ms": "2000"}


@pytest.fixture(autouse=True)
def patient_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a broker that is away our questions know soon, and the query's source does not within a test."""

    def read(spark: SparkSession, options: SourceOptions) -> DataFrame:
        kafka = KafkaOptions(options.kafka.bootstrap_server, QUICK | {"default.api.timeout.ms": "600000"})
        return read_stream(spark, replace(options, kafka=kafka))

    monkeypatch.setattr(topic_ingest, "read_stream", read)


def options_of(broker: LiveBroker) -> KafkaOptions:
    return KafkaOptions(broker.address, QUICK)


def ingest_of(
    workbench: Workbench, store: Path, broker: LiveBroker, settings: Settings, heard: Heard | None = None
) -> TopicIngest:
    ingest = TopicIngest(workbench.spark, str(store), options_of(broker), settings, SystemClock(), heard)
    ingest.prepare()
    return ingest


@contextmanager
def running(ingest: TopicIngest) -> Iterator[threading.Thread]:
    """`follow` runs meanwhile, and must end in time when it is stopped."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            ingest.run()
        except BaseException as error:  # noqa: BLE001 - asserted below
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        ingest.stop()
        thread.join(STOPPED_SECONDS)
    assert not thread.is_alive(), "it does not end"
    assert not failures, failures


def landed(store: Path, broker: LiveBroker, log_incarnation: int = 0) -> None:
    """Wait until this incarnation of the log holds the records of the broker's segment files."""
    wait_until(
        lambda: log_places(store, log_incarnation) == broker.log_places(),
        "the log is not the topic",
        say=lambda: str((log_places(store, log_incarnation), broker.log_places())),
    )


def test_follow_warns_and_waits_while_the_cluster_fails_and_can_be_stopped(
    kafka: KafkaJvm, workbench: Workbench, quick: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, heard, failing = tmp_path / "store", Heard(), threading.Event()
    describe = TopicClient.describe

    def describe_or_fail(self: TopicClient) -> TopicDescription:
        if failing.is_set():
            raise KafkaFailed("b: UnknownServerException: a bad day")
        return describe(self)

    monkeypatch.setattr(TopicClient, "describe", describe_or_fail)
    with live_broker(kafka, tmp_path / "broker", 1) as broker:
        broker.create_topic("t", 1)
        broker.commit("before", {("t", 0): 1})
        with running(ingest_of(workbench, store, broker, quick, heard)) as thread:
            landed(store, broker)
            failing.set()
            broker.commit("meanwhile", {("t", 0): 2})
            wait_until(lambda: any("a bad day; trying again" in each for each in heard.warnings), "no warning")
            assert thread.is_alive()
            failing.clear()
            landed(store, broker)
            broker.stop()
            wait_until(lambda: any("no broker answers at" in each for each in heard.warnings), "no warning")
            began = time.monotonic()
        assert time.monotonic() - began < STOPPED_SECONDS  # while the broker is away
        broker.start()
        broker.commit("after", {("t", 0): 3})
        ingest_of(workbench, store, broker, quick).run(available_now=True)
        assert log_places(store) == broker.log_places()


def test_new_topic_of_the_same_name_is_noticed_and_read_despite_an_interruption(
    kafka: KafkaJvm, workbench: Workbench, quick: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, heard = tmp_path / "store", Heard()
    hold, held, go_on, interrupted = (threading.Event() for _ in range(4))
    append = TopicAppender.append

    def append_when_told(self: TopicAppender, *arguments: Any) -> Append:  # noqa: ANN401
        if hold.is_set():
            held.set()
            assert go_on.wait(STOPPED_SECONDS)
        added = append(self, *arguments)
        if self._log_incarnation == 2 and not interrupted.is_set():
            interrupted.set()
            raise WriteConflict("interrupted once")
        return added

    monkeypatch.setattr(TopicAppender, "append", append_when_told)

    def recreate(broker: LiveBroker, records: int) -> None:
        broker.delete_topic(TOPIC)
        for number in range(records):
            broker.commit(f"{records}-{number}", {("t", 0): number})

    with live_broker(kafka, tmp_path / "broker", 1) as broker:
        broker.create_topic("t", 1)
        broker.commit("first", {("t", 0): 1})
        ingest_of(workbench, store, broker, quick).run(available_now=True)
        first = broker.log_places()
        recreate(broker, 3)  # while no ingest runs, and with more records than the first topic
        ingest_of(workbench, store, broker, quick, heard).run(available_now=True)
        second = broker.log_places()
        assert len(second) > len(first)
        assert (log_places(store, 0), log_places(store, 1)) == (first, second)
        assert "created again" in heard.warnings[0]

        seldom = replace(quick, topic=replace(quick.topic, watch_interval_ms=600_000))  # so no look warns of it
        with running(ingest_of(workbench, store, broker, seldom, heard)):
            hold.set()
            broker.commit("planned", {("t", 0): 2})
            assert held.wait(STOPPED_SECONDS)
            recreate(broker, 7)  # while a batch of the old one is about to be read, beyond its end
            hold.clear()
            go_on.set()
            wait_until(lambda: any("interrupted once; trying again" in each for each in heard.warnings), "no warning")
            broker.commit("last", {("t", 0): 3})
            landed(store, broker, 2)
        assert (log_places(store, 0), log_places(store, 1), log_places(store, 3)) == (first, second, [])


def test_topic_of_other_records_is_refused_before_a_store_is_made(
    kafka: KafkaJvm, workbench: Workbench, settings: Settings, tmp_path: Path
) -> None:
    with live_broker(kafka, tmp_path / "broker", 2) as broker:
        broker.create_topic("orders", 3)
        for partition in range(2):
            broker.produce("orders", partition, 500)
        ingest = TopicIngest(
            workbench.spark, str(tmp_path / "store"), options_of(broker), settings, SystemClock(), None, "orders"
        )
        with pytest.raises(
            WrongRecords, match=r"topic orders does not .*: 40 of the first 40 .* partition 0 has no key"
        ):
            ingest.prepare()
        assert not (tmp_path / "store").exists()
        broker.commit("g", {("orders", 0): 5})
        ingest_of(workbench, tmp_path / "store", broker, settings)
        assert (tmp_path / "store").exists()
