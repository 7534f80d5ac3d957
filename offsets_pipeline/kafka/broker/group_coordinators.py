"""Requests to group coordinators: each goes to the broker that coordinates the group."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from kafka.protocol.metadata import FindCoordinatorRequest

from offsets_pipeline.kafka.broker.broker_errors import NO_ERROR, broker_error
from offsets_pipeline.kafka.broker.cluster import Retry, or_retry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from offsets_pipeline.errors import OffsetsError
    from offsets_pipeline.kafka.broker.cluster import Cluster
    from offsets_pipeline.kafka.broker.connection import Connection

_GROUP = 0
_BATCHED_SINCE = 4  # version of FindCoordinator (KIP-699)
_GROUPS_OF_REQUEST = 500

_Answer = TypeVar("_Answer")


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
