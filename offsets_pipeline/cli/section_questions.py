"""Commands that answer questions from a store."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from offsets_pipeline.cli.command import FILE, PATH, QUESTIONS, command
from offsets_pipeline.cli.live_cluster import live_options
from offsets_pipeline.cli.output import format_option
from offsets_pipeline.cli.values import (
    ADDRESS,
    HOURS,
    INTERVAL,
    PARTITION,
    RESET,
    SCHEMA,
    TIME,
    position_options,
)
from offsets_pipeline.input_text import INT32_MAX

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offsets_pipeline.cli.lag_command import PositionOptions
    from offsets_pipeline.cli.report_command import CoverageOptions
    from offsets_pipeline.config import Settings
    from offsets_pipeline.lag.starting_offset import ResetPolicy


#: States and types of groups, of all that Kafka has.
_STATES = (
    *("Stable", "Empty", "Dead", "Assigning", "Reconciling", "NotReady"),
    *("PreparingRebalance", "CompletingRebalance"),
)
_TYPES = ("Classic", "Consumer", "Share", "Streams")


def _several(
    option: str, name: str, metavar: str, help_: str, type_: click.ParamType[str] = click.STRING
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    return click.option(option, name, type=type_, multiple=True, metavar=metavar, help=f"{help_} May be repeated.")


def group_filters(run: Callable[..., int]) -> Callable[..., int]:
    """The options that choose and sort groups."""
    for option in reversed(
        (
            _several("--group", "patterns", "G", "A group, or a pattern with * and ?."),
            _several("--state", "states", "S", "State, such as Empty.", click.Choice(_STATES, case_sensitive=False)),
            _several("--type", "types", "T", "Type, such as Consumer.", click.Choice(_TYPES, case_sensitive=False)),
            _several("--topic", "topics", "T", "Groups with offsets of this topic."),
            click.option("--idle", type=INTERVAL, metavar="DURATION", help="Without a commit for this time: P7D."),
            click.option(
                "--sort",
                type=click.Choice(("group", "last-commit", "lag", "members", "offsets")),
                default="group",
                show_default=True,
                help="Order: by name, oldest commit first, or largest number first.",
            ),
            live_options,
        )
    ):
        run = option(run)
    return run


@command(
    QUESTIONS,
    "offsets describe --store store --group billing",
    "offsets describe --store store --group 'billing-*' --bootstrap-server localhost:9092",
    "offsets describe --store store --group billing --members --verbose",
    "offsets describe --store store --all-groups --format json",
    "offsets describe --store store --list",
    exclusive=[("--group", "--all-groups"), ("--members", "--state", "--offsets"), ("--members", "--list")],
    required=[("--group", "--all-groups", "--list")],
    several_stores=True,
)
@click.option(
    "--group", "groups", multiple=True, metavar="G", help="This group, or a pattern with * and ?. May be repeated."
)
@click.option("--all-groups", is_flag=True, help="Every group.")
@click.option("--list", "list_", is_flag=True, help="Only list groups, with --state and --verbose more of each.")
@click.option("--offsets", is_flag=True, help="Show offsets, which is the default (table and csv).")
@click.option("--members", is_flag=True, help="Show members in place of offsets (table and csv).")
@click.option("--state", is_flag=True, help="Show states in place of offsets (table and csv).")
@click.option("--verbose", is_flag=True, help="Show more columns.")
@live_options
@format_option()
def describe(stores: tuple[str, ...], settings: Settings, offsets: bool, **options: Any) -> int:  # noqa: ANN401, ARG001, FBT001
    """Show groups: type, state, members, committed offsets.

    Columns are those of kafka-consumer-groups. Starts no Spark.
    """
    from offsets_pipeline.cli import describe_command

    return describe_command.describe(stores, settings, describe_command.DescribeOptions(**options))


@command(
    QUESTIONS,
    "offsets groups --store store",
    "offsets groups --store store --state Stable --group 'billing-*' --format json",
    "offsets groups --store store --idle P7D --sort last-commit",
    several_stores=True,
)
@group_filters
@format_option()
def groups(stores: tuple[str, ...], settings: Settings, format_: str, **options: Any) -> int:  # noqa: ANN401
    """List groups: state, members, offsets, last commit, lag.

    The lag is that of --bootstrap-server, or of the newest samples. Starts no Spark.
    """
    from offsets_pipeline.cli import groups_command

    return groups_command.groups(stores, settings, groups_command.GroupFilter(**options), format_)


@command(
    QUESTIONS,
    "offsets top --store store",
    "offsets top --store store --bootstrap-server localhost:9092 --sort lag --every 5",
    several_stores=True,
)
@group_filters
@click.option(
    "--limit", type=click.IntRange(1), metavar="N", help="Largest number of groups (default: fill the screen)."
)
@click.option("--rounds", type=click.IntRange(1), metavar="N", help="End after this number of refreshes.")
@click.option(
    "--every", type=INTERVAL, metavar="DURATION", default="5", help="Seconds between refreshes, or a duration: PT1M."
)
def top(stores: tuple[str, ...], settings: Settings, **options: Any) -> int:  # noqa: ANN401
    """List groups, refreshed until Ctrl-C.

    A terminal shows as many as fit. Starts no Spark.
    """
    from offsets_pipeline.cli import groups_command

    limit, rounds, every_ms = options.pop("limit"), options.pop("rounds"), options.pop("every")
    return groups_command.top(
        stores, settings, groups_command.GroupFilter(**options), limit=limit, rounds=rounds, every_ms=every_ms
    )


@command(
    QUESTIONS,
    "offsets lag --store store --group billing",
    "offsets lag --store store --bootstrap-server localhost:9092 --format json",
    "offsets lag --store store --at 2026-11-20T19:07:40Z --summary",
    "offsets lag --store prod --store test --summary",
    exclusive=[("--bootstrap-server", "--positions")],
    several_stores=True,
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="G",
    help="This group, or a pattern with * and ? (default: all). May be repeated.",
)
@position_options
@click.option("--at", type=TIME, metavar="T", help="As of this time: ISO 8601, or milliseconds since 1970.")
@click.option("--summary", is_flag=True, help="One row per group.")
@format_option()
def lag(
    stores: tuple[str, ...],
    settings: Settings,
    groups: tuple[str, ...],
    at: int | None,
    summary: bool,  # noqa: FBT001
    format_: str,
    **of_positions: Any,  # noqa: ANN401 - PositionOptions
) -> int:
    """Show how far groups are behind: offsets, seconds, and status by Burrow's rules. Starts no Spark."""
    from offsets_pipeline.cli import lag_command

    where = lag_command.PositionOptions(**of_positions)
    _require_one_store(stores, where)
    return lag_command.lag(lag_command.LagOptions(stores, groups, at, summary, format_, where), settings)


def _require_one_store(stores: tuple[str, ...], where: PositionOptions) -> None:
    """Raise click.UsageError for positions of one cluster and several stores."""
    if len(set(stores)) > 1 and (where.bootstrap_server is not None or where.positions is not None):
        raise click.UsageError("--bootstrap-server and --positions are of one cluster: give one --store with them")


@command(
    QUESTIONS,
    "offsets fetch --store store --group billing --topic orders",
    "offsets fetch --store store --group new --topic orders --reset by_duration:PT1H --bootstrap-server localhost:9092",
    exclusive=[("--bootstrap-server", "--positions")],
    several_stores=True,
)
@click.option("--group", required=True, metavar="G", help="The consumer's group.")
@click.option("--topic", required=True, metavar="T", help="The topic.")
@click.option("--partition", type=PARTITION, metavar="P", help="This partition (default: all known ones).")
@click.option(
    "--reset",
    type=RESET,
    default="latest",
    show_default=True,
    metavar="POLICY",
    help="The consumer's auto.offset.reset: earliest, latest, none or by_duration:PT1H.",
)
@position_options
@format_option()
def fetch(
    stores: tuple[str, ...],
    settings: Settings,
    group: str,
    topic: str,
    partition: int | None,
    reset: ResetPolicy,
    format_: str,
    **of_positions: Any,  # noqa: ANN401 - PositionOptions
) -> int:
    """Show where a consumer of a group would start, and why. Starts no Spark."""
    from offsets_pipeline.cli import fetch_command, lag_command

    where = lag_command.PositionOptions(**of_positions)
    _require_one_store(stores, where)
    options = fetch_command.FetchOptions(stores, group, topic, partition, reset, format_, where)
    return fetch_command.fetch(options, settings)


@command(QUESTIONS, "offsets log-info --store store", several_stores=True)
@format_option()
def log_info(stores: tuple[str, ...], settings: Settings, format_: str) -> int:
    """Show log partitions: start, end, folded to, records, quarantined records. Starts no Spark."""
    from offsets_pipeline.cli import answers

    return answers.show_log(stores, settings, format_)


@command(
    QUESTIONS,
    "offsets sql --store store \"SELECT * FROM current_offsets WHERE topic = 'orders'\"",
    'offsets sql --store store "SELECT log_partition, reason FROM quarantine" --format csv',
    'offsets sql --store prod --store test "SELECT cluster, count(*) AS n FROM consumer_groups GROUP BY ALL"',
    "offsets sql --store store --tables",
    exclusive=[("--tables", "--spark")],
    several_stores=True,
)
@click.argument("query", metavar="[QUERY]", required=False, help="One SELECT in DuckDB's SQL; with --spark, Spark SQL.")
@click.option("--tables", is_flag=True, help="List the views and tables with their columns, in place of a query.")
@click.option("--spark", is_flag=True, help="Run the query in Spark: any statement, and only folded records.")
@format_option()
def sql(
    stores: tuple[str, ...],
    settings: Settings,
    query: str | None,
    tables: bool,  # noqa: FBT001
    spark: bool,  # noqa: FBT001
    format_: str,
) -> int:
    """Query the views, such as current_offsets, consumer_groups, group_members and consumer_lag, or the tables.

    Starts no Spark without --spark.
    """
    if (query is None) is not tables:
        raise click.UsageError("give either a QUERY or --tables")
    if spark and query is not None:
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
@click.option(
    "--schema", required=True, type=SCHEMA, metavar="NAME", help="Schema for the views; created if it is missing."
)
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
    type=TIME,
    metavar="T",
    help="End each log partition before its first record younger than this time: ISO 8601, or milliseconds since 1970.",
)
@click.option(
    "--codec",
    type=click.Choice(("none", "gzip", "snappy", "lz4", "zstd")),
    help="Compression of the batches (default: offsets_topic_compression_codec, or none).",
)
def export_segments(store: str, settings: Settings, to: str, as_of: int | None, codec: str | None) -> int:
    """Write the log as segment files that a broker loads. Starts no Spark."""
    from offsets_pipeline.cli import export_command

    return export_command.export_segments(store, settings, to, as_of, codec)


def _coverage_options(run: Callable[..., int]) -> Callable[..., int]:
    for option in reversed(
        (
            click.option(
                "--rows", type=click.IntRange(1), default=50, show_default=True, metavar="N", help="Rows of each table."
            ),
            click.option(
                "--hours", type=HOURS, default=24, show_default=True, metavar="HOURS", help="Span of the charts."
            ),
            click.option(
                "--stale-hours",
                type=HOURS,
                default=24,
                show_default=True,
                metavar="HOURS",
                help="A group without a commit for this time is stale.",
            ),
            click.option(
                "--within",
                type=HOURS,
                default=168,
                show_default=True,
                metavar="HOURS",
                help="Show offsets that expire within this time.",
            ),
            click.option(
                "--retention-minutes",
                type=click.IntRange(1, INT32_MAX),
                metavar="N",
                help="The broker's offsets.retention.minutes (default: settings).",
            ),
        )
    ):
        run = option(run)
    return position_options(run)


def _coverage(options: dict[str, Any]) -> CoverageOptions:
    """Take the options of `_coverage_options` out of a command's options."""
    from offsets_pipeline.cli.lag_command import PositionOptions
    from offsets_pipeline.cli.report_command import CoverageOptions

    positions = PositionOptions(*(options.pop(name) for name in ("bootstrap_server", "positions", "options")))
    names = [each.name for each in fields(CoverageOptions) if each.name != "positions"]
    return CoverageOptions(**{name: options.pop(name) for name in names}, positions=positions)


@command(
    QUESTIONS,
    "offsets report --store store --html report.html",
    "offsets report --store store --html report.html --at 2026-11-20T19:10:00Z --hours 1",
)
@click.option("--html", required=True, type=FILE, metavar="FILE", help="File for the page; - is stdout.")
@click.option("--at", type=TIME, metavar="T", help="As if now were this time: ISO 8601, or milliseconds since 1970.")
@_coverage_options
def report(store: str, settings: Settings, html: Path, at: int | None, **coverage: Any) -> int:  # noqa: ANN401
    """Write a web page about groups: lag, commit rates, rewinds, stale groups, what expires soon. Starts no Spark.

    The page is one file that needs no other.
    """
    from offsets_pipeline.cli import report_command

    return report_command.report(store, settings, html, at, _coverage(coverage))


@command(
    QUESTIONS,
    "offsets serve --store store",
    "offsets serve --store store --listen 0.0.0.0:8443 --token-file /run/secrets/token --tls-certificate server.pem "
    "--tls-key server.key",
)
@click.option(
    "--listen",
    type=ADDRESS,
    default="127.0.0.1:8085",
    show_default=True,
    metavar="[HOST:]PORT",
    help="Address. One that is not a loopback address needs --token-file or --tls-client-ca.",
)
@click.option(
    "--every",
    type=INTERVAL,
    default="10",
    show_default=True,
    metavar="DURATION",
    help="Interval at which the page is updated: seconds, or a duration such as PT1M.",
)
@click.option("--token-file", type=FILE, metavar="FILE", help="Require the bearer token in this file.")
@click.option("--tls-certificate", type=FILE, metavar="FILE", help="Serve HTTPS with this certificate, in PEM.")
@click.option("--tls-key", type=FILE, metavar="FILE", help="The certificate's key, in PEM without a password.")
@click.option(
    "--tls-client-ca", type=FILE, metavar="FILE", help="Require client certificates of this authority, in PEM."
)
@_coverage_options
def serve(store: str, settings: Settings, **options: Any) -> int:  # noqa: ANN401 - LiveOptions, CoverageOptions
    """Serve the page of `report`, kept up to date. Starts no Spark.

    Runs until SIGTERM or Ctrl-C.
    """
    from offsets_pipeline.cli import serve_command

    coverage = _coverage(options)
    return serve_command.serve(store, settings, serve_command.LiveOptions(**options), coverage)
