"""Which topics the members of a group subscribe to (R18, R26)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.record.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from offsets_pipeline.record.decode import decode_value
from offsets_pipeline.record.message_types import RecordType
from offsets_pipeline.semantics.group_description import EMPTY, GroupDescription
from offsets_pipeline.semantics.group_types import CLASSIC, CONSUMER, STREAMS

if TYPE_CHECKING:
    from collections.abc import Mapping


def subscribed_topics(
    kind: str, group: GroupDescription, records: Mapping[tuple[int, str], bytes]
) -> frozenset[str] | None:
    """The topics; None where members subscribe to what the log does not tell."""
    if kind == CLASSIC:
        return _of_classic(group)
    if kind == STREAMS:
        return _of_streams(group, records)
    topics = {topic for member in group.members for topic in member.subscribed_topics or ()}
    if kind == CONSUMER:
        for regex in {member.subscribed_regex for member in group.members if member.subscribed_regex}:
            value = records.get((RecordType.CONSUMER_GROUP_REGULAR_EXPRESSION, regex))
            if value is not None:
                topics.update(decode_value(RecordType.CONSUMER_GROUP_REGULAR_EXPRESSION, value).fields["topics"])
    return frozenset(topics)


def _of_classic(group: GroupDescription) -> frozenset[str] | None:
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE or not group.members:
        return frozenset()  # members of another protocol subscribe to nothing that Kafka knows of
    if group.protocol is None or any(member.subscribed_topics is None for member in group.members):
        return None
    return frozenset(topic for member in group.members for topic in member.subscribed_topics or ())


def _of_streams(group: GroupDescription, records: Mapping[tuple[int, str], bytes]) -> frozenset[str]:
    value = records.get((RecordType.STREAMS_GROUP_TOPOLOGY, ""))
    if value is None or group.state == EMPTY:
        return frozenset()
    return frozenset(
        topic
        for part in decode_value(RecordType.STREAMS_GROUP_TOPOLOGY, value).fields["subtopologies"]
        for topic in [*part["source_topics"], *(each["name"] for each in part["repartition_source_topics"])]
    )
