"""Measures a growing store: micro-batches into states of two sizes, questions, a steady stream; see README.md."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.generate import generate
from benchmarks.log_content import Shape
from benchmarks.processes import OFFSETS
from offsets_pipeline.common.clock import SystemClock
from offsets_pipeline.fold.maintenance import maintain_store
from offsets_pipeline.fold.state.fold import reload_partitions
from offsets_pipeline.fold.stream.fold_stream import start_fold
from offsets_pipeline.fold.stream.folding import Folding
from offsets_pipeline.ingest.segments.segment_ingest import ingest_segments
from offsets_pipeline.kafka.record.segment import read_segment
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.delta.schemas import LOG, TABLES
from offsets_pipeline.store.log.append import LogAppender
from offsets_pipeline.store.log.file_writer import LogFileWriter
from offsets_pipeline.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from pyspark.sql import SparkSession

    from benchmarks.table import Table
    from offsets_pipeline.common.config import Settings

_BATCH_COMMITS = 10_000
_COMMITS_A_SECOND = 5_000
_NEWEST_SEED = 2  # of the commits that come on top of a log of seed 1
_READS = 5


@dataclass(frozen=True)
class Size:
    """Size of the measurement."""

    small_groups: int
    large_groups: int
    batches: int
    long_log_batches: int
    stream_seconds: int


FULL = Size(small_groups=20_000, large_groups=600_000, batches=100, long_log_batches=20, stream_seconds=300)
QUICK = Size(small_groups=2_000, large_groups=10_000, batches=5, long_log_batches=3, stream_seconds=10)


class LivingStore:
    """A store with a folded log, on which commits of the same identities are appended batch by batch."""

    def __init__(self, settings: Settings, shape: Shape, folder: Path, store: Store) -> None:
        self._settings = settings
        self._clock = SystemClock()
        self._folder = folder
        self.shape = shape
        self.store = store
        self.identities = store.read("current_offsets").count()

    @classmethod
    def made(cls, spark: SparkSession, settings: Settings, shape: Shape, folder: Path) -> Self:
        """Generate its log, ingest and reload it."""
        log = generate(shape, folder / "segments")
        store = Store.create(spark, str(folder / "store"), StoreProperties(MIRRORED, shape.offsets_partitions))
        ingest_segments(spark, store.location, [str(log.folder)], settings, SystemClock())
        shutil.rmtree(log.folder)
        reload_partitions(store, None, settings, SystemClock())
        return cls(settings, shape, folder, store)

    def newest(self, batches: int, commits: int) -> Iterator[pa.Table]:
        """Yield the next batches of rows of the log, with the columns that a source sets."""
        held = self.store.read(LOG.name).groupBy("log_partition").agg({"record_offset": "max"})
        ends = {row[0]: row[1] for row in held.collect()}
        shape = replace(self.shape, commits=batches * commits, seed=_NEWEST_SEED)
        log = generate(shape, self._folder / "newest")
        parts = []
        for path in sorted(log.folder.glob("*/*.log")):
            log_partition = int(path.parent.name.rpartition("-")[2])
            rows = pa.Table.from_batches(list(read_segment(path.read_bytes(), source=str(path)).batches()))
            offset = rows["record_offset"].to_numpy() + ends.get(log_partition, -1) + 1
            rows = rows.set_column(rows.column_names.index("record_offset"), "record_offset", pa.array(offset))
            parts.append(
                rows.append_column("log_partition", pa.array(np.full(len(rows), log_partition, dtype=np.int32)))
                .append_column("source", pa.array(np.full(len(rows), "benchmark")))
                .append_column("batch", pa.array(np.arange(len(rows)) * batches // len(rows)))
            )
        shutil.rmtree(log.folder)
        whole = pa.concat_tables(parts)
        batch = whole["batch"].to_numpy()
        for number in range(batches):
            yield whole.filter(pa.array(batch == number)).drop_columns(["batch"])

    def append(self, rows: pa.Table) -> None:
        """Append rows to the log, as an ingest does."""
        appender = LogAppender(self.store)
        place = appender.place(self._clock)
        writer = LogFileWriter(place)
        for batch in rows.combine_chunks().to_batches():
            writer.write(batch)
        appender.append_files(writer.close())

    def fold(self, batches: int, commits: int = _BATCH_COMMITS) -> list[float]:
        """Return the seconds of each of so many micro-batches of so many commits, compaction included."""
        done = threading.Semaphore(0)
        folded: list[int] = []

        def on_fold(records: int) -> None:
            folded.append(records)
            done.release()

        quick = replace(self._settings, fold=replace(self._settings.fold, trigger_interval_ms=10))
        stream = start_fold(Folding(self.store, quick, self._clock, on_fold=on_fold))
        stream.query.processAllAvailable()  # the log that was there, which a reload has folded
        folded.clear()
        while done.acquire(blocking=False):
            pass
        for rows in self.newest(batches, commits):
            self.append(rows)
            done.acquire()
        stream.query.processAllAvailable()
        # batches have no rows, only versions of the log; progress without a new one is no batch
        sources = ((each, each.sources[0]) for each in stream.query.recentProgress)
        ended = [each for each, source in sources if source.startOffset != source.endOffset]
        stream.stop()
        if len(folded) != batches or sum(folded) != batches * commits:
            sys.exit(f"bench: {batches} batches of {commits} commits were folded as {folded}")
        return [each.durationMs["triggerExecution"] / 1000 for each in ended[-batches:]]

    def steady(self, seconds: int) -> Steady:
        """Append 5,000 commits each second while a stream folds them."""
        appended: list[float] = []
        visible: list[tuple[float, int]] = []
        batches = list(self.newest(seconds, _COMMITS_A_SECOND))

        def on_fold(records: int) -> None:
            visible.append((time.perf_counter(), records))

        stream = start_fold(Folding(self.store, self._settings, self._clock, on_fold=on_fold))
        stream.query.processAllAvailable()
        visible.clear()
        start = time.perf_counter()
        for second, rows in enumerate(batches):
            time.sleep(max(0.0, start + second - time.perf_counter()))
            write_deltalake(f"{self.store.location}/{LOG.name}", self._log_rows(rows), mode="append")
            appended.append(time.perf_counter())
        stream.query.processAllAvailable()
        stream.stop()
        latencies, folded = [], 0
        for at, records in visible:
            latencies += [
                at - when for when in appended[folded // _COMMITS_A_SECOND : (folded + records) // _COMMITS_A_SECOND]
            ]
            folded += records
        if folded != seconds * _COMMITS_A_SECOND:
            sys.exit(f"bench: {folded} records were folded of {seconds * _COMMITS_A_SECOND}")
        return Steady(latencies, visible[-1][0] - appended[-1], len(visible), appended[-1] - start)

    def _log_rows(self, rows: pa.Table) -> pa.Table:
        now = pa.scalar(self._clock.now_ms() * 1000).cast(pa.timestamp("us", tz="UTC"))
        constants = {"appended_at": now, "log_incarnation": pa.scalar(0, pa.int32()), "backfill": pa.scalar(False)}
        for name, value in constants.items():
            rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
        return rows.select(LOG.names())

    def stored(self) -> dict[str, tuple[int, int, int, int]]:
        """Return for each table the number and bytes of its live files, and of all files in its folder."""
        found = {}
        for table in TABLES:
            folder = Path(self.store.location, table.name)
            live = DeltaTable(folder).get_add_actions().column("size_bytes").to_pylist()
            stored = [path.stat().st_size for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts]
            found[table.name] = (len(live), sum(live), len(stored), sum(stored))
        return found


@dataclass(frozen=True)
class Steady:
    """A steady stream: seconds from each append until it was visible, and the delay of the last one."""

    latencies: list[float]
    behind_at_the_end: float
    batches: int
    seconds: float


def measure_living(table: Table, spark: SparkSession, settings: Settings, folder: Path, size: Size) -> None:
    """Add the lines of a living store to the table."""
    shape = Shape(commits=1_000_000 if size is FULL else 50_000, groups=size.small_groups, records_per_batch=10)
    large = replace(shape, groups=size.large_groups, commits=2 * size.large_groups * shape.identities_per_group)
    batch = f"{size.batches} batches of {_BATCH_COMMITS:,} commits"
    for what, of_size in (("small", shape), ("large", large)):
        table.doing(f"micro-batches into the {what} state")
        store = LivingStore.made(spark, settings, of_size, folder / what)
        table.add_mean("micro-batch, mean", f"{store.identities:,} identities, {batch}", store.fold(size.batches))
        if of_size is shape:
            _measure_questions(table, store)
        shutil.rmtree(folder / what)
    longer = replace(shape, commits=10 * shape.commits)
    batch = f"{size.long_log_batches} batches"
    for of_length in (shape, longer):
        table.doing(f"micro-batches beside a log of {of_length.commits:,} records")
        store = LivingStore.made(spark, settings, of_length, folder / "length")
        seconds = store.fold(size.long_log_batches)
        table.add_times("micro-batch, median", f"a log of {of_length.commits:,} records, {batch}", seconds)
        if of_length is longer:
            _measure_steady(table, store, size.stream_seconds)
        shutil.rmtree(folder / "length")


def _measure_questions(table: Table, store: LivingStore) -> None:
    table.doing("questions from a cold shell")
    groups = store.store.read("consumer_groups").select("group_id").limit(_READS).collect()
    seconds = [asked(store, "--group", row["group_id"]) for row in groups]
    table.add_times("describe --group, from a cold shell", f"{store.identities:,} identities", seconds)
    seconds = [asked(store, "--all-groups", "--format", "json") for _ in range(_READS)]
    table.add_times("describe --all-groups, from a cold shell", f"{store.identities:,} identities", seconds)


def asked(store: LivingStore, *arguments: str) -> float:
    """Return the seconds of `offsets describe` from a cold shell."""
    start = time.perf_counter()
    command = [str(OFFSETS), "describe", "--store", store.store.location, *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def _measure_steady(table: Table, store: LivingStore, seconds: int) -> None:
    table.doing(f"a steady stream for {seconds} s")
    before = store.stored()
    steady = store.steady(seconds)
    data = f"{_COMMITS_A_SECOND:,} commits/s for {steady.seconds:.0f} s, {steady.batches} batches"
    table.add_times("append to visible, median", data, steady.latencies)
    p95 = statistics.quantiles(steady.latencies, n=20)[-1]
    table.add_size("append to visible, p95", data, f"{p95:.2f} s, the last one {steady.behind_at_the_end:.2f} s")
    after = store.stored()
    table.add_size("  live files after it", data, f"{sum(each[0] for each in after.values()):,}")
    day = 86_400 / steady.seconds
    new_files = sum(after[name][2] - before[name][2] for name in after)
    new_bytes = sum(after[name][3] - before[name][3] for name in after)
    table.add_size(
        "  a day of it leaves", "without upkeep", f"{new_files * day:,.0f} files, {new_bytes * day / 1e9:,.1f} GB"
    )
    table.doing("upkeep")
    start = time.perf_counter()
    done = maintain_store(store.store, SystemClock())
    figure = f"{time.perf_counter() - start:.1f} s, {sum(each.files for each in done):,} live files"
    table.add_size("  upkeep (offsets maintain)", data, figure)
    log = next(each for each in done if each.table == LOG.name)
    table.add_size("  the log after it", f"{log.bytes:,} bytes", f"{log.bytes_before:,} bytes before")
