"""Requests to the brokers that coordinate groups: lists and descriptions of groups, and their committed offsets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from offsets_pipeline.errors import NonEmptyGroup, OffsetsError
from offsets_pipeline.kafka.broker.broker_errors import (
    GROUP_ID_NOT_FOUND,
    NO_ERROR,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSTABLE_OFFSET_COMMIT,
    broker_error,
    error_name,
    is_retriable,
)
from offsets_pipeline.kafka.broker.cluster import Cluster, Place, Retry, answered, or_retry
from offsets_pipeline.kafka.broker.connection import NONE, Connection, Message, or_none
from offsets_pipeline.kafka.broker.log_offsets import by_topic
from offsets_pipeline.kafka.broker.messages import ConsumerGroupDescribeRequest

if TYPE_CHECKING:
    #: Offsets to commit: offset and metadata of each partition.
    Offsets = Mapping[Place, tuple[int, str]]

_CLASSIC, _DEAD = "Classic", "Dead"
_GROUP = 0
_BATCHED_SINCE = 4  # version of FindCoordinator (KIP-699)
_GROUPS_OF_REQUEST = 500
#: A broker appends the records of one request as one batch, of `message.max.bytes` at most: 1,048,588 by default.
_BYTES_OF_BATCH = 524_288
_BYTES_BESIDE_TEXTS = 100  # of a commit or tombstone in that batch, at most

_Key = TypeVar("_Key")
_Answer = TypeVar("_Answer")
_BY_TOPIC_NAME = 9  # the last version of both requests that names topics; later ones have topic ids
_MANY_GROUPS_SINCE = 8  # version of OffsetFetch (KIP-709)
_HAS_MEMBERS = frozenset({22, 25, 27})  # ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS


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
    return _described(cluster, group_ids, lambda some: ConsumerGroupDescribeRequest(group_ids=some))


def delete_groups(
    cluster: Cluster, offsets: Mapping[str, Collection[Place]]
) -> tuple[dict[str, OffsetsError], set[tuple[str, Place]]]:
    """Delete groups with their offsets.

    Returns the errors of groups that are not deleted; and offsets, by group and partition, that are deleted first
    because a broker cannot append all of the group's at once. They are deleted also if the group is not.

    ``offsets``: by group id, topic and partition of its offsets. Needs DELETE on the groups, and READ on the topics of
    offsets that are deleted first.
    """
    deleted: set[tuple[str, Place]] = set()
    failed: dict[str, OffsetsError] = {}
    sizes: dict[str, int] = {}
    for group_id, places in offsets.items():
        *parts, last = _in_batches(_tombstone_bytes(group_id, places))
        first = [place for some in parts for place in some]
        kept = delete_group_offsets(cluster, group_id, first) if first else {}
        deleted |= {(group_id, place) for place in first if place not in kept}
        size = sum(_tombstone_bytes(group_id, [*kept, *last]).values())
        if size > _BYTES_OF_BATCH:  # Kafka 3.9 would answer no error, and keep them in its log
            failed[group_id] = next(iter(kept.values()))
        else:
            sizes[group_id] = size

    def ask(connection: Connection, of_node: list[str]) -> dict[str, tuple[int, None]]:
        answer = connection.send(DeleteGroupsRequest(groups_names=of_node))
        return {each.group_id: (each.error_code, None) for each in answer.results}

    def errors(some: list[str]) -> dict[str, OffsetsError]:
        found = ask_coordinators(cluster, some, ask, "delete the records", "DELETE on the group")
        return {group_id: each for group_id, each in found.items() if isinstance(each, OffsetsError)}

    return failed | _errors_of_parts(sizes, errors), deleted


def _described(
    cluster: Cluster, group_ids: Collection[str], request: Callable[[list[str]], Message]
) -> dict[str, Message]:
    """The answers about groups that exist. ``request`` makes a request about some groups."""

    def ask(connection: Connection, of_node: list[str]) -> dict[str, tuple[int, Message | None]]:
        # Kafka up to 4.0 answers about each KIP-848 group once for each log partition of these groups: one finds it
        answers = sorted(
            connection.send(request(of_node)).groups,
            key=lambda each: (each.error_code == NO_ERROR, each.error_code != GROUP_ID_NOT_FOUND),
        )
        return {
            each.group_id: (NO_ERROR, None) if each.error_code == GROUP_ID_NOT_FOUND else (each.error_code, each)
            for each in answers
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
    shown = {node_id: f"{host}:{port} ({node_id})" for node_id, (host, port) in cluster.brokers().items()}
    leaders = cluster.topic(offsets_topic).partitions
    return {at: shown[leader.node_id] for at, leader in leaders.items() if leader.node_id in shown}


# --- committed offsets


def commit_group_offsets(cluster: Cluster, group_id: str, offsets: Offsets) -> None:
    """Commit offsets of a group without members, as the Admin client does: by (topic, partition), with metadata.

    Needs READ on the group and the topics. Raises the errors of `Cluster`; NonEmptyGroup if the group has members: of
    many offsets, sent in parts, the first may be committed. Raises NoSuchTopic or another error for a partition, after
    the other partitions are committed.
    """
    for error in refused_offsets(cluster, group_id, offsets).values():
        raise error


def refused_offsets(cluster: Cluster, group_id: str, offsets: Offsets) -> dict[Place, OffsetsError]:
    """Commit as `commit_group_offsets`, and return the errors of partitions, whose offsets were not committed."""
    sizes = {place: _record_bytes(group_id, place[0], metadata) for place, (_, metadata) in offsets.items()}
    return _errors_of_parts(
        sizes, lambda some: _refused_by_one(cluster, group_id, {place: offsets[place] for place in some})
    )


def _record_bytes(*texts: str) -> int:
    """The size of a record with these texts, at most."""
    return _BYTES_BESIDE_TEXTS + len("".join(texts).encode())


def _tombstone_bytes(group_id: str, places: Iterable[Place]) -> dict[Place, int]:
    """The sizes of the tombstones of a group's offsets, at most."""
    return {place: _record_bytes(group_id, place[0]) for place in places}


def _errors_of_parts(
    sizes: Mapping[_Key, int], ask: Callable[[list[_Key]], Mapping[_Key, OffsetsError]]
) -> dict[_Key, OffsetsError]:
    """Ask for the keys `_in_batches`, and return the errors. One that ``ask`` raises is that of all later keys, too."""
    failed: dict[_Key, OffsetsError] = {}
    parts = _in_batches(sizes)
    for some in parts:
        try:
            failed |= ask(some)
        except OffsetsError as error:
            return failed | {key: error for part in (some, *parts) for key in part}  # the parts before are done
    return failed


def _in_batches(sizes: Mapping[_Key, int]) -> Iterator[list[_Key]]:
    """Yield the keys in parts that a broker can append as one batch; at least one part. ``sizes``: bytes of records."""
    some: list[_Key] = []
    size = 0
    for key, added in sizes.items():
        if some and size + added > _BYTES_OF_BATCH:
            yield some
            some, size = [], 0
        some.append(key)
        size += added
    yield some


def _refused_by_one(cluster: Cluster, group_id: str, offsets: Offsets) -> dict[Place, OffsetsError]:
    """Do as `refused_offsets`, by one request.

    Raises the errors of `Cluster`; NonEmptyGroup if the group has members.
    """
    of_topic = OffsetCommitRequest.OffsetCommitRequestTopic

    def partition(topic: str, at: int) -> Message:
        offset, metadata = offsets[topic, at]
        return of_topic.OffsetCommitRequestPartition(
            partition_index=at, committed_offset=offset, committed_metadata=metadata
        )

    topics = [
        of_topic(name=name, partitions=[partition(name, at) for at in partitions])
        for name, partitions in by_topic(offsets).items()
    ]
    request = OffsetCommitRequest(group_id=group_id, topics=topics)

    def ask(connection: Connection, _: list[str]) -> dict[str, tuple[int, tuple[Connection, Message]]]:
        answer = connection.send(request, max_version=_BY_TOPIC_NAME)
        codes = {each.error_code for topic in answer.topics for each in topic.partitions}
        retriable = filter(is_retriable, codes - {UNKNOWN_TOPIC_OR_PARTITION})  # here that one is final
        return {group_id: (min(retriable, default=NO_ERROR), (connection, answer))}

    connection, answer = answered(ask_coordinators(cluster, [group_id], ask, "commit offsets"))[group_id]
    for code in (each.error_code for topic in answer.topics for each in topic.partitions):
        if code in _HAS_MEMBERS:
            raise NonEmptyGroup(
                f"{connection.at} cannot commit offsets of group {group_id}: it has members "
                f"({error_name(code)}); stop them, or name another group"
            )
    return _refused(answer, connection.at, f"commit the offset of group {group_id}", "READ on the group and the topic")


def _refused(answer: Message, at: str, action: str, needs: str) -> dict[Place, OffsetsError]:
    """The errors of partitions in an answer."""
    return {
        (topic.name, each.partition_index): broker_error(
            each.error_code, at, f"{action} for {topic.name}-{each.partition_index}", needs, topic.name
        )
        for topic in answer.topics
        for each in topic.partitions
        if each.error_code != NO_ERROR
    }


def commit_offsets_of_groups(
    cluster: Cluster, offsets: Iterable[tuple[str, Place, int, str]]
) -> dict[tuple[str, Place], OffsetsError]:
    """Commit as `commit_group_offsets`, group by group; returns the errors by group and partition, and raises none.

    ``offsets``: group, (topic, partition), offset and metadata.
    """
    of_groups: dict[str, dict[Place, tuple[int, str]]] = defaultdict(dict)
    for group_id, place, offset, metadata in offsets:
        of_groups[group_id][place] = offset, metadata
    return {
        (group_id, place): error
        for group_id, of_group in of_groups.items()
        for place, error in refused_offsets(cluster, group_id, of_group).items()
    }


def delete_group_offsets(cluster: Cluster, group_id: str, places: Collection[Place]) -> dict[Place, OffsetsError]:
    """Delete offsets of a group, and return the errors of partitions, by topic and partition, whose offsets stay.

    Needs DELETE on the group and READ on the topics.
    """
    of_topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
    needs = "DELETE on the group and READ on the topic"

    def errors(some: list[Place]) -> dict[Place, OffsetsError]:
        request = OffsetDeleteRequest(
            group_id=group_id,
            topics=[
                of_topic(
                    name=name, partitions=[of_topic.OffsetDeleteRequestPartition(partition_index=at) for at in each]
                )
                for name, each in by_topic(some).items()
            ],
        )

        def ask(connection: Connection, _: list[str]) -> dict[str, tuple[int, tuple[str, Message]]]:
            answer = connection.send(request)
            return {group_id: (answer.error_code, (connection.at, answer))}

        at, answer = answered(ask_coordinators(cluster, [group_id], ask, "delete offsets", needs))[group_id]
        return _refused(answer, at, f"delete the offset of group {group_id}", needs)

    return _errors_of_parts(_tombstone_bytes(group_id, places), errors)


def fetch_group_offsets(
    cluster: Cluster, group_ids: Collection[str]
) -> dict[str, dict[Place, tuple[int, int | None, str]]]:
    """Committed offset, leader epoch and metadata by (topic, partition), of each group.

    A group without offsets, or an unknown one, has none. Needs DESCRIBE on the groups, and on the topics that it is to
    show. Raises the errors of `Cluster`.
    """
    return {
        group_id: {
            (topic.name, each.partition_index): (
                each.committed_offset,
                or_none(each.committed_leader_epoch),
                each.metadata or "",
            )
            for topic in topics
            for each in topic.partitions
            if each.error_code == NO_ERROR and each.committed_offset != NONE
        }
        for group_id, topics in _fetched(cluster, group_ids).items()
    }


def unstable_offsets(cluster: Cluster, group_id: str, places: Collection[Place]) -> set[Place]:
    """Those of these partitions for which a transaction holds a commit of the group (R17).

    Brokers before 2.5 do not say so: none. Needs DESCRIBE on the group and the topics. Raises the errors of `Cluster`.
    """
    return {
        (topic.name, each.partition_index)
        for topic in _fetched(cluster, [group_id], by_topic(places))[group_id]
        for each in topic.partitions
        if each.error_code == UNSTABLE_OFFSET_COMMIT
    }


def _fetched(
    cluster: Cluster, group_ids: Collection[str], partitions: Mapping[str, list[int]] | None = None
) -> dict[str, list[Message]]:
    """The topics of each group in the answer to an OffsetFetch: a stable read of these partitions, or all offsets."""
    of_group = OffsetFetchRequest.OffsetFetchRequestGroup
    kinds = (OffsetFetchRequest.OffsetFetchRequestTopic, of_group.OffsetFetchRequestTopics)
    one, many = (
        None if partitions is None else [kind(name=name, partition_indexes=at) for name, at in partitions.items()]
        for kind in kinds
    )

    def ask(connection: Connection, of_node: list[str]) -> dict[str, tuple[int, list[Message]]]:
        answers: dict[str, tuple[int, list[Message]]] = {}
        batched = connection.version_of(OffsetFetchRequest(), _BY_TOPIC_NAME) >= _MANY_GROUPS_SINCE
        for some in [of_node] if batched else [[group_id] for group_id in of_node]:
            groups = [of_group(group_id=each, topics=many) for each in some]
            stable = partitions is not None
            request = OffsetFetchRequest(group_id=some[0], topics=one, groups=groups, require_stable=stable)
            answer = connection.send(request, max_version=_BY_TOPIC_NAME)
            if batched:
                answers |= {each.group_id: (each.error_code, each.topics) for each in answer.groups}
            else:
                answers[some[0]] = answer.error_code, answer.topics
        return answers

    return answered(ask_coordinators(cluster, group_ids, ask, "fetch the offsets"))
