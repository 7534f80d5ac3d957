"""Groups of a cluster as their coordinators list and describe them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest

from offsets_pipeline.errors import OffsetsError
from offsets_pipeline.kafka.broker.broker_errors import GROUP_ID_NOT_FOUND, NO_ERROR
from offsets_pipeline.kafka.broker.cluster import answered
from offsets_pipeline.kafka.broker.group_coordinators import ask_coordinators
from offsets_pipeline.kafka.broker.messages import ConsumerGroupDescribeRequest

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


def describe_classic_groups(cluster: Cluster, group_ids: Collection[str]) -> dict[str, Message]:
    """Classic groups by group id, as DescribeGroups answers them, without those that no longer exist.

    During a rebalance protocol and assignments are empty. Raises the errors of `Cluster`.
    """
    found = _described(cluster, group_ids, lambda some: DescribeGroupsRequest(groups=some))
    return {group_id: each for group_id, each in found.items() if each.group_state != _DEAD}  # of older brokers


def describe_consumer_groups(cluster: Cluster, group_ids: Collection[str]) -> dict[str, Message]:
    """Groups of KIP-848 by group id, as ConsumerGroupDescribe answers them, without those that no longer exist.

    Raises the errors of `Cluster`.
    """
    return _described(
        cluster,
        group_ids,
        lambda some: ConsumerGroupDescribeRequest(group_ids=some, include_authorized_operations=False),
    )


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
) -> dict[str, Message]:
    """The answers about groups that exist. ``request`` makes a request about some groups."""

    def ask(connection: Connection, of_node: list[str]) -> dict[str, tuple[int, Message | None]]:
        return {
            each.group_id: (NO_ERROR, None) if each.error_code == GROUP_ID_NOT_FOUND else (each.error_code, each)
            for each in connection.send(request(of_node)).groups
        }

    found = answered(ask_coordinators(cluster, group_ids, ask, "describe the members"))
    return {group_id: each for group_id, each in found.items() if each is not None}
