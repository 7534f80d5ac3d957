"""A Kafka cluster: its brokers, its topics and their leaders, and requests to the broker that can answer them."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.metadata import MetadataRequest

from offsets_pipeline.common.closing import Closing
from offsets_pipeline.errors import BrokerUnreachable, NoSuchTopic, OffsetsError
from offsets_pipeline.kafka.broker.broker_errors import (
    NO_ERROR,
    UNKNOWN_TOPIC_OR_PARTITION,
    broker_error,
    is_retriable,
    unreachable,
)
from offsets_pipeline.kafka.broker.client_settings import ClientSettings
from offsets_pipeline.kafka.broker.connection import NONE, Connection, Message, or_none
from offsets_pipeline.kafka.record.wire import uuid_from_text, uuid_to_text

if TYPE_CHECKING:
    from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions

    #: What the brokers know of topics, by name.
    Metadata = Mapping[str, "TopicMetadata"]

#: A topic and a partition.
Place = tuple[str, int]
#: Host and port of a broker.
Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class PartitionLeader:
    """Node id and epoch of a partition's leader; None if it has no leader, or the broker does not send the epoch."""

    node_id: int | None
    epoch: int | None

    def is_before(self, epoch: int) -> bool:
        """Whether the leader has only epochs before this one: a topic without an id was created again."""
        return self.epoch is not None and self.epoch < epoch


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """Id and partitions of a topic. The id is in Kafka's notation; None if the cluster has no topic ids."""

    name: str
    topic_id: str | None
    partitions: dict[int, PartitionLeader]

    @property
    def uuid(self) -> uuid.UUID | None:
        """The topic's id as Kafka's protocol has it."""
        return None if self.topic_id is None else uuid.UUID(bytes=uuid_from_text(self.topic_id))

    def current_leader_epoch(self, partition: int) -> int:
        """The epoch of a partition's leader as requests name it; NONE if the broker does not send epochs."""
        epoch = self.partitions[partition].epoch
        return NONE if epoch is None else epoch

    def led(self, partitions: Iterable[int]) -> list[int]:
        """Those of these partitions that have a leader, in the order given."""
        return [each for each in partitions if self.partitions[each].node_id is not None]

    def by_leader(self, partitions: Iterable[int]) -> dict[int, list[int]]:
        """The partitions of each leader, by node id, in the order given; leaves out partitions without a leader."""
        found: dict[int, list[int]] = {}
        for partition in partitions:
            node_id = self.partitions[partition].node_id
            if node_id is not None:
                found.setdefault(node_id, []).append(partition)
        return found


def topic_metadata(topic: Message) -> TopicMetadata:
    """Return the metadata of one topic in a response."""
    return TopicMetadata(
        name=topic.name,
        topic_id=None if topic.topic_id is None else uuid_to_text(topic.topic_id.bytes),
        partitions={
            each.partition_index: PartitionLeader(or_none(each.leader_id), or_none(each.leader_epoch))
            for each in sorted(topic.partitions, key=lambda each: each.partition_index)
        },
    )


_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4
_MAX_BACKOFF_SECONDS = 1.0
#: When an address failed, or its metadata did not help: it is tried after the others. For all clients of this process.
_failed_at: dict[Address, float] = {}

_Key = TypeVar("_Key", bound="Hashable")
_Answer = TypeVar("_Answer")


class Cluster(Closing):
    """A client of one cluster, with one connection to each broker that it asks. Threads may share it.

    It asks the broker that can answer, refreshes the metadata and retries while a partition has no leader, moves to
    another broker, or a connection breaks, for default.api.timeout.ms. It connects with the first request. Close it
    with `close`, or use it in `with`.

    Every request may raise BrokerUnreachable, AuthenticationFailed, NotAuthorized, NoSuchTopic or KafkaFailed.
    """

    def __init__(self, options: KafkaOptions) -> None:
        self.settings = ClientSettings(options)
        self._lock = threading.RLock()
        self._connections: dict[int, Connection] = {}
        self._any: Connection | None = None
        self._any_address: Address | None = None
        self._brokers: dict[int, Address] = {}
        self._cluster_id: str | None = None

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            for connection in (*self._connections.values(), *filter(None, [self._any])):
                connection.close()
            self._connections, self._any = {}, None

    # --- metadata

    def connected(self) -> Connection:
        """The connection to the broker that is asked for metadata; it has the versions and features of that broker."""
        return self.retried(self.any_connection)

    def cluster_id(self) -> str | None:
        """The id of the cluster; None if it has none."""
        self.brokers()
        return self._cluster_id

    def brokers(self) -> dict[int, Address]:
        """The addresses of the brokers that are up, by node id."""
        if not self._brokers:
            self.retried(self.refresh)
        return dict(self._brokers)

    def topic(self, name: str) -> TopicMetadata:
        """Id, partitions and leaders of a topic, as a broker knows them now. Raises NoSuchTopic."""
        return self.retried(lambda: _known(self._metadata([name])[name]))

    def topics(self, names: Collection[str] | None) -> dict[str, TopicMetadata]:
        """Id, partitions and leaders of these topics; None: of all topics.

        Leaves out topics that do not exist, or that we may not describe.
        """
        wanted = None if names is None else sorted(names)
        found = {} if wanted == [] else self.retried(lambda: self._metadata(wanted))
        return {name: each for name, each in found.items() if isinstance(each, TopicMetadata)}

    def configs(self, of: str | int, keys: Collection[str]) -> dict[str, str | None]:
        """Configs of a topic, by its name, or a broker's own ones, by its node id; omits those that the broker lacks.

        Such as delete.retention.ms of a topic, and offsets.retention.minutes of a broker.
        """
        topic = of if isinstance(of, str) else None
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_BROKER_RESOURCE if topic is None else _TOPIC_RESOURCE,
            resource_name=str(of),
            configuration_keys=list(keys),
        )
        action = f"describe the configs of {'broker' if topic is None else 'topic'} {of}"
        needs = f"DESCRIBE_CONFIGS on {'the cluster' if topic is None else 'it'}"

        def ask() -> dict[str, str | None]:
            connection = self.any_connection() if isinstance(of, str) else self.connection_to(of)
            (found,) = connection.send(DescribeConfigsRequest(resources=[resource])).results
            self.check(found.error_code, connection, action, needs=needs, topic=topic)
            return {each.name: each.value for each in found.configs}

        return self.retried(ask)

    # --- requests

    def ask_leaders(
        self,
        places: Iterable[Place],
        ask: Callable[[Connection, Metadata, list[Place]], Mapping[Place, tuple[int, _Answer]]],
        action: str,
        at_once: int | None = None,
    ) -> dict[Place, _Answer | OffsetsError]:
        """Ask the leaders of partitions; an error takes the place of an answer that does not come.

        Args:
            places: partitions to ask about.
            ask: sends one request, and returns an error code and an answer for each of its partitions.
            action: what the request is for, as "list the offsets", for errors.
            at_once: the largest number of partitions of a request; None: no limit.

        Raises as `ask_each`.
        """
        metadata: dict[str, TopicMetadata] = {}

        def leaders(rest: list[Place]) -> dict[Place, int | OffsetsError | Retry]:
            found = self._metadata(sorted({topic for topic, _ in rest}))
            metadata.update({name: each for name, each in found.items() if isinstance(each, TopicMetadata)})
            return {(topic, partition): self._leader(found[topic], partition) for topic, partition in rest}

        def ask_leader(connection: Connection, at_leader: list[Place]) -> Mapping[Place, tuple[int, _Answer]]:
            return ask(connection, metadata, at_leader)

        def error(code: int, place: Place, connection: Connection) -> OffsetsError:
            return broker_error(code, connection.at, f"{action} of topic {place[0]}", topic=place[0])

        return self.ask_each(places, leaders, ask_leader, error, at_once)

    def _leader(self, topic: TopicMetadata | OffsetsError | Retry, partition: int) -> int | OffsetsError | Retry:
        """The node id of a partition's leader, or why there is none."""
        if not isinstance(topic, TopicMetadata):
            return topic
        leader = topic.partitions.get(partition)
        if leader is None:
            return NoSuchTopic(f"{self.settings.at} has no partition {partition} of topic {topic.name}")
        if leader.node_id is None:
            return Retry(unreachable(self.settings.at, f"partition {partition} of topic {topic.name} has no leader"))
        return leader.node_id

    def ask_each(
        self,
        keys: Iterable[_Key],
        find: Callable[[list[_Key]], Mapping[_Key, int | OffsetsError | Retry]],
        ask: Callable[[Connection, list[_Key]], Mapping[_Key, tuple[int, _Answer]]],
        error: Callable[[int, _Key, Connection], OffsetsError],
        at_once: int | None = None,
    ) -> dict[_Key, _Answer | OffsetsError]:
        """Ask for each key the broker that can answer, and again where another broker may answer later.

        An error takes the place of an answer that does not come.

        Args:
            keys: partitions or groups to ask about.
            find: returns the node id of each key's broker, or why there is none.
            ask: sends a request about some keys of one broker, and returns an error code and an answer for each.
            error: the error for an error code of a key.
            at_once: the largest number of keys of a request; None: no limit.

        Raises an error only if no broker tells which broker to ask, or if a broker refuses the whole request.
        """
        wanted = list(dict.fromkeys(keys))
        answers: dict[_Key, _Answer | OffsetsError] = {}
        failed: dict[_Key, OffsetsError] = {}  # in this round: a retry may heal these

        def ask_rest() -> None:
            failed.clear()
            nodes = find([key for key in wanted if key not in answers])
            for key, answer in self._asked(nodes, ask, error, at_once):
                if not isinstance(answer, Retry):
                    answers[key] = answer
                elif key not in answers:
                    failed[key] = answer.error
            if failed:
                raise Retry(next(iter(failed.values())))

        try:
            if wanted:
                self.retried(ask_rest)
        except OffsetsError as raised:
            if raised not in failed.values():
                raise
        found = failed | answers
        return {key: found[key] for key in wanted if key in found}

    def _asked(
        self,
        nodes: Mapping[_Key, int | OffsetsError | Retry],
        ask: Callable[[Connection, list[_Key]], Mapping[_Key, tuple[int, _Answer]]],
        error: Callable[[int, _Key, Connection], OffsetsError],
        at_once: int | None,
    ) -> Iterator[tuple[_Key, _Answer | OffsetsError | Retry]]:
        """Ask each broker once for its keys; yields `Retry` for all keys of a broker that breaks off."""
        by_node: dict[int, list[_Key]] = {}
        for key, found in nodes.items():
            if isinstance(found, int):
                by_node.setdefault(found, []).append(key)
            else:
                yield key, found
        for node_id, at_node in by_node.items():
            try:
                connection, size = self.connection_to(node_id), at_once or len(at_node)
                for start in range(0, len(at_node), size):
                    for key, (code, answer) in ask(connection, at_node[start : start + size]).items():
                        yield key, answer if code == NO_ERROR else or_retry(code, error(code, key, connection))
            except BrokerUnreachable as away:
                yield from ((key, Retry(away)) for key in at_node)

    def refresh(self) -> None:
        """Ask any broker which brokers are up. In the function of `retried` only."""
        self._metadata([])

    def ask_all(self, ask: Callable[[Connection], _Answer]) -> list[_Answer]:
        """Ask every broker that is up."""

        def ask_them() -> list[_Answer]:
            self.refresh()
            return [ask(self.connection_to(node_id)) for node_id in sorted(self._brokers)]

        return self.retried(ask_them)

    def connect(self, node_id: int) -> Connection:
        """A new connection to a broker; the caller closes it. Raises BrokerUnreachable if there is no such broker."""
        address = self.brokers().get(node_id)
        if address is None:
            raise unreachable(self.settings.at, f"the cluster has no broker {node_id} now")
        return Connection(self.settings, *address)

    def check(
        self,
        code: int,
        connection: Connection,
        action: str,
        *,
        needs: str = "DESCRIBE and READ on it",
        topic: str | None = None,
    ) -> None:
        """Raise the error of an error code other than 0; the request is retried if that may help."""
        if code != NO_ERROR:
            raise or_retry(code, broker_error(code, connection.at, action, needs, topic))

    def retried(self, ask: Callable[[], _Answer]) -> _Answer:
        """Call again after errors that a retry may heal, until default.api.timeout.ms have passed."""
        deadline = time.monotonic() + self.settings.api_seconds
        backoff = self.settings.backoff_seconds
        while True:
            try:
                return ask()
            except Retry as error:
                failed: OffsetsError = error.error
            except BrokerUnreachable as error:
                if not self._brokers:
                    raise  # no bootstrap address answers
                failed = error
            if time.monotonic() + backoff >= deadline:
                self.distrust()
                raise failed from None
            time.sleep(backoff)
            backoff = min(2 * backoff, _MAX_BACKOFF_SECONDS)

    def _metadata(self, names: list[str] | None) -> dict[str, TopicMetadata | OffsetsError | Retry]:
        """Ask any broker for the brokers and these topics, each with its error; None: all topics."""
        topics = None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        connection = self.any_connection()
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        answer = connection.send(request)
        self.check(answer.error_code or NO_ERROR, connection, "send its metadata")
        with self._lock:
            self._cluster_id = answer.cluster_id
            self._brokers = {each.node_id: (each.host, each.port) for each in answer.brokers}
        found: dict[str, TopicMetadata | OffsetsError | Retry] = {}
        for each in answer.topics:
            if each.error_code == NO_ERROR:
                found[each.name] = topic_metadata(each)
                continue
            error = broker_error(each.error_code, connection.at, f"read topic {each.name}", topic=each.name)
            is_unknown = each.error_code == UNKNOWN_TOPIC_OR_PARTITION  # here it is final
            found[each.name] = error if is_unknown else or_retry(each.error_code, error)
        return found

    def any_connection(self) -> Connection:
        """A connection to any broker: an open one, or a new one to the first address that answers."""
        with self._lock:
            self._drop_closed()
            for connection in (self._any, *self._connections.values()):
                if connection is not None:
                    return connection
            self._any = self._bootstrapped()
            return self._any

    def distrust(self) -> None:
        """Let this process ask other brokers first from now on: what this one says of the cluster did not help."""
        with self._lock:
            if self._any_address is not None:
                _failed_at[self._any_address] = time.monotonic()

    def _bootstrapped(self) -> Connection:
        failed: BrokerUnreachable | None = None
        deadline = time.monotonic() + self.settings.api_seconds
        addresses = dict.fromkeys([*self.settings.bootstrap, *self._brokers.values()])
        for address in sorted(addresses, key=lambda each: _failed_at.get(each, 0.0)):
            try:
                found = Connection(self.settings, *address)
            except BrokerUnreachable as error:
                failed, _failed_at[address] = error, time.monotonic()
                if time.monotonic() >= deadline:
                    break
            else:
                self._any_address = address
                return found
        assert failed is not None  # noqa: S101 - there is at least one address
        raise failed

    def connection_to(self, node_id: int) -> Connection:
        """The connection to a broker. Raises BrokerUnreachable if there is no such broker."""
        with self._lock:
            self._drop_closed()
            if node_id not in self._connections:
                self._connections[node_id] = self.connect(node_id)
            return self._connections[node_id]

    def _drop_closed(self) -> None:
        self._connections = {node_id: each for node_id, each in self._connections.items() if not each.is_closed}
        if self._any is not None and self._any.is_closed:
            self._any = None


class Retry(Exception):
    """An answer that a retry may heal; `error` is raised when the time is over."""

    def __init__(self, error: OffsetsError) -> None:
        self.error = error


def or_retry(code: int, error: OffsetsError) -> OffsetsError | Retry:
    """The error of an error code, as a `Retry` if a retry may heal it."""
    return Retry(error) if is_retriable(code) else error


def answered(found: Mapping[_Key, _Answer | OffsetsError]) -> dict[_Key, _Answer]:
    """All answers. Raises the first error among them."""
    answers: dict[_Key, _Answer] = {}
    for key, answer in found.items():
        if isinstance(answer, OffsetsError):
            raise answer
        answers[key] = answer
    return answers


def _known(topic: TopicMetadata | OffsetsError | Retry) -> TopicMetadata:
    if isinstance(topic, TopicMetadata):
        return topic
    raise topic
