"""One look at all groups of a cluster by its Admin API: as the records that coordinators would have in the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offsets_pipeline.kafka.broker.groups_client import (
    describe_classic_groups,
    describe_consumer_groups,
    fetch_group_offsets,
    list_groups,
)
from offsets_pipeline.kafka.record.decode import DecodedValue
from offsets_pipeline.kafka.record.encode import encode_value
from offsets_pipeline.kafka.record.message_types import RecordType
from offsets_pipeline.kafka.record.wire import uuid_to_text
from offsets_pipeline.semantics.group_types import CLASSIC, CONSUMER, SHARE, STREAMS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from offsets_pipeline.kafka.broker.cluster import Cluster
    from offsets_pipeline.kafka.broker.connection import Message
    from offsets_pipeline.kafka.record.schema import Fields

    #: Values by record type and record key, in the order in which a coordinator writes them.
    GroupValues = dict[tuple[int, str], bytes]

_SETTLED = frozenset({"Stable", "Empty"})  # between them a classic group rebalances
_UNKNOWN = -1  # a number that a description lacks
_CLASSIC_VERSION = 3
_STABLE = "Stable"
_MEMBER_IS_STABLE, _MEMBER_IS_RECONCILING = 0, 1


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A group as the cluster answers: type, offsets by (topic, partition), and the values of its other records.

    An offset has its leader epoch and metadata. ``values`` is None while the group rebalances: then the last ones stay.
    """

    group_type: str
    offsets: Mapping[tuple[str, int], tuple[int, int | None, str]]
    values: GroupValues | None


def take_snapshot(cluster: Cluster, known: Collection[str] = ()) -> dict[str, GroupSnapshot]:
    """All groups of a cluster with committed offsets or members, by group id; share groups have no offsets.

    ``known`` are groups of an earlier snapshot; the cluster is asked for each of them, too. A group that is not listed
    because its coordinator is unavailable is then an error, not a deleted group.

    Needs DESCRIBE on all groups and topics. Raises the errors of `Cluster`.
    """
    listed = {group_id: each for group_id, each in list_groups(cluster).items() if each.group_type != SHARE}
    offsets = fetch_group_offsets(cluster, sorted({*listed, *known}))
    values = _values(cluster, {group_id: each.group_type for group_id, each in listed.items()})
    found = {
        group_id: GroupSnapshot(each.group_type, offsets[group_id], values.get(group_id))
        for group_id, each in listed.items()
    }
    for group_id in known:
        if group_id not in listed and offsets[group_id]:  # created after the listing
            found[group_id] = GroupSnapshot(CLASSIC, offsets[group_id], None)
    return found


def _values(cluster: Cluster, group_types: dict[str, str]) -> dict[str, GroupValues]:
    """The values of the groups' records, without groups that rebalance or are gone meanwhile."""
    # no request describes the group with the empty id, which is always simple
    values: dict[str, GroupValues] = {"": {}}
    classic = describe_classic_groups(
        cluster, [group_id for group_id, kind in group_types.items() if kind == CLASSIC and group_id]
    )
    values |= {group_id: classic_values(each) for group_id, each in classic.items() if each.group_state in _SETTLED}
    consumer = describe_consumer_groups(
        cluster, [group_id for group_id, kind in group_types.items() if kind == CONSUMER]
    )
    topics = cluster.topics(None).values() if any(each.members for each in consumer.values()) else ()
    counts = {each.topic_id: len(each.partitions) for each in topics if each.topic_id}
    values |= {group_id: consumer_values(each, counts) for group_id, each in consumer.items()}
    return values | {group_id: streams_values() for group_id, kind in group_types.items() if kind == STREAMS}


def classic_values(group: Message) -> GroupValues:
    """The values of a classic group, which DescribeGroups answered; none for a simple group.

    Generation, leader and timeouts are unknown.
    """
    if not group.protocol_type and not group.members:
        return {}
    fields: Fields = {
        "protocol_type": group.protocol_type,
        "generation": _UNKNOWN,
        "protocol": group.protocol_data or None,
        "leader": None,
        "current_state_timestamp": None,
        "members": [
            {
                "member_id": each.member_id,
                "group_instance_id": each.group_instance_id,
                "client_id": each.client_id,
                "client_host": each.client_host,
                "rebalance_timeout": _UNKNOWN,
                "session_timeout": _UNKNOWN,
                "subscription": bytes(each.member_metadata),
                "assignment": bytes(each.member_assignment),
            }
            for each in sorted(group.members, key=lambda each: each.member_id)
        ],
    }
    return _value(RecordType.GROUP_METADATA, "", fields, _CLASSIC_VERSION)


def consumer_values(group: Message, partition_counts: Mapping[str, int]) -> GroupValues:
    """The values of a group of KIP-848, which ConsumerGroupDescribe answered; ``partition_counts`` is by topic id.

    Timeouts and former epochs are unknown.
    """
    members = sorted(group.members, key=lambda each: str(each.member_id))
    values: GroupValues = {}
    for each in members:  # R14: members come before their group
        values |= _value(RecordType.CONSUMER_GROUP_MEMBER_METADATA, each.member_id, _member(each, group.assignor_name))
    values |= _value(RecordType.CONSUMER_GROUP_METADATA, "", {"epoch": group.group_epoch})
    names = {
        uuid_to_text(topic.topic_id.bytes): topic.topic_name
        for each in members
        for assignment in (each.assignment, each.target_assignment)
        for topic in assignment.topic_partitions
    }
    if names:  # R35: the other types name topics by id
        topics = [
            {
                "topic_id": topic_id,
                "topic_name": name,
                "num_partitions": partition_counts.get(topic_id, _UNKNOWN),
                "partition_metadata": [],
            }
            for topic_id, name in sorted(names.items())
        ]
        values |= _value(RecordType.CONSUMER_GROUP_PARTITION_METADATA, "", {"topics": topics})
    for each in members:
        target = {"topic_partitions": _topics(each.target_assignment)}
        values |= _value(RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER, each.member_id, target)
    values |= _value(
        RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA, "", {"assignment_epoch": group.assignment_epoch}
    )
    for each in members:
        assigned = _topics(each.assignment)
        has_target = each.member_epoch == group.assignment_epoch and assigned == _topics(each.target_assignment)
        current = {
            "member_epoch": each.member_epoch,
            "previous_member_epoch": _UNKNOWN,
            "state": _MEMBER_IS_STABLE if group.group_state == _STABLE or has_target else _MEMBER_IS_RECONCILING,
            "assigned_partitions": assigned,
            "partitions_pending_revocation": [],
        }
        values |= _value(RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT, each.member_id, current)
    return values


def streams_values() -> GroupValues:
    """The value that makes a streams group. Members and epochs are unknown."""
    return _value(RecordType.STREAMS_GROUP_METADATA, "", {"epoch": 0, "metadata_hash": 0})


def _member(member: Message, assignor: str) -> Fields:
    return {
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.subscribed_topic_names),
        "subscribed_topic_regex": member.subscribed_topic_regex,
        "rebalance_timeout_ms": _UNKNOWN,
        "server_assignor": assignor or None,
        "classic_member_metadata": None,
    }


def _topics(assignment: Message) -> list[Fields]:
    return [
        {"topic_id": uuid_to_text(each.topic_id.bytes), "partitions": sorted(each.partitions)}
        for each in sorted(assignment.topic_partitions, key=lambda each: str(each.topic_name))
    ]


def _value(record_type: RecordType, name: str, fields: Fields, version: int = 0) -> GroupValues:
    return {(record_type, name): encode_value(record_type, DecodedValue(version, fields))}
