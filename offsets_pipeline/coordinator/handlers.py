"""Handlers: they commit and fetch offsets, store and delete groups, delete offsets (R14, R17, R24-R26).

They change no state: they return records or answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from offsets_pipeline.common.input_text import counted
from offsets_pipeline.coordinator.record_encoding import commit_record, group_record, group_tombstones, offset_tombstone
from offsets_pipeline.coordinator.requests import (
    DEFAULT_RETENTION_TIME,
    UNKNOWN_GENERATION,
    GroupMetadata,
    MemberOfGroup,
    OffsetAndMetadata,
    OffsetCommit,
    Outcome,
    refuse_share_group,
)
from offsets_pipeline.errors import (
    FencedInstanceId,
    GroupSubscribedToTopic,
    IllegalGeneration,
    InvalidCommitOffsetSize,
    InvalidRequest,
    NonEmptyGroup,
    NoSuchGroup,
    OffsetMetadataTooLarge,
    OffsetOutOfRange,
    OffsetsError,
    RebalanceInProgress,
    StaleMemberEpoch,
    UnknownMemberId,
    UnstableOffsetCommit,
)
from offsets_pipeline.kafka.record.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from offsets_pipeline.kafka.record.corrupt import UnwritableRecord
from offsets_pipeline.semantics.group_types import CLASSIC
from offsets_pipeline.semantics.log_row import DELETE_GROUPS, OFFSET_DELETE
from offsets_pipeline.semantics.partition_state import TopicPartition

if TYPE_CHECKING:
    from offsets_pipeline.common.config.sections import CoordinatorSettings
    from offsets_pipeline.coordinator.owned_log import Record
    from offsets_pipeline.coordinator.requests import Place
    from offsets_pipeline.semantics.group_description import GroupDescription
    from offsets_pipeline.semantics.partition_state import Group, PartitionState

#: The default of a broker's `message.max.bytes`. A broker appends the records of one request as one batch.
MAX_REQUEST_BYTES = 1_048_588
_MAX_OFFSET = 2**63 - 1
_MAX_TIME_MS = _MAX_OFFSET // 1000  # the tables hold microseconds


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    """The answer for one partition: an offset, None if none is committed, or an error while it is unstable (R17)."""

    offset: int | None
    leader_epoch: int | None = None
    metadata: str = ""
    error: OffsetsError | None = None


def commit_offsets(
    state: PartitionState,
    request: OffsetCommit,
    now_ms: int,
    settings: CoordinatorSettings,
    producer: tuple[int, int] | None = None,
) -> Outcome[None]:
    """Return the records of a commit. In a transaction, ``producer`` is the producer's id and epoch.

    A partition with too long metadata gets no record, and the outcome has the error OffsetMetadataTooLarge. The other
    partitions are committed, as in Kafka.

    Raises the errors of `validate_member`, InvalidRequest for an invalid retention time or commit timestamp,
    OffsetOutOfRange, InvalidCommitOffsetSize.
    """
    validate_member(state, request.group_id, request.member, transactional=producer is not None)
    record_of = partial(
        commit_record,
        state.log_partition,
        request.group_id,
        now_ms=now_ms,
        version=settings.offset_commit_value_version,
        expire_timestamp_ms=_expire_timestamp_ms(request.retention_time_ms, now_ms),
        producer=producer,
    )
    records: list[Record] = []
    too_large: list[TopicPartition] = []
    for where, offset in request.offsets.items():
        if not _is_offset(offset.offset):
            raise OffsetOutOfRange(f"{offset.offset!r} is not an offset for {where}: it takes 0 to 2^63-1")
        at_ms = offset.commit_timestamp_ms
        if at_ms is not None and not 0 <= at_ms <= _MAX_TIME_MS:
            raise InvalidRequest(f"commit_timestamp_ms={at_ms!r} is not allowed for {where}: it takes ms since 1970")
        if _is_too_large(offset, settings):  # R24
            too_large.append(where)
            continue
        try:
            records.append(record_of(where, offset))
        except UnwritableRecord as error:
            raise InvalidCommitOffsetSize(f"cannot commit for {where}: {error}") from error
    size = sum(len(record.key) + len(record.value or b"") for record in records)
    if size > MAX_REQUEST_BYTES:
        raise InvalidCommitOffsetSize(
            f"a commit of {len(records)} offsets takes {size} bytes, at most {MAX_REQUEST_BYTES} are allowed; split it"
        )
    return Outcome(records, None, _too_large(too_large, len(records), settings))


def accepted_offsets(request: OffsetCommit, settings: CoordinatorSettings) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets of a commit whose metadata are not too long (R24)."""
    return {where: each for where, each in request.offsets.items() if not _is_too_large(each, settings)}


def lowered_offsets(
    state: PartitionState, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets that are lower than the committed offset in the log."""
    held = state.offsets_of(group_id)
    return {
        where: each for where, each in offsets.items() if where in held and each.offset < held[where].committed_offset
    }


def _is_too_large(offset: OffsetAndMetadata, settings: CoordinatorSettings) -> bool:
    return len(offset.metadata.encode("utf-8", "replace")) > settings.offset_metadata_max_bytes


def _expire_timestamp_ms(retention_time_ms: int | None, now_ms: int) -> int | None:
    """Return when a commit with its own retention time expires; None if the store's retention applies (R19)."""
    if retention_time_ms is None or retention_time_ms == DEFAULT_RETENTION_TIME:
        return None
    if retention_time_ms <= 0:
        raise InvalidRequest(
            f"retention_time_ms={retention_time_ms} is not allowed: it takes a number above 0, or "
            f"{DEFAULT_RETENTION_TIME} for the store's retention"
        )
    return now_ms + retention_time_ms


def _is_offset(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_OFFSET


def _too_large(
    partitions: list[TopicPartition], others: int, settings: CoordinatorSettings
) -> OffsetMetadataTooLarge | None:
    if not partitions:
        return None
    named = ", ".join(map(str, partitions))
    rest = f"; the {others} others were committed" if others else ""
    return OffsetMetadataTooLarge(
        f"the metadata for {named} has more than {settings.offset_metadata_max_bytes} bytes{rest}; shorten it"
    )


def validate_member(state: PartitionState, group_id: str, member: MemberOfGroup, *, transactional: bool) -> None:
    """Check that the member may commit for the group now (R25).

    Raises NoSuchGroup for a share group, or if the member names a generation of an unknown group (IllegalGeneration in
    a transaction). Raises UnknownMemberId, FencedInstanceId, IllegalGeneration or StaleMemberEpoch if the member does
    not match the group's metadata. Raises RebalanceInProgress during a rebalance.
    """
    group = state.group(group_id)
    if group is None:
        if member.generation < 0:
            return  # the commit creates a simple group
        if transactional:
            raise IllegalGeneration(
                f"no group {group_id!r}, so it has no generation {member.generation}; join it first"
            )
        raise NoSuchGroup(f"no group {group_id!r}; commit without a generation to create a simple group")
    refuse_share_group(group_id, group.group_type)
    if member.generation < 0 and group.is_empty:
        return
    if group.group_type == CLASSIC:
        _validate_classic(group_id, group.description, member, transactional=transactional)
    elif not (transactional and member.is_no_member):  # older transactional clients name no member
        _validate_epoch(group_id, group.description, member, transactional=transactional)


def _validate_classic(group_id: str, group: GroupDescription, member: MemberOfGroup, *, transactional: bool) -> None:
    if not member.is_no_member:
        _validate_classic_member(group_id, group, member)
        if member.generation != group.generation:
            raise IllegalGeneration(
                f"group {group_id!r} is in generation {group.generation}, member {member.member_id!r} "
                f"commits in generation {member.generation}; join again"
            )
    elif not transactional:
        raise UnknownMemberId(f"group {group_id!r} has members: only members may commit, with their generation")
    if not transactional and (group.protocol is None or group.leader is None):
        raise RebalanceInProgress(
            f"group {group_id!r} is rebalancing: generation {group.generation} is not complete; join again"
        )


def _validate_classic_member(group_id: str, group: GroupDescription, member: MemberOfGroup) -> None:
    ids = {each.member_id for each in group.members}
    if member.group_instance_id is not None:
        static = {each.instance_id: each.member_id for each in group.members if each.instance_id is not None}
        holder = static.get(member.group_instance_id)
        if holder is None:
            raise UnknownMemberId(f"group {group_id!r} has no static member {member.group_instance_id!r}; join again")
        if holder != member.member_id:
            raise FencedInstanceId(
                f"member {holder!r} replaced {member.member_id!r} as static member {member.group_instance_id!r} "
                f"of group {group_id!r}; stop the replaced member"
            )
    if member.member_id not in ids:
        raise UnknownMemberId(f"group {group_id!r} has no member {member.member_id!r}; join again")


def _validate_epoch(group_id: str, group: GroupDescription, member: MemberOfGroup, *, transactional: bool) -> None:
    found = next((each for each in group.members if each.member_id == member.member_id), None)
    if found is None:
        raise UnknownMemberId(f"group {group_id!r} has no member {member.member_id!r}; join again")
    epoch = found.member_epoch
    if member.generation == epoch:
        return
    message = f"member {member.member_id!r} of group {group_id!r} is in member epoch {epoch}, not {member.generation}"
    if transactional or found.session_timeout_ms is not None:  # only a member of the classic protocol has one
        raise IllegalGeneration(message)
    raise StaleMemberEpoch(message)


def fetch_offsets(
    state: PartitionState,
    group_id: str,
    partitions: Iterable[TopicPartition] | None,
    member: MemberOfGroup,
    *,
    require_stable: bool,
) -> dict[TopicPartition, FetchedOffset]:
    """Return the committed offsets of a group: of these partitions, or of all with a committed offset.

    Finds no offsets for an unknown group or a share group, as a broker does.

    Raises UnknownMemberId, or StaleMemberEpoch (IllegalGeneration for a member of the classic protocol), if ``member``
    names a member or an epoch that the group of KIP-848 does not have.
    """
    group = state.group_with_offsets(group_id)
    names_itself = bool(member.member_id) or member.generation != UNKNOWN_GENERATION
    if group is not None and group.group_type != CLASSIC and names_itself:
        _validate_epoch(group_id, group.description, member, transactional=False)
    offsets = {} if group is None else state.offsets_of(group_id)
    answers: dict[TopicPartition, FetchedOffset] = {}
    for where in offsets if partitions is None else partitions:
        held = offsets.get(where)
        if require_stable and state.is_pending(group_id, where):
            error = UnstableOffsetCommit(f"an open transaction has a commit of group {group_id!r} for {where}")
            answers[where] = FetchedOffset(None, error=error)  # R17
        elif held is None or held.committed_offset < 0:  # a negative offset counts as none
            answers[where] = FetchedOffset(None)
        else:
            answers[where] = FetchedOffset(held.committed_offset, held.leader_epoch, held.metadata)
    return answers


# --- groups, and deletions


def store_group(state: PartitionState, group: GroupMetadata, now_ms: int) -> Outcome[None]:
    """Return the group's record, which replaces its stored metadata.

    If the stored group is an empty one of another type, tombstones for its records come first.

    Raises IllegalGeneration if a later generation is stored, NonEmptyGroup for an active group of another type,
    InvalidCommitOffsetSize if a value does not fit into the record.
    """
    records = []
    held = state.group(group.group_id)
    if held is not None and held.group_type != CLASSIC:
        if not held.is_empty:
            raise NonEmptyGroup(
                f"group {group.group_id!r} is a {held.group_type.lower()} group with members; stop them first"
            )
        records = group_tombstones(state.log_partition, group.group_id, held)
    elif held is not None and group.generation < (held.description.generation or 0):
        raise IllegalGeneration(
            f"group {group.group_id!r} is in generation {held.description.generation} already, "
            f"so generation {group.generation} is not stored"
        )
    try:
        records.append(group_record(state.log_partition, group, now_ms))
    except UnwritableRecord as error:
        raise InvalidCommitOffsetSize(f"cannot store group {group.group_id!r}: {error}") from error
    return Outcome(records, None)


def add_group(state: PartitionState, group: GroupMetadata, now_ms: int) -> Outcome[bool]:
    """Return the record of a new group and True; no record and False if a group of that name exists."""
    if state.group(group.group_id) is not None:
        return Outcome([], response=False)
    return Outcome(store_group(state, group, now_ms).records, response=True)


def delete_group(state: PartitionState, group_id: str) -> Outcome[int]:
    """Return tombstones for a group and all its offsets, and the number of these offsets.

    Includes offsets that are pending in a transaction.

    Raises NoSuchGroup, or NonEmptyGroup for a group with members.
    """
    group = _existing(state, group_id)
    if not group.is_empty:
        raise NonEmptyGroup(
            f"group {group_id!r} has {counted(len(group.description.members), 'member')}; stop them first"
        )
    offsets = dict.fromkeys([*state.offsets_of(group_id), *state.pending_of(group_id)])
    records = [offset_tombstone(state.log_partition, group_id, where, DELETE_GROUPS) for where in offsets]
    return Outcome(records + group_tombstones(state.log_partition, group_id, group, DELETE_GROUPS), len(offsets))


def delete_offsets(state: PartitionState, group_id: str, partitions: Iterable[Place]) -> Outcome[int]:
    """Return tombstones for offsets of a group, and the number of these offsets.

    Includes offsets that are pending in a transaction (R12). Offsets of a topic that the group subscribes to stay. The
    outcome then has the error GroupSubscribedToTopic.

    Raises NoSuchGroup for an unknown group or a share group. Raises NonEmptyGroup for an active classic group whose
    protocol type is not "consumer", because its subscriptions are unknown.
    """
    group = _existing(state, group_id)
    refuse_share_group(group_id, group.group_type)
    if group.group_type == CLASSIC and not group.is_empty and group.description.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise NonEmptyGroup(
            f"group {group_id!r} is active with protocol {group.description.protocol_type!r}; stop its members first"
        )
    held = dict.fromkeys([*state.offsets_of(group_id), *state.pending_of(group_id)])
    chosen: dict[TopicPartition, None] = {}
    subscribed: set[str] = set()
    for topic, partition in partitions:
        if group.is_subscribed_to(topic):
            subscribed.add(topic)
        elif partition is None:
            chosen |= dict.fromkeys(where for where in held if where.topic == topic)
        elif (where := TopicPartition(topic, partition)) in held:
            chosen[where] = None
    records = [offset_tombstone(state.log_partition, group_id, where, OFFSET_DELETE) for where in chosen]
    error = None
    if subscribed:
        rest = f"; {len(records)} other offsets were deleted" if records else ""
        error = GroupSubscribedToTopic(f"group {group_id!r} subscribes to {', '.join(sorted(subscribed))}{rest}")
    return Outcome(records, len(records), error)


def _existing(state: PartitionState, group_id: str) -> Group:
    group = state.group(group_id)
    if group is None:
        raise NoSuchGroup(f"no group {group_id!r} in log partition {state.log_partition}")
    return group
