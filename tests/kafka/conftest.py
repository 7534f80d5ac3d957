"""Fixtures of tests on live brokers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.common.config.sections import TopicSettings
from offsets_pipeline.ingest.topic import topic_ingest
from tests.kafka.brokers import KafkaJvm, kafka_3_9

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offsets_pipeline.common.config import Settings

_SHORT = TopicSettings(watch_interval_ms=200, note_interval_ms=200, min_records_wait_ms=100)


@pytest.fixture
def quick(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of queries that look often, also for a broker that is away."""
    monkeypatch.setattr(topic_ingest, "_MAX_BACKOFF_SECONDS", 0.5)
    return replace(settings, topic=_SHORT)


@pytest.fixture(scope="module")
def classic_kafka(kafka: KafkaJvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaJvm]:
    """A JVM for brokers of 3.9."""
    jvm = KafkaJvm(tmp_path_factory.mktemp("kafka-3.9"), kafka_3_9())
    yield jvm
    jvm.close()
