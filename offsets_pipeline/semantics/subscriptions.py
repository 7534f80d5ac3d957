"""Which topics the members of a group subscribe to (R18, R26)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.record.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from offsets_pipeline.record.decode import decode_value
from offsets_pipeline.record.message_types import RecordType
from offsets_pipeline.semantics.group_description import EMPTY, GroupDescription, topology_topics
from offsets_pipeline.semantics.group_types import CLASSIC, STREAMS

if TYPE_CHECKING:
    from collections.abc import Mapping


def subscribed_topics(
    group_type: str, group: GroupDescription, records: Mapping[tuple[int, str], bytes]
) -> frozenset[str] | None:
    """The topics; None if the log does not contain the subscription of a member."""
    if group_type == CLASSIC:
        return _of_classic(group)
    if group_type == STREAMS:
        return _of_streams(group, records)
    return frozenset(topic for member in group.members for topic in member.subscribed_topics or ())


def _of_classic(group: GroupDescription) -> frozenset[str] | None:
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE or not group.members:
        return frozenset()  # Kafka knows no subscriptions of other protocols
    if group.protocol is None or any(member.subscribed_topics is None for member in group.members):
        return None
    return frozenset(topic for member in group.members for topic in member.subscribed_topics or ())


def _of_streams(group: GroupDescription, records: Mapping[tuple[int, str], bytes]) -> frozenset[str]:
    value = records.get((RecordType.STREAMS_GROUP_TOPOLOGY, ""))
    if value is None or group.state == EMPTY:
        return frozenset()
    return frozenset(topology_topics(decode_value(RecordType.STREAMS_GROUP_TOPOLOGY, value).fields) or ())
