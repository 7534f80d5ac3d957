"""Messages of Kafka's protocol that kafka-python lacks, in the notation of Kafka's own message files."""

from __future__ import annotations

from kafka.protocol.api_message import ApiMessage


class ConsumerGroupDescribeRequest(ApiMessage, load_json=__name__):
    """Describes groups of KIP-848."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=__name__):
    """The answer to `ConsumerGroupDescribeRequest`."""
