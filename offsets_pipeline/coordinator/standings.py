"""Where groups stand before a reset: in an owned store at its log's end, in a mirrored one as far as it is folded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.coordinator.reset import Standing
from offsets_pipeline.coordinator.state import TopicPartition
from offsets_pipeline.errors import NoSuchGroup
from offsets_pipeline.fold.group_kinds import SHARE
from offsets_pipeline.query.describe import describe_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offsets_pipeline.coordinator.coordinator import Coordinator
    from offsets_pipeline.query.describe import GroupAnswer
    from offsets_pipeline.query.state import StateReader

#: Those of what Kafka counts among the consumer groups, simple groups too: no workers, share or streams groups (R34).
_PROTOCOL_TYPES = ("", "consumer")


def owned_standings(coordinator: Coordinator, group_ids: Sequence[str] | None) -> dict[str, Standing]:
    """Where these groups stand, or all consumer groups (None). Raises NoSuchGroup for a share group."""
    if group_ids is None:
        listed = coordinator.list_groups(protocol_types=_PROTOCOL_TYPES)
        group_ids = [each.group_id for each in listed]
    standings = {}
    for group_id in group_ids:
        group = coordinator.get_group(group_id)
        held = coordinator.fetch_offsets(group_id)
        offsets = {where: each.offset for where, each in held.items() if each.offset is not None}
        standings[group_id] = Standing(None if group is None else group.state, offsets)
    return standings


def mirrored_standings(reader: StateReader, group_ids: Sequence[str] | None) -> dict[str, Standing]:
    """Where these groups stand, or all consumer groups (None). Raises NoSuchGroup for a share group."""
    try:
        described = describe_groups(reader, group_ids[0] if group_ids is not None and len(group_ids) == 1 else None)
    except NoSuchGroup:
        described = {}
    if group_ids is None:
        return {
            group_id: _standing(group)
            for group_id, group in described.items()
            if group.protocol_type in _PROTOCOL_TYPES
        }
    for group_id in group_ids:
        if group_id in described and described[group_id].type == SHARE:
            raise NoSuchGroup(f"group {group_id!r} is a share group, which has no committed offsets")
    return {group_id: _standing(described.get(group_id)) for group_id in group_ids}


def _standing(group: GroupAnswer | None) -> Standing:
    if group is None:
        return Standing(None, {})
    return Standing(group.state, {TopicPartition(each.topic, each.partition): each.offset for each in group.offsets})
