"""The commands of `offsets` that write to an owned store; none of them starts Spark."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.requests import OffsetAndMetadata
from offsets_pipeline.coordinator.store import OwnedStore

if TYPE_CHECKING:
    import argparse

    from offsets_pipeline.config import Settings


def commit(options: argparse.Namespace, settings: Settings) -> int:
    """Commit offsets for a group without members."""
    offsets = {
        where: OffsetAndMetadata(offset, options.leader_epoch, options.metadata) for where, offset in options.offsets
    }
    with _opened(options, settings, [options.group]) as coordinator:
        coordinator.commit_offsets(options.group, offsets, retention_time_ms=options.retention_ms)
    sys.stdout.write(f"{len(offsets)} offsets of group {options.group} committed in {options.store}\n")
    return 0


def delete_group(options: argparse.Namespace, settings: Settings) -> int:
    """Delete groups with their offsets; the first that cannot be deleted is told of, after the others are gone."""
    with _opened(options, settings, options.group) as coordinator:
        answers = coordinator.delete_groups(options.group)
    for group_id, error in answers.items():
        if error is None:
            sys.stdout.write(f"group {group_id} deleted from {options.store}\n")
    for error in answers.values():
        if error is not None:
            raise error
    return 0


def delete_offsets(options: argparse.Namespace, settings: Settings) -> int:
    """Delete offsets of a group."""
    with _opened(options, settings, [options.group]) as coordinator:
        held = coordinator.fetch_offsets(options.group)
        chosen: list[tuple[str, int]] = []
        for topic, partition in options.places:
            chosen += [where for where in held if where.topic == topic] if partition is None else [(topic, partition)]
        deleted = coordinator.delete_offsets(options.group, chosen)
    sys.stdout.write(f"{deleted} offsets of group {options.group} deleted from {options.store}\n")
    return 0


def _opened(options: argparse.Namespace, settings: Settings, group_ids: list[str]) -> Coordinator:
    """A coordinator with the log partitions of these groups loaded, and no more."""
    store = OwnedStore.open(options.store)
    partitions = {store.partition_for(group_id) for group_id in group_ids}
    return Coordinator.open(store, settings, partitions=partitions, housekeeping=False)
