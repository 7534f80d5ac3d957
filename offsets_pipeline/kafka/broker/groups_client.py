"""Requests to group coordinators, each to the broker that coordinates its group; lists and descriptions of groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from offsets_pipeline.errors import OffsetsError
from offsets_pipeline.kafka.broker.broker_errors import GROUP_ID_NOT_FOUND, NO_ERROR, broker_error
from offsets_pipeline.kafka.broker.cluster import Cluster, Retry, answered, or_retry
from offsets_pipeline.kafka.broker.messages import ConsumerGroupDescribeRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from offsets_pipeline.kafka.broker.connection import Connection, Message

_CLASSIC, _DEAD = "Classic", "Dead"
_GROUP = 0
_BATCHED_SINCE = 4  # version of FindCoordinator (KIP-699)
_GROUPS_OF_REQUEST = 500

_Answer = TypeVar("_Answer")


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


def ask_coordinators(
    cluster: Cluster,
    group_ids: Iterable[str],
    ask: Callable[[Connection, list[str]], Mapping[str, tuple[int, _Answer]]],
    action: str,
    needs: str = "READ on the group",
) -> dict[str, _Answer | OffsetsError]:
    """Ask the coordinator of each group, and again where a coordinator has moved.

    An error takes the place of an answer that does not come. Raises the errors of `Cluster` if no broker answers.

    Args:
        cluster: the cluster.
        group_ids: groups to ask about.
        ask: asks one broker about some of its groups, and returns an error code and an answer for each.
        action: what the request is for, as "fetch the offsets", for errors.
        needs: operations that the request needs, for errors.
    """

    def coordinators(rest: list[str]) -> dict[str, int | OffsetsError | Retry]:
        cluster.refresh()  # a coordinator may be a new broker
        connection = cluster.any_connection()
        batched = connection.version_of(FindCoordinatorRequest()) >= _BATCHED_SINCE
        found: dict[str, int | OffsetsError | Retry] = {}
        for keys in [rest] if batched else [[group_id] for group_id in rest]:
            answer = connection.send(FindCoordinatorRequest(key=keys[0], key_type=_GROUP, coordinator_keys=keys))
            for key, each in [(each.key, each) for each in answer.coordinators] if batched else [(keys[0], answer)]:
                code, asked = each.error_code, f"{action} of group {key}"
                found[key] = (
                    each.node_id
                    if code == NO_ERROR
                    else or_retry(code, broker_error(code, connection.at, asked, "DESCRIBE on the group"))
                )
        return found

    def error(code: int, group_id: str, connection: Connection) -> OffsetsError:
        return broker_error(code, connection.at, f"{action} of group {group_id}", needs)

    return cluster.ask_each(group_ids, coordinators, ask, error, _GROUPS_OF_REQUEST)


def coordinators_of_log(cluster: Cluster, offsets_topic: str) -> dict[int, str]:
    """The coordinator of each log partition's groups, as Kafka's tool shows it: HOST:PORT (ID).

    It is the leader of the log partition. Raises the errors of `Cluster`.
    """
    brokers = cluster.brokers()
    return {
        at: f"{brokers[leader.node_id].host}:{brokers[leader.node_id].port} ({leader.node_id})"
        for at, leader in cluster.topic(offsets_topic).partitions.items()
        if leader.node_id in brokers
    }
