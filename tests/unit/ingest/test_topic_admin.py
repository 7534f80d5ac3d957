"""The cluster's answers about a topic, and missing answers, from a stub of the Admin client.

The chains of exceptions are those that the 4.x clients raise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from offsets_pipeline.broker.kafka_options import KafkaOptions
from offsets_pipeline.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    KafkaFailed,
    NoSuchTopic,
    NotAuthorized,
    OffsetsError,
)
from offsets_pipeline.ingest.topic.topic_admin import DELETE_RETENTION_MS, TopicAdmin, TopicDescription, kafka_error

if TYPE_CHECKING:
    from collections.abc import Mapping

OPTIONS: Mapping[str, str] = {"ssl.key.password": "open-sesame"}
ERRORS = "org.apache.kafka.common.errors."


class FakeClass:
    def __init__(self, name: str) -> None:
        self._name = name

    def getName(self) -> str:  # noqa: N802 - Java's name
        return self._name


class FakeException:
    """A Throwable as the gateway to the JVM shows it."""

    _target_id = "o1"

    def __init__(self, name: str, message: str | None, cause: FakeException | None) -> None:
        self._name, self._message, self._cause = name, message, cause

    def getClass(self) -> FakeClass:  # noqa: N802 - Java's name
        return FakeClass(self._name)

    def getMessage(self) -> str | None:  # noqa: N802 - Java's name
        return self._message

    def getCause(self) -> FakeException | None:  # noqa: N802 - Java's name
        return self._cause


def error(*chain: tuple[str, str | None], options: Mapping[str, str] = OPTIONS) -> OffsetsError:
    """The error for an exception with these causes."""
    exception: FakeException | None = None
    for name, message in reversed(chain):
        exception = FakeException(name, message, exception)
    return kafka_error(exception, KafkaOptions("b:9092", options), "the-topic")


def of_future(name: str, message: str | None = "said") -> OffsetsError:
    """Exception of a request of the Admin client: its future failed with this error."""
    return error(("java.util.concurrent.ExecutionException", f"{ERRORS}{name}: said"), (ERRORS + name, message))


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("SaslAuthenticationException", AuthenticationFailed, r"b:9092 rejected the credentials \(said\)"),
        ("SslAuthenticationException", AuthenticationFailed, "check the options security.protocol"),
        (
            "TopicAuthorizationException",
            NotAuthorized,
            "does not allow reading topic the-topic .*; grant DESCRIBE and READ on it",
        ),
        ("ClusterAuthorizationException", NotAuthorized, "does not allow reading topic"),
        ("GroupAuthorizationException", NotAuthorized, r"DESCRIBE on the groups spark-kafka-source\*"),
        ("UnknownTopicOrPartitionException", NoSuchTopic, "b:9092 has no topic the-topic"),
        ("TimeoutException", BrokerUnreachable, r"no broker answers at b:9092 \(said\)"),
        ("DisconnectException", BrokerUnreachable, "no broker answers"),
        ("UnknownServerException", KafkaFailed, "^b:9092: UnknownServerException: said$"),
        ("KafkaStorageException", KafkaFailed, "KafkaStorageException"),
    ],
)
def test_error_of_a_broker_becomes_an_error_of_this_package(name: str, kind: type[OffsetsError], said: str) -> None:
    with pytest.raises(kind, match=said):
        raise of_future(name)


def test_an_address_that_no_longer_resolves_is_a_broker_that_is_away() -> None:
    failed = ("org.apache.kafka.common.KafkaException", "Failed to create new KafkaAdminClient")
    config = "org.apache.kafka.common.config.ConfigException"
    away = error(failed, (config, "No resolvable bootstrap urls given in bootstrap.servers"))
    assert isinstance(away, BrokerUnreachable)
    assert away.retriable
    wrong = error(failed, (config, "Invalid value x for configuration security.protocol"))
    assert isinstance(wrong, KafkaFailed)
    assert "Invalid value x" in str(wrong)


def test_error_is_one_line_without_secrets() -> None:
    assert "***\n" not in str(of_future("UnknownServerException", "no open-sesame\nhere"))
    assert str(of_future("UnknownServerException", "no open-sesame\nhere")).endswith(": no ***")
    assert str(of_future("UnknownServerException", None)).endswith("UnknownServerException: UnknownServerException")


def test_groups_are_named_as_the_options_name_them() -> None:
    refused = error((ERRORS + "GroupAuthorizationException", "no"), options={"groupIdPrefix": "mine"})
    assert "on the groups mine*" in str(refused)


class Client:
    """An Admin client that answers a request with this value, or fails."""

    def __init__(self) -> None:
        self.jvm: Any = MagicMock()
        self.answers: Any = self.jvm._jvm.org.apache.kafka.clients.admin.Admin.create.return_value
        self.admin = TopicAdmin(self.jvm, KafkaOptions("b:9092", {}), "t")

    def refuse(self, question: str, name: str = "UnknownServerException") -> None:
        failure = FakeException("java.util.concurrent.ExecutionException", "", FakeException(ERRORS + name, "no", None))
        getattr(self.answers, question).side_effect = Py4JJavaError("failed", failure)

    def tell_retention(self, entry: object) -> None:
        configs = self.jvm._jvm.org.apache.kafka.common.config.ConfigResource
        told = self.answers.describeConfigs.return_value.all.return_value.get.return_value = MagicMock()
        told.__getitem__.side_effect = {configs.return_value: {"delete.retention.ms": entry}}.__getitem__


def test_ids_that_the_broker_does_not_know_are_none() -> None:
    client = Client()
    topic = MagicMock()
    topic.partitions.return_value = [MagicMock(), MagicMock()]
    for number, each in enumerate(topic.partitions.return_value):
        each.partition.return_value = number
    topic.topicId.return_value.toString.return_value = "AAAAAAAAAAAAAAAAAAAAAA"
    client.answers.describeTopics.return_value.allTopicNames.return_value.get.return_value = {"t": topic}
    client.answers.describeCluster.return_value.clusterId.return_value.get.return_value = None
    assert client.admin.describe() == TopicDescription(None, None, 2)


def test_tombstone_retention_is_kafkas_default_if_the_broker_does_not_give_it() -> None:
    client, entry = Client(), MagicMock()
    entry.value.return_value = "1234"
    client.tell_retention(entry)
    assert client.admin.delete_retention_ms() == 1234
    entry.value.return_value = None
    assert client.admin.delete_retention_ms() == DELETE_RETENTION_MS == 86_400_000
    client.tell_retention(None)
    assert client.admin.delete_retention_ms() == DELETE_RETENTION_MS
    for name in ("TopicAuthorizationException", "UnsupportedVersionException"):
        client.refuse("describeConfigs", name)
        assert client.admin.delete_retention_ms() == DELETE_RETENTION_MS
    client.refuse("describeConfigs", "TimeoutException")
    with pytest.raises(BrokerUnreachable):
        client.admin.delete_retention_ms()


@pytest.mark.parametrize("name", ["ClusterAuthorizationException", "UnsupportedVersionException"])
def test_optional_requests_may_be_refused(name: str) -> None:
    client = Client()
    client.refuse("listTopics", name)
    client.refuse("describeProducers", name)
    assert client.admin.topic_names() == {}
    assert client.admin.open_since_ms([0]) is None
    client.refuse("listTopics", "TimeoutException")
    with pytest.raises(BrokerUnreachable):
        client.admin.topic_names()
