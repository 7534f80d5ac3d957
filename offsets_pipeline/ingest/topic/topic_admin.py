"""Requests to the cluster about a topic, through Kafka's own Admin client in the JVM of Spark's driver.

Spark's Kafka connector includes this client. It takes the same options as the connector's consumers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

from py4j.java_gateway import JavaPackage  # type: ignore[import-untyped]
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from offsets_pipeline.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ConnectorMissing,
    KafkaFailed,
    NoSuchTopic,
    NotAuthorized,
    OffsetsError,
)
from offsets_pipeline.ingest.record_kind import LOOK_RECORDS, FirstRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import SparkSession

    from offsets_pipeline.broker.kafka_options import KafkaOptions

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
#: Kafka's default, used if the user may not read the topic's configuration.
DELETE_RETENTION_MS = 86_400_000

_TIMEOUTS = {"default.api.timeout.ms": "15000", "request.timeout.ms": "10000"}
_LOOK_SECONDS, _POLL_MS, _LOOK_BYTES = 5.0, 500, 16 * 1024
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # Kafka's zero id, from a broker older than topic ids
_KAFKA_ERRORS = "org.apache.kafka.common.errors."
_UNREACHABLE = ("TimeoutException", "DisconnectException", "NetworkException", "BrokerNotAvailableException")
_NO_ADDRESS = "No resolvable bootstrap urls"  # DNS may not know a broker's name while the broker is down

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class TopicDescription:
    """Identity and partition count of a topic. An id is None if the broker has none."""

    cluster_id: str | None
    topic_id: str | None
    partitions: int


@dataclass(frozen=True)
class TopicBounds:
    """Record offsets of one log partition: log start offset, last stable offset, log end offset."""

    start: int
    stable: int
    end: int


def require_connector(spark: SparkSession) -> None:
    """Raise ConnectorMissing if Spark has no Kafka connector."""
    jvm: Any = spark._jvm
    if isinstance(jvm.org.apache.spark.sql.kafka010.KafkaSourceProvider, JavaPackage):
        raise ConnectorMissing(
            "Spark has no Kafka connector; run `make setup` for this project's environment, or pass spark-submit "
            f"--packages {CONNECTOR}"
        )


class TopicAdmin:
    """Admin client for one topic; close it with `close`, or use it in `with`.

    Every request may raise BrokerUnreachable, AuthenticationFailed, NotAuthorized, NoSuchTopic or KafkaFailed.
    """

    def __init__(self, spark: SparkSession, options: KafkaOptions, topic: str) -> None:
        self._jvm: Any = spark._jvm
        self._options = options
        self._topic = topic
        properties = {**_TIMEOUTS, **options.for_clients()}
        self._admin = self._answer(lambda: self._jvm.org.apache.kafka.clients.admin.Admin.create(properties))

    def close(self) -> None:
        """Close the connections."""
        self._admin.close(self._jvm.java.time.Duration.ofSeconds(1))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def describe(self) -> TopicDescription:
        """The topic's id, its cluster's id, and its partition count."""

        def ask() -> TopicDescription:
            cluster_id = self._admin.describeCluster().clusterId().get()
            found = self._admin.describeTopics([self._topic]).allTopicNames().get()[self._topic]
            topic_id = str(found.topicId().toString())
            partitions = sorted(each.partition() for each in found.partitions())
            return TopicDescription(
                None if cluster_id is None else str(cluster_id),
                None if topic_id == _NO_ID else topic_id,
                len(partitions),
            )

        return self._answer(ask)

    def bounds(self, partitions: int) -> dict[int, TopicBounds]:
        """Start, last stable and end offset of each log partition; read_committed consumers read to the stable one."""
        kafka = self._jvm.org.apache.kafka
        levels = kafka.common.IsolationLevel
        which = kafka.clients.admin.OffsetSpec
        topic_partition = kafka.common.TopicPartition  # a lookup in the JVM takes milliseconds: do it once
        at = {number: topic_partition(self._topic, number) for number in range(partitions)}

        def ask(spec: Any, level: Any) -> dict[int, int]:  # noqa: ANN401 - of the JVM
            options = kafka.clients.admin.ListOffsetsOptions(level)
            found = self._admin.listOffsets(dict.fromkeys(at.values(), spec), options).all().get()
            return {number: int(found[place].offset()) for number, place in at.items()}

        def ask_all() -> dict[int, TopicBounds]:
            starts = ask(which.earliest(), levels.READ_UNCOMMITTED)
            stable = ask(which.latest(), levels.READ_COMMITTED)
            ends = ask(which.latest(), levels.READ_UNCOMMITTED)
            return {number: TopicBounds(starts[number], stable[number], ends[number]) for number in at}

        return self._answer(ask_all)

    def first_records(self, bounds: Mapping[int, TopicBounds]) -> list[FirstRecord]:
        """A few of the first records of each log partition, as far as they arrive within some seconds.

        Includes records of open and aborted transactions: their keys show the kind of records just as well.
        """
        kafka = self._jvm.org.apache.kafka
        topic_partition = kafka.common.TopicPartition
        places = [topic_partition(self._topic, at) for at, each in bounds.items() if each.start < each.end]
        if not places:
            return []
        reader = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
        properties = {
            **self._options.for_clients(),
            "key.deserializer": reader,
            "value.deserializer": reader,
            "enable.auto.commit": "false",
            "max.partition.fetch.bytes": str(_LOOK_BYTES),  # a fetch returns at least one batch of any size
        }

        def ask() -> list[FirstRecord]:
            found: dict[int, list[FirstRecord]] = {}
            consumer = kafka.clients.consumer.KafkaConsumer(properties)
            try:
                consumer.assign(places)
                consumer.seekToBeginning(places)
                deadline = time.monotonic() + _LOOK_SECONDS
                while len(found) < len(places) and time.monotonic() < deadline:
                    records = consumer.poll(self._jvm.java.time.Duration.ofMillis(_POLL_MS))
                    if found and records.isEmpty():
                        break  # the other log partitions hold only control records
                    for place in records.partitions():
                        of_place = records.records(place)
                        found[int(place.partition())] = [
                            FirstRecord(int(place.partition()), int(each.offset()), each.key())
                            for each in of_place.subList(0, min(LOOK_RECORDS, of_place.size()))
                        ]
            finally:
                consumer.close(self._jvm.java.time.Duration.ofSeconds(1))
            return [record for of_place in found.values() for record in of_place]

        return self._answer(ask)

    def open_since_ms(self, partitions: Iterable[int]) -> dict[int, int] | None:
        """Time of the last write of each log partition's oldest open transaction, in milliseconds since 1970.

        That transaction holds back the last stable offset. Omits log partitions without an open transaction. Returns
        None if the broker refuses the request.
        """
        topic_partition = self._jvm.org.apache.kafka.common.TopicPartition
        places = [topic_partition(self._topic, number) for number in partitions]
        if not places:
            return {}

        def ask() -> dict[int, int]:
            found = self._admin.describeProducers(places).all().get()
            since: dict[int, int] = {}
            for place in places:
                began = [
                    (int(each.currentTransactionStartOffset().getAsLong()), int(each.lastTimestamp()))
                    for each in found[place].activeProducers()
                    if each.currentTransactionStartOffset().isPresent()
                ]
                if began:
                    since[int(place.partition())] = min(began)[1]
            return since

        try:
            return self._answer(ask)
        except (NotAuthorized, KafkaFailed):
            return None

    def topic_names(self) -> dict[str, str]:
        """Names of all visible topics by topic id (R35); empty if the broker refuses the request."""

        def ask() -> dict[str, str]:
            options = self._jvm.org.apache.kafka.clients.admin.ListTopicsOptions().listInternal(True)  # noqa: FBT003
            listed = self._admin.listTopics(options).namesToListings().get().entrySet()
            names = {str(each.getValue().topicId().toString()): str(each.getKey()) for each in listed}
            return {topic_id: name for topic_id, name in names.items() if topic_id != _NO_ID}

        try:
            return self._answer(ask)
        except (NotAuthorized, KafkaFailed):
            return {}

    def delete_retention_ms(self) -> int:
        """The topic's delete.retention.ms; Kafka's default if the broker refuses the request."""
        configs = self._jvm.org.apache.kafka.common.config.ConfigResource
        resource = configs(configs.Type.TOPIC, self._topic)

        def ask() -> int:
            entry = self._admin.describeConfigs([resource]).all().get()[resource].get("delete.retention.ms")
            value = None if entry is None else entry.value()
            return DELETE_RETENTION_MS if value is None else int(value)

        try:
            return self._answer(ask)
        except (NotAuthorized, KafkaFailed):
            return DELETE_RETENTION_MS

    def _answer(self, ask: Callable[[], _Answer]) -> _Answer:
        try:
            return ask()
        except Py4JJavaError as error:
            raise kafka_error(error.java_exception, self._options, self._topic) from None


def kafka_error(exception: Any, options: KafkaOptions, topic: str) -> OffsetsError:  # noqa: ANN401 - of the JVM
    """Translate an exception of the JVM into an error of this package, without secrets in its message."""
    name, said = _named_cause(exception)
    said = options.without_secrets(said.splitlines()[0] if said else name)
    at = options.bootstrap_server
    if name in ("SaslAuthenticationException", "SslAuthenticationException", "AuthenticationException"):
        return AuthenticationFailed(
            f"{at} rejected the credentials ({said}); check the options security.protocol, sasl.* and ssl.*"
        )
    if name == "GroupAuthorizationException":
        return NotAuthorized(
            f"{at} does not allow Spark's consumers to read the offsets of their group ({said}); grant DESCRIBE "
            f"on the groups {options.group_prefix}*, or name other groups with the option groupIdPrefix"
        )
    if name.endswith("AuthorizationException"):
        return NotAuthorized(f"{at} does not allow reading topic {topic} ({said}); grant DESCRIBE and READ on it")
    if name in ("UnknownTopicOrPartitionException", "InvalidTopicException", "UnknownTopicIdException"):
        return NoSuchTopic(
            f"{at} has no topic {topic}; name another one, or wait until the cluster's first consumer creates it"
        )
    if name in _UNREACHABLE or (name == "ConfigException" and _NO_ADDRESS in said):
        return BrokerUnreachable(
            f"no broker answers at {at} ({said}); check the address, the broker, and the option security.protocol"
        )
    return KafkaFailed(f"{at}: {name}: {said}")


def _named_cause(exception: Any) -> tuple[str, str]:  # noqa: ANN401 - of the JVM
    """Simple class name and message of the first Kafka error among the causes, else of the root cause."""
    chain: list[tuple[str, str]] = []
    while exception is not None and len(chain) < 20:
        chain.append((str(exception.getClass().getName()), str(exception.getMessage() or "")))
        exception = exception.getCause()
    for full_name, said in chain:
        if full_name.startswith(_KAFKA_ERRORS):
            return full_name.rpartition(".")[2], said
    full_name, said = chain[-1]
    return full_name.rpartition(".")[2], said
