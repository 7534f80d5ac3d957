"""Where the groups of a mirrored store stand before a reset, as far as its log is folded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.coordinator.requests import refuse_share_group
from offsets_pipeline.coordinator.reset import Standing
from offsets_pipeline.coordinator.standings import PROTOCOL_TYPES
from offsets_pipeline.coordinator.state import TopicPartition
from offsets_pipeline.errors import NoSuchGroup
from offsets_pipeline.query.describe import describe_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offsets_pipeline.query.describe import GroupAnswer
    from offsets_pipeline.query.state import StateReader


def mirrored_standings(reader: StateReader, group_ids: Sequence[str] | None) -> dict[str, Standing]:
    """Where these groups stand, or all consumer groups (None). Raises NoSuchGroup for a share group."""
    try:
        described = describe_groups(reader, group_ids[0] if group_ids is not None and len(group_ids) == 1 else None)
    except NoSuchGroup:
        described = {}
    if group_ids is None:
        return {name: _standing(group) for name, group in described.items() if group.protocol_type in PROTOCOL_TYPES}
    for group_id in group_ids:
        if group_id in described:
            refuse_share_group(group_id, described[group_id].type)
    return {group_id: _standing(described.get(group_id)) for group_id in group_ids}


def _standing(group: GroupAnswer | None) -> Standing:
    if group is None:
        return Standing(None, {})
    return Standing(group.state, {TopicPartition(each.topic, each.partition): each.offset for each in group.offsets})
