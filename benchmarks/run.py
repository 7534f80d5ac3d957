"""Measures this program on logs of `generate.py`, beside the usual recipe, and prints one table; see README.md."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a program, not as a module


import pyarrow as pa
import pyarrow.compute as pc
import pyspark
from pyspark import cloudpickle

from benchmarks import recipe
from benchmarks.broker import BrokerError, broker_load_seconds, ended_by_sigterm
from benchmarks.decoding import measure_decoding
from benchmarks.generate import GeneratedLog, add_shape_options, generate, shape_of
from benchmarks.living import FULL, QUICK, measure_living
from benchmarks.log_content import Shape
from benchmarks.past import measure_past
from benchmarks.published import measure_published
from benchmarks.questions import measure_questions
from benchmarks.table import Table, timed
from offsets_pipeline.common.clock import SystemClock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.fold.state.changes import ReplayStart
from offsets_pipeline.fold.state.fold import reload_partitions
from offsets_pipeline.fold.state.merge_on_read import OFFSETS
from offsets_pipeline.fold.state.replay_job import replay_log
from offsets_pipeline.fold.stream.folding import Folding
from offsets_pipeline.ingest.segments.segment_ingest import ingest_segments
from offsets_pipeline.kafka.record.compression import Codec
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.delta.schemas import CURRENT_OFFSETS, LOG, OFFSET_FACTS, STATE
from offsets_pipeline.store.log.log_reader import LogReader
from offsets_pipeline.store.log.log_scan import LogRange
from offsets_pipeline.store.session import build_session
from offsets_pipeline.store.store import Store

if TYPE_CHECKING:
    from benchmarks.living import Size

_WARM_UP = Shape(commits=20_000, groups=500, tombstones=0.01)
_OTHER_SHARE = 0.05  # of the records of logs with other batches
_SMALLER = (0.05, 0.25)  # of the records: does the cost of one grow with how many there are?
_IDENTITY = ["group_id", "topic", "partition"]


# --- a real broker


def measure_broker(table: Table, logs: list[GeneratedLog], repeats: int) -> None:
    """Measure the time in which a Kafka broker loads each log."""
    for log in logs:
        codec = log.shape.codec.name.lower()
        table.doing(f"a broker loads {log.description}, codec {codec}")
        try:
            seconds = broker_load_seconds(log.folder, log.shape.offsets_partitions, log.records, repeats)
        except BrokerError as error:
            sys.exit(f"bench: {error}")
        table.add_speed(
            f"a broker's load, codec {codec}, best of {repeats}", log.description, log.records, [min(seconds)]
        )


def other_logs(shape: Shape, folder: Path) -> list[GeneratedLog]:
    """Generate smaller logs with other batches."""
    smaller = replace(shape, commits=int(shape.commits * _OTHER_SHARE))
    return [
        generate(
            replace(smaller, codec=codec, records_per_batch=min(records_per_batch, smaller.identities_per_group)),
            folder / f"{codec.name.lower()}-{records_per_batch}",
        )
        for codec, records_per_batch in ((Codec.NONE, 1), (Codec.NONE, 3), (Codec.NONE, 10), (Codec.ZSTD, 10))
    ]


# --- with Spark
class Bench:
    """The steps that need Spark, each on its own copy of a store that holds the log and no state."""

    def __init__(self, table: Table, folder: Path, repeats: int) -> None:
        self._table = table
        self._folder = folder
        self._repeats = repeats
        self._settings = Settings()
        self._clock = SystemClock()
        # Spark's Python processes could not import it
        cloudpickle.register_pickle_by_value(recipe)  # type: ignore[no-untyped-call]
        table.doing("starting Spark")
        self._spark = build_session("benchmarks", self._settings)
        self._spark.sparkContext.setLogLevel("ERROR")

    def run(self, log: GeneratedLog, name: str, *, print_lines: bool) -> None:
        """Measure ingest, reload, recipe, stream and sizes; the states must be equal."""
        table = self._table if print_lines else Table()
        data = log.description
        folder = self._folder / name
        stores = self._ingest(table, log, folder)
        ours = self._reload(table, log, stores, folder / "reload", self._repeats if print_lines else 1)
        if not log.shape.transactional:  # the recipe has no transactions
            table.doing("the usual recipe")
            theirs = self._copy(stores, folder / "recipe")
            recipe_seconds = timed(1, partial(recipe.merge_by_recipe, theirs))
            _check_state(theirs, log, "the recipe")
            _check_same_rows(ours, theirs)
            shutil.rmtree(theirs.location)
            table.add_speed("the usual recipe into an empty state", data, log.records, recipe_seconds)
        self._sizes(table, log, ours)
        measure_past(table, ours.location)
        if print_lines:
            self._questions(table, ours, log)
        table.doing("fold stream")
        streamed = self._copy(stores, folder / "stream")
        table.add_speed("fold stream, available now", data, log.records, timed(1, lambda: self._fold(streamed)))
        _check_state(streamed, log, "the fold stream")
        shutil.rmtree(folder)

    def questions(self, log: GeneratedLog) -> None:
        """Measure only questions, beside Kafka's own tool."""
        stores = self._ingest(Table(), log, self._folder / "asked")
        self._questions(self._table, self._reload(Table(), log, stores, self._folder / "asked" / "reload", 1), log)

    def _questions(self, table: Table, store: Store, log: GeneratedLog) -> None:
        try:
            measure_questions(table, store.location, log)
        except BrokerError as error:
            sys.exit(f"bench: {error}")

    def ingest_and_reload(self, log: GeneratedLog, name: str) -> None:
        """Measure the ingest and the reload of one more log, without comparisons."""
        folder = self._folder / name
        self._reload(self._table, log, self._ingest(self._table, log, folder), folder / "reload", self._repeats)
        shutil.rmtree(folder)

    def heap(self) -> None:
        """Add the largest size of the driver's heap since its start."""
        jvm: Any = self._spark._jvm  # noqa: SLF001 - PySpark tells it in no other way
        memory = jvm.java.lang.management.ManagementFactory
        used = sum(
            int(pool.getPeakUsage().getUsed())
            for pool in memory.getMemoryPoolMXBeans()
            if pool.getType().toString() == "Heap memory"
        )
        most = int(memory.getMemoryMXBean().getHeapMemoryUsage().getMax())
        figure = f"{used / 2**20:,.0f} MiB of {most / 2**20:,.0f}"
        self._table.add_size("driver heap, at most", "all reloads until here", figure)

    def _reload(self, table: Table, log: GeneratedLog, stores: Path, folder: Path, repeats: int) -> Store:
        """Measure so many reloads; returns the last store."""
        reloads: list[float] = []
        folds: list[float] = []
        ours = self._copy(stores, folder)
        for repeat in range(repeats):
            table.doing(f"reload, {repeat + 1} of {repeats}")
            if repeat:
                shutil.rmtree(folder)
                ours = self._copy(stores, folder)
            folds += timed(1, partial(_fold_alone, ours))
            reloads += timed(1, partial(reload_partitions, ours, None, self._settings, self._clock))
            _check_state(ours, log, "the reload")
        table.add_speed("reload into an empty state", log.description, log.records, reloads)
        table.add_speed("  of that, the fold: read, compact, replay", log.description, log.records, folds)
        fixed = statistics.median(reloads) - statistics.median(folds)
        table.add_times("  the rest: the state's files and commits", f"{log.shape.identities:,} identities", [fixed])
        return ours

    def live(self, size: Size) -> None:
        """Measure micro-batches and questions on a store that grows."""
        measure_living(self._table, self._spark, self._settings, self._folder / "living", size)

    def _ingest(self, table: Table, log: GeneratedLog, folder: Path) -> Path:
        table.doing(f"ingest {log.description}, codec {log.shape.codec.name.lower()}")
        properties = StoreProperties(MIRRORED, log.shape.offsets_partitions)
        store = Store.create(self._spark, str(folder / "log"), properties)
        start = time.perf_counter()
        report = ingest_segments(self._spark, store.location, [str(log.folder)], self._settings, self._clock)
        seconds = time.perf_counter() - start
        if report.added != log.records:
            sys.exit(f"bench: {report.added} records were ingested of {log.records}")
        codec = log.shape.codec.name.lower()
        table.add_speed(f"ingest segments into the log table, codec {codec}", log.description, log.records, [seconds])
        return folder / "log"

    def ingest(self, log: GeneratedLog, name: str) -> None:
        """Measure the ingest of segments into the log table."""
        self._ingest(self._table, log, self._folder / name)
        shutil.rmtree(self._folder / name)

    def _copy(self, store: Path, folder: Path) -> Store:
        shutil.copytree(store, folder)
        return Store.open(self._spark, str(folder))

    def _fold(self, store: Store) -> None:
        Folding(store, self._settings, self._clock).fold_to_end()

    def _sizes(self, table: Table, log: GeneratedLog, store: Store) -> None:
        log_bytes = _table_bytes(store, LOG.name)
        state_bytes = sum(_table_bytes(store, each.name) for each in store.tables if each.name in STATE)
        identities = _offsets(store).num_rows
        table.add_size("segment files", log.description, f"{log.bytes_per_record:.1f} bytes a record")
        table.add_size("log table", f"{log_bytes:,} bytes", f"{log_bytes / log.records:.1f} bytes a record")
        table.add_size(
            "state, all tables", f"{state_bytes:,} bytes", f"{state_bytes / identities:.1f} bytes an identity"
        )


def _fold_alone(store: Store) -> None:
    count = store.properties.offsets_partitions
    log_range = LogRange(dict.fromkeys(range(count), 0), log_incarnation=store.current_log().number)
    begin = ReplayStart(count)
    reader = LogReader(store.table(LOG.name), log_range, begin.schema, begin.compact)
    files = store.table(LOG.name).snapshot().files()
    replay_log(store, reader, files, 0, lambda tables: begin.replay(tables).offsets.num_rows)


def _offsets(store: Store) -> pa.Table:
    """Return the newest row of each identity."""
    facts, published = (store.table(each.name).snapshot() for each in (OFFSET_FACTS, CURRENT_OFFSETS))
    return OFFSETS.newest_rows(facts.rows(OFFSETS.columns), OFFSETS.as_facts(published.rows(), OFFSETS.columns))


def _table_bytes(store: Store, name: str) -> int:
    return sum(file.size for file in store.table(name).snapshot().files())


def _check_state(store: Store, log: GeneratedLog, what: str) -> None:
    """Check that the live rows are those of the generator."""
    rows = _offsets(store)
    rows = rows.filter(rows["committed_offset"].is_valid())
    milliseconds = pc.divide(rows["commit_timestamp"].cast(pa.int64()), 1000)
    _check_equal(rows.append_column("commit_timestamp_ms", milliseconds), log.state, what, "the generator")


def _check_same_rows(ours: Store, theirs: Store) -> None:
    """Check that the recipe has the same rows, tombstones too."""
    _check_equal(_offsets(theirs), _offsets(ours), "the recipe", "the reload")


def _check_equal(found: pa.Table, expected: pa.Table, what: str, other: str) -> None:
    order = [(name, "ascending") for name in _IDENTITY]
    found, expected = found.select(expected.column_names).sort_by(order), expected.sort_by(order)
    if not found.cast(expected.schema).combine_chunks().equals(expected.combine_chunks()):
        sys.exit(f"bench: {what} gives another state than {other}: the figures would compare different things")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure this program beside the usual recipe on the same log; prints one table.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="500000 commits, 50000 to decode, each once")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="of the broker's load and the reload")
    parser.add_argument("--decode-commits", type=int, default=500_000, metavar="N", help="to decode without Spark")
    parser.add_argument("--only", choices=["decode", "spark", "questions", "published"], help="leave out the rest")
    parser.add_argument("--stores", type=Path, metavar="FOLDER", help="keep the stores of published there, or use them")
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="another version, to compare with")
    parser.add_argument(
        "--folder", type=Path, help="where the temporary folder is made; 20000000 commits need some 10 GB"
    )
    add_shape_options(parser, Shape(commits=20_000_000, tombstones=0.01, records_per_batch=10))
    known, _ = parser.parse_known_args(arguments)
    if known.quick:
        parser.set_defaults(commits=500_000, decode_commits=50_000, repeats=1)
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error("--repeats takes 1 or more")
    return options


def main(arguments: list[str] | None = None) -> None:
    """Run everything and print the table; on SIGTERM or Ctrl-C, print the lines so far."""
    options = _options(arguments)
    table = Table()
    try:
        with ended_by_sigterm(), tempfile.TemporaryDirectory(prefix="offsets-bench-", dir=options.folder) as temporary:
            _measure(table, options, Path(temporary))
        table.doing("done")
    finally:
        _print(table, shape_of(options))


def _measure(table: Table, options: argparse.Namespace, folder: Path) -> None:
    shape = shape_of(options)
    if options.only in {None, "decode"}:
        measure_decoding(table, replace(shape, commits=options.decode_commits, transactional=0.0), folder)
    if options.only in {None, "published"}:
        try:
            kept = options.stores or folder / "published"
            measure_published(table, kept, options.before, quick=options.quick)
        except BrokerError as error:
            sys.exit(f"bench: {error}")
        shutil.rmtree(folder / "published", ignore_errors=True)  # room for the rest
    if options.only in {"decode", "published"}:
        return
    table.doing(f"generating {shape.commits:,} commits")
    log = generate(shape, folder / "segments")
    if options.only == "questions":
        Bench(table, folder, 1).questions(log)
        return
    others = [] if options.quick else other_logs(shape, folder / "others")
    # before Spark is there to compete with it
    measure_broker(table, [log, *others], options.repeats)
    bench = Bench(table, folder, options.repeats)
    table.doing("warming up: everything once on a small log")
    bench.run(generate(_WARM_UP, folder / "small"), "small-stores", print_lines=False)
    for number, share in enumerate(() if options.quick else _SMALLER):  # first, to warm the JVM for the large log
        smaller = generate(replace(shape, commits=int(shape.commits * share)), folder / "smaller")
        bench.ingest_and_reload(smaller, f"smaller-{number}")
        shutil.rmtree(smaller.folder)
    bench.run(log, "stores", print_lines=True)
    shutil.rmtree(log.folder)
    bench.heap()
    for number, other in enumerate(others):
        bench.ingest(other, f"other-{number}")
    bench.live(QUICK if options.quick else FULL)


def _print(table: Table, shape: Shape) -> None:
    print(
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, "
        f"Spark {pyspark.__version__}, Delta {_delta_version()}, pyarrow {pa.__version__}\n"
        f"{shape.identities:,} identities ({shape.groups:,} groups, {shape.topics_per_group} topics, "
        f"{shape.partitions_per_topic} partitions), {shape.offsets_partitions} log partitions, "
        f"{shape.tombstones:.0%} tombstones, {shape.transactional:.0%} transactional, seed {shape.seed}\n"
    )
    print(table.render(), flush=True)


def _delta_version() -> str:
    return importlib.metadata.version("delta-spark")


if __name__ == "__main__":
    main()
