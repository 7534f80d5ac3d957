"""A described group as the records that its coordinator would have in the log (R5, R33, R34)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.kafka.record.decode import DecodedValue
from offsets_pipeline.kafka.record.encode import encode_value
from offsets_pipeline.kafka.record.message_types import RecordType
from offsets_pipeline.kafka.record.wire import uuid_to_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsets_pipeline.kafka.broker.connection import Message
    from offsets_pipeline.kafka.record.schema import Fields

    #: Values by record type and record key, in the order in which a coordinator writes them.
    GroupValues = dict[tuple[int, str], bytes]

_UNKNOWN = -1  # a number that a description lacks
_CLASSIC_VERSION, _VERSION = 3, 0
_STABLE = "Stable"
_MEMBER_IS_STABLE, _MEMBER_IS_RECONCILING = 0, 1


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
    value = encode_value(RecordType.GROUP_METADATA, DecodedValue(_CLASSIC_VERSION, fields))
    return {(RecordType.GROUP_METADATA, ""): value}


def consumer_values(group: Message, partition_counts: Mapping[str, int]) -> GroupValues:
    """The values of a group of KIP-848, which ConsumerGroupDescribe answered; ``partition_counts`` is by topic id.

    Timeouts and former epochs are unknown.
    """
    members = sorted(group.members, key=lambda each: str(each.member_id))
    values: GroupValues = {}

    def add(record_type: RecordType, name: str, fields: Fields) -> None:
        values[record_type, name] = _encoded(record_type, fields)

    for each in members:  # R14: members come before their group
        add(RecordType.CONSUMER_GROUP_MEMBER_METADATA, each.member_id, _member(each, group.assignor_name))
    add(RecordType.CONSUMER_GROUP_METADATA, "", {"epoch": group.group_epoch})
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
        add(RecordType.CONSUMER_GROUP_PARTITION_METADATA, "", {"topics": topics})
    for each in members:
        target = {"topic_partitions": _topics(each.target_assignment)}
        add(RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER, each.member_id, target)
    add(RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA, "", {"assignment_epoch": group.assignment_epoch})
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
        add(RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT, each.member_id, current)
    return values


def streams_values() -> GroupValues:
    """The value that makes a streams group. Members and epochs are unknown."""
    record_type = RecordType.STREAMS_GROUP_METADATA
    return {(record_type, ""): _encoded(record_type, {"epoch": 0, "metadata_hash": 0})}


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


def _encoded(record_type: RecordType, fields: Fields) -> bytes:
    return encode_value(record_type, DecodedValue(_VERSION, fields))
