"""Commands that answer questions: from a store's state, then from its log."""

from __future__ import annotations

import sys
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offsets_pipeline.cli.command import CommandOptions, HelpSection, argument, flag, grouped, option, several
from offsets_pipeline.cli.options import (
    ABSOLUTE,
    CONFIG,
    MEMBERS,
    LiveBrokers,
    OneStore,
    PositionsFrom,
    ReportCoverage,
    ServiceAccess,
    SeveralStores,
    format_option,
    group_option,
    groups_option,
    listen_option,
    retention_option,
    time_option,
)
from offsets_pipeline.cli.output import write_rows
from offsets_pipeline.cli.progress_bar import progress_bar
from offsets_pipeline.cli.values import FILE, HOURS, INTERVAL, PARTITION, PATH, POSITIONS, RESET, SCHEMA
from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.common.input_text import counted
from offsets_pipeline.errors import TargetNotWritable

if TYPE_CHECKING:
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.questions.lag.starting_offset import ResetPolicy

#: States and types of groups, of all that Kafka has.
_STATES = (
    *("Stable", "Empty", "Dead", "Assigning", "Reconciling", "NotReady"),
    *("PreparingRebalance", "CompletingRebalance"),
)
_TYPES = ("Classic", "Consumer", "Share", "Streams")

_MAX_REQUEST_BYTES = 4_096  # requests of the report's page have no body

_RETENTION = retention_option(
    "The broker's offsets.retention.minutes (default: as `follow` read it; owned stores: settings)."
)

questions = HelpSection("Questions")


@questions.command(
    "describe",
    "offsets describe --store store --group billing",
    "offsets describe --store store --group 'billing-*' --bootstrap-server localhost:9092",
    "offsets describe --store store --group billing --members --verbose",
    "offsets describe --store store --all-groups --format json",
    "offsets describe --store store --list",
)
class Describe(SeveralStores):
    """Show groups: type, state, members, committed offsets.

    Columns are those of kafka-consumer-groups. Starts no Spark.
    """

    exclusive = (
        ("--group", "--all-groups"),
        ("--members", "--state", "--offsets"),
        ("--members", "--list"),
    )
    required = (("--group", "--all-groups", "--list"),)

    groups: tuple[str, ...] = groups_option("This group, or a pattern with * and ?.")
    all_groups: bool = flag("--all-groups", help="Every group.")
    list_: bool = flag("--list", help="Only list groups, with --state and --verbose more of each.")
    offsets: bool = flag("--offsets", help="Show offsets, which is the default (table and csv).")
    members: bool = MEMBERS
    state: bool = flag("--state", help="Show states in place of offsets (table and csv).")
    verbose: bool = flag("--verbose", help="Show more columns.")
    live: LiveBrokers = grouped(LiveBrokers)
    format_: str = format_option()
    work = "group_commands.describe"


class ListedGroups(SeveralStores):
    """The options that choose and sort groups."""

    patterns: tuple[str, ...] = groups_option("A group, or a pattern with * and ?.")
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
        help="Order: by name, oldest commit first, or largest number first.",
    )
    live: LiveBrokers = grouped(LiveBrokers)
    absolute: bool = ABSOLUTE


@questions.command(
    "groups",
    "offsets groups --store store",
    "offsets groups --store store --state Stable --group 'billing-*' --format json",
    "offsets groups --store store --idle P7D --sort last-commit",
)
class ListGroups(ListedGroups):
    """List groups: state, members, offsets, last commit, lag.

    The lag is that of --bootstrap-server, or of the newest samples. Starts no Spark.
    """

    format_: str = format_option()
    work = "group_commands.groups"


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
        "--limit", type=click.IntRange(1), help="Largest number of groups (default: fill the screen)."
    )
    rounds: int | None = option("--rounds", type=click.IntRange(1), help="End after this number of refreshes.")
    every_ms: int = option(
        "--every", type=INTERVAL, default="5", help="Seconds between refreshes, or a duration: PT1M."
    )
    work = "group_commands.top"


@questions.command(
    "lag",
    "offsets lag --store store --group billing",
    "offsets lag --store store --bootstrap-server localhost:9092 --format json",
    "offsets lag --store store --at 2026-11-20T19:07:40Z --summary",
    "offsets lag --store prod --store test --summary",
)
class Lag(SeveralStores):
    """Show how far groups are behind: offsets, seconds, and status by Burrow's rules. Starts no Spark."""

    groups: tuple[str, ...] = groups_option("This group, or a pattern with * and ? (default: all).")
    positions_from: PositionsFrom = grouped(PositionsFrom)
    at_ms: int | None = time_option("--at", "As of this time")
    summary: bool = flag("--summary", help="One row per group.")
    absolute: bool = ABSOLUTE
    format_: str = format_option()
    work = "lag_commands.lag"


@questions.command(
    "share-partitions",
    "offsets share-partitions --store share",
    "offsets share-partitions --store share --groups store",
    "offsets share-partitions --store share --bootstrap-server localhost:9092 --format json",
)
class SharePartitions(OneStore):
    """Show share partitions: start offset, lag, epochs, delivery states. Starts no Spark.

    The store holds __share_group_state.
    """

    exclusive = (("--bootstrap-server", "--groups"),)

    groups: str | None = option(
        "--groups",
        metavar="STORE",
        type=PATH,
        help="Store of the same cluster with names of topics, and samples for lag (default: the same store).",
    )
    live: LiveBrokers = grouped(LiveBrokers)
    format_: str = format_option()
    work = "lag_commands.show_share_partitions"


class Problems(SeveralStores):
    """The options that say what counts as a problem."""

    groups: tuple[str, ...] = groups_option("This group, or a pattern with * and ? (default: all).")
    behind_ms: int = option(
        "--behind", type=INTERVAL, default="PT5M", help="A group is behind from this lag in time on."
    )
    recent_ms: int = option(
        "--recent",
        type=INTERVAL,
        default="PT1H",
        help="Show deletions, and members that left, of this time before the end of the log.",
    )
    within_hours: int = option("--within", type=HOURS, default=24, help="Show offsets that expire within this time.")
    retention_minutes: int | None = retention_option()
    live: LiveBrokers = grouped(LiveBrokers)


@questions.command(
    "status",
    "offsets status --store store --bootstrap-server localhost:9092",
    "offsets status --store prod --store test --format json",
)
class Status(Problems):
    """Show what is wrong, the worst first: lag, deletions, expiries, open transactions, old data.

    A group that is well has no row. Starts no Spark.
    """

    absolute: bool = ABSOLUTE
    format_: str = format_option()
    work = "status_commands.status"


@questions.command(
    "check",
    "offsets check --store store --bootstrap-server localhost:9092",
    "offsets check --store store --group billing --behind PT15M",
)
class Check(Problems):
    """Show `status` as one line, with the exit status 0, 1 for warnings or 2 for errors.

    It is a plugin for Nagios, and a line for cron. Starts no Spark.
    """

    work = "status_commands.check"
    failed = 2


@questions.command(
    "fetch",
    "offsets fetch --store store --group billing --topic orders",
    "offsets fetch --store store --group new --topic orders --reset by_duration:PT1H --bootstrap-server localhost:9092",
)
class Fetch(SeveralStores):
    """Show where a consumer of a group would start, and why. Starts no Spark."""

    group: str = group_option("The consumer's group.")
    topic: str = option("--topic", required=True, metavar="T", help="The topic.")
    partition: int | None = option(
        "--partition", type=PARTITION, metavar="P", help="This partition (default: all known ones)."
    )
    reset: ResetPolicy = option(
        "--reset",
        type=RESET,
        default="latest",
        help="The consumer's auto.offset.reset: earliest, latest, none or by_duration:PT1H.",
    )
    positions_from: PositionsFrom = grouped(PositionsFrom)
    format_: str = format_option()
    work = "lag_commands.fetch"


@questions.command("log-info", "offsets log-info --store store")
class LogInfo(SeveralStores):
    """Show log partitions: start, end, folded to, records, quarantined records. Starts no Spark."""

    absolute: bool = ABSOLUTE
    format_: str = format_option()

    def run(self, settings: Settings) -> None:
        """Show each log partition."""
        from offsets_pipeline.cli.answer_times import answer_time_of, write_listing
        from offsets_pipeline.cli.opened import open_readers
        from offsets_pipeline.questions.query.log_info import FIRST_COLUMNS, LogPartitionInfo, log_info

        readers = open_readers(self.stores, settings)
        listed: list[dict[str, Any]] = []
        times = []
        for store, reader in readers.items():
            cluster = {"cluster": reader.cluster} if len(readers) > 1 else {}
            listed += [vars(each) | cluster for each in log_info(reader)]
            times.append((reader.cluster, answer_time_of(reader, store, settings)))
        columns = list(LogPartitionInfo.__dataclass_fields__)
        write_listing(
            "log_partitions", columns, listed, times, self.format_, absolute=self.absolute, first=FIRST_COLUMNS
        )


@questions.command(
    "sql",
    "offsets sql --store store \"SELECT * FROM current_offsets WHERE topic = 'orders'\"",
    'offsets sql --store store "SELECT log_partition, reason FROM quarantine" --format csv',
    'offsets sql --store prod --store test "SELECT cluster, count(*) AS n FROM consumer_groups GROUP BY ALL"',
    "offsets sql --store store --tables",
)
class Sql(SeveralStores):
    """Query the views, such as current_offsets, consumer_groups, group_members and consumer_lag, or the tables.

    Starts no Spark without --spark.
    """

    exclusive = (("--tables", "--spark"),)

    query: str | None = argument("[QUERY]", required=False, help="One SELECT in DuckDB's SQL; with --spark, Spark SQL.")
    tables: bool = flag("--tables", help="List the views and tables with their columns, in place of a query.")
    spark: bool = flag("--spark", help="Run the query in Spark: any statement, and only folded records.")
    format_: str = format_option()

    def run(self, settings: Settings) -> None:
        """Show the result of the query, or the views and tables. Raises QueryFailed."""
        from offsets_pipeline.cli.answer_times import answer_time_of
        from offsets_pipeline.cli.opened import open_beside, open_readers
        from offsets_pipeline.cli.stopping import ended_by_ctrl_c

        if (self.query is None) is not self.tables:
            raise click.UsageError("give either a QUERY or --tables")
        if self.spark and self.query is not None:
            self._run_in_spark(settings, self.query)
            return
        from offsets_pipeline.questions.query.local_sql import LocalSql

        readers = open_readers(self.stores, settings)
        beside = [open_beside(store, reader, settings) for store, reader in readers.items()]
        with closing(LocalSql(list(readers.values()), beside)) as local, ended_by_ctrl_c():
            if self.query is None:
                write_rows(("name", "kind", "column", "type"), local.columns(), self.format_, all_columns=True)
                return
            columns, rows = local.run(self.query)
            for store, reader in readers.items():
                answer_time_of(reader, store, settings)
            write_rows(columns, rows, self.format_, all_columns=True)

    def _run_in_spark(self, settings: Settings, query: str) -> None:
        from offsets_pipeline.cli.answer_times import answer_time_of
        from offsets_pipeline.cli.opened import open_reader, spark_when_needed
        from offsets_pipeline.questions.query.views import run_query
        from offsets_pipeline.store.delta.reader import UNREADABLE

        columns, rows = run_query(spark_when_needed(settings, *self.stores), *self.stores, query=query)
        for store in self.stores:
            with suppress(*UNREADABLE):  # Spark may read tables that this process cannot
                answer_time_of(open_reader(store, settings, at_most=0), store, settings)
        write_rows(columns, rows, self.format_, all_columns=True)


@questions.command(
    "create-views",
    "offsets create-views --store store --schema ops",
    "offsets create-views --store prod --store test --schema ops",
)
class CreateViews(SeveralStores):
    """Create the views in a catalog, for every session that uses it."""

    schema: str = option("--schema", required=True, type=SCHEMA, help="Schema for the views; created if it is missing.")

    def run(self, settings: Settings) -> None:
        """Create the views. Raises CatalogMissing."""
        from offsets_pipeline.cli.opened import spark_when_needed
        from offsets_pipeline.questions.query.views import create_views

        created = create_views(spark_when_needed(settings, *self.stores), *self.stores, schema=self.schema)
        names = ", ".join(f"{self.schema}.{name}" for name in created)
        sys.stdout.write(f"views of {', '.join(self.stores)} created: {names}\n")


# --- from the log: about the past, as pages, as segment files


@questions.command(
    "export-segments",
    "offsets export-segments --store store --to segments",
    "offsets export-segments --store store --to segments-then --as-of 2026-11-20T19:07:40Z",
)
class ExportSegments(OneStore):
    """Write the log as segment files that a broker loads. Starts no Spark."""

    to: str = option("--to", required=True, metavar="DIR", type=PATH, help="New or empty folder to write to.")
    as_of_ms: int | None = time_option(
        "--as-of", "End each log partition before its first record younger than this time"
    )
    codec: str | None = option(
        "--codec",
        type=click.Choice(("none", "gzip", "snappy", "lz4", "zstd")),
        help="Compression of the batches (default: offsets_topic_compression_codec, or none).",
    )

    def run(self, settings: Settings) -> None:
        """Write the segment files. Raises as `export_segments`."""
        from offsets_pipeline.cli.answer_times import log_answer_time_of
        from offsets_pipeline.cli.opened import open_reader
        from offsets_pipeline.kafka.record.compression import Codec
        from offsets_pipeline.questions.history.log_history import LogHistory
        from offsets_pipeline.repair.export.segment_export import export_segments
        from offsets_pipeline.semantics.topic_kind import TopicKind

        if "://" in self.to:
            raise TargetNotWritable(f"cannot export to {self.to}: it is not a local folder; name a new or empty one")
        reader = open_reader(self.store, settings)
        codec = Codec[(self.codec or settings.log.codec("none")).upper()]
        read, log, to = list[int](), reader.table("log"), Path(self.to)
        with progress_bar("exporting", lambda: (sum(read), sum(file.rows for file in log.files()), "records")):
            exported = export_segments(reader, to, as_of_ms=self.as_of_ms, codec=codec, on_read=read.append)
        if self.as_of_ms is not None and reader.properties.topic_kind is TopicKind.CONSUMER_OFFSETS:
            log_answer_time_of(LogHistory(reader), self.store, settings, self.as_of_ms)
        written = exported.log_partitions
        sys.stdout.write(
            f"{counted(sum(each.records for each in written), 'record')} of {counted(len(written), 'log partition')} "
            f"written to {self.to}, in {counted(sum(len(each.files) for each in written), 'segment file')}"
            + ("\n" if self.as_of_ms is None else f", as of {shown_time(self.as_of_ms)}\n")
        )


@questions.command(
    "dump",
    "offsets dump /var/lib/kafka/data/__consumer_offsets-7/00000000000000000000.log",
    "offsets dump segments/__consumer_offsets-7/*.log --format json",
)
class Dump(CommandOptions):
    """Show the records of segment files, decoded, and damaged bytes.

    Has what kafka-dump-log --offsets-decoder prints. With --format json or csv, rows have the header of their batch.
    Needs no store, and starts no Spark.
    """

    config: Path | None = CONFIG
    paths: tuple[str, ...] = argument("FILE...", nargs=-1, required=True, type=PATH, help="Segment files.")
    format_: str = format_option()

    def run(self, settings: Settings) -> None:
        """Show the records. Raises NoSuchPath, StorageFailed, NotASegment."""
        from offsets_pipeline.questions.history.segment_dump import DUMP_COLUMNS, SHORT_COLUMNS, dump_files

        del settings
        of_table = SHORT_COLUMNS if len(self.paths) == 1 else ("file", *SHORT_COLUMNS)
        columns = of_table if self.format_ == "table" else DUMP_COLUMNS
        write_rows(columns, dump_files(self.paths, columns), self.format_)


@questions.command(
    "as-of",
    "offsets as-of --store store --time 2026-11-20T19:07:40Z",
    "offsets as-of --store store --position 3:120,4:80 --group billing --format json",
)
class AsOf(SeveralStores):
    """Show groups as `describe` does, as of a time or a position of the log. Starts no Spark."""

    exclusive = (("--time", "--position"),)
    required = (("--time", "--position"),)
    of_one_store = ("--position",)

    time_ms: int | None = time_option("--time", "Each log partition before its first record younger than T")
    positions: dict[int, int] | None = option(
        "--position", type=POSITIONS, help="These log partitions, each before this record offset."
    )
    groups: tuple[str, ...] = groups_option("This group, or a pattern with * and ? (default: all).")
    members: bool = MEMBERS
    format_: str = format_option()
    work = "history_commands.as_of"


@questions.command(
    "history",
    "offsets history --store store --group billing",
    "offsets history --store store --group billing --topic orders --since 2026-11-20T19:00:00Z --format csv",
    "offsets history --store prod --store test --group billing",
)
class History(SeveralStores):
    """Show every commit, deletion and change of a group, in the order of the log. Starts no Spark."""

    group: str = group_option()
    topic: str | None = option("--topic", metavar="T", help="Only offsets of this topic.")
    partition: int | None = option(
        "--partition", type=PARTITION, metavar="P", help="Only offsets of partitions with this number."
    )
    since_ms: int | None = time_option("--since", "Leave out earlier events")
    until_ms: int | None = time_option("--until", "Leave out later events")
    retention_minutes: int | None = _RETENTION
    absolute: bool = ABSOLUTE
    format_: str = format_option()
    work = "history_commands.history"

    def check(self) -> None:
        """Raise click.UsageError for a window that ends before it begins."""
        if self.since_ms is not None and self.until_ms is not None and self.since_ms > self.until_ms:
            raise click.UsageError("--since is later than --until")


@questions.command("why", "offsets why --store store --group billing --topic orders --partition 0")
class Why(SeveralStores):
    """Tell why a committed offset has its value, or when and why it was deleted. Starts no Spark."""

    group: str = group_option()
    topic: str = option("--topic", required=True, metavar="T", help="The topic.")
    partition: int = option("--partition", required=True, type=PARTITION, metavar="P", help="The topic's partition.")
    retention_minutes: int | None = _RETENTION
    format_: str = format_option()
    work = "history_commands.why"


@questions.command(
    "report",
    "offsets report --store store --html report.html",
    "offsets report --store store --html report.html --at 2026-11-20T19:10:00Z --hours 1",
)
class WriteReport(OneStore):
    """Write a web page about groups: lag, commit rates, rewinds, stale groups, what expires soon. Starts no Spark.

    The page is one file that needs no other.
    """

    html: Path = option("--html", required=True, type=FILE, help="File for the page; - is stdout.")
    at_ms: int | None = time_option("--at", "As if now were this time")
    coverage: ReportCoverage = grouped(ReportCoverage)
    work = "status_commands.write_report"


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
        help="Interval at which the page is updated: seconds, or a duration such as PT1M.",
    )
    access: ServiceAccess = grouped(ServiceAccess)
    coverage: ReportCoverage = grouped(ReportCoverage)

    def run(self, settings: Settings) -> None:
        """Serve the page until a signal stops the service.

        Raises as `collect_report` if the store cannot be read at the start, and as `RestServer`.
        """
        from offsets_pipeline.cli.status_commands import collected
        from offsets_pipeline.cli.stopping import serve_until_stopped
        from offsets_pipeline.questions.report.live_report import LiveReport

        collect = partial(collected, self.store, settings, self.coverage)
        live = LiveReport(collect, self.every_ms)
        collect()  # a wrong store is an error now, not on the first request
        what = f"report of {self.store} is served"
        serve_until_stopped(what, self.listen, self.access, lambda _: live.app, _MAX_REQUEST_BYTES)
