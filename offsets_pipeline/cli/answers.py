"""`offsets describe` and `log-info`. Neither imports Spark."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING

from offsets_pipeline.cli.opened import open_reader
from offsets_pipeline.cli.output import write_json, write_rows
from offsets_pipeline.errors import NoSuchGroup
from offsets_pipeline.observability.warnings import warn
from offsets_pipeline.query.describe import describe_groups
from offsets_pipeline.query.log_info import OF_TOPIC, LogPartitionInfo, log_info, unfolded_records

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from offsets_pipeline.config import Settings
    from offsets_pipeline.query.describe import GroupAnswer
    from offsets_pipeline.query.state_reader import StateReader


def describe(store: str, settings: Settings, group_ids: Sequence[str], format_: str, *, members: bool) -> int:
    """Show these groups, or all if none is named, with offsets or members; returns the exit status.

    Raises NoSuchGroup for named groups that do not exist, after the others are shown.
    """
    reader = open_reader(store, settings)
    groups = describe_groups(reader, group_ids or None)
    warn_of_unfolded(reader, store)
    missing = [group_id for group_id in dict.fromkeys(group_ids) if group_id not in groups]
    if groups or not missing:
        show_groups(groups, format_, members=members)
    if missing:
        named = f"group{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}"
        raise NoSuchGroup(f"no {named} in {reader.location} (GROUP_ID_NOT_FOUND)")
    return 0


def warn_of_unfolded(reader: StateReader, store: str) -> None:
    """Warn if the log has records that are not folded: answers are without them."""
    unfolded = unfolded_records(reader)
    if unfolded:
        warn(
            f"the answers lack {unfolded} records of {store} that are not folded yet; "
            f"run `offsets fold --store {shlex.quote(store)} --available-now`"
        )


def show_groups(groups: Mapping[str, GroupAnswer], format_: str, *, members: bool) -> None:
    """Show groups with offsets or members."""
    if format_ == "json":
        write_json({"groups": groups})
    elif members:
        write_rows(
            ["group", "member", "instance", "client", "host", "assignment", "subscribed_topics"],
            [
                [
                    *(name, each.member_id, each.instance_id, each.client_id, each.host, " ".join(each.assignment)),
                    " ".join(each.subscribed_topics or ()),
                ]
                for name, group in groups.items()
                for each in group.members
            ],
            format_,
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
            format_,
        )


def _offset_cells(group: GroupAnswer) -> list[list[object]]:
    """A row for each offset; for a group without offsets one empty row."""
    return [
        [each.topic, each.partition, each.offset, each.leader_epoch, each.metadata, "yes" if each.pending else None]
        for each in group.offsets
    ] or [[None] * 6]


def show_log(store: str, settings: Settings, format_: str) -> int:
    """Show each log partition; returns the exit status."""
    reader = open_reader(store, settings)
    answers = [asdict(each) for each in log_info(reader)]
    warn_of_unfolded(reader, store)
    if format_ == "json":
        write_json({"log_partitions": answers})
    else:
        names = list(LogPartitionInfo.__dataclass_fields__)
        if format_ == "table" and all(each["complete_since"] is None for each in answers):
            names = [name for name in names if name not in OF_TOPIC]  # they are empty, and a table has to fit
        write_rows(names, [[each[name] for name in names] for each in answers], format_)
    return 0
