"""A Kafka cluster: its brokers, its topics, and requests to the broker that can answer them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Self, TypeVar

from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.metadata import MetadataRequest

from offsets_pipeline.broker.broker_errors import (
    NO_ERROR,
    STALE_METADATA,
    TRY_LATER,
    UNKNOWN_TOPIC_OR_PARTITION,
    broker_error,
    unreachable,
)
from offsets_pipeline.broker.client_settings import client_settings
from offsets_pipeline.broker.cluster_metadata import (
    Broker,
    Place,
    TopicMetadata,
    by_leader,
    by_leader_of_topics,
    topic_metadata,
)
from offsets_pipeline.broker.connection import Connection
from offsets_pipeline.errors import BrokerUnreachable, NoSuchTopic, OffsetsError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from offsets_pipeline.broker.kafka_options import KafkaOptions

_TOPIC_RESOURCE = 2
_MAX_BACKOFF_SECONDS = 1.0

_Answer = TypeVar("_Answer")


class Cluster:
    """A client of one cluster, with one connection to each broker that it asks. Threads may share it.

    It asks the broker that can answer, refreshes the metadata and retries while a partition has no leader, moves to
    another broker, or a connection breaks, for default.api.timeout.ms. It connects with the first request. Close it
    with `close`, or use it in `with`.

    Every request may raise BrokerUnreachable, AuthenticationFailed, NotAuthorized, NoSuchTopic or KafkaFailed.
    """

    def __init__(self, options: KafkaOptions) -> None:
        self.settings = client_settings(options)
        self._lock = threading.RLock()
        self._connections: dict[int, Connection] = {}
        self._any: Connection | None = None
        self._brokers: dict[int, Broker] = {}
        self._cluster_id: str | None = None

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            for connection in (*self._connections.values(), *filter(None, [self._any])):
                connection.close()
            self._connections, self._any = {}, None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- metadata

    def address(self) -> str:
        """Host and port of the broker that is asked for metadata."""
        return self.retried(lambda: self.any_connection().at)

    def cluster_id(self) -> str | None:
        """The id of the cluster; None if it has none."""
        self.brokers()
        return self._cluster_id

    def brokers(self) -> dict[int, Broker]:
        """The brokers that are up, by node id."""
        if not self._brokers:
            self.retried(lambda: self._metadata([]))
        return dict(self._brokers)

    def topic(self, name: str) -> TopicMetadata:
        """Id, partitions and leaders of a topic, as a broker knows them now. Raises NoSuchTopic."""
        return self.retried(lambda: self._metadata([name])[name])

    def topics(self, names: Collection[str] | None) -> dict[str, TopicMetadata]:
        """Id, partitions and leaders of these topics; None: of all topics.

        Leaves out topics that do not exist, or that we may not describe.
        """
        wanted = None if names is None else sorted(names)
        return {} if wanted == [] else self.retried(lambda: self._metadata(wanted, required=False))

    def topic_ids(self) -> dict[str, str | None]:
        """Names of all topics that we may describe, with their ids; an id is None if the cluster has no topic ids."""
        return {name: each.topic_id for name, each in self.topics(None).items()}

    def topic_configs(self, name: str, keys: Collection[str]) -> dict[str, str | None]:
        """Values of a topic's configs, such as delete.retention.ms; omits those that the broker does not know."""
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=list(keys)
        )

        def ask() -> dict[str, str | None]:
            connection = self.any_connection()
            (found,) = connection.send(DescribeConfigsRequest(resources=[resource])).results
            action = f"describe the configs of topic {name}"
            self.check(found.error_code, connection, action, needs="DESCRIBE_CONFIGS on it", topic=name)
            return {each.name: each.value for each in found.configs}

        return self.retried(ask)

    def api_versions(self) -> dict[int, tuple[int, int]]:
        """Lowest and highest version that a broker supports of each request, by API key."""
        return self.retried(lambda: dict(self.any_connection().api_versions))

    def finalized_features(self) -> dict[str, int]:
        """Levels of the cluster's features, such as transaction.version; empty before Kafka 2.7."""
        return self.retried(lambda: dict(self.any_connection().finalized_features))

    # --- requests

    def ask_leaders(
        self,
        topic: str,
        partitions: Iterable[int],
        ask: Callable[[Connection, TopicMetadata, list[int]], Mapping[int, tuple[int, _Answer]]],
        action: str,
    ) -> dict[int, _Answer]:
        """Ask the leader of each partition, one request to each broker, and again where the metadata was out of date.

        Args:
            topic: name of the topic.
            partitions: partitions to ask about.
            ask: sends one request, and returns an error code and an answer for each partition.
            action: what the request is for, as "list the offsets", for errors.
        """
        wanted = set(partitions)
        answers: dict[int, _Answer] = {}

        def ask_rest() -> dict[int, _Answer]:
            metadata = self._metadata([topic])[topic]
            error: tuple[int, Connection] | None = None
            for node_id, at_node in by_leader(metadata, wanted - answers.keys()).items():
                connection = self.connection_to(node_id)
                for partition, (code, answer) in ask(connection, metadata, at_node).items():
                    if code == NO_ERROR:
                        answers[partition] = answer
                    else:
                        error = error or (code, connection)
            if error is not None:
                self.check(*error, f"{action} of topic {topic}", topic=topic)
            if answers.keys() < wanted:
                missing = min(wanted - answers.keys())
                raise _Retry(unreachable(self.settings.at, f"partition {missing} of topic {topic} has no leader"))
            return answers

        return self.retried(ask_rest)

    def ask_leaders_of_topics(
        self,
        places: Iterable[Place],
        ask: Callable[[Connection, Mapping[str, TopicMetadata], list[Place]], Mapping[Place, tuple[int, _Answer]]],
        action: str,
    ) -> dict[Place, _Answer | OffsetsError]:
        """Ask the leaders of partitions of many topics; an error takes the place of an answer that does not come.

        Args:
            places: partitions to ask about.
            ask: sends one request, and returns an error code and an answer for each of its partitions.
            action: what the request is for, as "list the offsets", for errors.

        Raises an error only if the cluster does not answer at all.
        """
        wanted = set(places)
        answers: dict[Place, _Answer | OffsetsError] = {}
        failed: dict[Place, OffsetsError] = {}

        def ask_rest() -> None:
            failed.clear()
            rest = sorted(wanted - answers.keys())
            metadata = self._metadata(sorted({topic for topic, _ in rest}), required=False) if rest else {}
            by_node, without_leader = by_leader_of_topics(metadata, rest)
            for place in rest:
                if place[0] not in metadata or place[1] not in metadata[place[0]].partitions:
                    answers[place] = NoSuchTopic(f"{self.settings.at} has no partition {place[1]} of topic {place[0]}")
            for topic, partition in without_leader:
                failed[topic, partition] = unreachable(
                    self.settings.at, f"partition {partition} of topic {topic} has no leader"
                )
            for node_id, at_node in by_node.items():
                try:
                    connection = self.connection_to(node_id)
                    found = ask(connection, metadata, at_node)
                except BrokerUnreachable as error:
                    failed.update(dict.fromkeys(at_node, error))
                    continue
                for place, (code, answer) in found.items():
                    if code == NO_ERROR:
                        answers[place] = answer
                        continue
                    error_ = broker_error(code, connection.at, f"{action} of topic {place[0]}", topic=place[0])
                    (failed if code in STALE_METADATA or code in TRY_LATER else answers)[place] = error_
            if failed:
                raise _Retry(next(iter(failed.values())))

        try:
            self.retried(ask_rest)
        except OffsetsError:
            if not failed:
                raise
        return {**failed, **answers}

    def refresh(self) -> None:
        """Ask any broker which brokers are up. In the function of `retried` only."""
        self._metadata([])

    def ask_all(self, ask: Callable[[Connection], _Answer]) -> list[_Answer]:
        """Ask every broker that is up."""

        def ask_each() -> list[_Answer]:
            self._metadata([])
            return [ask(self.connection_to(node_id)) for node_id in sorted(self._brokers)]

        return self.retried(ask_each)

    def connect(self, node_id: int) -> Connection:
        """A new connection to a broker; the caller closes it. Raises BrokerUnreachable if there is no such broker."""
        broker = self.brokers().get(node_id)
        if broker is None:
            raise unreachable(self.settings.at, f"the cluster has no broker {node_id} now")
        return Connection(self.settings, broker.host, broker.port)

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
        if code == NO_ERROR:
            return
        error = broker_error(code, connection.at, action, needs, topic)
        if code in STALE_METADATA or code in TRY_LATER:
            raise _Retry(error)
        raise error

    def retried(self, ask: Callable[[], _Answer]) -> _Answer:
        """Call again after errors that a retry may heal, until default.api.timeout.ms have passed."""
        deadline = time.monotonic() + self.settings.api_seconds
        backoff = self.settings.backoff_seconds
        while True:
            try:
                return ask()
            except _Retry as error:
                failed: OffsetsError = error.error
            except BrokerUnreachable as error:
                if not self._brokers:
                    raise  # no bootstrap address answers
                failed = error
            if time.monotonic() + backoff >= deadline:
                raise failed from None
            time.sleep(backoff)
            backoff = min(2 * backoff, _MAX_BACKOFF_SECONDS)

    def _metadata(self, names: list[str] | None, *, required: bool = True) -> dict[str, TopicMetadata]:
        """Ask any broker for the brokers and these topics; None: all topics.

        Leaves out topics with an error if they are not ``required``.
        """
        topics = None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        connection = self.any_connection()
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        answer = connection.send(request)
        self.check(answer.error_code or NO_ERROR, connection, "send its metadata")
        with self._lock:
            self._cluster_id = answer.cluster_id
            self._brokers = {each.node_id: Broker(each.node_id, each.host, each.port) for each in answer.brokers}
        found = {}
        for topic in answer.topics:
            action = f"read topic {topic.name}"
            if topic.error_code and not required:
                continue
            if names is not None and topic.error_code == UNKNOWN_TOPIC_OR_PARTITION:
                raise broker_error(topic.error_code, connection.at, action, topic=topic.name)
            if names is not None:
                self.check(topic.error_code, connection, action, topic=topic.name)
            found[topic.name] = topic_metadata(topic)
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

    def _bootstrapped(self) -> Connection:
        known = [(each.host, each.port) for each in self._brokers.values()]
        failed: BrokerUnreachable | None = None
        deadline = time.monotonic() + self.settings.api_seconds
        for host, port in dict.fromkeys([*self.settings.bootstrap, *known]):
            try:
                return Connection(self.settings, host, port)
            except BrokerUnreachable as error:
                failed = error
                if time.monotonic() >= deadline:
                    break
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


class _Retry(Exception):
    """An answer that a retry may heal; `error` is raised when the time is over."""

    def __init__(self, error: OffsetsError) -> None:
        super().__init__(str(error))
        self.error = error
