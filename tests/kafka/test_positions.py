"""Positions from a broker equal the answers of Kafka's Admin client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.ingest.topic_positions.broker_positions import ask_broker
from offsets_pipeline.ingest.topic_positions.positions import Position, TimedOffset
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from offsets_pipeline.semantics.partition_state import TopicPartition
from tests.kafka.broker_answers import TOPIC
from tests.logs import CAPTURES, capture_partitions

if TYPE_CHECKING:
    from tests.kafka.brokers import KafkaJvm

CAPTURE = "4.2.0-classic"
# in the midst of that log: some log partitions have younger records, some have not
TIME_MS = 1_795_201_235_000


def test_broker_gives_first_and_last_offsets_and_offsets_for_times(kafka: KafkaJvm) -> None:
    offsets_partitions = capture_partitions(CAPTURE)
    with kafka.broker(CAPTURES / CAPTURE / "segments", offsets_partitions) as broker:
        options = KafkaOptions(broker.address(), {})
        bounds, since = broker.bounds(), broker.offsets_since(TIME_MS)
        found = ask_broker(options, {TOPIC, "no-such-topic"}, TIME_MS)
        assert found.by_partition == {
            TopicPartition(TOPIC, at): Position(*bounds[at], (TimedOffset(TIME_MS, since[at]),)) for at in bounds
        }
        assert {each is None for each in since.values()} == {True, False}
        assert ask_broker(options, {TOPIC}).of(TopicPartition(TOPIC, 0)) == Position(*bounds[0])
        assert ask_broker(options, {"no-such-topic"}).by_partition == {}
        assert "no-such-topic" not in broker.topics()  # to ask for it does not make it
