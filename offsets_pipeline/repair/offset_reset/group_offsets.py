"""Committed offsets of the groups of a store, before a reset."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from offsets_pipeline.coordinator.requests import refuse_share_group
from offsets_pipeline.kafka.broker.groups_client import GroupListing, fetch_group_offsets, list_groups
from offsets_pipeline.questions.query.describe import describe_groups
from offsets_pipeline.repair.offset_reset.plan import GroupOffsets
from offsets_pipeline.semantics.answering import DEAD
from offsets_pipeline.semantics.group_description import EMPTY
from offsets_pipeline.semantics.partition_state import TopicPartition

if TYPE_CHECKING:
    from offsets_pipeline.coordinator.coordinator import Coordinator
    from offsets_pipeline.kafka.broker.cluster import Cluster
    from offsets_pipeline.questions.query.state_reader import StateReader

#: Protocol types of consumer groups, with simple groups; without Connect workers, share and streams groups (R34).
PROTOCOL_TYPES = ("", "consumer")


def owned_group_offsets(coordinator: Coordinator, group_ids: Sequence[str] | None) -> dict[str, GroupOffsets]:
    """Return state and offsets of these or (None) all consumer groups; a group may be in ZooKeeper alone.

    Raises NoSuchGroup for a share group, ZooKeeperFailed for an offset that cannot be read.
    """
    if group_ids is None:
        group_ids = [each.group_id for each in coordinator.list_groups(protocol_types=PROTOCOL_TYPES)]
    found = {}
    for group_id in group_ids:
        group = coordinator.get_group(group_id)
        if group is not None:
            refuse_share_group(group_id, group.group_type)
        held = coordinator.fetch_offsets(group_id)
        for each in held.values():
            if each.error is not None:
                raise each.error
        offsets = {where: each.offset for where, each in held.items() if each.offset is not None}
        state = EMPTY if offsets else None
        found[group_id] = GroupOffsets(state if group is None else group.state, offsets)
    return found


def cluster_group_offsets(cluster: Cluster, group_ids: Collection[str] | None) -> dict[str, GroupOffsets]:
    """Return state and offsets of these or (None) all consumer groups in a cluster. Raises the errors of `Cluster`."""
    listed = list_groups(cluster)
    if group_ids is None:
        group_ids = [each.group_id for each in listed.values() if each.protocol_type in PROTOCOL_TYPES]
    return {
        group_id: GroupOffsets(
            _state_of(listed.get(group_id)), {TopicPartition(*place): offset for place, (offset, _, _) in held.items()}
        )
        for group_id, held in fetch_group_offsets(cluster, group_ids).items()
    }


def _state_of(group: GroupListing | None) -> str | None:
    """The state, None for a group that does not exist.

    Brokers before 2.6 list no state: they refuse a change to a group with members all the same.
    """
    return None if group is None or group.state == DEAD else group.state or EMPTY


def mirrored_group_offsets(reader: StateReader, group_ids: Sequence[str] | None) -> dict[str, GroupOffsets]:
    """Return state and offsets of these or (None) all consumer groups. Raises NoSuchGroup for a share group."""
    described = describe_groups(reader, group_ids)
    if group_ids is None:
        answering = {name: group for name, group in described.items() if not group.misplaced}
        group_ids = [name for name, group in answering.items() if group.protocol_type in PROTOCOL_TYPES]
    found = dict.fromkeys(group_ids, GroupOffsets(None, {}))
    for group_id in [each for each in found if each in described]:
        group = described[group_id]
        refuse_share_group(group_id, group.type)
        offsets = {TopicPartition(each.topic, each.partition): each.offset for each in group.offsets}
        found[group_id] = GroupOffsets(group.state, offsets)
    return found
