"""The commands `describe` and `log-info`: what they show of the answers, which need no Spark."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from offsets_pipeline.cli.output import write_json, write_rows
from offsets_pipeline.errors import NoSuchGroup
from offsets_pipeline.query.describe import describe_groups
from offsets_pipeline.query.log_info import OF_TOPIC, LogPartitionInfo, log_info, unfolded_records

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from offsets_pipeline.query.describe import GroupAnswer
    from offsets_pipeline.query.state import StateReader


def describe(options: argparse.Namespace, reader: StateReader) -> int:
    """Show groups with their offsets, or with their members; returns the exit status.

    Raises NoSuchGroup for those named that do not exist, after the others are shown.
    """
    groups = describe_groups(reader, options.group)
    tell_unfolded(reader, options.store)
    missing = [group_id for group_id in dict.fromkeys(options.group or ()) if group_id not in groups]
    if groups or not missing:
        _show_groups(options, groups)
    if missing:
        named = f"group{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}"
        raise NoSuchGroup(f"no {named} in {reader.location} (GROUP_ID_NOT_FOUND)")
    return 0


def tell_unfolded(reader: StateReader, store: str) -> None:
    """Say on stderr that the answers leave out records of the log, where they do, and how that is changed."""
    unfolded = unfolded_records(reader)
    if unfolded:
        sys.stderr.write(
            f"offsets: warning: {unfolded} records of {store} are not folded yet, and no answer has them: "
            f"`offsets fold --store {shlex.quote(store)} --available-now` folds them\n"
        )


def _show_groups(options: argparse.Namespace, groups: Mapping[str, GroupAnswer]) -> None:
    if options.format == "json":
        write_json({"groups": groups})
    elif options.members:
        write_rows(
            ["group", "member", "instance", "client", "host", "assignment"],
            [
                [name, each.member_id, each.instance_id, each.client_id, each.host, " ".join(each.assignment)]
                for name, group in groups.items()
                for each in group.members
            ],
            options.format,
        )
    else:
        write_rows(
            [
                "group",
                "type",
                "state",
                "members",
                "topic",
                "partition",
                "offset",
                "leader_epoch",
                "metadata",
                "pending",
            ],
            [
                [name, group.type, group.state, len(group.members), *offset]
                for name, group in groups.items()
                for offset in _offset_cells(group)
            ],
            options.format,
        )


def _offset_cells(group: GroupAnswer) -> list[list[object]]:
    """One row for each offset; one of nothing for a group that holds none."""
    return [
        [each.topic, each.partition, each.offset, each.leader_epoch, each.metadata, "yes" if each.pending else None]
        for each in group.offsets
    ] or [[None] * 6]


def show_log(options: argparse.Namespace, reader: StateReader) -> int:
    """Show how each log partition stands; returns the exit status."""
    answers = [asdict(each) for each in log_info(reader)]
    tell_unfolded(reader, options.store)
    if options.format == "json":
        write_json({"log_partitions": answers})
    else:
        names = list(LogPartitionInfo.__dataclass_fields__)
        if options.format == "table" and all(each["complete_since"] is None for each in answers):
            names = [name for name in names if name not in OF_TOPIC]  # no topic is followed: a table has to fit
        write_rows(names, [[each[name] for name in names] for each in answers], options.format)
    return 0
