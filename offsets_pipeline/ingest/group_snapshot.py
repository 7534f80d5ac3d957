"""Snapshots: a look at all groups of a cluster by its Admin API, and the log of the changes from each to the next.

A snapshot has the records that coordinators would have in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offsets_pipeline.common.closing import Closing
from offsets_pipeline.coordinator.appender import EXCLUSIVE, PARTITION
from offsets_pipeline.coordinator.core import CoordinatorCore
from offsets_pipeline.coordinator.owned_log import Record
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.coordinator.record_encoding import commit_record, group_key, group_tombstones, offset_tombstone
from offsets_pipeline.coordinator.requests import OffsetAndMetadata, Outcome
from offsets_pipeline.errors import NoSuchStore, NotAStore, StoreMismatch
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
from offsets_pipeline.semantics.partition_state import CommittedOffset, Group, PartitionState, TopicPartition
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.store.delta.filesystems import absolute_path
from offsets_pipeline.store.delta.properties import SCHEMA_PREFIX, SNAPSHOT, StoreProperties
from offsets_pipeline.store.delta.store_folder import create_tables, properties_of

if TYPE_CHECKING:
    from offsets_pipeline.common.clock import Clock
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.coordinator.appender import Claims, Request
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
_COMMIT_VERSION = 3
_TIMEOUT_MS = 300_000


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


# --- the log of a snapshot store


class SnapshotLog(Closing):
    """The open log of a snapshot store, of a new one if there is none. Close it with `close`, or use it in ``with``."""

    def __init__(
        self,
        location: str,
        ask_cluster_id: Callable[[], str | None],
        offsets_partitions: int | None,
        settings: Settings,
        clock: Clock,
    ) -> None:
        """Check the store before asking the cluster for its id.

        Raises StoreMismatch if the store is of another kind or cluster, NotAStore, UnsafeStorage and the errors of
        `CoordinatorCore.start`.
        """
        if location.startswith(SCHEMA_PREFIX):
            raise NotAStore(f"cannot write snapshots to {location}: name the folder of the store")
        folder = absolute_path(location)
        try:
            properties = properties_of(folder)
        except NoSuchStore:
            count = offsets_partitions or settings.log.offsets_partitions
            create_tables(folder, StoreProperties(SNAPSHOT, count, ask_cluster_id()))
            properties = properties_of(folder)
        if properties.kind != SNAPSHOT:
            raise StoreMismatch(
                f"cannot write snapshots to {location}: it is a store of the kind {properties.kind}; name a new folder"
            )
        if offsets_partitions not in {None, properties.offsets_partitions}:
            raise StoreMismatch(
                f"{location} has {properties.offsets_partitions} log partitions, not {offsets_partitions}; leave out "
                "--offsets-partitions"
            )
        cluster_id = ask_cluster_id()
        if cluster_id is not None and properties.cluster_id not in {None, cluster_id}:
            raise StoreMismatch(
                f"cannot write snapshots of cluster {cluster_id} to {location}: it has those of cluster "
                f"{properties.cluster_id}; name another folder"
            )
        self._core = CoordinatorCore(OwnedStore(folder, properties), settings, clock)
        self._core.start(None)
        self.store = self._core.store

    def close(self) -> None:
        """Append the waiting requests, then end. Idempotent."""
        self._core.close()

    def group_ids(self) -> list[str]:
        """The groups of the last snapshot."""
        with self._core.lock:
            self._core.catch_up()
            return [group_id for state in self._core.partitions.loaded() for group_id in state.groups]

    def append(self, groups: Mapping[str, GroupSnapshot]) -> int:
        """Append the changes to these groups; returns the number of records. A group that is missing here is gone.

        The records of one group are in one append. Raises RequestTimedOut, StoreReplaced, UnsupportedTable.
        """
        n = self.store.properties.offsets_partitions
        by_partition: dict[int, dict[str, GroupSnapshot]] = {}
        for group_id, group in groups.items():
            by_partition.setdefault(partition_for(group_id, n), {})[group_id] = group
        requests = [self._submit_changes(at, by_partition.get(at, {})) for at in range(n)]
        return sum(int(request.result()) for request in requests)

    def _submit_changes(self, log_partition: int, groups: Mapping[str, GroupSnapshot]) -> Request:
        def handler(now_ms: int) -> Outcome[int]:
            records = list(_changes(self._core.partitions.state(log_partition), groups, now_ms))
            return Outcome(records, len(records))

        claims: Claims = {(PARTITION, log_partition): EXCLUSIVE}
        return self._core.submit(f"changes of log partition {log_partition}", handler, lambda: claims, _TIMEOUT_MS)


def _changes(state: PartitionState, groups: Mapping[str, GroupSnapshot], now_ms: int) -> Iterator[Record]:
    """The records that turn the state into these groups."""
    at = state.log_partition
    for group_id, gone in state.groups.items():
        if group_id not in groups:
            for where in state.offsets.get(group_id, {}):
                yield offset_tombstone(at, group_id, where)
            yield from group_tombstones(at, group_id, gone)
    for group_id, group in groups.items():
        held, known = state.groups.get(group_id), state.offsets.get(group_id, {})
        records, offsets = {} if held is None else held.records, known
        if held is not None and _is_replaced(held, group):
            yield from group_tombstones(at, group_id, held)
            records, offsets = {}, known if group.values else {}  # R14: only a commit creates a simple group
        if group.values is not None:
            yield from _group_changes(at, group_id, records, group.values)
        yield from _offset_changes(at, group_id, offsets, group, now_ms)
        for where in known:
            if where not in group.offsets:
                yield offset_tombstone(at, group_id, where)


def _is_replaced(held: Group, group: GroupSnapshot) -> bool:
    """Whether the group that the log has was deleted, or has changed its type (R14)."""
    return group.values is not None and bool(held.records) and (not group.values or held.group_type != group.group_type)


def _group_changes(at: int, group_id: str, known: GroupValues, wanted: GroupValues) -> Iterator[Record]:
    for name, value in wanted.items():
        if known.get(name) != value:
            yield Record(at, group_key(name[0], group_id, name[1]), value)
    for name in sorted(known.keys() - wanted.keys()):
        yield Record(at, group_key(name[0], group_id, name[1]), None)


def _offset_changes(
    at: int, group_id: str, known: Mapping[TopicPartition, CommittedOffset], group: GroupSnapshot, now_ms: int
) -> Iterator[Record]:
    for (topic, partition), answer in group.offsets.items():
        where = TopicPartition(topic, partition)
        held = known.get(where)
        if held is None or (held.committed_offset, held.leader_epoch, held.metadata) != answer:
            yield commit_record(at, group_id, where, OffsetAndMetadata(*answer), now_ms, version=_COMMIT_VERSION)
