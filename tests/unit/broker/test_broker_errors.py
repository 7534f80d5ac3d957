"""Error codes of brokers become the errors that say what to do; the numbers are those of Kafka's protocol."""

from __future__ import annotations

import pytest

from offsets_pipeline.errors import AuthenticationFailed, KafkaFailed, NoSuchTopic, NotAuthorized, OffsetsError
from offsets_pipeline.kafka.broker.broker_errors import broker_error


@pytest.mark.parametrize(
    ("code", "topic", "kind", "said"),
    [
        (29, "t", NotAuthorized, "b:1 does not allow us to read topic t (TOPIC_AUTHORIZATION_FAILED)"),
        (33, "t", AuthenticationFailed, "cannot authenticate with b:1 ("),  # UNSUPPORTED_SASL_MECHANISM
        (34, "t", AuthenticationFailed, "cannot authenticate with b:1 ("),  # ILLEGAL_SASL_STATE
        (58, "t", AuthenticationFailed, "cannot authenticate with b:1 ("),  # SASL_AUTHENTICATION_FAILED
        (3, "t", NoSuchTopic, "b:1 has no topic t"),  # UNKNOWN_TOPIC_OR_PARTITION
        (3, None, KafkaFailed, "b:1 cannot read topic t: UNKNOWN_TOPIC_OR_PARTITION"),
        (7, "t", KafkaFailed, "b:1 cannot read topic t: REQUEST_TIMED_OUT"),
        (-1, "t", KafkaFailed, "b:1 cannot read topic t: UNKNOWN_SERVER_ERROR"),
        (6, "t", KafkaFailed, "b:1 cannot read topic t: NOT_LEADER_OR_FOLLOWER"),
        (10, "t", KafkaFailed, "b:1 cannot read topic t: MESSAGE_TOO_LARGE"),
        (999, "t", KafkaFailed, "b:1 cannot read topic t: error 999"),
    ],
)
def test_a_code_is_the_error_of_its_kind(code: int, topic: str | None, kind: type[OffsetsError], said: str) -> None:
    found = broker_error(code, "b:1", "read topic t", topic=topic)
    assert type(found) is kind
    assert str(found).startswith(said)
