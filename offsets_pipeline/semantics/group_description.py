"""What a group is, from its records: existence, type, state, members (R14, R33, R34)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from offsets_pipeline.kafka.record.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    decode_assignment,
    decode_subscription,
)
from offsets_pipeline.kafka.record.decode import decode_value
from offsets_pipeline.kafka.record.message_types import RecordType
from offsets_pipeline.semantics.effects import COMMIT_RECORD_TYPE
from offsets_pipeline.semantics.group_types import (
    CLASSIC,
    CONSUMER,
    GROUP_METADATA,
    GROUP_REMOVING_TYPES,
    GROUP_TYPE_OF_RECORD_TYPE,
    SHARE,
    STREAMS,
)
from offsets_pipeline.semantics.partitioning import java_hash

Fields = Mapping[str, Any]

EMPTY, STABLE = "Empty", "Stable"
ASSIGNING, RECONCILING, NOT_READY = "Assigning", "Reconciling", "NotReady"

#: The server assignor of a consumer group whose members name none: the broker's default, which the log does not have.
DEFAULT_CONSUMER_ASSIGNOR = "uniform"
_NO_EPOCH = -1
_TIMELINE_HASH_FACTOR = 0x9E37_79B9_7F4A_7C15
_STABLE_MEMBER_STATE = {CONSUMER: 0, STREAMS: 1}  # in types 8 and 22 (R33)
#: Record types of a group that is not classic: of the group, a member, the target assignment, the current one.
_TYPES = {CONSUMER: (3, 5, 6, 8), SHARE: (11, 10, 12, 14), STREAMS: (17, 19, 20, 22)}


class GroupRecordRow(NamedTuple):
    """A row of the table `group_records`, of one group: the last value of a key, and its last tombstone.

    ``record_key``: the member id or the regular expression in the record's key; "" if the key has neither.
    """

    record_type: int
    record_key: str
    value_offset: int | None
    value: bytes | None
    tombstone_offset: int | None


@dataclass(frozen=True)
class AssignedPartition:
    """A partition a member holds; consumer and share groups name the topic by id alone (R35)."""

    topic: str | None
    topic_id: str | None
    partition: int


@dataclass(frozen=True)
class Member:
    """A member of a group. Timeouts in milliseconds; a field that the group type does not store is None.

    ``subscribed_topics`` are the names in the subscription, the topics that match ``subscribed_regex``, and for a
    streams group the source topics of its topology (R18). None if the log does not have them.
    """

    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int | None = None
    rebalance_timeout_ms: int | None = None
    member_epoch: int | None = None
    subscribed_topics: list[str] | None = None
    subscribed_regex: str | None = None
    assignment: list[AssignedPartition] = field(default_factory=list)


@dataclass(frozen=True)
class GroupDescription:
    """A group as a coordinator describes it. ``generation`` is a classic group's, the epochs are the others'."""

    group_type: str
    state: str
    protocol_type: str
    protocol: str | None = None
    generation: int | None = None
    group_epoch: int | None = None
    assignment_epoch: int | None = None
    leader: str | None = None
    state_timestamp_ms: int | None = None
    members: list[Member] = field(default_factory=list)

    @cached_property
    def subscribed_topics(self) -> frozenset[str] | None:
        """The topics that members subscribe to (R18, R26); None if the log lacks the subscription of a member."""
        if self.group_type == CLASSIC:
            if self.protocol_type != CONSUMER_PROTOCOL_TYPE or not self.members:
                return frozenset()  # Kafka knows no subscriptions of other protocols
            if self.protocol is None or any(member.subscribed_topics is None for member in self.members):
                return None
        return frozenset(topic for member in self.members for topic in member.subscribed_topics or ())


class Existence(NamedTuple):
    """Whether a group exists (R14). ``group_type`` is None if it does not.

    ``removed`` is the record offset of the last tombstone that removed the group, and ``newest`` that of the newest
    value of each group type; -1 for none. A value at ``floor`` or below belongs to a removed or replaced group.
    """

    group_type: str | None
    removed: int
    newest: dict[str, int]
    floor: int


def existence(rows: Iterable[GroupRecordRow]) -> Existence:
    """What the records of a group say about its existence (R14).

    A group lives from the last tombstone that removed it on. Its type is that of its newest value. A group with commits
    alone is a simple one. Under `classic` the facts about commits are of the last batch that may have changed them.
    """
    removed = commit = -1
    newest = dict.fromkeys((CLASSIC, CONSUMER, SHARE, STREAMS), -1)
    for row in rows:
        if row.record_type == COMMIT_RECORD_TYPE:
            commit = -1 if _at(row.value_offset) < _at(row.tombstone_offset) else _at(row.value_offset)
            continue
        group_type = GROUP_TYPE_OF_RECORD_TYPE[row.record_type]
        newest[group_type] = max(newest[group_type], _at(row.value_offset))
        if row.record_type in GROUP_REMOVING_TYPES:
            removed = max(removed, _at(row.tombstone_offset))
    last = max(newest, key=lambda name: newest[name])
    if newest[last] <= removed:
        # under `classic` the batch that removed a group may have found offsets that make it a simple one
        is_simple = commit >= max(removed, 0)
        return Existence(CLASSIC if is_simple else None, removed, newest, newest[last])
    floor = max(removed, *(offset for name, offset in newest.items() if name != last))
    return Existence(last, removed, newest, floor)


def live_records(rows: Iterable[GroupRecordRow]) -> tuple[str, dict[tuple[int, str], bytes]] | None:
    """The type of the group and the last value of each of its records; None if the group does not exist (R14)."""
    rows = list(rows)
    group = existence(rows)
    if group.group_type is None:
        return None
    return group.group_type, {
        (row.record_type, row.record_key): row.value for row in rows if row.value is not None and is_live(row, group)
    }


def is_live(row: GroupRecordRow, group: Existence) -> bool:
    """Whether the last value of a key is a record of the group that exists now (R14)."""
    return (
        row.record_type != COMMIT_RECORD_TYPE
        and GROUP_TYPE_OF_RECORD_TYPE[row.record_type] == group.group_type
        and _at(row.value_offset) > max(group.floor, _at(row.tombstone_offset))
    )


def _at(offset: int | None) -> int:
    return -1 if offset is None else offset


def describe_group(group_type: str, values: Mapping[tuple[int, str], bytes]) -> GroupDescription:
    """Describe a group that exists by the last values of its records (R33, R34)."""
    records = {name: decode_value(name[0], value).fields for name, value in values.items()}
    if group_type == CLASSIC:
        return _classic(records.get((GROUP_METADATA, "")))
    of_group, of_member, of_target, of_current = _TYPES[group_type]
    group = records.get((of_group, ""), {})
    target = records.get((of_target, ""), {})
    members = {name: value for (record_type, name), value in records.items() if record_type == of_member}
    stable = _STABLE_MEMBER_STATE.get(group_type)
    current = {name: records.get((of_current, name), {"state": stable, "member_epoch": 0}) for name in members}
    matching = _topics_by_regex(records) if group_type == CONSUMER else {}
    topology = records.get((RecordType.STREAMS_GROUP_TOPOLOGY, ""))
    sources = _topology_topics(topology)
    group_epoch = group.get("epoch", 0)
    assignment_epoch = target.get("assignment_epoch", 0)
    if not members:
        state = EMPTY
    elif group_type == SHARE:
        state = STABLE
    elif group_type == STREAMS and not _topology_is_valid(group, topology):
        state = NOT_READY
    elif group_epoch > assignment_epoch:
        state = ASSIGNING
    elif all((each["state"], each["member_epoch"]) == (stable, assignment_epoch) for each in current.values()):
        state = STABLE
    else:
        state = RECONCILING
    return GroupDescription(
        group_type=group_type,
        state=state,
        protocol_type=group_type.lower(),
        protocol=_server_assignor(members.values()) if group_type == CONSUMER else None,
        group_epoch=group_epoch,
        assignment_epoch=assignment_epoch,
        members=[
            _member(name, members[name], matching, sources, current[name], _assignment(current[name], topology))
            for name in sorted(members)
        ],
    )


def _topology_is_valid(group: Fields, topology: Fields | None) -> bool:
    validated = group.get("validated_topology_epoch")
    return topology is not None and topology["epoch"] == (_NO_EPOCH if validated is None else validated)


def _server_assignor(members: Iterable[Fields]) -> str:
    named = Counter(member["server_assignor"] for member in members if member["server_assignor"])
    return min(named, key=lambda name: (-named[name], _place_in_map(name))) if named else DEFAULT_CONSUMER_ASSIGNOR


def _place_in_map(name: str) -> int:
    """Where a broker's TimelineHashMap iterates over a key: by the highest bits of a multiplied hash.

    A broker counts assignors in such a map, and of equal counts the first wins.
    """
    return java_hash(name) * _TIMELINE_HASH_FACTOR & (1 << 64) - 1


def _topics_by_regex(records: Mapping[tuple[int, str], Fields]) -> dict[str, list[str]]:
    return {
        regex: value["topics"]
        for (record_type, regex), value in records.items()
        if record_type == RecordType.CONSUMER_GROUP_REGULAR_EXPRESSION
    }


def _topology_topics(topology: Fields | None) -> list[str] | None:
    """The source topics of a streams group's topology, repartition topics included; None without a topology."""
    if topology is None:
        return None
    return sorted({topic for topics in _sources_by_subtopology(topology).values() for topic in topics})


def task_partitions(tasks: Iterable[Fields], topology: Fields | None) -> list[AssignedPartition]:
    """The partitions that active tasks of a streams group consume (R34); none without a topology."""
    sources = _sources_by_subtopology(topology)
    return [
        AssignedPartition(topic, None, partition)
        for of_subtopology in tasks
        for topic in sources.get(of_subtopology["subtopology_id"], ())
        for partition in of_subtopology["partitions"]
    ]


def _sources_by_subtopology(topology: Fields | None) -> dict[str, list[str]]:
    """The source topics, repartition topics included, by the id of the subtopology."""
    return {
        part["subtopology_id"]: [*part["source_topics"], *(each["name"] for each in part["repartition_source_topics"])]
        for part in ([] if topology is None else topology["subtopologies"])
    }


def _assignment(current: Fields, topology: Fields | None) -> list[AssignedPartition]:
    """The partitions of a member, by its record of type 8, 14 or 22 (R34)."""
    by_topic_id = [
        AssignedPartition(None, topic["topic_id"], partition)
        for topic in current.get("assigned_partitions") or []
        for partition in topic["partitions"]
    ]
    return by_topic_id + task_partitions(current.get("active_tasks") or [], topology)


def _member(
    member_id: str,
    member: Fields,
    matching: Mapping[str, list[str]],
    sources: list[str] | None,
    current: Fields,
    assignment: list[AssignedPartition],
) -> Member:
    classic = member.get("classic_member_metadata")
    regex = member.get("subscribed_topic_regex") or None
    topics = member.get("subscribed_topic_names", sources)
    if regex is not None and regex in matching:
        topics = sorted({*(topics or ()), *matching[regex]})
    return Member(
        member_id=member_id,
        instance_id=member.get("instance_id"),
        rack_id=member.get("rack_id"),
        client_id=member["client_id"],
        client_host=member["client_host"],
        session_timeout_ms=None if classic is None else classic["session_timeout_ms"],
        rebalance_timeout_ms=member.get("rebalance_timeout_ms"),
        member_epoch=current["member_epoch"],
        subscribed_topics=topics,
        subscribed_regex=regex,
        assignment=assignment,
    )


def _classic(value: Fields | None) -> GroupDescription:
    if value is None:  # R14: a simple group, made by commits alone
        return GroupDescription(CLASSIC, EMPTY, "")
    protocol_type = value["protocol_type"]
    return GroupDescription(
        group_type=CLASSIC,
        state=STABLE if value["members"] else EMPTY,
        protocol_type=protocol_type,
        protocol=value["protocol"],
        generation=value["generation"],
        leader=value["leader"],
        state_timestamp_ms=value.get("current_state_timestamp"),
        members=[
            _classic_member(protocol_type, member)
            for member in sorted(value["members"], key=lambda member: str(member["member_id"]))
        ],
    )


def _classic_member(protocol_type: str, member: Fields) -> Member:
    subscription = decode_subscription(protocol_type, member["subscription"])
    assignment = decode_assignment(protocol_type, member["assignment"])
    rebalance_timeout_ms = member.get("rebalance_timeout")
    return Member(
        member_id=member["member_id"],
        instance_id=member.get("group_instance_id"),
        rack_id=None if subscription is None else subscription.fields.get("rack_id"),
        client_id=member["client_id"],
        client_host=member["client_host"],
        session_timeout_ms=member["session_timeout"],
        # before version 1 the session timeout served for both, as it does where the field holds -1
        rebalance_timeout_ms=member["session_timeout"] if rebalance_timeout_ms in (None, -1) else rebalance_timeout_ms,
        subscribed_topics=None if subscription is None else subscription.fields["topics"],
        assignment=[]
        if assignment is None
        else [
            AssignedPartition(topic["topic"], None, partition)
            for topic in assignment.fields["assigned_partitions"]
            for partition in topic["partitions"]
        ],
    )
