"""Messages of Kafka's protocol that kafka-python lacks, in the notation of Kafka's own message files."""

from __future__ import annotations

from kafka.protocol.api_message import ApiMessage


class ConsumerGroupDescribeRequest(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """Describes groups of KIP-848."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """The answer to `ConsumerGroupDescribeRequest`."""
