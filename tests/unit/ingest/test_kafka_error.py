"""Exceptions of Kafka's clients in this program's words. The chains are what the 4.x clients raise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    KafkaFailed,
    NoSuchTopic,
    NotAuthorized,
    OffsetsError,
)
from offsets_pipeline.ingest.kafka_options import KafkaOptions
from offsets_pipeline.ingest.topic_admin import kafka_error

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

    def __init__(self, name: str, message: str | None, cause: FakeException | None) -> None:
        self._name, self._message, self._cause = name, message, cause

    def getClass(self) -> FakeClass:  # noqa: N802 - Java's name
        return FakeClass(self._name)

    def getMessage(self) -> str | None:  # noqa: N802 - Java's name
        return self._message

    def getCause(self) -> FakeException | None:  # noqa: N802 - Java's name
        return self._cause


def error(*chain: tuple[str, str | None], options: Mapping[str, str] = OPTIONS) -> OffsetsError:
    """What is made of an exception, its cause, and so on."""
    exception: FakeException | None = None
    for name, message in reversed(chain):
        exception = FakeException(name, message, exception)
    return kafka_error(exception, KafkaOptions("b:9092", options), "the-topic")


def of_future(name: str, message: str | None = "said") -> OffsetsError:
    """What a question to the Admin client raises: the error is what its future failed with."""
    return error(("java.util.concurrent.ExecutionException", f"{ERRORS}{name}: said"), (ERRORS + name, message))


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("SaslAuthenticationException", AuthenticationFailed, r"b:9092 refused to authenticate us \(said\)"),
        ("SslAuthenticationException", AuthenticationFailed, "check security.protocol"),
        ("TopicAuthorizationException", NotAuthorized, "to read topic the-topic .*: we need DESCRIBE and READ on it"),
        ("ClusterAuthorizationException", NotAuthorized, "does not allow us"),
        ("GroupAuthorizationException", NotAuthorized, r"DESCRIBE on the groups spark-kafka-source\*"),
        ("UnknownTopicOrPartitionException", NoSuchTopic, "there is no topic the-topic on b:9092"),
        ("TimeoutException", BrokerUnreachable, r"no broker answers at b:9092 \(said\)"),
        ("DisconnectException", BrokerUnreachable, "no broker answers"),
        ("UnknownServerException", KafkaFailed, "^b:9092: UnknownServerException: said$"),
        ("KafkaStorageException", KafkaFailed, "KafkaStorageException"),
    ],
)
def test_what_a_broker_answers_has_an_error_of_our_own(name: str, kind: type[OffsetsError], said: str) -> None:
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


def test_an_error_is_one_line_without_secrets_also_where_nothing_is_said() -> None:
    assert "***\n" not in str(of_future("UnknownServerException", "no open-sesame\nhere"))
    assert str(of_future("UnknownServerException", "no open-sesame\nhere")).endswith(": no ***")
    assert str(of_future("UnknownServerException", None)).endswith("UnknownServerException: UnknownServerException")


def test_groups_are_named_as_the_options_name_them() -> None:
    refused = error((ERRORS + "GroupAuthorizationException", "no"), options={"groupIdPrefix": "mine"})
    assert "on the groups mine*" in str(refused)
