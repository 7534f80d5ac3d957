"""Kafka's own consumers and producers, in the broker's JVM; and a producer whose requests are written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from tests.kafka.broker_answers import QUICK_CLIENT, call_static
from tests.kafka.wire import NONE
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from py4j.java_gateway import JavaGateway, JavaObject  # type: ignore[import-untyped]

    from offsets_pipeline.coordinator.requests import MemberOfGroup
    from tests.kafka.steps import Errors, Joining, Offsets
    from tests.kafka.wire import Connection, Message

_UNKNOWN = "UNKNOWN_SERVER_ERROR"
#: What the transaction coordinator calls INVALID_PRODUCER_EPOCH since its answers to newer clients tell it apart.
_SAME = {"PRODUCER_FENCED": "INVALID_PRODUCER_EPOCH"}
_NOT_READY = {
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "CONCURRENT_TRANSACTIONS",
}
_TRANSACTION = 1  # of the two kinds of coordinators, that of transactions


class Clients:
    """Creates Kafka clients of one broker, and returns Kafka's names of the errors that they raise."""

    def __init__(self, gateway: JavaGateway, port: int) -> None:
        self._gateway = gateway
        self._jvm = gateway.jvm
        self._kafka = self._jvm.org.apache.kafka
        self._address = f"127.0.0.1:{port}"

    def errors(self, call: Callable[[], object]) -> Errors:
        """Kafka's name of the exception; None without one."""
        try:
            call()
        except Py4JJavaError as error:
            cause = error.java_exception
            while cause is not None:
                name = str(self._kafka.common.protocol.Errors.forException(cause).name())
                if name != _UNKNOWN:
                    return (_SAME.get(name, name),)
                cause = cause.getCause()
            raise
        return ()

    def consumer(self, group_id: str, joining: Joining | None = None, protocol: str = "classic") -> JavaObject:
        """A consumer that subscribes to these topics, or to none."""
        settings = {
            "bootstrap.servers": self._address,
            **QUICK_CLIENT,
            "group.id": group_id,
            "group.protocol": protocol,
            "client.id": "alone" if joining is None else joining.name,
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
            "max.poll.interval.ms": "900000",  # a member stays, however long the next steps take
        }
        if protocol == "classic":
            settings["heartbeat.interval.ms"] = "100"
        if joining is not None and joining.instance_id is not None:
            settings["group.instance.id"] = joining.instance_id
        text = self._kafka.common.serialization.StringDeserializer
        consumer = self._kafka.clients.consumer.KafkaConsumer(settings, text(), text())
        if joining is not None:
            consumer.subscribe(list(joining.topics))
        return consumer

    def poll(self, consumer: JavaObject) -> None:
        """Poll, so that the consumer does its protocol work."""
        consumer.poll(self._jvm.java.time.Duration.ofMillis(20))

    def leave(self, consumer: JavaObject) -> None:
        """Close a consumer; a static one leaves its group too."""
        self._close(consumer, "LEAVE_GROUP")

    def abandon(self, consumer: JavaObject) -> None:
        """Close a consumer without a request to leave its group."""
        self._close(consumer, "REMAIN_IN_GROUP")

    def _close(self, consumer: JavaObject, operation: str) -> None:
        kind = "org.apache.kafka.clients.consumer.CloseOptions"
        of_operation = self._jvm.java.lang.Class.forName(f"{kind}$GroupMembershipOperation")
        value = self._jvm.java.lang.Enum.valueOf(of_operation, operation)
        consumer.close(call_static(self._gateway, kind, "groupMembershipOperation", of_operation, value))

    def producer(self, transactional_id: str, timeout_ms: int) -> JavaObject:
        """A producer of transactions."""
        text = self._kafka.common.serialization.StringSerializer
        return self._kafka.clients.producer.KafkaProducer(
            {
                "bootstrap.servers": self._address,
                **QUICK_CLIENT,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": str(timeout_ms),
                "max.block.ms": "20000",
            },
            text(),
            text(),
        )

    def member(self, group_id: str, member: MemberOfGroup) -> JavaObject:
        """The consumer's group metadata, for a producer."""
        instance_id = self._jvm.java.util.Optional.ofNullable(member.group_instance_id)
        metadata = self._kafka.clients.consumer.ConsumerGroupMetadata
        return metadata(group_id, member.generation, member.member_id, instance_id)

    def offsets(self, offsets: Offsets) -> dict[JavaObject, JavaObject]:
        """Offsets as the clients take them."""
        commit, optional = self._kafka.clients.consumer.OffsetAndMetadata, self._jvm.java.util.Optional
        return {
            self.partition(*where): commit(each.offset, optional.ofNullable(each.leader_epoch), each.metadata)
            for where, each in offsets.items()
        }

    def partition(self, topic: str, partition: int) -> JavaObject:
        """A partition as the clients take it."""
        return self._kafka.common.TopicPartition(topic, partition)


class Producer(Protocol):
    """A producer of transactions."""

    def start(self) -> Errors: ...

    def begin(self) -> Errors: ...

    def send(self, group_id: str, offsets: Offsets, member: MemberOfGroup) -> Errors: ...

    def end(self, *, commit: bool) -> Errors: ...

    def close(self) -> None: ...


class KafkaProducer:
    """Kafka's own."""

    def __init__(self, clients: Clients, transactional_id: str, timeout_ms: int) -> None:
        self._clients = clients
        self._producer = clients.producer(transactional_id, timeout_ms)

    def start(self) -> Errors:
        return self._clients.errors(self._producer.initTransactions)

    def begin(self) -> Errors:
        return self._clients.errors(self._producer.beginTransaction)

    def send(self, group_id: str, offsets: Offsets, member: MemberOfGroup) -> Errors:
        given, metadata = self._clients.offsets(offsets), self._clients.member(group_id, member)
        return self._clients.errors(lambda: self._producer.sendOffsetsToTransaction(given, metadata))

    def end(self, *, commit: bool) -> Errors:
        return self._clients.errors(self._producer.commitTransaction if commit else self._producer.abortTransaction)

    def close(self) -> None:
        self._producer.close()


class ProducerByHand:
    """A producer that goes on after errors, and sends requests that a real one never would; as before KIP-890."""

    def __init__(self, wire: Connection, transactional_id: str, timeout_ms: int) -> None:
        self._wire = wire
        self._transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._who: Message = {}
        self._has_begun = False

    def start(self) -> Errors:
        whose = {"keyType": _TRANSACTION, "coordinatorKeys": [self._transactional_id]}
        self._until_ready("FIND_COORDINATOR", 4, whose, lambda answer: answer["coordinators"][0])
        request = {
            "transactionalId": self._transactional_id,
            "transactionTimeoutMs": self._timeout_ms,
            "producerId": -1,
            "producerEpoch": -1,
        }
        answer = self._until_ready("INIT_PRODUCER_ID", 3, request)
        self._who = {
            "transactionalId": self._transactional_id,
            "producerId": answer["producerId"],
            "producerEpoch": answer["producerEpoch"],
        }
        return self._errors([answer])

    def begin(self) -> Errors:
        self._has_begun = True  # the broker learns of it with the first commit
        return ()

    def send(self, group_id: str, offsets: Offsets, member: MemberOfGroup) -> Errors:
        if self._has_begun:
            added = self._until_ready("ADD_OFFSETS_TO_TXN", 2, {**self._who, "groupId": group_id})
            if added["errorCode"]:
                return self._errors([added])
        request = {
            **self._who,
            "groupId": group_id,
            "generationId": member.generation,
            "memberId": member.member_id,
            "groupInstanceId": member.group_instance_id,
            "topics": commit_topics(offsets),
        }
        answer = self._wire.ask("TXN_OFFSET_COMMIT", 3, request)
        return self._errors([each for topic in answer["topics"] for each in topic["partitions"]])

    def end(self, *, commit: bool) -> Errors:
        self._has_begun = False
        return self._errors([self._until_ready("END_TXN", 1, {**self._who, "committed": commit})])

    def close(self) -> None:
        pass

    def _until_ready(
        self, api: str, version: int, request: Message, part: Callable[[Message], Message] = lambda answer: answer
    ) -> Message:
        """The answer when the transaction coordinator is there, and the transaction before has ended."""
        answers: list[Message] = []

        def is_ready() -> bool:
            answers.append(part(self._wire.ask(api, version, request)))
            return self._wire.name_of(answers[-1]["errorCode"]) not in _NOT_READY

        wait_until(f"{api} of {self._transactional_id}", is_ready)
        return answers[-1]

    def _errors(self, answers: list[Message]) -> Errors:
        return named_errors(self._wire, answers)


def named_errors(wire: Connection, answers: list[Message]) -> Errors:
    """The names of the errors in parts of an answer, each once."""
    names = {wire.name_of(each["errorCode"]) for each in answers}
    return tuple(sorted(_SAME.get(name, name) for name in names - {NONE}))


def commit_topics(offsets: Offsets) -> list[Message]:
    """Offsets as a request has them."""
    return [
        {
            "name": topic,
            "partitions": [
                {
                    "partitionIndex": partition,
                    "committedOffset": each.offset,
                    "committedLeaderEpoch": -1 if each.leader_epoch is None else each.leader_epoch,
                    "committedMetadata": each.metadata,
                }
                for (of_topic, partition), each in offsets.items()
                if of_topic == topic
            ],
        }
        for topic in dict.fromkeys(topic for topic, _ in offsets)
    ]
