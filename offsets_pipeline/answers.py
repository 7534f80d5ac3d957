"""The commands `describe` and `log-info`: what they show of the answers, which need no Spark."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from offsets_pipeline.output import write_json, write_rows
from offsets_pipeline.query.describe import describe_groups
from offsets_pipeline.query.log_info import OF_TOPIC, LogPartitionInfo, log_info

if TYPE_CHECKING:
    import argparse

    from offsets_pipeline.query.describe import GroupAnswer
    from offsets_pipeline.query.state import StateReader


def describe(options: argparse.Namespace, reader: StateReader) -> int:
    """Show groups with their offsets, or with their members; returns the exit status. Raises NoSuchGroup."""
    groups = describe_groups(reader, options.group)
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
    return 0


def _offset_cells(group: GroupAnswer) -> list[list[object]]:
    """One row for each offset; one of nothing for a group that holds none."""
    return [
        [each.topic, each.partition, each.offset, each.leader_epoch, each.metadata, "yes" if each.pending else None]
        for each in group.offsets
    ] or [[None] * 6]


def show_log(options: argparse.Namespace, reader: StateReader) -> int:
    """Show how each log partition stands; returns the exit status."""
    answers = [asdict(each) for each in log_info(reader)]
    if options.format == "json":
        write_json({"log_partitions": answers})
    else:
        names = list(LogPartitionInfo.__dataclass_fields__)
        if options.format == "table" and all(each["complete_since"] is None for each in answers):
            names = [name for name in names if name not in OF_TOPIC]  # no topic is followed: a table has to fit
        write_rows(names, [[each[name] for name in names] for each in answers], options.format)
    return 0
