"""Descriptions of groups as a coordinator gives them: state, members, committed offsets (R14, R17, R33-R35)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from offsets_pipeline.fold.state.merge_on_read import DESCRIBED, OFFSETS, RECORDS, StateTable, are_answered
from offsets_pipeline.kafka.record.decode import decode_value
from offsets_pipeline.kafka.record.message_types import RecordType
from offsets_pipeline.semantics.answering import answering_rows, answers_offsets
from offsets_pipeline.semantics.effects import in_milliseconds
from offsets_pipeline.semantics.group_description import task_partitions
from offsets_pipeline.semantics.group_types import STREAMS
from offsets_pipeline.semantics.partitioning import homes_of, partition_for
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.data_file import ALL_ROWS
from offsets_pipeline.store.delta.reader import names_in_order

if TYPE_CHECKING:
    import pyarrow as pa

    from offsets_pipeline.questions.query.state_reader import StateReader
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
    from offsets_pipeline.store.delta.data_file import Only

    Group = tuple[int, str]
    Place = tuple[str, int]
    Offset = tuple[str, int, int, int | None, str, int | None]  # the first fields of OffsetAnswer, and `committed_ms`
    Fields = Mapping[str, Any]
    Records = dict[tuple[int, str], Fields]  # the fields of a group's values by record type and record key

#: Columns of `groups` without times, for which Arrow imports pandas.
_GROUP_COLUMNS = (
    *("log_partition", "group_id", "group_type", "state", "protocol_type", "protocol"),
    *("group_epoch", "assignment_epoch", "misplaced", "members"),
)
_OFFSET_COLUMNS = (
    *("log_partition", "group_id", "topic", "partition", "committed_offset", "leader_epoch", "metadata"),
    *("commit_timestamp", "misplaced"),
)
_MORE_OF_STREAMS = (
    *(RecordType.STREAMS_GROUP_TOPOLOGY, RecordType.STREAMS_GROUP_MEMBER_METADATA),
    *(RecordType.STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT, RecordType.STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER),
)
_TASKS = ("active_tasks", "standby_tasks", "warmup_tasks")


@dataclass(frozen=True)
class GroupState:
    """The state that answers about groups are made from: of now (`state_of`), or of the past (as_of.py).

    ``newest`` returns columns of the rows of a state table that count. ``pending`` has the topic partitions with
    pending commits (R17) by log partition and group id. ``offsets_partitions`` is R1's n.
    """

    newest: Callable[[StateTable, Sequence[str]], pa.Table]
    pending: Mapping[Group, Collection[Place]]
    offsets_partitions: int
    semantics: CoordinatorSemantics


def state_of(reader: StateReader, only: Only = ALL_ROWS) -> GroupState:
    """Return the state as of the end of the log; ``only`` restricts the rows to values of columns of the key."""
    current = reader.current
    pending = pending_by_group((at, each) for at, known in current.progress.items() for each in known.pending)
    return GroupState(partial(current.newest, only=only), pending, current.offsets_partitions, current.semantics)


@dataclass(frozen=True)
class OffsetAnswer:
    """A committed offset as a fetch answers it; if it is ``pending``, a read of stable offsets has to wait (R17).

    ``log_end_offset`` and ``lag``, the difference, are None unless a broker was asked. ``committed_ms`` is the time of
    the commit in ms since 1970, None if it is not known.
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int | None
    metadata: str
    pending: bool = False
    log_end_offset: int | None = None
    lag: int | None = None
    committed_ms: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class StartOffset(OffsetAnswer):
    """Start offset of a share partition (R39); ``committed_ms`` is the time of the last record about it.

    ``delivery_complete_count`` is None if the broker wrote none. ``offset`` is -1 if no start offset is known.
    """

    topic_id: str = ""
    delivery_complete_count: int | None = None
    log_partition: int = 0


@dataclass(frozen=True)
class StreamsMember:
    """What only a member of a streams group has.

    ``tasks`` and ``target_tasks`` have partitions by kind (such as standby_tasks) and by subtopology.
    """

    process_id: str
    topology_epoch: int
    tasks: dict[str, dict[str, list[int]]]
    target_tasks: dict[str, dict[str, list[int]]]


@dataclass(frozen=True)
class MemberAnswer:
    """A member of a group; ``assignment`` lists "topic-partition", with the topic's id if its name is unknown.

    ``subscribed_topics`` is None if the log does not tell them. ``target_assignment`` is None unless it was asked for
    and the group has one. ``streams`` is None unless it was asked for and the group is a streams group.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: list[str]
    subscribed_topics: list[str] | None
    member_epoch: int | None = None
    target_assignment: list[str] | None = None
    streams: StreamsMember | None = None


@dataclass
class GroupAnswer:
    """A group as a coordinator describes it; a ``misplaced`` group is only listed (R1)."""

    type: str
    state: str
    protocol_type: str
    assignor: str
    group_epoch: int | None
    log_partition: int
    misplaced: bool
    members: list[MemberAnswer] = field(default_factory=list)
    offsets: list[OffsetAnswer] = field(default_factory=list)
    assignment_epoch: int | None = None

    @property
    def answers_offsets(self) -> bool:
        """Whether a fetch answers its offsets."""
        return answers_offsets(self.type, misplaced=self.misplaced)

    @property
    def assigned(self) -> dict[Place, MemberAnswer]:
        """The partitions that are assigned to members."""
        return {place_of(text): member for member in self.members for text in member.assignment}

    @property
    def last_commit_ms(self) -> int | None:
        """The time of the newest of the committed offsets, in ms since 1970; None without one."""
        return max((each.committed_ms for each in self.offsets if each.committed_ms is not None), default=None)


def place_of(text: str) -> Place:
    """Return topic and partition of "topic-partition", as assignments list them."""
    topic, _, partition = text.rpartition("-")
    return topic, int(partition)


def describe_groups(
    reader: StateReader, group_ids: Collection[str] | None = None, *, targets: bool = False
) -> dict[str, GroupAnswer]:
    """Return descriptions by group id: of all listed groups, or of those in ``group_ids`` that exist.

    With ``targets`` members have their target assignments, and those of streams groups their tasks.
    """
    reader.properties.require_topic_kind(reader.location, TopicKind.CONSUMER_OFFSETS)
    if group_ids is not None and not group_ids:
        return {}
    only: dict[str, list[int] | list[str]] = {}
    if group_ids is not None:
        only["group_id"] = names_in_order(group_ids)
        homes = homes_of(group_ids, reader.current.offsets_partitions, reader.current.semantics)
        if homes is not None:
            only["log_partition"] = homes
    state, names = state_of(reader, only), reader.topic_names()
    answers = group_answers(state, names, are_named=group_ids is not None)
    if targets:
        _add_targets(reader, only, answers, names)
    return answers


def group_answers(state: GroupState, names: Mapping[str, str], *, are_named: bool) -> dict[str, GroupAnswer]:
    """Return answers by group id: of all listed groups, or if they are named, of those that exist.

    ``names`` are those of topic ids.
    """
    held = _answered_offsets(state.newest(OFFSETS, _OFFSET_COLUMNS))
    answers: dict[str, GroupAnswer] = {}
    groups = state.newest(DESCRIBED, _GROUP_COLUMNS).to_pylist()
    for name, row in answering_rows(groups, state.offsets_partitions).items():
        if are_named and row["misplaced"]:
            continue
        answers[name] = _group(row, names, state.offsets_partitions)
        if answers[name].answers_offsets:
            at = row["log_partition"], name
            answers[name].offsets = [
                OffsetAnswer(*each[:-1], pending=each[:2] in state.pending.get(at, ()), committed_ms=each[-1])
                for each in held.get(at, ())
            ]
    return answers


def _answered_offsets(rows: pa.Table) -> dict[Group, list[Offset]]:
    rows = in_milliseconds(rows.filter(are_answered(rows)).drop_columns("misplaced"))
    found: dict[Group, list[Offset]] = defaultdict(list)
    for log_partition, group_id, *offset in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        found[log_partition, group_id].append((*offset,))
    for offsets in found.values():
        offsets.sort(key=itemgetter(0, 1))
    return found


def pending_by_group(pending: Iterable[tuple[int, Mapping[str, Any]]]) -> dict[Group, set[Place]]:
    """Return the topic partitions of pending commits (R17) by log partition and group id, without misplaced groups."""
    found: dict[Group, set[Place]] = defaultdict(set)
    for at, each in pending:
        if not each["misplaced"]:
            found[at, each["group_id"]].add((each["topic"], each["partition"]))
    return found


def _group(row: Mapping[str, Any], names: Mapping[str, str], offsets_partitions: int) -> GroupAnswer:
    answer = defaultdict(lambda: None) if row["misplaced"] else row  # R1: a misplaced group is only listed
    return GroupAnswer(
        type=row["group_type"],
        state=row["state"],
        protocol_type=row["protocol_type"],
        assignor=answer["protocol"] or "",
        group_epoch=answer["group_epoch"],
        assignment_epoch=answer["assignment_epoch"],
        log_partition=partition_for(row["group_id"], offsets_partitions),
        misplaced=row["misplaced"],
        members=[_member(member, names) for member in answer["members"] or ()],
    )


def _member(member: dict[str, Any], names: Mapping[str, str]) -> MemberAnswer:
    return MemberAnswer(
        member_id=member["member_id"],
        instance_id=member["instance_id"],
        client_id=member["client_id"],
        host=member["client_host"],
        assignment=sorted(
            f"{each['topic'] or names.get(each['topic_id'], each['topic_id'])}-{each['partition']}"
            for each in member["assignment"] or ()
        ),
        subscribed_topics=member["subscribed_topics"],
        member_epoch=member["member_epoch"],
    )


def _add_targets(reader: StateReader, only: Only, answers: dict[str, GroupAnswer], names: dict[str, str]) -> None:
    has_streams = any(group.type == STREAMS for group in answers.values())
    types = [RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER, *(_MORE_OF_STREAMS if has_streams else ())]
    rows = reader.current.newest(RECORDS, RECORDS.columns, {**only, "record_type": list(map(int, types))})
    values: dict[str, Records] = defaultdict(dict)
    for row in rows.to_pylist():
        group = answers.get(row["group_id"])
        if group is None or row["log_partition"] != group.log_partition or row["value_offset"] is None:
            continue
        if row["value_offset"] > (-1 if row["tombstone_offset"] is None else row["tombstone_offset"]):
            fields = decode_value(row["record_type"], row["value"]).fields
            values[row["group_id"]][row["record_type"], row["record_key"]] = fields
    for name, group in answers.items():
        with_more = _streams_member if group.type == STREAMS else _consumer_member
        group.members = [with_more(member, values[name], names) for member in group.members]


def _consumer_member(member: MemberAnswer, values: Records, names: Mapping[str, str]) -> MemberAnswer:
    target = values.get((RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER, member.member_id))
    if target is None:
        return member
    places = (
        f"{names.get(each['topic_id'], each['topic_id'])}-{partition}"
        for each in target["topic_partitions"]
        for partition in each["partitions"]
    )
    return replace(member, target_assignment=sorted(places))


def _streams_member(member: MemberAnswer, values: Records, _: object) -> MemberAnswer:
    of_member = values.get((RecordType.STREAMS_GROUP_MEMBER_METADATA, member.member_id))
    if of_member is None:
        return member
    current = values.get((RecordType.STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT, member.member_id))
    target = values.get((RecordType.STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER, member.member_id))
    topology = values.get((RecordType.STREAMS_GROUP_TOPOLOGY, ""))
    streams = StreamsMember(of_member["process_id"], of_member["topology_epoch"], _tasks(current), _tasks(target))
    if target is None:
        return replace(member, streams=streams)
    places = sorted(f"{each.topic}-{each.partition}" for each in task_partitions(target["active_tasks"], topology))
    return replace(member, target_assignment=places, streams=streams)


def _tasks(fields: Fields | None) -> dict[str, dict[str, list[int]]]:
    return {
        kind: {each["subtopology_id"]: sorted(each["partitions"]) for each in (fields or {}).get(kind, ())}
        for kind in _TASKS
    }
