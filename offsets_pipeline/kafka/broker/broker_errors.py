"""Errors that brokers answer with, as errors of this package.

Kafka's protocol has an error code in each answer, and often one for each partition. kafka-python knows which
errors a retry may heal. This module knows which error of this package each code is.
"""

from __future__ import annotations

from kafka.errors import for_code

from offsets_pipeline.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    GroupSubscribedToTopic,
    KafkaFailed,
    NonEmptyGroup,
    NoSuchGroup,
    NoSuchTopic,
    NotAuthorized,
    OffsetsError,
)

NO_ERROR = 0
UNKNOWN_TOPIC_OR_PARTITION = 3
OFFSET_OUT_OF_RANGE = 1
UNSUPPORTED_SASL_MECHANISM = 33
UNSUPPORTED_VERSION = 35
GROUP_ID_NOT_FOUND = 69
UNSTABLE_OFFSET_COMMIT = 88

#: Kafka's names of codes that the client calls otherwise.
_NAMES = {
    -1: "UNKNOWN_SERVER_ERROR",
    6: "NOT_LEADER_OR_FOLLOWER",
    10: "MESSAGE_TOO_LARGE",
    17: "INVALID_TOPIC_EXCEPTION",
    39: "INVALID_REPLICA_ASSIGNMENT",
}
_NO_TOPIC = frozenset({UNKNOWN_TOPIC_OR_PARTITION, 17, 100})  # INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_ID
_NOT_AUTHORIZED = frozenset({29, 30, 31, 53})  # topic, group, cluster, transactional id
_OF_GROUP = {GROUP_ID_NOT_FOUND: NoSuchGroup, 68: NonEmptyGroup, 86: GroupSubscribedToTopic}
_NOT_AUTHENTICATED = frozenset({UNSUPPORTED_SASL_MECHANISM, 34, 58})  # ILLEGAL_SASL_STATE, SASL_AUTHENTICATION_FAILED


def error_name(code: int) -> str:
    """Kafka's name of an error code, as UNKNOWN_TOPIC_OR_PARTITION; the number if the client does not know it."""
    kind = for_code(code)
    known = kind.errno == code and kind.__name__ != "UnrecognizedBrokerError"
    return _NAMES.get(code, str(kind.message)) if known else f"error {code}"


def is_retriable(code: int) -> bool:
    """Whether a retry may heal an error: another broker answers, as the metadata is out of date, or this one later."""
    return bool(for_code(code).retriable)


def broker_error(
    code: int, at: str, action: str, needs: str = "DESCRIBE and READ on it", topic: str | None = None
) -> OffsetsError:
    """The error of this package for an error code.

    Args:
        code: error code of an answer, not 0.
        at: address of the broker.
        action: what the request was for, as "read topic orders"; the message contains it.
        needs: operations that the request needs, for the message of NotAuthorized.
        topic: the topic that the request was about, for the message of NoSuchTopic.
    """
    name = error_name(code)
    if code in _NOT_AUTHORIZED:
        return NotAuthorized(f"{at} does not allow us to {action} ({name}); grant {needs}")
    if code in _NOT_AUTHENTICATED:
        return not_authenticated(at, name)
    if code in _NO_TOPIC and topic is not None:
        return NoSuchTopic(
            f"{at} has no topic {topic}; name another one, or wait until the cluster's first consumer creates it"
        )
    return _OF_GROUP.get(code, KafkaFailed)(f"{at} cannot {action}: {name}")


def unreachable(at: str, reason: str) -> BrokerUnreachable:
    """No broker answers at the address."""
    return BrokerUnreachable(
        f"no broker answers at {at} ({reason}); check the address, the broker, and the option security.protocol"
    )


def not_authenticated(at: str, reason: str) -> AuthenticationFailed:
    """The broker rejects the client's credentials, or the client rejects the broker's certificate."""
    return AuthenticationFailed(
        f"cannot authenticate with {at} ({reason}); check the options security.protocol, sasl.* and ssl.*"
    )
