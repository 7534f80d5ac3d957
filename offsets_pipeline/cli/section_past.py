"""Commands that answer questions from a store's log: about the past, as pages, and as segment files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from offsets_pipeline.cli.command import HelpSection, argument, grouped, option
from offsets_pipeline.cli.options import (
    ABSOLUTE,
    MEMBERS,
    NoStore,
    OneStore,
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
from offsets_pipeline.cli.values import FILE, INTERVAL, PARTITION, PATH, POSITIONS

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.questions.report.model import Report

_MAX_REQUEST_BYTES = 4_096  # requests of the report's page have no body

_RETENTION = retention_option(
    "The broker's offsets.retention.minutes (default: as `follow` read it; owned stores: settings)."
)

past = HelpSection("Questions")


@past.command(
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
        from offsets_pipeline.cli.opened import open_reader
        from offsets_pipeline.cli.progress_bar import Progress, progress_bar
        from offsets_pipeline.common.clock import shown_time
        from offsets_pipeline.errors import TargetNotEmpty
        from offsets_pipeline.kafka.record.compression import Codec
        from offsets_pipeline.repair.export.segment_export import export_segments

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


@past.command(
    "dump",
    "offsets dump /var/lib/kafka/data/__consumer_offsets-7/00000000000000000000.log",
    "offsets dump segments/__consumer_offsets-7/*.log --format json",
)
class Dump(NoStore):
    """Show the records of segment files, decoded, and damaged bytes.

    Has what kafka-dump-log --offsets-decoder prints. With --format json or csv, rows have the header of their batch.
    Needs no store, and starts no Spark.
    """

    paths: tuple[str, ...] = argument("FILE...", nargs=-1, required=True, type=PATH, help="Segment files.")
    format_: str = format_option()

    def run(self, settings: Settings) -> None:
        """Show the records. Raises NoSuchPath, StorageFailed, NotASegment."""
        from offsets_pipeline.cli.output import write_rows
        from offsets_pipeline.questions.history.segment_dump import DUMP_COLUMNS, SHORT_COLUMNS, dump_files

        del settings
        of_table = SHORT_COLUMNS if len(self.paths) == 1 else ("file", *SHORT_COLUMNS)
        columns = of_table if self.format_ == "table" else DUMP_COLUMNS
        write_rows(columns, dump_files(self.paths, columns), self.format_)


@past.command(
    "as-of",
    "offsets as-of --store store --time 2026-11-20T19:07:40Z",
    "offsets as-of --store store --position 3:120,4:80 --group billing --format json",
)
class AsOf(SeveralStores):
    """Show groups as `describe` does, as of a time or a position of the log. Starts no Spark."""

    exclusive = (("--time", "--position"),)
    required = (("--time", "--position"),)

    time_ms: int | None = time_option("--time", "Each log partition before its first record younger than T")
    positions: dict[int, int] | None = option(
        "--position", type=POSITIONS, help="These log partitions, each before this record offset."
    )
    groups: tuple[str, ...] = groups_option()
    members: bool = MEMBERS
    format_: str = format_option()
    work = "history_commands.as_of"

    def check(self) -> None:
        """Raise click.UsageError for a position and several stores."""
        if len(set(self.stores)) > 1 and self.positions is not None:
            raise click.UsageError("--position is of one log: give one --store with it")


@past.command(
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


@past.command("why", "offsets why --store store --group billing --topic orders --partition 0")
class Why(SeveralStores):
    """Tell why a committed offset has its value, or when and why it was deleted. Starts no Spark."""

    group: str = group_option()
    topic: str = option("--topic", required=True, metavar="T", help="The topic.")
    partition: int = option("--partition", required=True, type=PARTITION, metavar="P", help="The topic's partition.")
    retention_minutes: int | None = _RETENTION
    format_: str = format_option()
    work = "history_commands.why"


@past.command(
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

    def run(self, settings: Settings) -> None:
        """Write the page. Raises TargetNotWritable, and as `collect_report`."""
        from offsets_pipeline.cli.report_command import collected, write_page
        from offsets_pipeline.common.clock import SystemClock
        from offsets_pipeline.questions.report.page import page

        write_page(self.html, page(collected(self.store, settings, SystemClock().now_ms(), self.coverage, self.at_ms)))
        sys.stdout.write(f"report of {self.store} written to {self.html}\n")


@past.command(
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
        from offsets_pipeline.cli.report_command import collected
        from offsets_pipeline.cli.stopping import serve_until_stopped
        from offsets_pipeline.common.clock import SystemClock
        from offsets_pipeline.questions.report.live_report import LiveReport

        clock = SystemClock()

        def collect() -> Report:
            return collected(self.store, settings, clock.now_ms(), self.coverage)

        live = LiveReport(collect, self.every_ms)
        collect()  # a wrong store is an error now, not on the first request

        def app_at(_: str) -> ASGIApp:
            return live.app

        what = f"report of {self.store} is served"
        serve_until_stopped(what, self.listen, self.access, app_at, _MAX_REQUEST_BYTES)
