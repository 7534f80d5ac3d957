"""Commands that answer questions from a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from offsets_pipeline.cli.command import PATH, QUESTIONS, command
from offsets_pipeline.cli.output import format_option
from offsets_pipeline.cli.values import position_options

if TYPE_CHECKING:
    from offsets_pipeline.config import Settings


@command(
    QUESTIONS,
    "offsets describe --store store --group billing",
    "offsets describe --store store --group billing --members",
    "offsets describe --store store --all-groups --format json",
    exclusive=[("--group", "--all-groups")],
    required=[("--group", "--all-groups")],
)
@click.option("--group", "groups", multiple=True, metavar="G", help="This group. May be repeated.")
@click.option("--all-groups", is_flag=True, help="Every group.")
@click.option("--members", is_flag=True, help="Show members in place of offsets (table and csv).")
@format_option()
def describe(
    store: str,
    settings: Settings,
    groups: tuple[str, ...],
    all_groups: bool,  # noqa: ARG001, FBT001 - without --group every group is shown
    members: bool,  # noqa: FBT001
    format_: str,
) -> int:
    """Show groups: type, state, members, committed offsets. Starts no Spark."""
    from offsets_pipeline.cli import answers

    return answers.describe(store, settings, groups, format_, members=members)


@command(
    QUESTIONS,
    "offsets lag --store store --group billing",
    "offsets lag --store store --bootstrap-server localhost:9092 --format json",
    "offsets lag --store store --at 2026-11-20T19:07:40Z --summary",
    exclusive=[("--bootstrap-server", "--positions")],
)
@click.option("--group", "groups", multiple=True, metavar="G", help="This group (default: all). May be repeated.")
@position_options
@click.option("--at", metavar="T", help="As of this time: ISO 8601, or milliseconds since 1970.")
@click.option("--summary", is_flag=True, help="One row a group.")
@format_option()
def lag(
    store: str,
    settings: Settings,
    groups: tuple[str, ...],
    at: str | None,
    summary: bool,  # noqa: FBT001
    format_: str,
    **of_positions: Any,  # noqa: ANN401 - PositionOptions
) -> int:
    """Show how far groups are behind: offsets, seconds, and status by Burrow's rules. Starts no Spark."""
    from offsets_pipeline.cli import lag_command

    where = lag_command.PositionOptions(**of_positions)
    return lag_command.lag(lag_command.LagOptions(store, groups, at, summary, format_, where), settings)


@command(
    QUESTIONS,
    "offsets fetch --store store --group billing --topic orders",
    "offsets fetch --store store --group new --topic orders --reset by_duration:PT1H --bootstrap-server localhost:9092",
    exclusive=[("--bootstrap-server", "--positions")],
)
@click.option("--group", required=True, metavar="G", help="The consumer's group.")
@click.option("--topic", required=True, metavar="T", help="The topic.")
@click.option("--partition", type=click.IntRange(min=0), metavar="P", help="This partition (default: all known ones).")
@click.option(
    "--reset",
    default="latest",
    show_default=True,
    metavar="POLICY",
    help="The consumer's auto.offset.reset: earliest, latest, none or by_duration:PT1H.",
)
@position_options
@format_option()
def fetch(
    store: str,
    settings: Settings,
    group: str,
    topic: str,
    partition: int | None,
    reset: str,
    format_: str,
    **of_positions: Any,  # noqa: ANN401 - PositionOptions
) -> int:
    """Show where a consumer of a group would start, and why. Starts no Spark."""
    from offsets_pipeline.cli import fetch_command, lag_command

    where = lag_command.PositionOptions(**of_positions)
    options = fetch_command.FetchOptions(store, group, topic, partition, reset, format_, where)
    return fetch_command.fetch(options, settings)


@command(QUESTIONS, "offsets log-info --store store")
@format_option()
def log_info(store: str, settings: Settings, format_: str) -> int:
    """Show log partitions: start, end, folded to, records, quarantined records. Starts no Spark."""
    from offsets_pipeline.cli import answers

    return answers.show_log(store, settings, format_)


@command(
    QUESTIONS,
    "offsets sql --store store \"SELECT * FROM current_offsets WHERE topic = 'orders'\"",
    'offsets sql --store store "SELECT log_partition, reason FROM quarantine" --format csv',
)
@click.argument("query", metavar="QUERY", help="One statement of Spark SQL.")
@format_option()
def sql(store: str, settings: Settings, query: str, format_: str) -> int:
    """Query the views current_offsets, unstable_offsets, consumer_groups and group_members, or the tables."""
    from offsets_pipeline.cli import sql_commands

    return sql_commands.sql(store, settings, query, format_)


@command(QUESTIONS, "offsets create-views --store store --schema ops")
@click.option("--schema", required=True, metavar="NAME", help="Schema for the views; created if it is missing.")
def create_views(store: str, settings: Settings, schema: str) -> int:
    """Create the views in a catalog, for every session that uses it."""
    from offsets_pipeline.cli import sql_commands

    return sql_commands.create_views(store, settings, schema)


@command(
    QUESTIONS,
    "offsets export-segments --store store --to segments",
    "offsets export-segments --store store --to segments-then --as-of 2026-11-20T19:07:40Z",
)
@click.option("--to", required=True, metavar="DIR", type=PATH, help="New or empty folder to write to.")
@click.option(
    "--as-of",
    metavar="T",
    help="End each log partition before its first record younger than this time: ISO 8601, or milliseconds since 1970.",
)
@click.option("--codec", type=click.Choice(("none", "zstd")), default="none", help="Compression of the batches.")
def export_segments(store: str, settings: Settings, to: str, as_of: str | None, codec: str) -> int:
    """Write the log as segment files that a broker loads. Starts no Spark."""
    from offsets_pipeline.cli import export_command

    return export_command.export_segments(store, settings, to, as_of, codec)
