"""Groups of a cluster as their coordinators list and describe them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest

from offsets_pipeline.errors import OffsetsError
from offsets_pipeline.kafka.broker.broker_errors import GROUP_ID_NOT_FOUND, NO_ERROR
from offsets_pipeline.kafka.broker.cluster import answered
from offsets_pipeline.kafka.broker.group_coordinators import ask_coordinators
from offsets_pipeline.kafka.broker.messages import ConsumerGroupDescribeRequest
from offsets_pipeline.kafka.record.wire import uuid_to_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from offsets_pipeline.kafka.broker.cluster import Cluster
    from offsets_pipeline.kafka.broker.connection import Connection, Message

_CLASSIC, _DEAD = "Classic", "Dead"


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in a listing. Brokers older than 3.8 do not send types; their groups are classic.

    The state is None if the brokers do not send it (before Kafka 2.6).
    """

    group_id: str
    group_type: str
    protocol_type: str
    state: str | None


@dataclass(frozen=True, slots=True)
class DescribedClassicMember:
    """A member of a classic group; subscription and assignment are in the client's encoding."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedClassicGroup:
    """A classic group. During a rebalance protocol and assignments are empty."""

    state: str
    protocol_type: str
    protocol: str
    members: tuple[DescribedClassicMember, ...]


@dataclass(frozen=True, slots=True)
class AssignedTopic:
    """Partitions of a topic; the id is in Kafka's notation."""

    topic_id: str
    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DescribedConsumerMember:
    """A member of a group of KIP-848."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    assignment: tuple[AssignedTopic, ...] = ()
    target_assignment: tuple[AssignedTopic, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribedConsumerGroup:
    """A group of KIP-848."""

    state: str
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[DescribedConsumerMember, ...] = field(default=())


def list_groups(cluster: Cluster) -> dict[str, GroupListing]:
    """All groups on which we have DESCRIBE, by group id. Raises the errors of `Cluster`."""

    def ask(connection: Connection) -> list[GroupListing]:
        answer = connection.send(ListGroupsRequest(states_filter=[], types_filter=[]))
        cluster.check(answer.error_code, connection, "list the groups", needs="DESCRIBE on the cluster or on groups")
        return [
            GroupListing(
                each.group_id,
                (each.group_type or _CLASSIC).capitalize(),
                each.protocol_type or "",
                each.group_state or None,
            )
            for each in answer.groups
        ]

    return {each.group_id: each for at_broker in cluster.ask_all(ask) for each in at_broker}


def describe_classic_groups(cluster: Cluster, group_ids: Collection[str]) -> dict[str, DescribedClassicGroup]:
    """Classic groups by group id, without those that no longer exist. Raises the errors of `Cluster`."""
    found = _described(cluster, group_ids, lambda some: DescribeGroupsRequest(groups=some))
    return {
        group_id: DescribedClassicGroup(
            state=each.group_state,
            protocol_type=each.protocol_type,
            protocol=each.protocol_data,
            members=tuple(
                DescribedClassicMember(
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    member.client_host,
                    bytes(member.member_metadata),
                    bytes(member.member_assignment),
                )
                for member in each.members
            ),
        )
        for group_id, each in found.items()
        if each is not None and each.group_state != _DEAD  # which older brokers answer for an unknown group
    }


def describe_consumer_groups(cluster: Cluster, group_ids: Collection[str]) -> dict[str, DescribedConsumerGroup]:
    """Groups of KIP-848 by group id, without those that no longer exist. Raises the errors of `Cluster`."""
    found = _described(
        cluster,
        group_ids,
        lambda some: ConsumerGroupDescribeRequest(group_ids=some, include_authorized_operations=False),
    )
    return {group_id: _consumer_group(each) for group_id, each in found.items() if each is not None}


def delete_groups(cluster: Cluster, group_ids: Collection[str]) -> dict[str, OffsetsError]:
    """Delete groups with their offsets, and return the errors of those that are not deleted.

    Needs DELETE on the groups. Raises the errors of `Cluster` if no broker answers.
    """

    def ask(connection: Connection, of_node: list[str]) -> dict[str, tuple[int, None]]:
        answer = connection.send(DeleteGroupsRequest(groups_names=of_node))
        return {each.group_id: (each.error_code, None) for each in answer.results}

    found = ask_coordinators(cluster, group_ids, ask, "delete the records", "DELETE on the group")
    return {group_id: each for group_id, each in found.items() if isinstance(each, OffsetsError)}


def _described(
    cluster: Cluster, group_ids: Collection[str], request: Callable[[list[str]], Message]
) -> dict[str, Message | None]:
    """The answers about groups; None for a group that does not exist. ``request`` makes a request about some groups."""

    def ask(connection: Connection, of_node: list[str]) -> dict[str, tuple[int, Message | None]]:
        return {
            each.group_id: (NO_ERROR, None) if each.error_code == GROUP_ID_NOT_FOUND else (each.error_code, each)
            for each in connection.send(request(of_node)).groups
        }

    return answered(ask_coordinators(cluster, group_ids, ask, "describe the members"))


def _consumer_group(group: Message) -> DescribedConsumerGroup:
    return DescribedConsumerGroup(
        state=group.group_state,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor=group.assignor_name,
        members=tuple(
            DescribedConsumerMember(
                each.member_id,
                each.instance_id,
                each.rack_id,
                each.member_epoch,
                each.client_id,
                each.client_host,
                tuple(each.subscribed_topic_names),
                each.subscribed_topic_regex,
                _assignment(each.assignment),
                _assignment(each.target_assignment),
            )
            for each in group.members
        ),
    )


def _assignment(assignment: Message) -> tuple[AssignedTopic, ...]:
    return tuple(
        AssignedTopic(uuid_to_text(each.topic_id.bytes), each.topic_name, tuple(sorted(each.partitions)))
        for each in sorted(assignment.topic_partitions, key=lambda each: each.topic_name)
    )
