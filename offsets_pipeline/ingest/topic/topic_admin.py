"""What the cluster says of a topic, asked by Kafka's own Admin client in the JVM of Spark's driver.

The client comes with Spark's Kafka connector, so nothing more has to be installed, and it takes the same options as the
connector's consumers do.
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

    from offsets_pipeline.ingest.topic.kafka_options import KafkaOptions

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
#: Kafka's default, for who may not read the topic's configuration.
DELETE_RETENTION_MS = 86_400_000

_TIMEOUTS = {"default.api.timeout.ms": "15000", "request.timeout.ms": "10000"}
_LOOK_SECONDS, _POLL_MS, _LOOK_BYTES = 5.0, 500, 16 * 1024
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # of brokers from before there were topic ids
_KAFKA_ERRORS = "org.apache.kafka.common.errors."
_UNREACHABLE = ("TimeoutException", "DisconnectException", "NetworkException", "BrokerNotAvailableException")
_NO_ADDRESS = "No resolvable bootstrap urls"  # a name may be gone as long as what it names

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class TopicDescription:
    """Which topic it is. The ids are None where the broker knows none."""

    cluster_id: str | None
    topic_id: str | None
    partitions: int


@dataclass(frozen=True)
class TopicBounds:
    """Record offsets of one log partition: where it starts, up to where it is stable, and where it ends."""

    start: int
    stable: int
    end: int


def require_connector(spark: SparkSession) -> None:
    """Raise ConnectorMissing where Spark cannot read from Kafka."""
    jvm: Any = spark._jvm
    if isinstance(jvm.org.apache.spark.sql.kafka010.KafkaSourceProvider, JavaPackage):
        raise ConnectorMissing(
            "Spark has no Kafka connector: run `make setup` for this project's environment, or give spark-submit "
            f"--packages {CONNECTOR}"
        )


class TopicAdmin:
    """Asks about one topic; ended by `close`, or by `with`.

    Every question raises BrokerUnreachable, AuthenticationFailed, NotAuthorized, NoSuchTopic or KafkaFailed.
    """

    def __init__(self, spark: SparkSession, options: KafkaOptions, topic: str) -> None:
        self._jvm: Any = spark._jvm
        self._options = options
        self._topic = topic
        properties = {**_TIMEOUTS, **options.for_clients()}
        self._admin = self._answer(lambda: self._jvm.org.apache.kafka.clients.admin.Admin.create(properties))

    def close(self) -> None:
        """Let go of the connections."""
        self._admin.close(self._jvm.java.time.Duration.ofSeconds(1))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def describe(self) -> TopicDescription:
        """Which topic of which cluster it is."""

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
        """Where each log partition starts, up to where it is stable (what a read_committed consumer gets), and ends."""
        kafka = self._jvm.org.apache.kafka
        levels = kafka.common.IsolationLevel
        which = kafka.clients.admin.OffsetSpec
        topic_partition = kafka.common.TopicPartition  # looked up once: that takes milliseconds
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
        """A few of the first records of each log partition; none where none comes within some seconds.

        Also of transactions that are open or were aborted: they tell as much of what the topic holds.
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
            "max.partition.fetch.bytes": str(_LOOK_BYTES),  # a fetch brings one batch at least, however large
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
                        break  # the others hold control records alone
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
        """When the transaction that holds a log partition's stable offset back was last written to.

        Milliseconds since 1970. A log partition without an open transaction is left out. None where we may not know.
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
        """The names of all topics that may be seen, by id (R35); none where they are not told."""

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
        """How long the topic keeps tombstones, in milliseconds; Kafka's default where we may not know."""
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
    """An exception of the JVM in this program's words, without secrets."""
    name, said = _named_cause(exception)
    said = options.without_secrets(said.splitlines()[0] if said else name)
    at = options.bootstrap_server
    if name in ("SaslAuthenticationException", "SslAuthenticationException", "AuthenticationException"):
        return AuthenticationFailed(
            f"{at} refused to authenticate us ({said}): check security.protocol and sasl.* or ssl.*"
        )
    if name == "GroupAuthorizationException":
        return NotAuthorized(
            f"{at} does not allow Spark's consumers to ask for the offsets of their group ({said}): we need DESCRIBE "
            f"on the groups {options.group_prefix}*; the option groupIdPrefix names others"
        )
    if name.endswith("AuthorizationException"):
        return NotAuthorized(f"{at} does not allow us to read topic {topic} ({said}): we need DESCRIBE and READ on it")
    if name in ("UnknownTopicOrPartitionException", "InvalidTopicException", "UnknownTopicIdException"):
        return NoSuchTopic(
            f"there is no topic {topic} on {at}: name another, or wait until the cluster's first consumer made it"
        )
    if name in _UNREACHABLE or (name == "ConfigException" and _NO_ADDRESS in said):
        return BrokerUnreachable(
            f"no broker answers at {at} ({said}): check the address, that it is up, and security.protocol"
        )
    return KafkaFailed(f"{at}: {name}: {said}")


def _named_cause(exception: Any) -> tuple[str, str]:  # noqa: ANN401 - of the JVM
    """Simple name and message of the cause that says most: Kafka's own error, else the first one of all."""
    chain: list[tuple[str, str]] = []
    while exception is not None and len(chain) < 20:
        chain.append((str(exception.getClass().getName()), str(exception.getMessage() or "")))
        exception = exception.getCause()
    for full_name, said in chain:
        if full_name.startswith(_KAFKA_ERRORS):
            return full_name.rpartition(".")[2], said
    full_name, said = chain[-1]
    return full_name.rpartition(".")[2], said
