"""Our answers about groups, in the shape of `describe --all-groups --format json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offsets_pipeline.errors import OffsetsError
from offsets_pipeline.semantics.partitioning import partition_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offsets_pipeline.coordinator.coordinator import Coordinator
    from offsets_pipeline.semantics.group_description import GroupDescription

Answer = dict[str, Any]


def group_answer(group_id: str, group: GroupDescription, offsets: Iterable[Answer], offsets_partitions: int) -> Answer:
    """A description with offsets. A topic that has an id alone is named by it."""
    return {
        "type": group.group_type,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "assignor": group.protocol or "",
        "group_epoch": group.group_epoch,
        "log_partition": partition_for(group_id, offsets_partitions),
        "members": [
            {
                "member_id": each.member_id,
                "instance_id": each.instance_id,
                "client_id": each.client_id,
                "host": each.client_host,
                "assignment": [f"{held.topic or held.topic_id}-{held.partition}" for held in each.assignment],
            }
            for each in group.members
        ],
        "offsets": list(offsets),
    }


def offset_answer(topic: str, partition: int, offset: int, leader_epoch: int | None, metadata: str) -> Answer:
    """A committed offset."""
    return {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "leader_epoch": leader_epoch,
        "metadata": metadata,
    }


def coordinator_answers(coordinator: Coordinator, offsets_partitions: int) -> Answer:
    """All groups that a coordinator lists, as it describes them, with the offsets that it fetches."""
    listed = [each.group_id for each in coordinator.list_groups()]
    groups: Answer = {}
    for group_id, group in coordinator.describe_groups(listed).items():
        assert not isinstance(group, OffsetsError), group
        offsets = [
            offset_answer(*where, each.offset, each.leader_epoch, each.metadata)
            for where, each in coordinator.fetch_offsets(group_id).items()
            if each.offset is not None
        ]
        groups[group_id] = group_answer(group_id, group, offsets, offsets_partitions)
    return {"groups": groups}
