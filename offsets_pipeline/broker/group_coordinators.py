"""Requests to group coordinators: each goes to the broker that coordinates the group."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from kafka.protocol.metadata import FindCoordinatorRequest

from offsets_pipeline.broker.broker_errors import NO_ERROR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from offsets_pipeline.broker.cluster import Cluster
    from offsets_pipeline.broker.connection import Connection

_GROUP = 0
_BATCHED_SINCE = 4  # version of FindCoordinator (KIP-699)

_Answer = TypeVar("_Answer")


def ask_coordinators(
    cluster: Cluster,
    group_ids: Iterable[str],
    ask: Callable[[Connection, list[str]], Mapping[str, tuple[int, _Answer]]],
    action: str,
) -> dict[str, _Answer]:
    """Ask the coordinator of each group, and again where a coordinator has moved. Raises the errors of `Cluster`.

    Args:
        cluster: the cluster.
        group_ids: groups to ask about.
        ask: asks one broker about its groups, and returns an error code and an answer for each.
        action: what the request is for, as "fetch the offsets", for errors.
    """
    wanted = set(group_ids)
    answers: dict[str, _Answer] = {}
    if not wanted:
        return answers

    def ask_rest() -> dict[str, _Answer]:
        error: tuple[int, Connection, str] | None = None
        for node_id, of_node in _coordinators(cluster, sorted(wanted - answers.keys()), action).items():
            connection = cluster.connection_to(node_id)
            for group_id, (code, answer) in ask(connection, of_node).items():
                if code == NO_ERROR:
                    answers[group_id] = answer
                else:
                    error = error or (code, connection, group_id)
        if error is not None:
            code, connection, group_id = error
            cluster.check(code, connection, f"{action} of group {group_id}", needs="READ on the group")
        return answers

    return cluster.retried(ask_rest) if wanted else {}


def _coordinators(cluster: Cluster, group_ids: list[str], action: str) -> dict[int, list[str]]:
    """The groups of each broker that is a group coordinator."""
    if not group_ids:
        return {}
    cluster.refresh()  # a coordinator may be a new broker
    connection = cluster.any_connection()
    batched = connection.version_of(FindCoordinatorRequest()) >= _BATCHED_SINCE
    found: dict[int, list[str]] = {}
    for keys in [group_ids] if batched else [[group_id] for group_id in group_ids]:
        answer = connection.send(FindCoordinatorRequest(key=keys[0], key_type=_GROUP, coordinator_keys=keys))
        for key, each in [(each.key, each) for each in answer.coordinators] if batched else [(keys[0], answer)]:
            cluster.check(each.error_code, connection, f"{action} of group {key}", needs="DESCRIBE on the group")
            found.setdefault(each.node_id, []).append(key)
    return found


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
