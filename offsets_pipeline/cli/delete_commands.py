"""`offsets delete-group` and `offsets delete-offsets` in a live cluster: plan, show the plan, and delete."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from offsets_pipeline.cli.live_cluster import mirrored_cluster, say_undo
from offsets_pipeline.cli.output import write_rows
from offsets_pipeline.cli.reset_command import named_groups, raise_errors
from offsets_pipeline.common.clock import SystemClock
from offsets_pipeline.common.warnings import warn
from offsets_pipeline.errors import NoSuchGroup, OffsetsError
from offsets_pipeline.kafka.broker.group_offsets_client import delete_group_offsets
from offsets_pipeline.kafka.broker.groups_client import delete_groups
from offsets_pipeline.repair.offset_reset.group_offsets import cluster_group_offsets
from offsets_pipeline.semantics.group_description import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from offsets_pipeline.cli.options import RequestedDeletion
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.semantics.partition_state import TopicPartition

_COLUMNS = ("group", "topic", "partition", "committed_offset")


def delete_in_cluster(
    store: str,
    options: RequestedDeletion,
    settings: Settings,
    group_ids: Sequence[str],
    chosen: Callable[[Iterable[TopicPartition]], Sequence[TopicPartition]] | None = None,
) -> None:
    """Show the offsets that would be deleted, or delete them.

    Deletes the groups, or with ``chosen`` only offsets of these partitions. After the others are deleted, raises
    NoSuchGroup, NonEmptyGroup or the broker's error.
    """
    with mirrored_cluster(store, options.live, settings) as cluster:
        standings = cluster_group_offsets(cluster, group_ids)
        planned = {
            group_id: [*each.offsets] if chosen is None else [at for at in chosen(each.offsets) if at in each.offsets]
            for group_id, each in standings.items()
            if each.state == EMPTY
        }
        before_ms, at = SystemClock().now_ms() - 1, cluster.settings.at
        failed: dict[Any, OffsetsError] = {}  # by group, or by partition of the one group
        if options.execute and chosen is None:
            failed |= delete_groups(cluster, planned)
        elif options.execute:
            for group_id, places in planned.items():
                failed |= delete_group_offsets(cluster, group_id, places)
    rows: list[tuple[object, ...]] = []
    for group_id, places in planned.items():
        held = [(group_id, *where, standings[group_id].offsets[where]) for where in places if where not in failed]
        rows += [] if group_id in failed else held or [(group_id, None, None, None)] if chosen is None else held
    if rows or options.format_ != "table":
        write_rows(_COLUMNS, rows, options.format_)
    groups = {str(row[0]) for row in rows}
    if rows and options.execute:
        offsets = "" if chosen is None else f"{len(rows)} offsets of "
        sys.stderr.write(f"offsets: {offsets}{named_groups(groups)} deleted from {at}\n")
        say_undo(store, options.live, sorted(each for each in groups if standings[each].offsets), before_ms)
    elif rows:
        sys.stderr.write("offsets: nothing is changed: this is the plan; --execute deletes\n")
    elif planned and not failed:
        warn(f"{named_groups(planned)} has no such offset: nothing to delete")
    missing = [name for name, each in standings.items() if each.state is None]
    unknown = [NoSuchGroup.of(missing, at)] if missing else []
    active = {name: str(each.state) for name, each in standings.items() if each.state not in {None, EMPTY}}
    raise_errors(active, [*unknown, *failed.values()], "change")
