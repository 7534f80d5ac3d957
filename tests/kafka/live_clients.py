"""Topics, commits, consumers and transactions of a running cluster, by Kafka's own clients.

They run in a broker's JVM: a consumer's poll is a call, so a test says when it happens.
"""

from __future__ import annotations

import time
from functools import reduce
from typing import TYPE_CHECKING, Any

from tests.kafka.broker_answers import QUICK_CLIENT, TOPIC, Broker, call_static

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]

    from tests.kafka.brokers import KafkaJvm

PATIENCE_SECONDS = 300  # a Spark that starts on a busy machine takes a minute or two
_POLL_SECONDS = 0.3  # a look takes processor time, which the processes under test need
_STRING = "org.apache.kafka.common.serialization.StringSerializer"
_UNSTRING = "org.apache.kafka.common.serialization.StringDeserializer"


def wait_until(
    true: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS, say: Callable[[], str] = str
) -> None:
    """Wait until the condition holds; after a deadline fail, with the text of ``say``."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"after {seconds} s: {what} {say()}"
        time.sleep(_POLL_SECONDS)


class LiveClients:
    """Clients of one cluster: `connect` when it runs, `disconnect` before it stops."""

    #: The coordinator's answers while it runs.
    answers: Broker

    def __init__(self, kafka: KafkaJvm, offsets_partitions: int) -> None:
        self._kafka = kafka
        self._jvm = kafka.gateway.jvm
        self.offsets_partitions = offsets_partitions
        self._admin: JavaObject = None
        self._clients: list[JavaObject] = []

    @property
    def address(self) -> str:
        """Value of bootstrap.servers."""
        raise NotImplementedError

    def connect(self) -> JavaObject:
        """Make the Admin client."""
        self._admin = self._jvm.org.apache.kafka.clients.admin.Admin.create(
            {"bootstrap.servers": self.address, **QUICK_CLIENT}
        )
        return self._admin

    def disconnect(self) -> None:
        """Close the Admin client."""
        self._admin.close()

    def close_clients(self) -> None:
        """Close the consumers and producers."""
        for client in self._clients:
            client.close(self._jvm.java.time.Duration.ofSeconds(1))
        self._clients = []

    def abort_transactions(self) -> None:
        """End the open transactions of the offsets topic, as `kafka-transactions --abort` does."""
        admin = self._jvm.org.apache.kafka.clients.admin
        for (at, producer_id), (epoch, open_since, coordinator_epoch) in self.answers.producers().items():
            if open_since is not None:
                place = self._jvm.org.apache.kafka.common.TopicPartition(TOPIC, at)
                spec = admin.AbortTransactionSpec(place, producer_id, self._short(epoch), coordinator_epoch or 0)
                self._admin.abortTransaction(spec).all().get()

    def wait_for_markers(self) -> None:
        """Wait for the control records of transactions that have ended: a broker writes them after its answer."""
        wait_until(
            lambda: all(open_since is None for _, open_since, _ in self.answers.producers().values()),
            "a transaction is open",
        )

    # --- topics

    def create_topic(self, name: str, partitions: int = 2, settings: Mapping[str, str] | None = None) -> None:
        """Create a topic, and wait until the broker knows it."""
        topic = self._jvm.org.apache.kafka.clients.admin.NewTopic(name, partitions, self._short(1))
        topic.configs(dict(settings or {}))
        self._admin.createTopics([topic]).all().get()
        wait_until(lambda: name in self.topics(), f"topic {name} is not there")

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until it is gone."""
        self._admin.deleteTopics([name]).all().get()
        wait_until(lambda: name not in self.topics(), f"topic {name} is still there")

    def topics(self) -> list[str]:
        """All topics, internal ones too."""
        options = self._jvm.org.apache.kafka.clients.admin.ListTopicsOptions().listInternal(True)
        return list(self._admin.listTopics(options).names().get())

    def cluster_id(self) -> str:
        """The id of the cluster."""
        return str(self._admin.describeCluster().clusterId().get())

    def topic_id(self, name: str) -> str:
        """The id of a topic in Kafka's notation."""
        return str(self._admin.describeTopics([name]).allTopicNames().get()[name].topicId().toString())

    def add_partitions(self, name: str, count: int) -> None:
        """Give a topic more partitions."""
        new = self._jvm.org.apache.kafka.clients.admin.NewPartitions.increaseTo(count)
        self._admin.createPartitions({name: new}).all().get()

    def set_topic(self, name: str, **settings: str) -> None:
        """Change settings of a topic; names have `_` in place of dots."""
        self._set("TOPIC", name, settings)

    def set_group(self, group_id: str, **settings: str) -> None:
        """Change settings of a group; names have `_` in place of dots."""
        self._set("GROUP", group_id, settings)

    def _set(self, kind: str, name: str, settings: Mapping[str, str]) -> None:
        kafka = self._jvm.org.apache.kafka
        types = kafka.common.config.ConfigResource.Type
        resource = kafka.common.config.ConfigResource(getattr(types, kind), name)
        operation = kafka.clients.admin.AlterConfigOp.OpType.SET
        changes = [
            kafka.clients.admin.AlterConfigOp(kafka.clients.admin.ConfigEntry(key.replace("_", "."), value), operation)
            for key, value in settings.items()
        ]
        self._admin.incrementalAlterConfigs({resource: changes}).all().get()

    def allow(self, user: str, kind: str, prefix: str, *operations: str) -> None:
        """Allow a user operations on all resources of a kind (TOPIC, GROUP) whose names begin so."""
        acl, resource = self._jvm.org.apache.kafka.common.acl, self._jvm.org.apache.kafka.common.resource
        prefixed = resource.PatternType.PREFIXED
        pattern = resource.ResourcePattern(getattr(resource.ResourceType, kind), prefix, prefixed)
        allowed = [
            acl.AclBinding(
                pattern,
                acl.AccessControlEntry(
                    f"User:{user}", "*", getattr(acl.AclOperation, operation), acl.AclPermissionType.ALLOW
                ),
            )
            for operation in operations
        ]
        self._admin.createAcls(allowed).all().get()

    def add_scram_user(self, user: str, password: str) -> None:
        """Add a user who logs in by SCRAM, with either hash."""
        admin = self._jvm.org.apache.kafka.clients.admin
        for mechanism in (admin.ScramMechanism.SCRAM_SHA_256, admin.ScramMechanism.SCRAM_SHA_512):
            credential = admin.UserScramCredentialUpsertion(user, admin.ScramCredentialInfo(mechanism, 4096), password)
            self._admin.alterUserScramCredentials([credential]).all().get()

    def committed_records(self) -> list[tuple[int, int]]:
        """Log partition and record offset of all that a read_committed consumer gets of the offsets topic, in order."""
        kafka = self._jvm.org.apache.kafka
        bytes_reader = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
        client = kafka.clients.consumer.KafkaConsumer(
            {
                "bootstrap.servers": self.address,
                "isolation.level": "read_committed",
                "key.deserializer": bytes_reader,
                "value.deserializer": bytes_reader,
            }
        )
        places = [kafka.common.TopicPartition(TOPIC, at) for at in range(self.offsets_partitions)]
        client.assign(places)
        client.seekToBeginning(places)
        ends = {each.getKey().partition(): each.getValue() for each in client.endOffsets(places).entrySet()}
        found: list[tuple[int, int]] = []

        def is_read() -> bool:
            records = client.poll(self._jvm.java.time.Duration.ofMillis(100)).iterator()
            while records.hasNext():
                record = records.next()
                found.append((record.partition(), record.offset()))
            return all(client.position(place) >= ends[place.partition()] for place in places)

        wait_until(is_read, "the offsets topic was not read to its end")
        client.close()
        return sorted(found)

    # --- clients

    def produce(self, topic: str, partition: int, count: int) -> None:
        """Produce this number of records."""
        self.send(topic, [(partition, None, str(number)) for number in range(count)])

    def send(
        self, topic: str, records: Iterable[tuple[int, str | None, str | None]], timestamp_ms: int | None = None
    ) -> None:
        """Produce records: partition, key and value; with this timestamp in place of the time."""
        producer = self._jvm.org.apache.kafka.clients.producer.KafkaProducer(
            {"bootstrap.servers": self.address, "key.serializer": _STRING, "value.serializer": _STRING}
        )
        at = () if timestamp_ms is None else (timestamp_ms,)
        for partition, key, value in records:
            producer.send(self._jvm.org.apache.kafka.clients.producer.ProducerRecord(topic, partition, *at, key, value))
        producer.close()

    def send_at(self, topic: str, records: Iterable[tuple[int, int]]) -> None:
        """Produce records with these partitions and timestamps, each in a batch of its own."""
        producer = self._jvm.org.apache.kafka.clients.producer.KafkaProducer(
            {"bootstrap.servers": self.address, "key.serializer": _STRING, "value.serializer": _STRING}
        )
        for partition, timestamp_ms in records:
            record = self._jvm.org.apache.kafka.clients.producer.ProducerRecord(
                topic, partition, timestamp_ms, None, "x"
            )
            producer.send(record).get()
        producer.close()

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete a partition's records before an offset: its log start becomes this offset."""
        where = self._jvm.org.apache.kafka.common.TopicPartition(topic, partition)
        long = self._jvm.java.lang.Long
        kind = "org.apache.kafka.clients.admin.RecordsToDelete"
        what = call_static(self._kafka.gateway, kind, "beforeOffset", long.TYPE, long.valueOf(str(before)))
        self._admin.deleteRecords({where: what}).all().get()

    def tool(self, *arguments: str, program: str = "consumer.group.ConsumerGroupCommand.main") -> str:
        """What one of Kafka's programs prints; ``program`` is a method that returns, in Kafka's package `tools`."""
        words = ["--bootstrap-server", self.address, *arguments]
        java = self._kafka.gateway.new_array(self._jvm.String, len(words))
        for index, word in enumerate(words):
            java[index] = word
        system, stream = self._jvm.java.lang.System, self._jvm.java.io.ByteArrayOutputStream()
        before = system.out
        system.setOut(self._jvm.java.io.PrintStream(stream, True))
        try:
            reduce(getattr, program.split("."), self._jvm.org.apache.kafka.tools)(java)
        finally:
            system.setOut(before)
        return str(stream.toString())

    def consumer(self, group_id: str, topics: Sequence[str] = (), **settings: str) -> Consumer:
        """A consumer that subscribes to these topics, if any; ``settings`` with `_` for a dot."""
        properties = {
            "bootstrap.servers": self.address,
            **QUICK_CLIENT,
            "group.id": group_id,
            "key.deserializer": _UNSTRING,
            "value.deserializer": _UNSTRING,
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
        client = self._jvm.org.apache.kafka.clients.consumer.KafkaConsumer(properties)
        self._clients.append(client)
        if topics:
            client.subscribe(list(topics))
        return Consumer(self._jvm, client)

    def transaction(self, transactional_id: str, timeout_ms: int = 60_000) -> Transaction:
        """A producer that commits offsets in transactions; the broker aborts one that is open for longer."""
        client = self._jvm.org.apache.kafka.clients.producer.KafkaProducer(
            {
                "bootstrap.servers": self.address,
                **QUICK_CLIENT,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": str(timeout_ms),
                "key.serializer": _STRING,
                "value.serializer": _STRING,
            }
        )
        client.initTransactions()
        self._clients.append(client)
        return Transaction(self._jvm, client)

    def commit(
        self,
        group_id: str,
        offsets: Mapping[tuple[str, int], int],
        metadata: str = "",
        leader_epoch: int | None = None,
    ) -> None:
        """Commit or reset offsets of a group without members, as the Admin client does."""
        found = _offsets(self._jvm, offsets, metadata, leader_epoch)
        self._admin.alterConsumerGroupOffsets(group_id, found).all().get()

    def delete_group(self, group_id: str) -> None:
        """Delete a group."""
        self._admin.deleteConsumerGroups([group_id]).all().get()

    def delete_offsets(self, group_id: str, places: Sequence[tuple[str, int]]) -> None:
        """Delete offsets of a group."""
        found = {self._jvm.org.apache.kafka.common.TopicPartition(*place) for place in places}
        self._admin.deleteConsumerGroupOffsets(group_id, found).all().get()

    def _short(self, number: int) -> JavaObject:
        array = self._kafka.gateway.new_array(self._jvm.short, 1)
        array[0] = number
        return array[0]


class Consumer:
    """A consumer of a group, one call at a time."""

    def __init__(self, jvm: Any, client: JavaObject) -> None:  # noqa: ANN401 - of the JVM
        self._jvm = jvm
        self._client = client

    def poll(self, milliseconds: int = 200) -> None:
        """Poll once."""
        self._client.poll(self._jvm.java.time.Duration.ofMillis(milliseconds))

    def join(self, partitions: int = 1) -> None:
        """Poll until it has this number of partitions."""

        def assigned() -> bool:
            self.poll()
            return len(self._client.assignment()) >= partitions

        wait_until(assigned, "the consumer was not assigned its partitions")

    def start_of(self, topic: str, partition: int) -> int:
        """Assign a partition, and return the position from which it reads first. Raises the client's exceptions."""
        place = self._jvm.org.apache.kafka.common.TopicPartition(topic, partition)
        self._client.assign([place])
        found = self._client.position(place)  # the committed offset, in range or not
        first: list[int] = []

        def has_read() -> bool:
            records = self._client.poll(self._jvm.java.time.Duration.ofMillis(200)).records(place)
            if not records.isEmpty():
                first.append(records.get(0).offset())
            return bool(first) or self._client.position(place) == self._client.endOffsets([place])[place]

        wait_until(has_read, f"it reads nothing from {found} on")
        return first[0] if first else int(self._client.position(place))

    def assigned(self) -> int:
        """The number of partitions that it has."""
        return int(self._client.assignment().size())

    def commit(self, offsets: Mapping[tuple[str, int], int], metadata: str = "") -> None:
        """Commit, and wait for it."""
        self._client.commitSync(_offsets(self._jvm, offsets, metadata))

    def metadata(self) -> JavaObject:
        """The member id and generation in its group."""
        return self._client.groupMetadata()

    def close(self) -> None:
        """Leave."""
        self._client.close()


class Transaction:
    """A producer's transactions."""

    def __init__(self, jvm: Any, client: JavaObject) -> None:  # noqa: ANN401 - of the JVM
        self._jvm = jvm
        self._client = client

    def begin(self, group: str | JavaObject, offsets: Mapping[tuple[str, int], int]) -> None:
        """Begin one, and commit offsets of a group in it."""
        if isinstance(group, str):
            group = self._jvm.org.apache.kafka.clients.consumer.ConsumerGroupMetadata(group)
        self._client.beginTransaction()
        self._client.sendOffsetsToTransaction(_offsets(self._jvm, offsets, ""), group)

    def produce(self, topic: str, partition: int, count: int) -> None:
        """Produce this number of records in a transaction of their own, and commit it."""
        self._client.beginTransaction()
        for number in range(count):
            record = self._jvm.org.apache.kafka.clients.producer.ProducerRecord(topic, partition, None, str(number))
            self._client.send(record)
        self._client.commitTransaction()

    def commit(self) -> None:
        """End it with a commit."""
        self._client.commitTransaction()

    def abort(self) -> None:
        """End it with an abort."""
        self._client.abortTransaction()


def _offsets(
    jvm: Any,  # noqa: ANN401 - of the JVM
    offsets: Mapping[tuple[str, int], int],
    metadata: str,
    leader_epoch: int | None = None,
) -> dict[JavaObject, JavaObject]:
    kafka, epoch = jvm.org.apache.kafka, jvm.java.util.Optional.ofNullable(leader_epoch)
    return {
        kafka.common.TopicPartition(*place): kafka.clients.consumer.OffsetAndMetadata(offset, epoch, metadata)
        for place, offset in offsets.items()
    }
