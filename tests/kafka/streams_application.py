"""A Kafka Streams application whose group is a streams group (`group.protocol=streams`), in the brokers' JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kafka.broker_answers import QUICK_CLIENT
from tests.kafka.live_clients import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]

    from tests.kafka.brokers import KafkaJvm
    from tests.kafka.live import LiveBroker

#: Settings of a broker whose streams groups rebalance at once, and have a standby task for each task with a store.
SETTINGS = """
group.streams.heartbeat.interval.ms=100
group.streams.min.heartbeat.interval.ms=100
group.streams.initial.rebalance.delay.ms=0
group.streams.num.standby.replicas=1
"""
_STRINGS = "org.apache.kafka.common.serialization.Serdes$StringSerde"


class StreamsApplication:
    """Counts the records of a topic by key, through a repartition topic, in a store with a changelog topic.

    Its topology has two subtopologies. Each member is a `KafkaStreams` with one thread, with these settings (`_` for a
    dot).
    """

    def __init__(
        self, kafka: KafkaJvm, broker: LiveBroker, folder: Path, group_id: str, topic: str, **settings: str
    ) -> None:
        self._jvm = kafka.gateway.jvm
        self._broker, self._folder = broker, folder
        self.group_id, self._topic = group_id, topic
        self.source_topics = (topic, f"{group_id}-by-key-repartition")
        self.internal_topics = (self.source_topics[1], f"{group_id}-counted-changelog")
        self._settings = {name.replace("_", "."): value for name, value in settings.items()}
        self._members: dict[str, JavaObject] = {}

    def start(self, client_id: str) -> None:
        """Start a member; `settle` waits for it."""
        properties = self._jvm.java.util.Properties()
        settings = {
            "bootstrap.servers": self._broker.address,
            **QUICK_CLIENT,
            "application.id": self.group_id,
            "client.id": client_id,
            "group.protocol": "streams",
            "default.key.serde": _STRINGS,
            "default.value.serde": _STRINGS,
            "auto.offset.reset": "earliest",
            "commit.interval.ms": "50",
            "statestore.cache.max.bytes": "0",
            "state.dir": str(self._folder / f"{self.group_id}-{client_id}"),
            **self._settings,
        }
        for name, value in settings.items():
            properties.setProperty(name, value)
        member = self._jvm.org.apache.kafka.streams.KafkaStreams(self._topology(), properties)
        self._members[client_id] = member
        member.start()

    def _topology(self) -> JavaObject:
        streams = self._jvm.org.apache.kafka.streams
        builder, kstream = streams.StreamsBuilder(), streams.kstream
        # `as` is a word of Python
        by_key = getattr(kstream.Repartitioned, "as")("by-key").withNumberOfPartitions(2)
        in_memory = streams.state.Stores.inMemoryKeyValueStore("counted")
        counted = builder.stream(self._topic).repartition(by_key).groupByKey()
        counted.count(getattr(kstream.Materialized, "as")(in_memory))
        return builder.build()

    def close(self, *client_ids: str) -> None:
        """Close members, by default all; they leave the group."""
        for client_id in client_ids or tuple(self._members):
            self._members.pop(client_id).close()

    def settle(self, state: str) -> None:
        """Wait until the group is in this state, with the members that run."""
        expected = state, len(self._members)
        wait_until(
            lambda: self._seen() == expected, f"group {self.group_id} is not {state}", say=lambda: str(self._seen())
        )

    def _seen(self) -> tuple[str | None, int]:
        described = self._broker.answers.groups()["groups"].get(self.group_id, {"describe": {}})["describe"]
        return described.get("state"), len(described.get("members", ()))
