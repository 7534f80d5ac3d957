"""Groups of a cluster, and their states."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kafka.protocol.admin import ListGroupsRequest

if TYPE_CHECKING:
    from offsets_pipeline.broker.cluster import Cluster
    from offsets_pipeline.broker.connection import Connection


class LiveGroup(NamedTuple):
    """Protocol type and state of a group; the state is None if the brokers do not tell it (before Kafka 2.6)."""

    protocol_type: str
    state: str | None


def list_groups(cluster: Cluster) -> dict[str, LiveGroup]:
    """All groups of the cluster that we may describe, by group id. Raises the errors of `Cluster`."""

    def ask(connection: Connection) -> dict[str, LiveGroup]:
        answer = connection.send(ListGroupsRequest())
        cluster.check(answer.error_code, connection, "list the groups", needs="DESCRIBE on the cluster or on groups")
        return {
            each.group_id: LiveGroup(each.protocol_type, getattr(each, "group_state", None) or None)
            for each in answer.groups
        }

    return {group_id: group for found in cluster.ask_all(ask) for group_id, group in found.items()}
