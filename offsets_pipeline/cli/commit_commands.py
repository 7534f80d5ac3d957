"""`offsets create`, `commit`, `delete-group` and `delete-offsets` of an owned store. None of them imports Spark."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from offsets_pipeline.connect.connect_log import PARTITIONS, ConnectLog
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.coordinator.requests import OffsetAndMetadata

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offsets_pipeline.config import Settings


def create(store: str, settings: Settings, offsets_partitions: int | None, connect_cluster_id: str | None) -> int:
    """Create an owned store for groups, or for the connectors of a cluster; returns the exit status.

    Raises as `OwnedStore.create` if something is in the folder.
    """
    if connect_cluster_id is None:
        count, holds = offsets_partitions or settings.log.offsets_partitions, "groups"
        OwnedStore.create(store, count, must_be_new=True)
    else:
        count, holds = offsets_partitions or PARTITIONS, f"connectors of cluster {connect_cluster_id}"
        ConnectLog.create(store, connect_cluster_id, count, must_be_new=True)
    sys.stdout.write(f"owned store {store} created for {holds}, with {count} log partitions\n")
    return 0


def commit(
    store: str,
    settings: Settings,
    offsets: Sequence[tuple[tuple[str, int], int]],
    *,
    group: str,
    metadata: str,
    leader_epoch: int | None,
    retention_ms: int | None,
) -> int:
    """Commit offsets of a group without members; returns the exit status."""
    commits = {where: OffsetAndMetadata(offset, leader_epoch, metadata) for where, offset in offsets}
    with _opened(store, settings, [group]) as coordinator:
        coordinator.commit_offsets(group, commits, retention_time_ms=retention_ms)
    sys.stdout.write(f"{len(commits)} offsets of group {group} committed in {store}\n")
    return 0


def delete_groups(store: str, settings: Settings, groups: Sequence[str]) -> int:
    """Delete groups with their offsets; returns the exit status.

    Raises the error of the first group that cannot be deleted, after the others are deleted.
    """
    with _opened(store, settings, groups) as coordinator:
        answers = coordinator.delete_groups(list(groups))
    for group_id, error in answers.items():
        if error is None:
            sys.stdout.write(f"group {group_id} deleted from {store}\n")
    for error in answers.values():
        if error is not None:
            raise error
    return 0


def delete_offsets(store: str, settings: Settings, group: str, places: Sequence[tuple[str, int | None]]) -> int:
    """Delete offsets of a group: of partitions, or of topics (partition None); returns the exit status.

    As with Kafka's tool, a partition without an offset is no error.
    """
    with _opened(store, settings, [group]) as coordinator:
        held = coordinator.fetch_offsets(group)
        chosen: list[tuple[str, int]] = []
        for topic, partition in places:
            chosen += [where for where in held if where.topic == topic] if partition is None else [(topic, partition)]
        deleted = coordinator.delete_offsets(group, chosen)
    named = ", ".join(topic if at is None else f"{topic}:{at}" for topic, at in places)
    nothing = "" if deleted else f": it has no committed offset of {named}"
    sys.stdout.write(f"{deleted} offsets of group {group} deleted from {store}{nothing}\n")
    return 0


def _opened(location: str, settings: Settings, group_ids: Sequence[str]) -> Coordinator:
    """A coordinator that loads only the log partitions of these groups."""
    store = OwnedStore.open(location)
    partitions = {store.partition_for(group_id) for group_id in group_ids}
    return Coordinator.open(store, settings, partitions=partitions, housekeeping=False)
