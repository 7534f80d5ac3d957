"""Storing the metadata of classic groups (R14)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.coordinator.record_encoding import group_record, group_tombstones
from offsets_pipeline.coordinator.requests import GroupMetadata, Outcome
from offsets_pipeline.errors import IllegalGeneration, InvalidCommitOffsetSize, NonEmptyGroup
from offsets_pipeline.record.corrupt import UnwritableRecord
from offsets_pipeline.semantics.group_types import CLASSIC

if TYPE_CHECKING:
    from offsets_pipeline.config.sections import CoordinatorSettings
    from offsets_pipeline.semantics.partition_state import PartitionState


def store_group(
    state: PartitionState, group: GroupMetadata, now_ms: int, settings: CoordinatorSettings
) -> Outcome[None]:
    """Return the group's record, which replaces its stored metadata.

    If the stored group is an empty one of another type, tombstones for its records come first.

    Raises IllegalGeneration if a later generation is stored, NonEmptyGroup for an active group of another type,
    InvalidCommitOffsetSize if a value does not fit into the record.
    """
    records = []
    held = state.group(group.group_id)
    if held is not None and held.group_type != CLASSIC:
        if not held.is_empty:
            raise NonEmptyGroup(f"group {group.group_id!r} is a {held.group_type.lower()} group with members")
        records = group_tombstones(state.log_partition, group.group_id, held)
    elif held is not None and group.generation < (held.description.generation or 0):
        raise IllegalGeneration(
            f"group {group.group_id!r} is in generation {held.description.generation} already, "
            f"so generation {group.generation} is not stored"
        )
    try:
        records.append(group_record(state.log_partition, group, now_ms, settings.group_metadata_value_version))
    except UnwritableRecord as error:
        raise InvalidCommitOffsetSize(f"cannot store group {group.group_id!r}: {error}") from error
    return Outcome(records, None)


def add_group(state: PartitionState, group: GroupMetadata, now_ms: int, settings: CoordinatorSettings) -> Outcome[bool]:
    """Return the record of a new group and True; no record and False if a group of that name exists."""
    if state.group(group.group_id) is not None:
        return Outcome([], response=False)
    return Outcome(store_group(state, group, now_ms, settings).records, response=True)
