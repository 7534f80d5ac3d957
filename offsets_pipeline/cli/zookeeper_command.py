"""`offsets import-zookeeper`: copies consumers' offsets from ZooKeeper, or a dump of it, into an owned store."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from offsets_pipeline.cli.opened import open_to_import
from offsets_pipeline.cli.output import write_rows
from offsets_pipeline.common.warnings import warn
from offsets_pipeline.coordinator.zookeeper.client import ZooKeeperClient
from offsets_pipeline.coordinator.zookeeper.consumer_nodes import group_ids, read_groups
from offsets_pipeline.coordinator.zookeeper.dump import read_dump
from offsets_pipeline.ingest.zookeeper_import import import_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offsets_pipeline.cli.section_sources import ImportZookeeper
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.coordinator.zookeeper.consumer_nodes import GroupNodes
    from offsets_pipeline.ingest.zookeeper_import import ImportedGroup

_COUNTS = ("group", "offsets", "imported", "up_to_date", "kept", "skipped")
_WARNINGS = 20


def import_zookeeper(options: ImportZookeeper, settings: Settings) -> None:
    """Import, and show the result of each group."""
    if options.dump is not None:
        _import(options, settings, read_dump(options.dump))
        return
    with ZooKeeperClient(replace(settings.zookeeper, connect=str(options.zookeeper))) as client:
        _import(options, settings, read_groups(client, group_ids(client, must_exist=True)))


def _import(options: ImportZookeeper, settings: Settings, groups: Iterable[GroupNodes]) -> None:
    with open_to_import(options.store, settings, options.offsets_partitions) as coordinator:
        results = list(import_offsets(coordinator, groups))
    _show(results, options.format_)
    skipped = [node for each in results for node in each.skipped]
    for node in skipped[:_WARNINGS]:
        warn(f"skipped {node.path}: {node.reason}")
    if len(skipped) > _WARNINGS:
        warn(f"skipped {len(skipped) - _WARNINGS} more nodes; --format json names all")
    imported, up_to_date, kept = (sum(getattr(each, name) for each in results) for name in _COUNTS[2:5])
    sys.stderr.write(
        f"offsets: {imported} offsets of {len(results)} groups imported into {options.store}; {up_to_date} were "
        f"up to date, {kept} have later commits, {len(skipped)} nodes skipped\n"
    )


def _show(results: Iterable[ImportedGroup], format_: str) -> None:
    """Print the groups with their registered consumers, which the import does not store as members."""
    rows: list[list[Any]] = []
    for each in results:
        counts = (len(each.nodes.offsets), each.imported, each.up_to_date, each.kept, len(each.skipped))
        ids, owners = each.nodes.consumer_ids, each.nodes.owners
        if format_ == "json":
            nodes = [node._asdict() for node in each.skipped]
            rows.append([each.nodes.group_id, *counts, ids, owners, nodes])
        else:
            owned = " ".join(f"{where}={owner}" for where, owner in owners.items())
            rows.append([each.nodes.group_id, *counts, " ".join(ids), owned])
    more = ("skipped_nodes",) if format_ == "json" else ()
    write_rows((*_COUNTS, "consumer_ids", "owners", *more), rows, format_)
