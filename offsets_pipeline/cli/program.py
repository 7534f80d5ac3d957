"""The command line `offsets`. The jobs in `jobs/` are its commands for spark-submit."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from offsets_pipeline import __version__
from offsets_pipeline.cli.arguments import add_expiry_options, commit_of, hours_of, place_of
from offsets_pipeline.cli.output import FORMATS, progress, write_rows
from offsets_pipeline.cli.repeating import add_every, repeated
from offsets_pipeline.cli.reset_arguments import add_reset_offsets
from offsets_pipeline.cli.stopping import Stopping
from offsets_pipeline.cli.topic_arguments import add_topic_options
from offsets_pipeline.clock import MS_OF_HOUR, SystemClock, parse_time_ms, shown_time
from offsets_pipeline.config import Settings, load_settings
from offsets_pipeline.errors import OffsetsError, StateDiffers, TargetNotEmpty, in_one_line
from offsets_pipeline.observability.warnings import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from offsets_pipeline.query.state import StateReader
    from offsets_pipeline.store import Store

# pyspark is imported where it is used: describe and log-info answer without it.

_SCHEMA_PREFIX = "schema:"
_DEBUG_ENV = "OFFSETS_DEBUG"


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line and ends with status 1, as every other error here."""

    def error(self, message: str) -> NoReturn:
        self.exit(1, f"offsets: error: {message}; see `{self.prog} --help`\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0, or 1 with one line on stderr."""
    options = _parser().parse_args(argv)
    try:
        status: int = options.run(options, load_settings(options.config))
    except OffsetsError as error:
        print(f"offsets: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read the output has seen enough
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if os.environ.get(_DEBUG_ENV):
            raise
        print(f"offsets: error: {in_one_line(error)} ({_DEBUG_ENV}=1 shows where)", file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="offsets", description="Where your consumers stand, where they stood, and why.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    def command(name: str, run: object, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.add_argument("--store", required=True, help="folder of the store, or schema:NAME")
        added.add_argument("--config", type=Path, metavar="FILE", help="settings (default: conf/offsets.toml)")
        added.set_defaults(run=run)
        return added

    ingest = command("ingest-segments", _ingest_segments, "land a broker's segment files in the log")
    ingest.add_argument("paths", nargs="+", metavar="PATH", help="segment files or folders, as a broker's data folder")
    ingest.add_argument(
        "--offsets-partitions", type=int, metavar="N", help="log partitions (default: the folders found, if 0 to k-1)"
    )
    topic = command("ingest-topic", _ingest_topic, "land a broker's offsets topic in the log, as it grows")
    follow = command("follow", _follow, "land a broker's offsets topic in the log and fold it, as it grows")
    for each in (topic, follow):
        add_topic_options(each)
    export = command("export-segments", _export_segments, "write the log as segment files that a broker loads")
    export.add_argument("--to", required=True, metavar="DIR", help="new or empty folder to write to")
    export.add_argument(
        "--as-of",
        metavar="T",
        help="only what each log partition holds before its first record younger than this time: ISO 8601, or "
        "milliseconds since 1970",
    )
    export.add_argument("--codec", choices=("none", "zstd"), default="none", help="compression of the batches")
    fold = command("fold", _fold, "fold the log into the state tables, as a stream")
    fold.add_argument("--available-now", action="store_true", help="fold what is there, then end")
    fold.add_argument("--checkpoint", metavar="FOLDER", help="the stream's checkpoint (default: within the store)")
    reload_ = command("reload", _reload, "rebuild the state from the log")
    reload_.add_argument(
        "--partition", type=int, action="append", metavar="N", help="only this log partition; may be repeated"
    )
    maintain = command("maintain", _maintain, "settle and compact the tables, and remove files nobody reads any more")
    maintain.add_argument(
        "--checkpoint",
        action="append",
        default=[],
        metavar="FOLDER",
        help="of a stream that reads the log and keeps it outside of the store; may be repeated",
    )
    add_every(maintain)
    clean = command("clean-log", _clean_log, "remove from the old part of the log what no replay needs")
    clean.add_argument(
        "--older-than",
        type=hours_of,
        default=0,
        metavar="HOURS",
        help="leave younger records alone (default: settings)",
    )
    how = clean.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    add_every(how)
    describe = command("describe", _describe, "show groups: state, members, committed offsets")
    which = describe.add_mutually_exclusive_group(required=True)
    which.add_argument("--group", action="append", metavar="G", help="this group; may be repeated")
    which.add_argument("--all-groups", action="store_true", help="every group")
    describe.add_argument("--members", action="store_true", help="show members in place of offsets (table and csv)")
    describe.add_argument("--format", choices=FORMATS, default="table")
    _add_owned(command)
    command("verify", _verify, "replay the log from its start and compare with the state")
    info = command("log-info", _log_info, "show log partitions: start, end, folded to, records, quarantined")
    info.add_argument("--format", choices=FORMATS, default="table")
    sql = command("sql", _sql, "query current_offsets, consumer_groups, group_members and the tables beneath")
    sql.add_argument("query", metavar="QUERY", help='as "SELECT * FROM current_offsets"')
    sql.add_argument("--format", choices=FORMATS, default="table")
    views = command("create-views", _create_views, "create the views in a catalog, for every session that uses it")
    views.add_argument(
        "--schema", required=True, metavar="NAME", help="schema that holds them; made where it is missing"
    )
    return parser


def _add_owned(command: Callable[[str, object, str], argparse.ArgumentParser]) -> None:
    """The commands that write to an owned store."""
    commit = command("commit", _commit, "commit offsets of a group to an owned store")
    commit.add_argument("--group", required=True, metavar="G", help="the group; it has no members")
    commit.add_argument("offsets", nargs="+", type=commit_of, metavar="TOPIC:PARTITION=OFFSET")
    commit.add_argument("--metadata", default="", metavar="TEXT", help="a note to go with each offset")
    commit.add_argument("--leader-epoch", type=int, metavar="N", help="leader epoch of the last consumed record")
    commit.add_argument(
        "--retention-ms", type=int, metavar="MS", help="they expire after so long (-1, the default: settings)"
    )
    group = command("delete-group", _delete_group, "delete groups of an owned store with their offsets")
    group.add_argument("--group", required=True, action="append", metavar="G", help="may be repeated")
    offsets = command("delete-offsets", _delete_offsets, "delete offsets of a group of an owned store")
    offsets.add_argument("--group", required=True, metavar="G", help="the group")
    offsets.add_argument("places", nargs="+", type=place_of, metavar="TOPIC[:PARTITION]")
    add_expiry_options(command("expire-offsets", _expire_offsets, "expire offsets of an owned store, or forecast it"))
    add_reset_offsets(command)


def _commit(options: argparse.Namespace, settings: Settings) -> int:
    from offsets_pipeline.cli.commit_commands import commit

    return commit(options, settings)


def _delete_group(options: argparse.Namespace, settings: Settings) -> int:
    from offsets_pipeline.cli.commit_commands import delete_group

    return delete_group(options, settings)


def _delete_offsets(options: argparse.Namespace, settings: Settings) -> int:
    from offsets_pipeline.cli.commit_commands import delete_offsets

    return delete_offsets(options, settings)


def _expire_offsets(options: argparse.Namespace, settings: Settings) -> int:
    from offsets_pipeline.cli.expire_command import expire_offsets

    return expire_offsets(options, _reader(options, settings), settings, SystemClock())


def _session(settings: Settings) -> SparkSession:
    from pyspark.logger import PySparkLogger

    from offsets_pipeline.session import build_session

    progress("starting Spark ...")
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True  # they print what is raised, and so said, anyway
    return build_session("offsets", settings)


def _store(options: argparse.Namespace, settings: Settings) -> Store:
    from offsets_pipeline.store import Store

    return Store.open(_session(settings), options.store)


def _reader(options: argparse.Namespace, settings: Settings) -> StateReader:
    from offsets_pipeline.query.state import StateReader

    if options.store.startswith(_SCHEMA_PREFIX):  # only the catalog knows where its tables lie
        return StateReader(_store(options, settings).folder())
    return StateReader(options.store)


def _ingest_segments(options: argparse.Namespace, settings: Settings) -> int:
    from offsets_pipeline.ingest.segments import ingest_segments

    report = ingest_segments(
        _session(settings), options.store, options.paths, settings, SystemClock(), options.offsets_partitions
    )
    for file in report.files:
        for damage in file.damage:
            print(
                f"offsets: warning: {file.source}: {damage.length} bytes at position {damage.position} "
                f"in quarantine: {damage.reason}",
                file=sys.stderr,
            )
        if file.torn_tail is not None:
            print(f"offsets: warning: {file.source}: torn tail left out: {file.torn_tail}", file=sys.stderr)
    if report.left_out:
        print(
            f"offsets: warning: {report.left_out} records lie before what the log was cleaned to and were left out",
            file=sys.stderr,
        )
    print(
        f"{report.added} records added to {options.store} from {len(report.files)} segment files "
        f"({report.offsets_partitions} log partitions)"
    )
    return 0


def _ingest_topic(options: argparse.Namespace, settings: Settings) -> int:
    from offsets_pipeline.cli.follow_command import read_topic

    return read_topic(options, _session, settings, fold=False)


def _follow(options: argparse.Namespace, settings: Settings) -> int:
    from offsets_pipeline.cli.follow_command import read_topic

    return read_topic(options, _session, settings, fold=True)


def _export_segments(options: argparse.Namespace, settings: Settings) -> int:
    from offsets_pipeline.export.segments import export_segments
    from offsets_pipeline.record.compression import Codec

    as_of_ms = None if options.as_of is None else parse_time_ms(options.as_of)
    if "://" in options.to:
        raise TargetNotEmpty(f"{options.to} is no local folder: name a new or empty one")
    exported = export_segments(
        _reader(options, settings), Path(options.to), as_of_ms=as_of_ms, codec=Codec[options.codec.upper()]
    )
    written = exported.log_partitions
    print(
        f"{sum(each.records for each in written)} records of {len(written)} log partitions written to {options.to}, "
        f"in {sum(len(each.files) for each in written)} segment files"
        + ("" if as_of_ms is None else f", as of {shown_time(as_of_ms)}")
    )
    return 0


def _fold(options: argparse.Namespace, settings: Settings) -> int:
    from offsets_pipeline.fold.stream import start_fold

    total = expired_offsets = expired_groups = 0

    def on_batch(batch_id: int, records: int) -> None:
        nonlocal total
        total += records
        progress(f"batch {batch_id}: {records} records folded")

    def on_expiry(offsets: int, groups: int) -> None:
        nonlocal expired_offsets, expired_groups
        expired_offsets += offsets
        expired_groups += groups
        progress(f"{offsets} offsets and {groups} groups expired")

    store = _store(options, settings)
    stream = start_fold(
        store,
        settings,
        SystemClock(),
        available_now=options.available_now,
        checkpoint=options.checkpoint,
        on_batch=on_batch,
        on_expiry=on_expiry,
        warn=warn,
    )

    stopping = Stopping(stream.stop, store.spark)
    stream.await_end()
    expired = f"; {expired_offsets} offsets and {expired_groups} groups expired"
    print(f"{total} records folded in {options.store}" + (expired if expired_offsets or expired_groups else ""))
    return stopping.status(has_an_end=options.available_now)


def _reload(options: argparse.Namespace, settings: Settings) -> int:
    from offsets_pipeline.fold.reload import reload_partitions

    records = reload_partitions(_store(options, settings), options.partition, settings, SystemClock())
    print(f"{records} records replayed in {options.store}")
    return 0


def _maintain(options: argparse.Namespace, settings: Settings) -> int:
    from offsets_pipeline.maintain import Upkeep, maintain_store

    store, clock = _store(options, settings), SystemClock()

    def maintain() -> list[Upkeep]:
        return maintain_store(store, clock, options.checkpoint, settings=settings)

    for done in repeated(maintain, options.every, clock, spark=store.spark):
        write_rows(list(Upkeep._fields), done, "table")
    return 0


def _clean_log(options: argparse.Namespace, settings: Settings) -> int:
    from offsets_pipeline.log.clean import Cleaned, clean_log

    store, clock, older_than_ms = _store(options, settings), SystemClock(), options.older_than * MS_OF_HOUR

    def clean() -> Cleaned:
        return clean_log(store, settings, clock, older_than_ms=older_than_ms, dry_run=options.dry_run)

    for done in repeated(clean, options.every, clock, spark=store.spark):
        row = [options.store, *asdict(done).values(), done.removed]
        write_rows(["store", *asdict(done), "removed"], [row], "table")
    return 0


def _verify(options: argparse.Namespace, settings: Settings) -> int:
    from offsets_pipeline.fold.verify import verify_store

    result = verify_store(_store(options, settings))
    if not result.equal:
        counts = ", ".join(f"{count} in {table}" for table, count in result.differences.items())
        raise StateDiffers(
            f"{options.store} differs from its log: {counts} (first: {result.examples[0]}); "
            "`offsets reload` rebuilds the state"
        )
    print(
        f"equal: {result.offsets} offsets and {result.groups} groups are what the {result.records} folded records "
        f"of {result.log_partitions} log partitions give"
    )
    return 0


def _describe(options: argparse.Namespace, settings: Settings) -> int:
    from offsets_pipeline.cli.answers import describe

    return describe(options, _reader(options, settings))


def _log_info(options: argparse.Namespace, settings: Settings) -> int:
    from offsets_pipeline.cli.answers import show_log

    return show_log(options, _reader(options, settings))


def _sql(options: argparse.Namespace, settings: Settings) -> int:
    from offsets_pipeline.cli.answers import tell_unfolded
    from offsets_pipeline.delta.reader import UNREADABLE
    from offsets_pipeline.query.sql import run_query

    columns, rows = run_query(_session(settings), options.store, options.query)
    with suppress(*UNREADABLE):  # what Spark reads may be out of reach without it
        tell_unfolded(_reader(options, settings), options.store)
    write_rows(columns, rows, options.format)
    return 0


def _create_views(options: argparse.Namespace, settings: Settings) -> int:
    from offsets_pipeline.query.sql import create_lasting_views

    created = create_lasting_views(_session(settings), options.store, options.schema)
    print(f"views of {options.store} created: {', '.join(f'{options.schema}.{name}' for name in created)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
