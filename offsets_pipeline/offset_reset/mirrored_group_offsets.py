"""Committed offsets of the groups of a mirrored store, before a reset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.coordinator.requests import refuse_share_group
from offsets_pipeline.offset_reset.group_offsets import PROTOCOL_TYPES
from offsets_pipeline.offset_reset.plan import GroupOffsets
from offsets_pipeline.query.describe import describe_groups
from offsets_pipeline.semantics.partition_state import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offsets_pipeline.query.describe import GroupAnswer
    from offsets_pipeline.query.state_reader import StateReader


def mirrored_group_offsets(reader: StateReader, group_ids: Sequence[str] | None) -> dict[str, GroupOffsets]:
    """Return state and offsets of these or (None) all consumer groups. Raises NoSuchGroup for a share group."""
    described = describe_groups(reader, group_ids)
    if group_ids is None:
        return {
            name: _standing(group)
            for name, group in described.items()
            if group.protocol_type in PROTOCOL_TYPES and not group.misplaced
        }
    for group_id in group_ids:
        if group_id in described:
            refuse_share_group(group_id, described[group_id].type)
    return {group_id: _standing(described.get(group_id)) for group_id in group_ids}


def _standing(group: GroupAnswer | None) -> GroupOffsets:
    if group is None:
        return GroupOffsets(None, {})
    return GroupOffsets(
        group.state, {TopicPartition(each.topic, each.partition): each.offset for each in group.offsets}
    )
