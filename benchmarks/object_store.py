"""Measures a store on an object store with slow requests: an S3 server on loopback (moto) that waits before each one.

    python benchmarks/object_store.py [--seconds 300] [--writers 8] [--request-ms 50] [--log-partitions 50 1]
    python benchmarks/object_store.py --requests [--request-ms 20 100]
    python benchmarks/object_store.py --follow [--seconds 300] [--request-ms 20]

The first form: coordinators in a process each, each for a group of its own, commit one after the other; then one
coordinator alone. With one log partition, all groups are in it. Prints the commits of all and of the slowest writer,
their times from call to answer, and the requests.

The second form: the requests and seconds of a commit of the coordinator, and of the commands that ingest a capture of a
broker, fold it and describe its groups.

The third form: the requests of `offsets follow` of a broker on loopback, while groups commit, and their price a month.

Set-up and first commits are not measured. The server is Python, and its processor time adds to each request.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a program, not as a module

from benchmarks.background import beside
from benchmarks.broker import Broker, ended_by_sigterm
from benchmarks.follow import Committer, go_on, running
from benchmarks.processes import OFFSETS
from benchmarks.s3 import client_variables, create_bucket
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.errors import RequestTimedOut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Barrier

BUCKET = "bucket"
#: Published prices of a request to S3 Standard in us-east-1; all other methods cost as much as GET.
_DOLLARS = {"PUT": 5e-6, "POST": 5e-6, "LIST": 5e-6, "GET": 4e-7, "DELETE": 0.0}
_MONTH_SECONDS = 365 / 12 * 24 * 3600
_SETTLE_SECONDS = 20.0
_CAPTURE = Path(__file__).resolve().parent.parent / "tests" / "data" / "captures" / "4.2.0-kip848"


class _CountedServer:
    """The server's application: waits, then answers. `GET /requests` answers how many there were, by method."""

    def __init__(self, request_ms: float) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app  # noqa: PLC0415

        self._app = DomainDispatcherApplication(create_backend_app)
        self._seconds = request_ms / 1000
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/requests":
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self._counts).encode()]
        is_list = environ["REQUEST_METHOD"] == "GET" and "list-type" in environ.get("QUERY_STRING", "")
        with self._lock:
            self._counts["LIST" if is_list else environ["REQUEST_METHOD"]] += 1
        time.sleep(self._seconds)
        answer: Iterable[bytes] = self._app(environ, start_response)
        return answer


def serve(request_ms: float, port: Queue[int]) -> None:
    """Serve until the process is ended; says at which port."""
    from moto.moto_server.werkzeug_app import MotoRequestHandler  # noqa: PLC0415
    from werkzeug.serving import make_server  # noqa: PLC0415

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, _CountedServer(request_ms), threaded=True, request_handler=MotoRequestHandler)
    port.put(server.port)
    server.serve_forever()


@contextmanager
def s3_server(request_ms: float) -> Iterator[str]:
    """Run a server with a bucket in another process, and set the variables of clients; gives its URL."""
    context = multiprocessing.get_context("spawn")
    port: Queue[int] = context.Queue()
    process = context.Process(target=serve, args=(request_ms, port), daemon=True)
    process.start()
    url = f"http://127.0.0.1:{port.get(timeout=60)}"
    os.environ |= client_variables(url)
    try:
        create_bucket(BUCKET)
        yield url
    finally:
        process.terminate()
        process.join()


def requests(url: str) -> Counter[str]:
    """The requests so far, by method."""
    with urllib.request.urlopen(f"{url}/requests") as answer:  # noqa: S310 - our own server
        return Counter(json.load(answer))


def commit_for(store: str, group_id: str, seconds: float, start: Barrier, done: Queue[tuple[list[float], int]]) -> None:
    """Commit one after the other; puts the seconds of each commit, and how many timed out."""
    latencies: list[float] = []
    timeouts = offset = 0
    with Coordinator.open(store, housekeeping=False) as coordinator:
        coordinator.commit_offsets(group_id, {("topic", 0): 0}, timeout_ms=60_000)
        start.wait()
        end = time.perf_counter() + seconds
        while (begun := time.perf_counter()) < end:
            offset += 1
            try:
                coordinator.commit_offsets(group_id, {("topic", 0): offset})
            except RequestTimedOut:
                timeouts += 1
            latencies.append(time.perf_counter() - begun)
        done.put((latencies, timeouts))


def measure_writers(url: str, store: str, log_partitions: int, writers: int, seconds: float) -> str:
    """Let so many coordinators write; returns a line."""
    OwnedStore.create(store, log_partitions)
    context = multiprocessing.get_context("spawn")
    start, done = context.Barrier(writers + 1), context.Queue()
    groups = (f"group-{number}" for number in range(writers))
    processes = [context.Process(target=commit_for, args=(store, each, seconds, start, done)) for each in groups]
    for process in processes:
        process.start()
    start.wait()
    before = requests(url)
    found = [done.get(timeout=seconds + 120) for _ in processes]
    sent = requests(url) - before
    for process in processes:
        process.join()
    counts = [len(latencies) - timeouts for latencies, timeouts in found]
    every = sorted(each for latencies, _ in found for each in latencies)
    mean = statistics.mean(counts)
    return (
        f"{writers} writers, {log_partitions} log partitions: {sum(counts) / seconds:.1f} commits/s; a writer at least "
        f"{min(counts)}, mean {mean:.0f}, at most {max(counts)} (least / mean {min(counts) / mean:.2f}); "
        f"{sum(timeouts for _, timeouts in found)} timeouts; median {statistics.median(every):.2f} s, "
        f"longest {every[-1]:.2f} s; requests of a commit: {_shown(sent, max(1, sum(counts)))}"
    )


def measure_requests(url: str, request_ms: float) -> Iterator[str]:
    """The lines of a commit, and of commands."""
    owned = f"s3://{BUCKET}/owned"
    OwnedStore.create(owned, 50)
    with Coordinator.open(owned, housekeeping=False) as coordinator:
        coordinator.commit_offsets("group", {("topic", 0): 0}, timeout_ms=60_000)
        before, begun = requests(url), time.perf_counter()
        commits = 20
        for offset in range(commits):
            coordinator.commit_offsets("group", {("topic", 0): offset}, timeout_ms=60_000)
        seconds = (time.perf_counter() - begun) / commits
        sent = requests(url) - before
    yield f"{request_ms:g} ms: a commit takes {seconds:.2f} s, {_shown(sent, commits)}"
    mirrored = ("--store", f"s3://{BUCKET}/mirrored")
    for command in (
        ("ingest-segments", *mirrored, str(_CAPTURE / "segments")),
        ("fold", *mirrored, "--available-now"),
        ("fold", *mirrored, "--available-now"),
        ("describe", *mirrored, "--all-groups"),
    ):
        before, begun = requests(url), time.perf_counter()
        subprocess.run([OFFSETS, *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        seconds = time.perf_counter() - begun
        yield f"{request_ms:g} ms: {command[0]} takes {seconds:.1f} s, {_shown(requests(url) - before, 1)}"


def measure_followed(url: str, request_ms: float, seconds: float) -> str:
    """Follow a broker's topic for so long; returns a line."""
    store = f"s3://{BUCKET}/followed"
    options = argparse.Namespace(groups=100, partitions=10, rate=100)
    with ended_by_sigterm(), tempfile.TemporaryDirectory(prefix="offsets-requests-") as folder:
        broker = Broker(Path(folder), 50)
        broker.format()
        with broker.serving():
            committer, ended = Committer(broker.address, options.partitions), threading.Event()
            committer.commit_one("group-0", 1)
            follow = ("follow", "--store", store, "--bootstrap-server", broker.address)
            subprocess.run(
                [OFFSETS, *follow, "--available-now"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            go_on_beside = beside(lambda: go_on(committer, ended, options), ended.set)
            with running(Path(folder), *follow), go_on_beside:
                time.sleep(_SETTLE_SECONDS)
                before, committed = requests(url), committer.committed
                time.sleep(seconds)
                sent, commits = requests(url) - before, committer.committed - committed
    dollars = sum(count * _DOLLARS.get(method, _DOLLARS["GET"]) for method, count in sent.items())
    return (
        f"{request_ms:g} ms: follow, {commits / seconds:.0f} commits/s: {_shown(sent, seconds / 60)} a minute; "
        f"{dollars / seconds * _MONTH_SECONDS:.0f} $ a month"
    )


def _shown(sent: Mapping[str, int], of: float) -> str:
    return ", ".join(f"{count / of:.1f} {method}" for method, count in sorted(sent.items()))


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", action="store_true")
    parser.add_argument("--follow", action="store_true")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--request-ms", type=float, nargs="+")
    parser.add_argument("--log-partitions", type=int, nargs="+", default=[50, 1])
    options = parser.parse_args()
    usual = [20, 100] if options.requests else [20] if options.follow else [50]
    for request_ms in options.request_ms or usual:
        with s3_server(request_ms) as url:
            if options.follow:
                print(measure_followed(url, request_ms, options.seconds), flush=True)
                continue
            if options.requests:
                for line in measure_requests(url, request_ms):
                    print(line, flush=True)
                continue
            for log_partitions in options.log_partitions:
                for writers in (options.writers, 1):
                    store = f"s3://{BUCKET}/{log_partitions}-{writers}"
                    print(measure_writers(url, store, log_partitions, writers, options.seconds), flush=True)


if __name__ == "__main__":
    main()
