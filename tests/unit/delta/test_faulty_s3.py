"""The server with faults does what it counts, also for many threads at once."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.unit.delta.faulty_s3 import FAULTS, BadNetwork, Fault, FaultyS3, Hit

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

THREADS, REQUESTS = 16, 400
BROKEN = 0  # in place of the status of an answer
KEY = {"Authorization": "AWS test:test"}
PUT = f"import sys, urllib.request as r; r.urlopen(r.Request(sys.argv[1], b'contents', {KEY}, method='PUT'))"


@pytest.fixture
def server() -> Iterator[FaultyS3]:
    server = FaultyS3()
    with server.serving("counted"):
        yield server


def status_of(method: str, key: str) -> int:
    """The status of the answer to one request, without a retry."""
    connection = http.client.HTTPConnection(os.environ["AWS_ENDPOINT_URL"].partition("://")[2], timeout=30)
    try:
        connection.request(method, f"/counted/{key}", b"contents" if method == "PUT" else None, KEY)
        return connection.getresponse().status
    except (http.client.RemoteDisconnected, ConnectionResetError):
        return BROKEN
    finally:
        connection.close()


def test_each_fault_of_many_threads_happens_and_is_counted_once(server: FaultyS3, chance: random.Random) -> None:
    server.slow_seconds = 0.01
    server.fault = BadNetwork(chance.randrange(2**32), [*FAULTS, Fault.KILLED], {"PUT file": 0.5}, 0.0)
    with ThreadPoolExecutor(THREADS) as threads:
        answers = list(threads.map(status_of, ["PUT"] * REQUESTS, map(str, range(REQUESTS))))
    server.settle()
    hits = {hit.fault: times for hit, times in server.hits.items()}
    assert set(server.hits) == {Hit(fault, "PUT file", "program") for fault in FAULTS}  # this process is spared
    assert Counter(answers) == {
        BROKEN: hits[Fault.LOST_REQUEST] + hits[Fault.LOST_ANSWER],
        500: hits[Fault.ERROR_500],
        503: hits[Fault.ERROR_503],
        200: REQUESTS - sum(hits.values()) + hits[Fault.SLOW] + hits[Fault.DOUBLED],
    }
    missing = Counter(answers[key] for key in range(REQUESTS) if status_of("HEAD", str(key)) == 404)
    assert missing == {BROKEN: hits[Fault.LOST_REQUEST], 503: hits[Fault.ERROR_503]}


def test_a_process_is_killed_while_its_request_is_under_way(server: FaultyS3) -> None:  # SIGKILL takes a process
    server.fault = lambda *_: Fault.KILLED
    place = f"{os.environ['AWS_ENDPOINT_URL']}/counted/written"
    done = subprocess.run([sys.executable, "-c", PUT, place], check=False, timeout=60)
    server.settle()
    assert done.returncode == -signal.SIGKILL
    assert server.hits == {Hit(Fault.KILLED, "PUT file", "program"): 1}
    assert status_of("HEAD", "written") == 200
