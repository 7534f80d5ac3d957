"""Groups of a cluster: their states, their committed offsets, and commits as the Admin API makes them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from kafka.protocol.admin import ListGroupsRequest
from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest

from offsets_pipeline.broker.broker_errors import NO_ERROR, STALE_METADATA, broker_error
from offsets_pipeline.broker.connection import NONE
from offsets_pipeline.broker.topics_offsets import by_topic
from offsets_pipeline.errors import NonEmptyGroup

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsets_pipeline.broker.cluster import Cluster, Place
    from offsets_pipeline.broker.connection import Connection, Message
    from offsets_pipeline.errors import OffsetsError

_LAST_FETCH_OF_ONE_GROUP = 7
_LAST_COMMIT_WITH_NAMES = 9
_PARTITIONS = 2_000  # of a commit
_UNKNOWN_MEMBER_ID, _REBALANCE_IN_PROGRESS, _STALE_MEMBER_EPOCH = 25, 27, 113
_NEEDS = "READ on the group, and on its topics"


class LiveGroup(NamedTuple):
    """Protocol type and state of a group; the state is None if the brokers do not tell it (before Kafka 2.6)."""

    protocol_type: str
    state: str | None


class LiveOffset(NamedTuple):
    """An offset to commit, with its metadata."""

    offset: int
    metadata: str = ""


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


def committed_offsets(cluster: Cluster, group_id: str) -> dict[Place, int]:
    """The committed offsets of a group; none if there is no such group. Raises the errors of `Cluster`."""

    def ask(connection: Connection) -> dict[Place, int]:
        answer = connection.send(
            OffsetFetchRequest(group_id=group_id, topics=None), max_version=_LAST_FETCH_OF_ONE_GROUP
        )
        cluster.check(answer.error_code, connection, f"fetch the offsets of group {group_id!r}", needs=_NEEDS)
        return {
            (topic.name, each.partition_index): each.committed_offset
            for topic in answer.topics
            for each in topic.partitions
            if each.error_code == NO_ERROR and each.committed_offset >= 0
        }

    return cluster.ask_coordinator(group_id, ask)


def commit_live_offsets(
    cluster: Cluster, group_id: str, offsets: Mapping[Place, LiveOffset]
) -> dict[Place, OffsetsError]:
    """Commit offsets of a group without members; returns the errors of partitions that were not committed.

    Raises NonEmptyGroup if the group has members, and the errors of `Cluster`.
    """
    failed: dict[Place, OffsetsError] = {}
    rest = iter(offsets.items())
    while some := dict(islice(rest, _PARTITIONS)):
        request = _commit_request(group_id, some)

        def ask(connection: Connection, request: Message = request) -> dict[Place, OffsetsError]:
            answer = connection.send(request, max_version=_LAST_COMMIT_WITH_NAMES)
            return {
                (topic.name, each.partition_index): _refusal(cluster, connection, group_id, topic.name, each.error_code)
                for topic in answer.topics
                for each in topic.partitions
                if each.error_code != NO_ERROR
            }

        failed |= cluster.ask_coordinator(group_id, ask)
    return failed


def _commit_request(group_id: str, offsets: Mapping[Place, LiveOffset]) -> Message:
    of_topic = OffsetCommitRequest.OffsetCommitRequestTopic
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=NONE,
        member_id="",
        group_instance_id=None,
        topics=[
            of_topic(
                name=topic,
                partitions=[
                    of_topic.OffsetCommitRequestPartition(
                        partition_index=at,
                        committed_offset=offsets[topic, at].offset,
                        committed_leader_epoch=NONE,
                        committed_metadata=offsets[topic, at].metadata,
                    )
                    for at in partitions
                ],
            )
            for topic, partitions in by_topic(offsets).items()
        ],
    )


def _refusal(cluster: Cluster, connection: Connection, group_id: str, topic: str, code: int) -> OffsetsError:
    """Return the error of one partition. Raises an error of the whole group."""
    action = f"commit offsets of group {group_id!r}"
    if code in {_UNKNOWN_MEMBER_ID, _REBALANCE_IN_PROGRESS, _STALE_MEMBER_EPOCH}:
        raise NonEmptyGroup(f"cannot {action}: it has members; stop them first")
    if code not in STALE_METADATA:  # a topic that does not exist is an error of its partitions
        cluster.check(code, connection, action, needs=_NEEDS)
    return broker_error(code, connection.at, f"{action} for topic {topic}", _NEEDS, topic)
