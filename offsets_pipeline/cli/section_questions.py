"""Commands that answer questions from a store."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from offsets_pipeline.cli.command import FILE, PATH, QUESTIONS, command
from offsets_pipeline.cli.output import format_option
from offsets_pipeline.cli.values import ADDRESS, HOURS, INTERVAL, position_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offsets_pipeline.cli.report_command import CoverageOptions
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
    """Query the views, such as current_offsets, consumer_groups, group_members and consumer_lag, or the tables."""
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
                type=click.IntRange(1),
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
@click.option("--at", metavar="T", help="As if now were this time: ISO 8601, or milliseconds since 1970.")
@_coverage_options
def report(store: str, settings: Settings, html: Path, at: str | None, **coverage: Any) -> int:  # noqa: ANN401
    """Write a page about the groups: lag, commit rates, rewinds, stale groups, what expires soon. Starts no Spark.

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
