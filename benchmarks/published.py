"""Measures what publishing is held to, five times in one run, by turns with the program of another folder.

A worker is a process of one program: it makes its stores and answers one request a line. The other program, given by
its folder (`git worktree add FOLDER COMMIT`), runs the same requests.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import duckdb
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from benchmarks.broker import broker_load_seconds
from benchmarks.generate import generate
from benchmarks.living import LivingStore
from benchmarks.log_content import Shape
from benchmarks.processes import OFFSETS, ProcessTree
from offsets_pipeline.common.clock import SystemClock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.fold.state.fold import fold_log, reload_partitions
from offsets_pipeline.fold.state.publishing import publish
from offsets_pipeline.ingest.segments.segment_ingest import ingest_segments
from offsets_pipeline.questions.query.views import register_views
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.session import build_session
from offsets_pipeline.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from benchmarks.table import Table

ROUNDS = 5
_BATCH_COMMITS = 10_000
_OURS = Path(__file__).resolve().parent.parent
_IN_NO_STATE = {"log", "log_partitions", "topics", "quarantine"}
_SCANS = {
    "all columns": "SELECT * FROM {}",
    "an aggregate": "SELECT count(committed_offset), sum(committed_offset), max(commit_timestamp) FROM {}",
}

Figures = dict[str, list[float]]


def shapes(*, quick: bool) -> dict[str, Shape]:
    """Logs of 199,000 and 5.2 million identities, and the log of 20 million records."""
    scale = 100 if quick else 1
    return {
        "small": Shape(commits=1_000_000 // scale, groups=20_000 // scale, records_per_batch=10),
        "large": Shape(commits=12_000_000 // scale, groups=600_000 // scale, records_per_batch=10),
        "log": Shape(commits=20_000_000 // scale, groups=20_000 // scale, tombstones=0.01, records_per_batch=10),
    }


# --- in a worker


class _Living(LivingStore):
    """Appends the same commits again and again: generated once, and each time behind all that are there.

    A compacted log has gaps, so the time of the run is a record offset behind those of earlier runs.
    """

    @classmethod
    def kept(cls, spark: SparkSession, settings: Settings, shape: Shape, folder: Path) -> _Living:
        """The store of an earlier run."""
        store = Store.open(spark, str(folder / "store"))
        living = cls(settings, shape, folder, store)
        register_views(spark, store.location)
        living.identities = spark.table("current_offsets").count()  # also those that are not published yet
        return living

    def newest(self, batches: int, commits: int) -> Iterator[pa.Table]:
        """See LivingStore."""
        made: dict[int, list[pa.Table]] = self.__dict__.setdefault("made", {})
        if batches not in made:
            made[batches] = list(super().newest(batches, commits))
        places = [pc.min_max(rows["record_offset"]).as_py() for rows in made[batches]]
        shift = self.__dict__.get("end", int(time.time() * 1000)) - min(place["min"] for place in places)
        self.end = max(place["max"] for place in places) + shift + 1
        for rows in made[batches]:
            later = pc.add(rows["record_offset"], shift)
            yield rows.set_column(rows.column_names.index("record_offset"), "record_offset", later)


class _Worker:
    """The stores of one program."""

    def __init__(self, folder: Path, *, quick: bool) -> None:
        self._folder = folder
        self._settings = _settings()
        self._clock = SystemClock()
        self._spark = build_session("benchmarks", self._settings)
        self._spark.sparkContext.setLogLevel("ERROR")
        of = shapes(quick=quick)
        is_kept = (folder / "log").exists()
        make = _Living.kept if is_kept else _Living.made
        self._living = {name: make(self._spark, self._settings, of[name], folder / name) for name in ("small", "large")}
        if not is_kept:
            properties = StoreProperties(MIRRORED, of["log"].offsets_partitions)
            log = Store.create(self._spark, str(folder / "log"), properties)
            ingest_segments(self._spark, log.location, [str(folder.parent / "segments")], self._settings, self._clock)
        self._large = self._living["large"].store.location

    def batches(self, name: str, batches: int) -> list[float]:
        """The mean of so many micro-batches, publishing included."""
        return [statistics.mean(self._living[name].fold(batches))]

    def size(self) -> list[float]:
        """Bytes of the state of the large store for each identity."""
        tables = [path.parent for path in Path(self._large).glob("*/_delta_log")]
        actions = [DeltaTable(path).get_add_actions() for path in tables if path.name not in _IN_NO_STATE]
        held = sum(sum(each.column("size_bytes").to_pylist()) for each in actions)
        return [held / self._living["large"].identities]

    def fold_more(self) -> list[float]:
        """Fold commits that are not published."""
        large = self._living["large"]
        for rows in large.newest(2, _BATCH_COMMITS):
            large.append(rows)
            fold_log(large.store, self._settings, self._clock)
        return []

    def exact(self, scan: str) -> list[float]:
        """Seconds of Spark for the exact view."""
        register_views(self._spark, self._large)
        return [self._scanned(scan, "current_offsets")]

    def published(self, scan: str) -> list[float]:
        """Seconds of Spark for the published table, and for one that is written at once; the same of DuckDB."""
        table = f"{self._large}/current_offsets"
        once = str(self._folder / "once")
        if not Path(once).exists():
            write_deltalake(once, DeltaTable(table).to_pyarrow_table().replace_schema_metadata())
            for path in (table, once):  # Spark reads their logs
                self._spark.sql(f"SELECT count(*) FROM delta.`{path}`").collect()
        spark = [self._scanned(scan, f"delta.`{path}`") for path in (table, once)]
        return spark + [_scanned_by_duckdb(scan, path) for path in (table, once)]

    def reload(self) -> list[float]:
        """Reload the log of 20 million records into an empty state."""
        return self._timed_on_copy(lambda store: reload_partitions(store, None, self._settings, self._clock))

    def first_fold(self) -> list[float]:
        """Fold the log of 20 million records into an empty state."""
        return self._timed_on_copy(lambda store: fold_log(store, self._settings, self._clock))

    def _timed_on_copy(self, work: Callable[[Store], object]) -> list[float]:
        copy = self._folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self._folder / "log", copy)
        store = Store.open(self._spark, str(copy))
        begun = time.perf_counter()
        work(store)
        return [time.perf_counter() - begun]

    def publishing(self) -> list[float]:
        """Seconds and processor time of publishing 20,000 commits into the large store."""
        self.fold_more()
        begun = time.perf_counter()
        with ProcessTree(os.getpid()).watched() as processor_time:
            publish(self._living["large"].store, self._clock)
        return [time.perf_counter() - begun, processor_time.seconds]

    def groups(self) -> list[str]:
        """Some groups of the large store, and where it is."""
        ids = self._living["large"].store.read("consumer_groups").select("group_id").limit(ROUNDS).collect()
        return [self._large, *(row["group_id"] for row in ids)]

    def _scanned(self, scan: str, name: str) -> float:
        begun = time.perf_counter()
        self._spark.sql(_SCANS[scan].format(name)).write.format("noop").mode("overwrite").save()
        return time.perf_counter() - begun


def _settings() -> Settings:
    """The defaults, but for the freshness of a large store: so each round of micro-batches has a publishing."""
    settings = Settings()
    if hasattr(settings.fold, "publish_large_within_ms"):
        settings = replace(settings, fold=replace(settings.fold, publish_large_within_ms=20_000))
    return settings


def _scanned_by_duckdb(scan: str, path: str) -> float:
    files = DeltaTable(path).file_uris()
    with duckdb.connect() as connection:
        begun = time.perf_counter()
        query = connection.sql(_SCANS[scan].format(f"read_parquet({files!r})"))
        for _ in query.to_arrow_reader(1_000_000):
            pass
        return time.perf_counter() - begun


def _answer(folder: Path, *, quick: bool) -> None:
    worker = _Worker(folder, quick=quick)
    print(json.dumps([]), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(worker, name)(*arguments)), flush=True)


# --- in the benchmark


class Program:
    """A worker of the program in ``tree``."""

    def __init__(self, tree: Path, folder: Path, *, quick: bool) -> None:
        folder.mkdir(exist_ok=True)
        command = [sys.executable, __file__, str(folder), *(["--quick"] if quick else [])]
        environment = os.environ | {"PYTHONPATH": str(tree)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=tree
        )
        self._requests = cast("IO[str]", self._process.stdin)
        self._answers = cast("IO[str]", self._process.stdout)
        self._answer()

    def ask(self, *request: object) -> list[Any]:
        """Let the worker do something."""
        print(json.dumps(request), file=self._requests, flush=True)
        return self._answer()

    def end(self) -> None:
        """End the worker."""
        self._process.communicate()

    def _answer(self) -> list[Any]:
        line = self._answers.readline()
        if not line:
            sys.exit(f"bench: the worker ended with status {self._process.wait()}")
        answer: list[Any] = json.loads(line)
        return answer


def measure_published(table: Table, folder: Path, before: Path | None, *, quick: bool) -> None:
    """Add lines for each figure that publishing is held to: medians of five, beside what it is compared with.

    Args:
        table: Table for the lines.
        folder: Where the stores are made, or those of an earlier run.
        before: A folder with another version of this program, which is measured by turns with this one.
        quick: Whether all sizes are a hundredth.

    Raises:
        BrokerError: the broker does not start or load.
    """
    log = shapes(quick=quick)["log"]
    table.doing("what publishing is held to: a log of 20 million records, and a broker that loads it")
    if not folder.exists():
        folder.mkdir()
        generate(log, folder / "segments")
    broker = broker_load_seconds(folder / "segments", log.offsets_partitions, log.commits, ROUNDS)
    programs = {"now": _OURS} | ({"before": before} if before is not None else {})
    workers: dict[str, Program] = {}
    for name, tree in programs.items():
        table.doing(f"the stores of the program {name}")
        workers[name] = Program(tree, folder / name, quick=quick)
    try:
        figures = _rounds(table, workers, quick=quick)
    finally:
        for worker in workers.values():
            worker.end()
    _add_lines(table, figures, broker, set(workers))


def _rounds(table: Table, workers: Mapping[str, Program], *, quick: bool) -> Figures:
    figures: Figures = {}

    def note(key: str, *seconds: float) -> None:
        figures.setdefault(key, []).extend(seconds)

    for number in range(ROUNDS + 1):  # the first is for the JVM
        if number == 1:
            figures.clear()
        for name, worker in workers.items():
            for key, *request in _requests(quick=quick, is_first=not number):
                table.doing(f"round {number} of {ROUNDS}, the program {name}: {key}")
                note(f"{name}, {key}", *worker.ask(*request))
            if name != "now":
                continue
            location, *groups = worker.ask("groups")
            note("describe", _run("describe", "--store", location, "--group", groups[number % len(groups)]))
            note("help", _run("--help"))
            seconds, of_processor = worker.ask("publishing")
            note("publishing", seconds)
            note("publishing, share of a core", of_processor / publisher_period(seconds))
    keys = ("Spark, published", "Spark, once", "DuckDB, published", "DuckDB, once")
    for scan in _SCANS:
        table.doing(f"the published table, {scan}")
        for _ in range(ROUNDS + 1):
            for key, seconds in zip(keys, workers["now"].ask("published", scan), strict=True):
                note(f"{scan}, {key}", seconds)
    return figures


def publisher_period(seconds: float) -> float:
    """Seconds between the starts of a stream's publishings of more than a million identities that take ``seconds``."""
    from offsets_pipeline.fold.stream.folding import REST  # noqa: PLC0415 - an older program, in a worker, may have none

    return seconds + max(REST * seconds, Settings().fold.publish_large_within_ms / 2000)


def _requests(*, quick: bool, is_first: bool) -> Iterator[tuple[Any, ...]]:
    batches = 5 if quick or is_first else 20
    yield "small batches", "batches", "small", batches
    yield "large batches", "batches", "large", 5 if quick or is_first else 60  # half a minute: with a publishing
    yield "size", "size"
    yield "more", "fold_more"
    for scan in _SCANS:
        yield f"exact {scan}", "exact", scan
    yield "reload", "reload"
    yield "first fold", "first_fold"


def _run(*arguments: str) -> float:
    begun = time.perf_counter()
    subprocess.run([OFFSETS, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def _add_lines(table: Table, figures: Figures, broker: list[float], programs: set[str]) -> None:
    def add(what: str, ours: str, theirs: str, *, other: str = "", by: str = "times", bar: str) -> None:
        if theirs not in figures:
            return
        mine, compared = statistics.median(figures[ours]), statistics.median(figures[theirs])
        found = f"{mine / compared:.2f} times" if by == "times" else f"{mine - compared:+.2f} s"
        table.add_compared(what, f"beside {other or theirs}", figures[ours], f"{compared:.2f} s: {found} (bar {bar})")

    for scan in _SCANS:
        for engine in ("Spark", "DuckDB"):
            what = f"{engine}: current_offsets, {scan}"
            add(what, f"{scan}, {engine}, published", f"{scan}, {engine}, once", other="written at once", bar="1.1")
        add(f"Spark: the exact view, {scan}", f"now, exact {scan}", f"before, exact {scan}", other="before", bar="1.1")
    large = "micro-batch of 10,000, mean, large state"
    add(large, "now, large batches", "now, small batches", other="small state", by="difference", bar="+0.25 s")
    add(large, "now, large batches", "before, large batches", other="before", bar="1.0")
    add("micro-batch of 10,000, small state", "now, small batches", "before, small batches", other="before", bar="1.0")
    figures["broker"] = broker
    add("reload of 20 M records", "now, reload", "broker", other="a broker's load", bar="0.4")
    add("reload of 20 M records", "now, reload", "before, reload", other="before", bar="1.0")
    add("fold of 20 M records", "now, first fold", "before, first fold", other="before", bar="1.0")
    add("describe --group, cold, large state", "describe", "help", other="--help", by="difference", bar="+0.5 s")
    share = statistics.median(figures["publishing, share of a core"])
    table.add_compared(
        "publishing, large state", "as a stream does", figures["publishing"], f"{share:.3f} of a core (bar 0.2)"
    )
    for name in sorted(programs, reverse=True):
        size = statistics.median(figures[f"{name}, size"])
        table.add_size("state, all tables, right after publishing", name, f"{size:.1f} bytes an identity (bar 20)")


if __name__ == "__main__":
    _answer(Path(sys.argv[1]), quick="--quick" in sys.argv)
