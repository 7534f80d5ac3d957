"""Handlers that commit and fetch offsets (R17, R24, R25). They change no state: they return records or answers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from offsets_pipeline.coordinator.record_encoding import commit_record
from offsets_pipeline.coordinator.requests import (
    DEFAULT_RETENTION_TIME,
    UNKNOWN_GENERATION,
    MemberOfGroup,
    OffsetAndMetadata,
    OffsetCommit,
    Outcome,
    refuse_share_group,
)
from offsets_pipeline.errors import (
    FencedInstanceId,
    IllegalGeneration,
    InvalidCommitOffsetSize,
    InvalidRequest,
    NoSuchGroup,
    OffsetMetadataTooLarge,
    OffsetOutOfRange,
    OffsetsError,
    RebalanceInProgress,
    StaleMemberEpoch,
    UnknownMemberId,
    UnstableOffsetCommit,
)
from offsets_pipeline.kafka.record.corrupt import UnwritableRecord
from offsets_pipeline.semantics.group_types import CLASSIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsets_pipeline.common.config.sections import CoordinatorSettings
    from offsets_pipeline.coordinator.owned_log import Record
    from offsets_pipeline.semantics.group_description import GroupDescription
    from offsets_pipeline.semantics.partition_state import PartitionState, TopicPartition

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
