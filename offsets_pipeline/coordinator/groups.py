"""Handlers that store and delete groups, and delete offsets: group records and tombstones (R14, R26)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.coordinator.record_encoding import group_record, group_tombstones, offset_tombstone
from offsets_pipeline.coordinator.requests import GroupMetadata, Outcome, refuse_share_group
from offsets_pipeline.errors import (
    GroupSubscribedToTopic,
    IllegalGeneration,
    InvalidCommitOffsetSize,
    NonEmptyGroup,
    NoSuchGroup,
)
from offsets_pipeline.kafka.record.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from offsets_pipeline.kafka.record.corrupt import UnwritableRecord
from offsets_pipeline.semantics.group_types import CLASSIC
from offsets_pipeline.semantics.log_row import DELETE_GROUPS, OFFSET_DELETE
from offsets_pipeline.semantics.partition_state import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offsets_pipeline.coordinator.requests import Place
    from offsets_pipeline.semantics.partition_state import Group, PartitionState


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
        raise NonEmptyGroup(f"group {group_id!r} has {len(group.description.members)} members; stop them first")
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
