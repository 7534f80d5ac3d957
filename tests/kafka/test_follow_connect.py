"""Topics of Kafka Connect on a live broker are followed into stores of their kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.common.clock import SystemClock
from offsets_pipeline.errors import StoreMismatch, WrongRecords
from offsets_pipeline.fold.stream.folding import follow
from offsets_pipeline.ingest.topic.topic_ingest import TopicIngest
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from offsets_pipeline.questions.query.connectors import describe_connector
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics.topic_kind import TopicKind
from tests.kafka.live import LiveBroker, live_broker
from tests.spark.stores import rows_of
from tests.unit.connect.connect_logs import answers, capture_rows, in_order

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kafka.brokers import KafkaJvm
    from tests.spark.stores import Workbench

pytestmark = [pytest.mark.streaming, pytest.mark.slow]  # a broker, and two streams for each topic

CAPTURE = "4.2.0-connect-altered"
SECRET = "hunter2"


def text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode()


def followed(workbench: Workbench, broker: LiveBroker, store: Path, topic: str) -> StateReader:
    """Follow a topic up to its end."""
    options = KafkaOptions(broker.address, {})
    ingest = TopicIngest(workbench.spark, str(store), options, workbench.settings, SystemClock(), topic=topic)
    ingest.prepare()
    follow(ingest, workbench.settings, SystemClock(), available_now=True)
    return StateReader(str(store), at_most=0)


def test_followed_offsets_are_what_the_worker_answered(workbench: Workbench, kafka: KafkaJvm, tmp_path: Path) -> None:
    rows = capture_rows(CAPTURE, "connect-offsets")
    store = tmp_path / "worker"
    with live_broker(kafka, tmp_path / "broker") as broker:
        broker.create_topic("worker-offsets", 5, {"cleanup.policy": "compact"})
        texts = [(row.log_partition, text(row.key), text(row.value)) for row in rows]
        broker.send("worker-offsets", texts[:10])
        followed(workbench, broker, store, "worker-offsets")
        broker.send("worker-offsets", texts[10:])
        reader = followed(workbench, broker, store, "worker-offsets")
        assert reader.properties.topic_kind is TopicKind.CONNECT_OFFSETS
        expected = answers(CAPTURE, "file-.+")
        assert {name: in_order(describe_connector(reader, name)["offsets"]) for name in expected} == expected
        with pytest.raises(StoreMismatch):
            followed(workbench, broker, store, "__consumer_offsets")
        broker.create_topic("worker-configs", 1, {"cleanup.policy": "compact"})
        config = f'{{"properties": {{"name": "files", "connector.class": "FileSource", "password": "{SECRET}"}}}}'
        broker.send("worker-configs", [(0, "connector-files", config)])
        configs = followed(workbench, broker, tmp_path / "worker-configs", "worker-configs")
        assert configs.properties.topic_kind is TopicKind.CONNECT_CONFIGS
    (row,) = rows_of(tmp_path / "worker-configs", "log")
    assert row["value"] == b'{"properties":{"name":"files","connector.class":"FileSource"}}'
    for path in (tmp_path / "worker-configs").rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()


def test_configurations_in_a_topic_that_was_empty_are_refused_in_a_store_of_another_kind(
    workbench: Workbench, kafka: KafkaJvm, tmp_path: Path
) -> None:
    store = tmp_path / "worker"
    with live_broker(kafka, tmp_path / "broker") as broker:
        broker.create_topic("cdc-status", 1, {"cleanup.policy": "compact"})
        assert followed(workbench, broker, store, "cdc-status").properties.topic_kind is TopicKind.CONNECT_STATUS
        broker.send("cdc-status", [(0, "connector-files", f'{{"properties": {{"password": "{SECRET}"}}}}')])
        with pytest.raises(WrongRecords, match="cdc-status does not have states of Kafka Connect"):
            followed(workbench, broker, store, "cdc-status")
    for path in store.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()
