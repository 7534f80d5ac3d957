"""Commands that answer questions from a store: from its state, or about the past from its log."""

from __future__ import annotations

import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offsets_pipeline.cli.command import Section, argument, flag, grouped, option, several
from offsets_pipeline.cli.options import (
    LiveBrokers,
    OneStore,
    PositionsFrom,
    ReportCoverage,
    ServiceAccess,
    SeveralStores,
    format_option,
    listen_option,
    retention_option,
)
from offsets_pipeline.cli.values import FILE, INTERVAL, PARTITION, PATH, POSITIONS, RESET, SCHEMA, TIME

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from offsets_pipeline.config import Settings
    from offsets_pipeline.lag.starting_offset import ResetPolicy
    from offsets_pipeline.report.model import Report

#: States and types of groups, of all that Kafka has.
_STATES = (
    *("Stable", "Empty", "Dead", "Assigning", "Reconciling", "NotReady"),
    *("PreparingRebalance", "CompletingRebalance"),
)
_TYPES = ("Classic", "Consumer", "Share", "Streams")
_TIME = "ISO 8601, or milliseconds since 1970"
_MAX_REQUEST_BYTES = 4_096  # requests of the report's page have no body

_GROUP = option("--group", required=True, metavar="G", help="The group.")
_MEMBERS = flag("--members", help="Show members in place of offsets (table and csv).")
_RETENTION = retention_option(
    "The broker's offsets.retention.minutes, to distinguish retention from requests (owned stores: settings)."
)

questions = Section("Questions")


@questions.command(
    "describe",
    "offsets describe --store store --group billing",
    "offsets describe --store store --group 'billing-*' --bootstrap-server localhost:9092",
    "offsets describe --store store --group billing --members --verbose",
    "offsets describe --store store --all-groups --format json",
    "offsets describe --store store --list",
    exclusive=[("--group", "--all-groups"), ("--members", "--state", "--offsets"), ("--members", "--list")],
    required=[("--group", "--all-groups", "--list")],
)
class Describe(SeveralStores):
    """Show groups: type, state, members, committed offsets.

    Columns are those of kafka-consumer-groups. Starts no Spark.
    """

    groups: tuple[str, ...] = several("--group", metavar="G", help="This group, or a pattern with * and ?.")
    all_groups: bool = flag("--all-groups", help="Every group.")
    list_: bool = flag("--list", help="Only list groups, with --state and --verbose more of each.")
    offsets: bool = flag("--offsets", help="Show offsets, which is the default (table and csv).")
    members: bool = _MEMBERS
    state: bool = flag("--state", help="Show states in place of offsets (table and csv).")
    verbose: bool = flag("--verbose", help="Show more columns.")
    live: LiveBrokers = grouped(LiveBrokers)
    format_: str = format_option()

    def run(self, settings: Settings) -> int:
        """Show the groups."""
        from offsets_pipeline.cli.describe_command import describe

        return describe(self, settings)


class ListedGroups(SeveralStores):
    """The options that choose and sort groups."""

    patterns: tuple[str, ...] = several("--group", metavar="G", help="A group, or a pattern with * and ?.")
    states: tuple[str, ...] = several(
        "--state", type=click.Choice(_STATES, case_sensitive=False), metavar="S", help="State, such as Empty."
    )
    types: tuple[str, ...] = several(
        "--type", type=click.Choice(_TYPES, case_sensitive=False), metavar="T", help="Type, such as Consumer."
    )
    topics: tuple[str, ...] = several("--topic", metavar="T", help="Groups with offsets of this topic.")
    idle_ms: int | None = option("--idle", type=INTERVAL, help="Without a commit for this time: P7D.")
    sort: str = option(
        "--sort",
        type=click.Choice(("group", "last-commit", "lag", "members", "offsets")),
        default="group",
        show_default=True,
        help="Order: by name, oldest commit first, or largest number first.",
    )
    live: LiveBrokers = grouped(LiveBrokers)


@questions.command(
    "groups",
    "offsets groups --store store",
    "offsets groups --store store --state Stable --group 'billing-*' --format json",
    "offsets groups --store store --idle P7D --sort last-commit",
)
class Groups(ListedGroups):
    """List groups: state, members, offsets, last commit, lag.

    The lag is that of --bootstrap-server, or of the newest samples. Starts no Spark.
    """

    format_: str = format_option()

    def run(self, settings: Settings) -> int:
        """List the groups."""
        from offsets_pipeline.cli.groups_command import groups

        return groups(self, settings)


@questions.command(
    "top",
    "offsets top --store store",
    "offsets top --store store --bootstrap-server localhost:9092 --sort lag --every 5",
)
class Top(ListedGroups):
    """List groups, refreshed until Ctrl-C.

    A terminal shows as many as fit. Starts no Spark.
    """

    limit: int | None = option(
        "--limit", type=click.IntRange(1), metavar="N", help="Largest number of groups (default: fill the screen)."
    )
    rounds: int | None = option(
        "--rounds", type=click.IntRange(1), metavar="N", help="End after this number of refreshes."
    )
    every_ms: int = option(
        "--every", type=INTERVAL, default="5", help="Seconds between refreshes, or a duration: PT1M."
    )

    def run(self, settings: Settings) -> int:
        """List the first groups again and again."""
        from offsets_pipeline.cli.groups_command import top

        return top(self, settings)


@questions.command(
    "lag",
    "offsets lag --store store --group billing",
    "offsets lag --store store --bootstrap-server localhost:9092 --format json",
    "offsets lag --store store --at 2026-11-20T19:07:40Z --summary",
    "offsets lag --store prod --store test --summary",
    exclusive=[("--bootstrap-server", "--positions")],
)
class Lag(SeveralStores):
    """Show how far groups are behind: offsets, seconds, and status by Burrow's rules. Starts no Spark."""

    groups: tuple[str, ...] = option(
        "--group",
        multiple=True,
        metavar="G",
        help="This group, or a pattern with * and ? (default: all). May be repeated.",
    )
    positions_from: PositionsFrom = grouped(PositionsFrom)
    at_ms: int | None = option("--at", type=TIME, help=f"As of this time: {_TIME}.")
    summary: bool = flag("--summary", help="One row per group.")
    format_: str = format_option()

    def run(self, settings: Settings) -> int:
        """Show the lag."""
        from offsets_pipeline.cli.lag_command import lag

        self.positions_from.require_one_of(self.stores)
        return lag(self, settings)


@questions.command(
    "fetch",
    "offsets fetch --store store --group billing --topic orders",
    "offsets fetch --store store --group new --topic orders --reset by_duration:PT1H --bootstrap-server localhost:9092",
    exclusive=[("--bootstrap-server", "--positions")],
)
class Fetch(SeveralStores):
    """Show where a consumer of a group would start, and why. Starts no Spark."""

    group: str = option("--group", required=True, metavar="G", help="The consumer's group.")
    topic: str = option("--topic", required=True, metavar="T", help="The topic.")
    partition: int | None = option(
        "--partition", type=PARTITION, metavar="P", help="This partition (default: all known ones)."
    )
    reset: ResetPolicy = option(
        "--reset",
        type=RESET,
        default="latest",
        show_default=True,
        help="The consumer's auto.offset.reset: earliest, latest, none or by_duration:PT1H.",
    )
    positions_from: PositionsFrom = grouped(PositionsFrom)
    format_: str = format_option()

    def run(self, settings: Settings) -> int:
        """Show where the consumer would start."""
        from offsets_pipeline.cli.fetch_command import fetch

        self.positions_from.require_one_of(self.stores)
        return fetch(self, settings)


@questions.command("log-info", "offsets log-info --store store")
class LogInfo(SeveralStores):
    """Show log partitions: start, end, folded to, records, quarantined records. Starts no Spark."""

    format_: str = format_option()

    def run(self, settings: Settings) -> int:
        """Show each log partition."""
        from offsets_pipeline.cli.answer_times import answer_time_of, time_fields
        from offsets_pipeline.cli.opened import open_readers
        from offsets_pipeline.cli.output import write_json, write_rows
        from offsets_pipeline.query.log_info import OF_TOPIC, LogPartitionInfo, log_info

        readers = open_readers(self.stores, settings)
        of_cluster = len(readers) > 1
        answers: list[dict[str, Any]] = []
        times = []
        for store, reader in readers.items():
            cluster = {"cluster": reader.cluster} if of_cluster else {}
            answers += [{**vars(each), **cluster} for each in log_info(reader)]
            times.append((reader.cluster, answer_time_of(reader, store, settings)))
        if self.format_ == "json":
            write_json({"log_partitions": answers, **time_fields(times)})
        else:
            names = [*LogPartitionInfo.__dataclass_fields__, *(["cluster"] if of_cluster else [])]
            if self.format_ == "table" and all(each["complete_since"] is None for each in answers):
                names = [name for name in names if name not in OF_TOPIC]  # they are empty, and a table has to fit
            write_rows(names, [[each[name] for name in names] for each in answers], self.format_)
        return 0


@questions.command(
    "sql",
    "offsets sql --store store \"SELECT * FROM current_offsets WHERE topic = 'orders'\"",
    'offsets sql --store store "SELECT log_partition, reason FROM quarantine" --format csv',
    'offsets sql --store prod --store test "SELECT cluster, count(*) AS n FROM consumer_groups GROUP BY ALL"',
    "offsets sql --store store --tables",
    exclusive=[("--tables", "--spark")],
)
class Sql(SeveralStores):
    """Query the views, such as current_offsets, consumer_groups, group_members and consumer_lag, or the tables.

    Starts no Spark without --spark.
    """

    query: str | None = argument("[QUERY]", required=False, help="One SELECT in DuckDB's SQL; with --spark, Spark SQL.")
    tables: bool = flag("--tables", help="List the views and tables with their columns, in place of a query.")
    spark: bool = flag("--spark", help="Run the query in Spark: any statement, and only folded records.")
    format_: str = format_option()

    def run(self, settings: Settings) -> int:
        """Show the result of the query, or the views and tables. Raises QueryFailed."""
        from offsets_pipeline.cli.answer_times import answer_time_of
        from offsets_pipeline.cli.opened import open_beside, open_readers
        from offsets_pipeline.cli.output import write_rows

        if (self.query is None) is not self.tables:
            raise click.UsageError("give either a QUERY or --tables")
        if self.spark and self.query is not None:
            return self._run_in_spark(settings, self.query)
        from offsets_pipeline.query.local_sql import LocalSql

        readers = open_readers(self.stores, settings)
        beside = [open_beside(store, reader, settings) for store, reader in readers.items()]
        with closing(LocalSql(list(readers.values()), beside)) as local:
            if self.query is None:
                write_rows(("name", "kind", "column", "type"), local.columns(), self.format_)
                return 0
            columns, rows = local.run(self.query)
            for store, reader in readers.items():
                answer_time_of(reader, store, settings)
            write_rows(columns, rows, self.format_)
        return 0

    def _run_in_spark(self, settings: Settings, query: str) -> int:
        from offsets_pipeline.cli.answer_times import answer_time_of
        from offsets_pipeline.cli.opened import open_reader, spark_when_needed
        from offsets_pipeline.cli.output import write_rows
        from offsets_pipeline.delta.reader import UNREADABLE
        from offsets_pipeline.query.views import run_query

        columns, rows = run_query(spark_when_needed(settings, *self.stores), self.stores, query)
        for store in self.stores:
            with suppress(*UNREADABLE):  # Spark may read tables that this process cannot
                answer_time_of(open_reader(store, settings, at_most=0), store, settings)
        write_rows(columns, rows, self.format_)
        return 0


@questions.command(
    "create-views",
    "offsets create-views --store store --schema ops",
    "offsets create-views --store prod --store test --schema ops",
)
class CreateViews(SeveralStores):
    """Create the views in a catalog, for every session that uses it."""

    schema: str = option("--schema", required=True, type=SCHEMA, help="Schema for the views; created if it is missing.")

    def run(self, settings: Settings) -> int:
        """Create the views. Raises CatalogMissing."""
        from offsets_pipeline.cli.opened import spark_when_needed
        from offsets_pipeline.query.views import create_lasting_views

        created = create_lasting_views(spark_when_needed(settings, *self.stores), self.stores, self.schema)
        names = ", ".join(f"{self.schema}.{name}" for name in created)
        sys.stdout.write(f"views of {', '.join(self.stores)} created: {names}\n")
        return 0


@questions.command(
    "export-segments",
    "offsets export-segments --store store --to segments",
    "offsets export-segments --store store --to segments-then --as-of 2026-11-20T19:07:40Z",
)
class ExportSegments(OneStore):
    """Write the log as segment files that a broker loads. Starts no Spark."""

    to: str = option("--to", required=True, metavar="DIR", type=PATH, help="New or empty folder to write to.")
    as_of_ms: int | None = option(
        "--as-of", type=TIME, help=f"End each log partition before its first record younger than this time: {_TIME}."
    )
    codec: str | None = option(
        "--codec",
        type=click.Choice(("none", "gzip", "snappy", "lz4", "zstd")),
        help="Compression of the batches (default: offsets_topic_compression_codec, or none).",
    )

    def run(self, settings: Settings) -> int:
        """Write the segment files. Raises as `export_segments`."""
        from offsets_pipeline.cli.opened import open_reader
        from offsets_pipeline.cli.progress_bar import Progress, progress_bar
        from offsets_pipeline.clock import shown_time
        from offsets_pipeline.errors import TargetNotEmpty
        from offsets_pipeline.export.segment_export import export_segments
        from offsets_pipeline.record.compression import Codec

        if "://" in self.to:
            raise TargetNotEmpty(f"cannot export to {self.to}: it is not a local folder; name a new or empty one")
        reader = open_reader(self.store, settings)
        codec = Codec[(self.codec or settings.log.codec("none")).upper()]
        read = 0

        def on_read(records: int) -> None:
            nonlocal read
            read += records

        def progress() -> Progress:
            return Progress(read, sum(file.rows for file in reader.table("log").files()), "records")

        with progress_bar("exporting", progress):
            exported = export_segments(reader, Path(self.to), as_of_ms=self.as_of_ms, codec=codec, on_read=on_read)
        written = exported.log_partitions
        sys.stdout.write(
            f"{sum(each.records for each in written)} records of {len(written)} log partitions written to {self.to}, "
            f"in {sum(len(each.files) for each in written)} segment files"
            + ("\n" if self.as_of_ms is None else f", as of {shown_time(self.as_of_ms)}\n")
        )
        return 0


@questions.command(
    "as-of",
    "offsets as-of --store store --time 2026-11-20T19:07:40Z",
    "offsets as-of --store store --position 3:120,4:80 --group billing --format json",
    exclusive=[("--time", "--position")],
    required=[("--time", "--position")],
)
class AsOf(SeveralStores):
    """Show groups as `describe` does, as of a time or a position of the log. Starts no Spark."""

    time_ms: int | None = option(
        "--time", type=TIME, help=f"Each log partition before its first record younger than T: {_TIME}."
    )
    positions: dict[int, int] | None = option(
        "--position", type=POSITIONS, help="These log partitions, each before this record offset."
    )
    groups: tuple[str, ...] = several("--group", metavar="G", help="This group.")
    members: bool = _MEMBERS
    format_: str = format_option()

    def run(self, settings: Settings) -> int:
        """Show the groups of the past."""
        from offsets_pipeline.cli.history_commands import as_of

        if len(set(self.stores)) > 1 and self.positions is not None:
            raise click.UsageError("--position is of one log: give one --store with it")
        return as_of(self, settings)


@questions.command(
    "history",
    "offsets history --store store --group billing",
    "offsets history --store store --group billing --topic orders --since 2026-11-20T19:00:00Z --format csv",
    "offsets history --store prod --store test --group billing",
)
class History(SeveralStores):
    """Show every commit, deletion and change of a group, in the order of the log. Starts no Spark."""

    group: str = _GROUP
    topic: str | None = option("--topic", metavar="T", help="Only offsets of this topic.")
    partition: int | None = option(
        "--partition", type=PARTITION, metavar="P", help="Only offsets of partitions with this number."
    )
    since_ms: int | None = option("--since", type=TIME, help=f"Leave out earlier events: {_TIME}.")
    until_ms: int | None = option("--until", type=TIME, help=f"Leave out later events: {_TIME}.")
    retention_minutes: int | None = _RETENTION
    format_: str = format_option()

    def run(self, settings: Settings) -> int:
        """Show the events of the group."""
        from offsets_pipeline.cli.history_commands import history

        return history(self, settings)


@questions.command("why", "offsets why --store store --group billing --topic orders --partition 0")
class Why(SeveralStores):
    """Tell why a committed offset has its value, or when and why it was deleted. Starts no Spark."""

    group: str = _GROUP
    topic: str = option("--topic", required=True, metavar="T", help="The topic.")
    partition: int = option("--partition", required=True, type=PARTITION, metavar="P", help="The topic's partition.")
    retention_minutes: int | None = _RETENTION
    format_: str = format_option()

    def run(self, settings: Settings) -> int:
        """Tell why the offset is what it is."""
        from offsets_pipeline.cli.history_commands import why

        return why(self, settings)


@questions.command(
    "report",
    "offsets report --store store --html report.html",
    "offsets report --store store --html report.html --at 2026-11-20T19:10:00Z --hours 1",
)
class WriteReport(OneStore):
    """Write a web page about groups: lag, commit rates, rewinds, stale groups, what expires soon. Starts no Spark.

    The page is one file that needs no other.
    """

    html: Path = option("--html", required=True, type=FILE, metavar="FILE", help="File for the page; - is stdout.")
    at_ms: int | None = option("--at", type=TIME, help=f"As if now were this time: {_TIME}.")
    coverage: ReportCoverage = grouped(ReportCoverage)

    def run(self, settings: Settings) -> int:
        """Write the page. Raises TargetNotWritable, and as `collect_report`."""
        from offsets_pipeline.cli.report_command import collected, write_page
        from offsets_pipeline.clock import SystemClock
        from offsets_pipeline.report.page import page

        write_page(self.html, page(collected(self.store, settings, SystemClock().now_ms(), self.coverage, self.at_ms)))
        sys.stdout.write(f"report of {self.store} written to {self.html}\n")
        return 0


@questions.command(
    "serve",
    "offsets serve --store store",
    "offsets serve --store store --listen 0.0.0.0:8443 --token-file /run/secrets/token --tls-certificate server.pem "
    "--tls-key server.key",
)
class ServeReport(OneStore):
    """Serve the page of `report`, kept up to date. Starts no Spark.

    Runs until SIGTERM or Ctrl-C.
    """

    listen: tuple[str, int] = listen_option("127.0.0.1:8085")
    every_ms: int = option(
        "--every",
        type=INTERVAL,
        default="10",
        show_default=True,
        help="Interval at which the page is updated: seconds, or a duration such as PT1M.",
    )
    access: ServiceAccess = grouped(ServiceAccess)
    coverage: ReportCoverage = grouped(ReportCoverage)

    def run(self, settings: Settings) -> int:
        """Serve the page until a signal stops the service.

        Raises as `collect_report` if the store cannot be read at the start, and as `RestServer`.
        """
        from offsets_pipeline.cli.report_command import collected
        from offsets_pipeline.cli.serving import serve_until_stopped
        from offsets_pipeline.clock import SystemClock
        from offsets_pipeline.report.live_report import LiveReport

        clock = SystemClock()

        def collect() -> Report:
            return collected(self.store, settings, clock.now_ms(), self.coverage)

        live = LiveReport(collect, self.every_ms)
        collect()  # a wrong store is an error now, not on the first request

        def app_at(_: str) -> ASGIApp:
            return live.app

        what = f"report of {self.store} is served"
        serve_until_stopped(what, self.listen, self.access, app_at, _MAX_REQUEST_BYTES)
        return 0
