"""`follow` on a cluster whose first consumer has yet to create `__consumer_offsets`. Without Spark."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, cast
from unittest.mock import MagicMock

import pytest
from kafka.protocol.metadata import MetadataRequest

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.common.config.sections import TopicSettings
from offsets_pipeline.errors import BrokerUnreachable, NoSuchTopic, OffsetsError
from offsets_pipeline.ingest.topic.topic_ingest import TopicIngest
from offsets_pipeline.ingest.topic.topic_progress import TopicObserver
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from tests.unit.broker.fake_topic import FakePartition, FakeTopic, fake_topic, options_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

PATIENCE_SECONDS = 30


class Heard(TopicObserver):
    """What the ingest reported."""

    def __init__(self) -> None:
        self.missing_at: list[str] = []
        self.away: list[OffsetsError] = []
        self.waits, self.is_away = threading.Event(), threading.Event()

    def missing(self, address: str) -> None:
        self.missing_at.append(address)
        self.waits.set()

    def unreachable(self, error: OffsetsError) -> None:
        self.away.append(error)
        self.is_away.set()


def ingest_of(options: KafkaOptions, heard: Heard, name: str | None = None) -> TopicIngest:
    settings = replace(Settings(), topic=TopicSettings(watch_interval_ms=100))
    return TopicIngest(cast("SparkSession", MagicMock()), "store", options, settings, FixedClock(0), heard, name)


@contextmanager
def awaiting(ingest: TopicIngest) -> Iterator[list[bool]]:
    """The ingest waits meanwhile; yields what it returns."""
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(ingest.await_topic()))
    thread.start()
    try:
        yield found
    finally:
        thread.join(PATIENCE_SECONDS)
        ingest.stop()
        thread.join()


@pytest.fixture
def topic() -> Iterator[FakeTopic]:
    """A cluster without the topic."""
    with fake_topic({0: FakePartition([])}) as topic:
        topic.is_missing = True
        yield topic


def test_topic_that_does_not_exist_yet_is_waited_for_with_one_notice(topic: FakeTopic) -> None:
    heard = Heard()
    with awaiting(ingest_of(options_of(topic), heard)) as found:
        assert heard.waits.wait(PATIENCE_SECONDS)
        asked = len(topic.brokers[1].requests)
        # it looks again, and says nothing more
        wait_until("three more looks", lambda: len(topic.brokers[1].requests) >= asked + 3)
        assert found == []
        with topic.changing():
            topic.is_missing = False
    assert found == [True]
    assert heard.missing_at == [topic.brokers[1].address]
    assert heard.away == []


def test_stop_ends_the_wait_for_a_topic(topic: FakeTopic) -> None:
    heard = Heard()
    ingest = ingest_of(options_of(topic), heard)
    with awaiting(ingest) as found:
        assert heard.waits.wait(PATIENCE_SECONDS)
        ingest.stop()
    assert found == [False]


def test_another_topic_that_does_not_exist_is_an_error_at_once(topic: FakeTopic) -> None:
    heard = Heard()
    with pytest.raises(NoSuchTopic, match="has no topic nix; name another one"):
        ingest_of(options_of(topic), heard, "nix").await_topic()
    assert heard.missing_at == []


def test_wrong_address_is_an_error_at_once() -> None:
    options = KafkaOptions("127.0.0.1:1", {"default.api.timeout.ms": "200", "retry.backoff.ms": "1"})
    heard = Heard()
    with pytest.raises(BrokerUnreachable, match=r"no broker answers at 127\.0\.0\.1:1"):
        ingest_of(options, heard).await_topic()
    assert heard.away == []


def test_outage_of_the_cluster_while_its_topic_is_missing_is_waited_out(topic: FakeTopic) -> None:
    heard = Heard()
    with awaiting(ingest_of(options_of(topic, default_api_timeout_ms="100", request_timeout_ms="100"), heard)) as found:
        assert heard.waits.wait(PATIENCE_SECONDS)
        answers = topic.brokers[1].answers
        answer = answers.pop(MetadataRequest.API_KEY)
        answers[MetadataRequest.API_KEY] = lambda _: b""  # no answer
        assert heard.is_away.wait(PATIENCE_SECONDS)
        answers[MetadataRequest.API_KEY] = answer
        with topic.changing():
            topic.is_missing = False
    assert found == [True]
    assert len(heard.missing_at) == 1
