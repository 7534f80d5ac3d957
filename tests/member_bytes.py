"""Bytes that members of classic consumer groups send: subscriptions and assignments."""

from __future__ import annotations

from offsets_pipeline.kafka.record.consumer_protocol import ASSIGNMENT, MAX_VERSION, SUBSCRIPTION
from offsets_pipeline.kafka.record.schema import serde_for
from offsets_pipeline.kafka.record.wire import INT16


def subscription(*topics: str) -> bytes:
    """Subscription of a member of a consumer group, as it sends it."""
    out = bytearray()
    INT16.write(out, MAX_VERSION, "version")
    fields = {"topics": list(topics), "user_data": None, "owned_partitions": [], "generation_id": 1, "rack_id": None}
    serde_for(SUBSCRIPTION, MAX_VERSION).write(out, fields, "subscription")
    return bytes(out)


def assignment(topic: str, *partitions: int) -> bytes:
    """Assignment of a member by the leader of a consumer group."""
    out = bytearray()
    INT16.write(out, MAX_VERSION, "version")
    fields = {"assigned_partitions": [{"topic": topic, "partitions": list(partitions)}], "user_data": None}
    serde_for(ASSIGNMENT, MAX_VERSION).write(out, fields, "assignment")
    return bytes(out)
