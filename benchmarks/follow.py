"""Measures the delay from a consumer's commit until `offsets follow` shows it, and the idle cost of `offsets follow`.

    .venv/bin/python -m benchmarks.follow [--groups 1000] [--partitions 200] [--probes 60] [--rate 1000] [--busy 60]
        [--idle 600] [--state-tables]

A real broker on this machine holds `groups` times `partitions` committed offsets. Groups commit all the time, and so
does a probe: the delay is the time from the answer to the probe's commit until a question answers it. A question folds
the end of the log in memory; with `--state-tables` the delay ends when the state tables have the commit, for readers
such as Spark.
Then `offsets follow` runs in its own processes: the cost is their processor time, their memory and the files of the
store, while groups commit and when they have ended.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.consumer import OffsetCommitRequest

from benchmarks.background import beside
from benchmarks.broker import KAFKA_JARS, Broker, ended_by_sigterm
from benchmarks.processes import OFFSETS, ProcessTree
from offsets_pipeline.common.clock import SystemClock
from offsets_pipeline.common.config import load_settings
from offsets_pipeline.fold.stream.folding import follow
from offsets_pipeline.ingest.topic.topic_ingest import TopicIngest
from offsets_pipeline.ingest.topic.topic_progress import TopicObserver
from offsets_pipeline.kafka.broker.cluster import Cluster
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from offsets_pipeline.questions.query.describe import describe_groups
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.store.session import build_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offsets_pipeline.kafka.broker.connection import Connection

_LOG_PARTITIONS = 50
_SETTLE_SECONDS = 20.0  # after its last batch: then it is idle
_LOOK_SECONDS = 5.0  # at the latest; looking takes processor time from what is measured
_PATIENCE_SECONDS = 120
_PROBE, _TOPIC = "probe", "orders"


class Committer:
    """Commits for groups without members, by Kafka's protocol."""

    def __init__(self, address: str, partitions: int) -> None:
        self._cluster = Cluster(KafkaOptions(address, {}))
        topic = CreateTopicsRequest.CreatableTopic(
            name=_TOPIC, num_partitions=partitions, replication_factor=-1, assignments=[], configs=[]
        )
        self._send(CreateTopicsRequest(topics=[topic], timeout_ms=30_000, validate_only=False))
        self._partitions = range(partitions)
        self.committed = 0

    def commit_all(self, group_id: str, offset: int) -> None:
        """Commit this offset for each partition, and wait for the answer."""
        self._commit(group_id, dict.fromkeys(self._partitions, offset))

    def commit_one(self, group_id: str, offset: int) -> None:
        """Commit this offset for the first partition, and wait for the answer."""
        self._commit(group_id, {0: offset})

    def _commit(self, group_id: str, offsets: dict[int, int]) -> None:
        of_topic = OffsetCommitRequest.OffsetCommitRequestTopic
        partitions = [
            of_topic.OffsetCommitRequestPartition(
                partition_index=at, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
            )
            for at, offset in offsets.items()
        ]
        request = OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=[of_topic(name=_TOPIC, partitions=partitions)],
        )
        answer = self._send(request, max_version=9)  # the last one with names of topics
        codes = {each.error_code for topic in answer.topics for each in topic.partitions}
        if codes != {0}:
            sys.exit(f"follow: error: a commit was refused with the error codes {sorted(codes)}")
        self.committed += len(offsets)

    def _send(self, request: Any, max_version: int | None = None) -> Any:  # noqa: ANN401 - kafka-python has no types
        (node_id,) = self._cluster.brokers()
        if self._connection is None:
            self._connection = self._cluster.connect(node_id)
        return self._connection.send(request, max_version=max_version)

    _connection: Connection | None = None


class _Landings(TopicObserver):
    """Sets an event when the log has new records."""

    def __init__(self, happened: threading.Event) -> None:
        self._happened = happened

    def landed(self, _: int) -> None:
        self._happened.set()


def answered(reader: StateReader) -> int:
    """Return the probe's offset as the reader answers it."""
    groups = describe_groups(reader, [_PROBE]).values()
    return max((each.offset for group in groups for each in group.offsets), default=-1)


def await_offset(store: str, offset: int, happened: threading.Event, at_most: int) -> float:
    """Return the seconds until a reader answers the probe's offset; it looks whenever ``happened`` is set.

    ``at_most``: how many records the reader folds in memory.
    """
    began = time.monotonic()
    while answered(StateReader(store, at_most)) < offset:
        if time.monotonic() - began > _PATIENCE_SECONDS:
            sys.exit(f"follow: error: a commit was not seen within {_PATIENCE_SECONDS} s")
        happened.wait(_LOOK_SECONDS)
        happened.clear()
    return time.monotonic() - began


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Context manager: `offsets` with these arguments in its own processes; its output goes to a file of the folder."""
    with (folder / f"{arguments[0]}.log").open("wb") as log:
        process = subprocess.Popen([str(OFFSETS), *arguments], stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def files_in(store: str) -> int:
    """Return how many files the store has on disk."""
    return sum(len(files) for _, _, files in os.walk(store))


def measure_cost(
    committer: Committer, prober: Committer, address: str, store: str, folder: Path, options: argparse.Namespace
) -> None:
    """Print the cost of `offsets follow` for some seconds with commits, and for some without."""
    with running(folder, "follow", "--store", store, "--bootstrap-server", address) as process:
        prober.commit_one(_PROBE, options.probes + 1)
        await_offset(store, options.probes + 1, threading.Event(), at_most=0)
        time.sleep(_SETTLE_SECONDS)
        tree, ended, files = ProcessTree(process.pid), threading.Event(), [files_in(store)]

        def wait(seconds: float) -> None:
            time.sleep(seconds)
            files.append(files_in(store))

        if options.busy:
            before = committer.committed
            with beside(lambda: go_on(committer, ended, options), ended.set):
                taken, memory = tree.cpu_seconds(wait, options.busy), tree.memory_mib()
            commits = committer.committed - before
            print(
                f"{commits / options.busy:,.1f} commits a second for {options.busy} s: {taken / options.busy:.3f} of a "
                f"core, {taken / commits * 1000:.2f} s for each 1,000 commits, {memory:,.0f} MiB; "
                f"at most {max(files):,} files on disk",
                flush=True,
            )
            time.sleep(_SETTLE_SECONDS)
        if options.idle:
            cores, memory = tree.cpu_seconds(wait, options.idle) / options.idle, tree.memory_mib()
            print(f"idle for {options.idle} s: {cores:.3f} of a core, {memory:,.0f} MiB; {files[-1]:,} files on disk")
        if process.poll() is not None:
            sys.exit("follow: error: `offsets follow` ended")


def go_on(committer: Committer, ended: threading.Event, options: argparse.Namespace) -> None:
    """Let the groups commit in turn, at the rate of the options."""
    begun = time.monotonic()
    for turn in itertools.count():
        if ended.wait(max(0.0, begun + turn * options.partitions / options.rate - time.monotonic())):
            return
        committer.commit_all(f"group-{turn % options.groups}", turn)


def measure(options: argparse.Namespace, folder: Path) -> list[float]:
    """Return the seconds of each probe; prints the cost of `offsets follow`."""
    settings, store = load_settings(), str(folder / "store")
    broker = Broker(folder, _LOG_PARTITIONS)
    broker.format()
    with broker.serving():
        spark = build_session("follow", settings)
        committer, prober = Committer(broker.address, options.partitions), Committer(broker.address, options.partitions)
        for number in range(options.groups):
            committer.commit_all(f"group-{number}", 1)
        prober.commit_one(_PROBE, 0)
        ended, happened = threading.Event(), threading.Event()
        at_most = 0 if options.state_tables else settings.questions.max_unfolded_records
        observer = None if options.state_tables else _Landings(happened)
        kafka = KafkaOptions(broker.address, {})
        ingest = TopicIngest(spark, store, kafka, settings, SystemClock(), observer)
        ingest.prepare()

        def run() -> None:
            follow(ingest, settings, SystemClock(), on_fold=lambda _: happened.set())

        with beside(run, ingest.stop):
            took = await_offset(store, 0, happened, at_most=0)
            print(f"{options.groups * options.partitions:,} offsets read and folded in {took:.1f} s", flush=True)
            with beside(lambda: go_on(committer, ended, options), ended.set):
                seconds = [_probe(prober, store, number, happened, at_most) for number in range(1, options.probes + 1)]
        spark.stop()
        if options.idle or options.busy:
            measure_cost(committer, prober, broker.address, store, folder, options)
        return seconds[options.warm_up :]


def _probe(committer: Committer, store: str, number: int, happened: threading.Event, at_most: int) -> float:
    happened.clear()
    committer.commit_one(_PROBE, number)
    took = await_offset(store, number, happened, at_most)
    time.sleep(0.3)  # not in step with the queries' triggers
    return took


def main() -> None:
    """Measure, and print the distribution."""
    parser = argparse.ArgumentParser(
        description="Measure how long after a commit it is seen.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--groups", type=int, default=1_000, metavar="N", help="groups that hold offsets")
    parser.add_argument("--partitions", type=int, default=200, metavar="N", help="offsets of each")
    parser.add_argument("--rate", type=float, default=1_000, metavar="N", help="commits a second beside the probe")
    parser.add_argument("--probes", type=int, default=60, metavar="N", help="commits that are measured")
    parser.add_argument("--warm-up", type=int, default=5, metavar="N", help="probes of these that do not count")
    parser.add_argument(
        "--busy", type=int, default=60, metavar="SECONDS", help="time of the cost with commits; 0: none"
    )
    parser.add_argument("--idle", type=int, default=600, metavar="SECONDS", help="time without a commit; 0: none")
    parser.add_argument("--state-tables", action="store_true", help="wait until the state tables have the commit")
    options = parser.parse_args()
    if options.probes - options.warm_up < 2:
        parser.error("--probes is to be at least two more than --warm-up")
    if not KAFKA_JARS.is_dir():
        sys.exit(f"follow: error: no broker in {KAFKA_JARS}: run `make kafka`")
    with ended_by_sigterm(), tempfile.TemporaryDirectory(prefix="offsets-follow-") as folder:
        seconds = sorted(measure(options, Path(folder)))
    p50, p95 = (statistics.quantiles(seconds, n=100, method="inclusive")[at - 1] for at in (50, 95))
    print(
        f"a commit is seen after {seconds[0]:.2f} s at best, {p50:.2f} s (p50), {p95:.2f} s (p95), {seconds[-1]:.2f} s "
        f"at worst; {len(seconds)} probes, {options.rate:,g} commits a second beside them"
    )


if __name__ == "__main__":
    main()
