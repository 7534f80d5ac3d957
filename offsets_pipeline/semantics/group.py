"""A group that exists in the state of a log partition: its type and the last value of each of its records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from offsets_pipeline.kafka.record.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from offsets_pipeline.kafka.record.decode import decode_value
from offsets_pipeline.kafka.record.message_types import RecordType
from offsets_pipeline.semantics.group_description import EMPTY, GroupDescription, describe_group, topology_topics
from offsets_pipeline.semantics.group_types import CLASSIC, STREAMS

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True)
class Group:
    """A group that exists (R14). ``records`` holds raw values by record type and record key."""

    group_type: str
    records: dict[tuple[int, str], bytes] = field(default_factory=dict)
    _description: GroupDescription | None = field(default=None, compare=False, repr=False)
    _topics: tuple[frozenset[str] | None] | None = field(default=None, compare=False, repr=False)

    @property
    def description(self) -> GroupDescription:
        """State, members, epochs (R33, R34); computed once until a record changes."""
        if self._description is None:
            self._description = describe_group(self.group_type, self.records)
        return self._description

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""
        return self.description.state == EMPTY

    @property
    def is_simple(self) -> bool:
        """Whether offsets alone make the group: it has no records of its own (R14)."""
        return self.group_type == CLASSIC and not self.records

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member subscribes to the topic. True if the subscription of a member is unknown (R18)."""
        topics = self._subscribed_topics()
        return topics is None or topic in topics

    def put(self, name: tuple[int, str], value: bytes) -> None:
        """Set the value of a record."""
        self.records[name] = value
        self._description = self._topics = None

    def drop(self, name: tuple[int, str]) -> None:
        """Remove a record; does nothing if the group has no such record (R13)."""
        self.records.pop(name, None)
        self._description = self._topics = None

    def _subscribed_topics(self) -> frozenset[str] | None:
        if self._topics is None:
            self._topics = (subscribed_topics(self.group_type, self.description, self.records),)
        return self._topics[0]


def subscribed_topics(
    group_type: str, group: GroupDescription, records: Mapping[tuple[int, str], bytes]
) -> frozenset[str] | None:
    """The topics that members subscribe to (R18, R26); None if the log lacks the subscription of a member."""
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
