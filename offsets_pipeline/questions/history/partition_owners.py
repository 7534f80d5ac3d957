"""Which member of a group could have committed an offset: by the assignment that the log shows."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from offsets_pipeline.kafka.record.decode import decode_value
from offsets_pipeline.kafka.record.message_types import RecordType
from offsets_pipeline.semantics.group_description import AssignedPartition, task_partitions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsets_pipeline.semantics.group_description import Member
    from offsets_pipeline.semantics.partition_state import Group, TopicPartition

#: No member, or several members, could have made the commit.
UNKNOWN = "unknown"
_UNKNOWN: tuple[str, str | None, str | None] = (UNKNOWN, None, None)


class PartitionOwners:
    """Member id, client id and host of the one member that an offset's partition is assigned to.

    Every member may commit every offset, and so may an administrator while the group is empty. So a member is named
    only if the partition is assigned to it alone. A member that still has to revoke a partition counts as well.
    """

    def __init__(self, topic_names: Mapping[str, str]) -> None:
        self._ids: dict[str, set[str]] = defaultdict(set)  # of a topic
        self._ids_of_group: dict[tuple[str, str], set[str]] = defaultdict(set)  # by group and topic
        self._assigned: dict[str, dict[tuple[str, int], list[Member]]] = {}
        for topic_id, topic in topic_names.items():
            self._ids[topic].add(topic_id)

    def name(self, group_id: str, topic_id: str, topic: str) -> None:
        """Learn a topic id from a commit of the group (R35). Other groups do not use it: they may be left out."""
        self._ids_of_group[group_id, topic].add(topic_id)

    def forget(self, group_id: str) -> None:
        """The group changed."""
        self._assigned.pop(group_id, None)

    def of(
        self, group_id: str, group: Group | None, where: TopicPartition, topic_id: str | None
    ) -> tuple[str, str | None, str | None]:
        """The owner of a partition; UNKNOWN instead of a guess.

        ``topic_id`` is the commit's, if it has one. Without it all ids that the topic ever had count.
        """
        if group is None:
            return _UNKNOWN
        assigned = self._assigned.get(group_id)
        if assigned is None:
            assigned = self._assigned[group_id] = _assigned(group)
        ids = self._ids.get(where.topic, set()) | self._ids_of_group.get((group_id, where.topic), set())
        topics = {where.topic} | (ids if topic_id is None else {topic_id})
        found = {member.member_id: member for topic in topics for member in assigned.get((topic, where.partition), ())}
        if len(found) != 1:
            return _UNKNOWN
        (member,) = found.values()
        return member.member_id, member.client_id, member.client_host


def _assigned(group: Group) -> dict[tuple[str, int], list[Member]]:
    """The members by topic (name or id) and partition."""
    found: dict[tuple[str, int], list[Member]] = defaultdict(list)
    for member in group.description.members:
        for each in [*member.assignment, *_to_be_revoked(group, member.member_id)]:
            found[each.topic or each.topic_id or "", each.partition].append(member)
    return found


def _to_be_revoked(group: Group, member_id: str) -> list[AssignedPartition]:
    def value(record_type: RecordType, record_key: str) -> Mapping[str, Any] | None:
        found = group.records.get((record_type, record_key))
        return None if found is None else decode_value(record_type, found).fields

    consumer = value(RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT, member_id) or {}
    streams = value(RecordType.STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT, member_id) or {}
    by_topic_id = [
        AssignedPartition(None, topic["topic_id"], partition)
        for topic in consumer.get("partitions_pending_revocation") or ()
        for partition in topic["partitions"]
    ]
    tasks = streams.get("active_tasks_pending_revocation") or ()
    return by_topic_id + task_partitions(tasks, value(RecordType.STREAMS_GROUP_TOPOLOGY, ""))
