"""Committed offsets of the groups of an owned store, before a reset (mirrored store: mirrored_group_offsets.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.coordinator.requests import refuse_share_group
from offsets_pipeline.offset_reset.plan import GroupOffsets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offsets_pipeline.coordinator.coordinator import Coordinator

#: Protocol types of consumer groups, with simple groups; without Connect workers, share and streams groups (R34).
PROTOCOL_TYPES = ("", "consumer")


def owned_group_offsets(coordinator: Coordinator, group_ids: Sequence[str] | None) -> dict[str, GroupOffsets]:
    """Return state and offsets of these or (None) all consumer groups. Raises NoSuchGroup for a share group."""
    if group_ids is None:
        group_ids = [each.group_id for each in coordinator.list_groups(protocol_types=PROTOCOL_TYPES)]
    standings = {}
    for group_id in group_ids:
        group = coordinator.get_group(group_id)
        if group is not None:
            refuse_share_group(group_id, group.group_type)
        held = coordinator.fetch_offsets(group_id)
        offsets = {where: each.offset for where, each in held.items() if each.offset is not None}
        standings[group_id] = GroupOffsets(None if group is None else group.state, offsets)
    return standings
