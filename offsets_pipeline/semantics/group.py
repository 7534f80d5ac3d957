"""A group that exists in the state of a log partition: its type and the last value of each of its records."""

from __future__ import annotations

from dataclasses import dataclass, field

from offsets_pipeline.semantics.group_description import EMPTY, GroupDescription, describe_group
from offsets_pipeline.semantics.group_types import CLASSIC


@dataclass(slots=True)
class Group:
    """A group that exists (R14). ``records`` holds raw values by record type and record key."""

    group_type: str
    records: dict[tuple[int, str], bytes] = field(default_factory=dict)
    _description: GroupDescription | None = field(default=None, compare=False, repr=False)

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
        topics = self.description.subscribed_topics
        return topics is None or topic in topics

    def put(self, name: tuple[int, str], value: bytes) -> None:
        """Set the value of a record."""
        self.records[name] = value
        self._description = None

    def drop(self, name: tuple[int, str]) -> None:
        """Remove a record; does nothing if the group has no such record (R13)."""
        self.records.pop(name, None)
        self._description = None
