"""Commands that answer questions from a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from offsets_pipeline.cli.command import PATH, QUESTIONS, command
from offsets_pipeline.cli.output import format_option

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
    'offsets sql --store prod --store test "SELECT cluster, count(*) FROM consumer_groups GROUP BY ALL"',
    several_stores=True,
)
@click.argument("query", metavar="QUERY", help="One SELECT in Spark SQL.")
@click.option("--spark", is_flag=True, help="Run the query in Spark, as it is: any statement, and only folded records.")
@format_option()
def sql(stores: tuple[str, ...], settings: Settings, query: str, spark: bool, format_: str) -> int:  # noqa: FBT001
    """Query the views current_offsets, unstable_offsets, consumer_groups and group_members, or the tables.

    Starts no Spark without --spark.
    """
    if spark:
        from offsets_pipeline.cli import spark_commands

        return spark_commands.sql(stores, settings, query, format_)
    from offsets_pipeline.cli import sql_command

    return sql_command.sql(stores, settings, query, format_)


@command(
    QUESTIONS,
    "offsets create-views --store store --schema ops",
    "offsets create-views --store prod --store test --schema ops",
    several_stores=True,
)
@click.option("--schema", required=True, metavar="NAME", help="Schema for the views; created if it is missing.")
def create_views(stores: tuple[str, ...], settings: Settings, schema: str) -> int:
    """Create the views in a catalog, for every session that uses it."""
    from offsets_pipeline.cli import spark_commands

    return spark_commands.create_views(stores, settings, schema)


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
