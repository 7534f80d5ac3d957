"""Measures commits, fetches and loads of an owned store's coordinator, and of a real Kafka broker.

    python benchmarks/coordinator.py [--seconds 10] [--partitions-a-commit 50] [--folder FOLDER] [--without-broker]

The store is new, in a local folder, with 50 log partitions. Each writer commits for its own group: all partitions of
its topic in one request, acks=all. It waits for the answer before its next commit. The measurements:

- commit: one writer alone; the time from the call to the answer
- commit beside compaction: the same while `offsets maintain` compacts the store every second
- commits together: 8 writers, as threads of one process, and as two threads in each of four processes; acknowledged
  offsets/s
- fetch: one partition of a group, by one thread, while nothing and while another process writes
- load: a new process that loads the offsets of all previous runs

The same is then measured on a broker (`make kafka`) on loopback, with Kafka's own client in a JVM
(`BrokerCommits.java`, which needs a JDK). The broker's commits wait for one replica, without fsync; ours wait for
fsync.

Set-up and the first seconds of a JVM are not measured. Prints one table, with the goals of our lines.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a program, not as a module

from benchmarks.broker import KAFKA_JARS, BrokerError, ended_by_sigterm, java, running_broker
from benchmarks.processes import OFFSETS
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.owned_store import OwnedStore

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Barrier

OFFSETS_PARTITIONS = 50
WRITERS = 8
FETCHES = 20_000
_CLIENT = Path(__file__).with_name("BrokerCommits.java")
_COMPILER = "jdk.compiler"
_JVM = ("-Xmx256m", "-Dlog4j2.level=OFF")
_CLIENT_SECONDS = 120  # for all that it does beside writing


@dataclass(frozen=True)
class Figures:
    """The seconds of each commit of some writers, and the seconds of the whole run."""

    latencies: list[float]
    seconds: float

    def row(self, what: str, offsets_a_commit: int, goal: str = "") -> list[str]:
        """A row of the table."""
        rate = len(self.latencies) * offsets_a_commit / self.seconds
        return [what, str(len(self.latencies)), *_percentiles(self.latencies), f"{rate:,.0f}", goal]


def commits_for(coordinator: Coordinator, group_id: str, partitions: int, seconds: float) -> list[float]:
    """Commit one after the other for so many seconds; returns the seconds of each commit."""
    latencies = []
    end = time.perf_counter() + seconds
    offset = 0
    while (begun := time.perf_counter()) < end:
        offset += 1
        coordinator.commit_offsets(group_id, {("topic", partition): offset for partition in range(partitions)})
        latencies.append(time.perf_counter() - begun)
    return latencies


def threads_of(coordinator: Coordinator, name: str, threads: int, partitions: int, seconds: float) -> list[float]:
    """Run `commits_for` in several threads, each for its own group."""
    latencies: list[float] = []

    def write(number: int) -> None:
        latencies.extend(commits_for(coordinator, f"{name}-{number}", partitions, seconds))

    writers = [threading.Thread(target=write, args=(number,)) for number in range(threads)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    return latencies


def in_process(
    folder: str, name: str, threads: int, partitions: int, seconds: float, ready: Barrier, done: Queue[list[float]]
) -> None:
    """Run `threads_of` in a process that starts together with the others."""
    with Coordinator.open(folder) as coordinator:
        ready.wait()
        done.put(threads_of(coordinator, name, threads, partitions, seconds))


def one_process(folder: str, threads: int, partitions: int, seconds: float) -> Figures:
    """Measure writers in this process."""
    with Coordinator.open(folder) as coordinator:
        latencies = threads_of(coordinator, f"threads-{threads}", threads, partitions, seconds)
    return Figures(latencies, seconds)


def beside_compaction(folder: str, partitions: int, seconds: float) -> Figures:
    """Measure one writer, while another process compacts the store every second."""
    command = [str(OFFSETS), "maintain", "--store", folder, "--every", "PT1S"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as compaction:
        assert compaction.stdout is not None  # noqa: S101 - it is a pipe
        compaction.stdout.readline()  # of the first run
        drain = threading.Thread(target=compaction.stdout.read)
        drain.start()
        try:
            return one_process(folder, 1, partitions, seconds)
        finally:
            compaction.terminate()
            drain.join()


def processes(folder: str, count: int, threads: int, partitions: int, seconds: float) -> Figures:
    """Measure writers in several processes."""
    context = multiprocessing.get_context("spawn")
    ready, done = context.Barrier(count), context.Queue()
    children = [
        context.Process(
            target=in_process, args=(folder, f"process-{number}", threads, partitions, seconds, ready, done)
        )
        for number in range(count)
    ]
    for child in children:
        child.start()
    latencies = [each for _ in children for each in done.get(timeout=seconds + 120)]
    for child in children:
        child.join()
    return Figures(latencies, seconds)


def fetches(folder: str, *, beside: bool) -> list[float]:
    """Return the seconds of fetches; with ``beside`` while another process writes."""
    context = multiprocessing.get_context("spawn")
    ready, done = context.Barrier(2), context.Queue()
    writer = context.Process(target=in_process, args=(folder, "beside", 1, 10, 5.0, ready, done))
    latencies = []
    with Coordinator.open(folder) as coordinator:
        coordinator.commit_offsets("fetched", {("topic", 0): 1})
        if beside:
            writer.start()
            ready.wait()
        for _ in range(FETCHES):
            begun = time.perf_counter()
            coordinator.fetch_offsets("fetched", [("topic", 0)])
            latencies.append(time.perf_counter() - begun)
    if beside:
        done.get(timeout=60)
        writer.join()
    return latencies


def loads(folder: str) -> tuple[list[float], int]:
    """Return the seconds of opening a coordinator, and its number of offsets."""
    begun = time.perf_counter()
    with Coordinator.open(folder, housekeeping=False) as coordinator:
        return [time.perf_counter() - begun], coordinator.gauges().offsets


def coordinator_rows(folder: str, partitions: int, seconds: float) -> list[list[str]]:
    """Return the rows of the table about our coordinator."""
    one, together = "p50 30 ms, p99 150 ms", "5,000 offsets/s"
    rows = [
        one_process(folder, 1, partitions, seconds).row("commit, 1 writer", partitions, one),
        beside_compaction(folder, partitions, seconds).row("commit, 1 writer, beside compaction", partitions, one),
        one_process(folder, WRITERS, partitions, seconds).row("commit, 8 writers, 1 process", partitions, together),
        processes(folder, 4, 2, partitions, seconds).row("commit, 8 writers, 4 processes", partitions, together),
    ]
    for what, beside in (("fetch", False), ("fetch beside a writer", True)):
        latencies = fetches(folder, beside=beside)
        rows.append([what, str(len(latencies)), *_percentiles(latencies), "", "1 ms"])
    latencies, offsets = loads(folder)
    rows.append([f"load, {offsets} offsets", "1", *_percentiles(latencies), "", ""])
    return rows


def broker_rows(folder: Path, partitions: int, seconds: float) -> list[list[str]]:
    """Return the rows of the table about a broker, with its data below a folder.

    Raises:
        BrokerError: there is no broker, or no compiler for its client.
    """
    if _COMPILER not in subprocess.run([java(), "--list-modules"], capture_output=True, text=True, check=True).stdout:
        raise BrokerError(f"this Java has no compiler ({_COMPILER}), which its client takes: use that of a JDK")
    numbers = (partitions, WRITERS, seconds, FETCHES)
    with ended_by_sigterm(), running_broker(folder, OFFSETS_PARTITIONS) as address:
        client = subprocess.run(
            [java(), *_JVM, "-classpath", f"{KAFKA_JARS}/*", str(_CLIENT), address, *map(str, numbers)],
            capture_output=True,
            text=True,
            timeout=2 * seconds + _CLIENT_SECONDS,
            check=False,
        )
    if client.returncode:
        raise BrokerError(f"its client ended with {(client.stderr.splitlines() or ['nothing'])[-1]}")
    taken: dict[str, list[float]] = {}
    for line in client.stdout.splitlines():
        what, nanoseconds = line.split("\t")
        taken.setdefault(what, []).append(int(nanoseconds) / 1e9)
    return [
        Figures(taken["one"], seconds).row("a broker: commit, 1 writer", partitions),
        Figures(taken["together"], seconds).row("a broker: commit, 8 writers, 1 process", partitions),
        ["a broker: fetch", str(len(taken["fetch"])), *_percentiles(taken["fetch"]), "", ""],
    ]


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description="How fast a coordinator commits, answers and loads.")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each kind of writing goes on")
    parser.add_argument("--partitions-a-commit", type=int, default=50, help="offsets in each commit")
    parser.add_argument("--folder", type=Path, help="where to put the store (default: a temporary folder)")
    parser.add_argument("--without-broker", action="store_true", help="measure no broker")
    options = parser.parse_args()
    rows = [["what", "times", "p50 ms", "p99 ms", "offsets/s", "goal"]]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        store = Path(folder, "store")
        OwnedStore.create(store, OFFSETS_PARTITIONS)
        rows += coordinator_rows(str(store), options.partitions_a_commit, options.seconds)
        shutil.rmtree(store)
        if not options.without_broker:
            try:
                rows += broker_rows(Path(folder), options.partitions_a_commit, options.seconds)
            except BrokerError as error:
                print(f"no figures of a broker: {error}", file=sys.stderr)
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _percentiles(latencies: list[float]) -> list[str]:
    """Return the median and the 99th percentile, in milliseconds."""
    if len(latencies) < 2:
        return [f"{each * 1000:.1f}" for each in latencies * 2]
    cuts = statistics.quantiles(latencies, n=100)
    return [f"{cuts[49] * 1000:.3g}", f"{cuts[98] * 1000:.3g}"]


if __name__ == "__main__":
    main()
