"""`follow` goes on after an outage of S3, and the log then has each record of the topic once."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.common.clock import SystemClock
from offsets_pipeline.errors import StorageRefused
from offsets_pipeline.fold.stream.folding import follow
from offsets_pipeline.ingest.topic.topic_ingest import TopicIngest
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from offsets_pipeline.observability.operator_log import FollowedTopic, OperatorLog
from offsets_pipeline.store.delta import retry
from tests.kafka.following import caught_up, log_records
from tests.kafka.live import TOPIC, live_broker, wait_until
from tests.places import place_of
from tests.unit.delta.faulty_s3 import Fault, FaultyS3, is_commit, operation_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from offsets_pipeline.common.config import Settings
    from tests.kafka.brokers import KafkaJvm
    from tests.kafka.live import LiveBroker
    from tests.spark.stores import Workbench

pytestmark = [pytest.mark.streaming, pytest.mark.slow]

REQUESTS = 30  # that fail during an outage after it was noticed: of several attempts


@pytest.fixture(scope="module")
def server(spark: SparkSession) -> Iterator[tuple[FaultyS3, Path]]:
    server = FaultyS3()
    with server.serving("outages", timeout_ms=3_000) as uri:
        spark.conf.unset("fs.s3a.endpoint")  # that of a server of earlier tests
        yield server, place_of(uri)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a commit without an answer again only once."""
    monkeypatch.setattr(retry, "_UNANSWERED_SECONDS", 0.0)


class Followed:
    """`follow` of a broker's topic, with the lines and the metrics of the command."""

    def __init__(self, workbench: Workbench, store: Path, broker: LiveBroker, settings: Settings) -> None:
        clock = SystemClock()
        self.lines: list[str] = []
        log = OperatorLog(clock)
        log._write = self.lines.append  # type: ignore[method-assign,assignment]
        self._topic = FollowedTopic(TOPIC, log, clock)
        options = KafkaOptions(broker.address, {})
        self.ingest = TopicIngest(workbench.spark, str(store), options, settings, clock, self._topic)
        self.ingest.prepare()
        self._settings = settings

    def run(self) -> None:
        follow(self.ingest, self._settings, SystemClock())

    def is_up(self) -> bool:
        return bool(self._topic.values()["offsets_store_up"])


def all_fail(_: str, __: str) -> Fault:
    return Fault.ERROR_503


def no_file_of_the_log_is_written(method: str, path: str) -> Fault | None:
    return Fault.ERROR_503 if operation_of(method, path) == "PUT file" and "/log/" in path else None


def commits_are_done_and_nothing_is_answered(method: str, path: str) -> Fault:
    return Fault.LOST_ANSWER if is_commit(method, path) else Fault.LOST_REQUEST


def all_are_refused(_: str, __: str) -> Fault:
    return Fault.REFUSED


def test_follow_goes_on_after_outages_and_ends_if_access_is_refused(
    kafka: KafkaJvm, workbench: Workbench, quick: Settings, tmp_path: Path, server: tuple[FaultyS3, Path]
) -> None:
    s3, root = server
    store = root / "followed"
    with live_broker(kafka, tmp_path / "broker", 2) as broker:
        broker.create_topic("t", 1)
        broker.commit("before", {("t", 0): 1})
        followed = Followed(workbench, store, broker, quick)
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(followed.run)
            try:
                caught_up(store, broker)
                for outage in (all_fail, no_file_of_the_log_is_written, commits_are_done_and_nothing_is_answered):
                    assert followed.is_up()
                    followed.lines.clear()
                    s3.fault = outage
                    broker.commit(outage.__name__, {("t", 0): 1})
                    wait_until(lambda: not followed.is_up(), "the outage is not noticed")
                    failed = s3.hits.total()
                    wait_until(lambda: s3.hits.total() > failed + REQUESTS, "it does not try again")  # noqa: B023
                    s3.settle()
                    broker.commit("after", {("t", 0): 3})
                    caught_up(store, broker)
                    wait_until(followed.is_up, "the end of the outage is not noticed")
                    away, back = (line for line in followed.lines if "store" in line)
                    assert re.match(rf"warning: store not available since .*: .* {store}/.*; trying again$", away)
                    assert re.match(r"back after \d+ s: the store can be written again$", back)
                assert log_records(store) == broker.log_records()
                s3.fault = all_are_refused
                broker.commit("refused", {("t", 0): 1})
                said = rf"^cannot .* {store}/.*: http.* refused access to the bucket outages; check the credentials"
                with pytest.raises(StorageRefused, match=said):
                    running.result(60)
            finally:
                s3.settle()
                followed.ingest.stop()
