"""Stores on S3 whose requests are lost, delayed, doubled and refused, and whose processes are killed while they wait.

Commands with Spark write a mirrored store and fold an owned one, to which processes commit meanwhile. No acknowledged
commit is lost, no record stands twice or out of order (R2), and the state is that of the replay by the specification.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, count
from typing import TYPE_CHECKING

import pytest
from pyarrow import fs

from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.store.delta import retry
from tests.coordinator.test_kill import (
    PARTITIONS,
    Writer,
    assert_answers_what_is_in_the_log,
    assert_gapless,
    commits_in,
)
from tests.logs import capture_rows, oracle
from tests.programs import OFFSETS, QUICK, assert_refused, in_process
from tests.spark.segments import write_prefix
from tests.spark.stores import assert_as_reference, differences, log_of, segments_of
from tests.unit.delta.faulty_s3 import FAULTS, BadNetwork, Fault, FaultyS3, program_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from offsets_pipeline.semantics.log_row import LogRow
    from tests.programs import Done

CAPTURE = "4.2.0-kip848"
WRITERS = 2
ATTEMPTS = 30  # of a command
COORDINATOR = "coordinator"
SECOND_COMMIT = "first/log/_delta_log/00000000000000000001.json"
#: Of the requests of an operation with a fault. A table is read commit by commit; Spark's tasks read and write files.
SHARES = {"GET commit": 0.005, "PUT commit": 0.4, "PUT file": 0.3, "GET file": 0.15, "HEAD file": 0.15}


class Coordinators:
    """Processes that commit to an owned store. The next one follows one that was killed or cannot open the store."""

    def __init__(self, store: str, is_enough: Callable[[], bool]) -> None:
        self.acknowledged: list[tuple[str, int]] = []
        self.killed = 0
        self.not_opened: list[str] = []
        self._store = store
        self._is_enough = is_enough
        self._ended = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run them until it is enough."""
        with ThreadPoolExecutor(WRITERS) as threads:
            running = [threads.submit(self._keep_one, slot) for slot in range(WRITERS)]
            try:
                yield
            except BaseException:
                self._ended.set()
                raise
            for each in running:
                each.result()

    def _keep_one(self, slot: int) -> None:
        for number in count():
            if self._ended.is_set() or self._is_enough():
                return
            writer = Writer(self._store, f"s{slot}n{number}", 1_000_000, -1)
            said = writer.first_line()
            if said == "ready\n":
                writer.go()
                while writer.runs():
                    if self._ended.wait(0.02) or self._is_enough():
                        writer.kill()
            status = writer.wait()
            if status == 0:
                self.not_opened.append(said)
            else:
                assert status == -signal.SIGKILL
                self.killed += 1
            self.acknowledged += writer.acknowledged


class Commands:
    """Runs commands, each one again until it succeeds; one that fails says why in one line."""

    def __init__(self, folder: Path) -> None:
        self.errors: list[str] = []
        self.killed = 0
        self._folder = folder
        (folder / "offsets.toml").write_text("[fold]\ndriver_rows = 0\n")  # tasks fold, not the driver

    def run(self, command: Callable[..., Done], *words: str) -> None:
        for _ in range(ATTEMPTS):
            done = command(self._folder, *words, "--config", "offsets.toml")
            if done.returncode == 0:
                return
            if done.returncode == -signal.SIGKILL:
                self.killed += 1
                continue
            error = done.stderr.splitlines()[-1]
            assert (done.returncode, done.stdout) == (1, "")
            assert error.startswith("offsets: error: "), done.stderr
            assert "/offsets_pipeline/" not in done.stderr  # a daemon of PySpark that is killed may tell where it was
            self.errors.append(error)
        raise AssertionError(f"{words} failed {ATTEMPTS} times: {self.errors[-3:]}")


def in_a_group(folder: Path, *words: str) -> Done:
    """Run the installed program in a process group of its own, and end what it leaves behind if it is killed."""
    process = subprocess.Popen(
        [OFFSETS, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **QUICK},
    )
    try:
        process.wait(300)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    out, err = process.communicate()
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def jvm_of(spark: SparkSession) -> int:
    return int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@pytest.fixture(scope="module")
def serving(spark: SparkSession) -> Iterator[tuple[FaultyS3, str]]:
    """One server for all tests: Hadoop keeps the client of a bucket."""
    server = FaultyS3()
    server.spared.add(jvm_of(spark))
    with server.serving("storage-faults") as uri:
        spark.conf.unset("fs.s3a.endpoint")  # that of a server of earlier tests
        yield server, uri


@pytest.fixture
def server(serving: tuple[FaultyS3, str]) -> Iterator[tuple[FaultyS3, str]]:
    serving[0].released.clear()
    serving[0].hits.clear()
    serving[0].victim_of = lambda process: process
    yield serving
    serving[0].settle()


def records_of(capture: str) -> list[LogRow]:
    return list(chain.from_iterable(rows for _, rows in sorted(capture_rows(capture).items())))


def test_a_first_ingest_that_may_have_committed_keeps_its_store(
    server: tuple[FaultyS3, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3, uri = server
    ingest = "ingest-segments", "--store", f"{uri}/first", segments_of(CAPTURE)
    with monkeypatch.context() as patch:
        patch.setattr(retry, "_UNANSWERED_SECONDS", 0.0)
        s3.fault = lambda method, path: Fault.SLOW if method == "PUT" and path.endswith(SECOND_COMMIT) else None
        done = in_process(tmp_path, *ingest)
    assert_refused(done, f"version 1 of {uri}/first/log may have been committed: ")
    s3.settle()  # now the slow request arrives
    done = in_process(tmp_path, *ingest)
    assert (done.returncode, done.stderr) == (0, "")
    assert log_of(f"{uri}/first") == records_of(CAPTURE)


@pytest.mark.slow  # Arrow tries again and again
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault.ERROR_503, "gets too many requests, or is not available now; try again later, or with fewer processes"),
        (Fault.REFUSED, "refused access to the bucket storage-faults; check the credentials and their permissions"),
    ],
)
def test_a_task_that_cannot_read_or_write_a_file_says_why_in_one_line(
    server: tuple[FaultyS3, str], tmp_path: Path, fault: Fault, said: str
) -> None:
    s3, uri = server
    store, segments = f"{uri}/unwritten-{fault.name}", f"{uri}/unwritten-segments"
    fs.copy_files(str(segments_of(CAPTURE)), segments)
    ingest = "ingest-segments", "--store", store, segments

    def of_task(is_one: Callable[[str, str], bool], method: str, path: str) -> Fault | None:
        return fault if is_one(method, path) else None

    def is_read(method: str, path: str) -> bool:
        return method == "GET" and path.endswith(".log") and len(s3.commits) > 1  # later than the command's own look

    def is_written(method: str, path: str) -> bool:
        return method == "PUT" and path.endswith(".parquet") and "/log/" in path

    for is_of_task, what in ((is_read, rf"read {segments}/\S+\.log"), (is_written, f"write to {store}/log")):
        s3.commits.clear()
        s3.fault = partial(of_task, is_of_task)
        done = in_process(tmp_path, *ingest)
        assert (done.returncode, done.stdout) == (1, "")
        assert re.fullmatch(rf"offsets: error: cannot {what}: http://[\d.:]+ {said}\n", done.stderr)
        s3.settle()
    done = in_process(tmp_path, *ingest)
    assert (done.returncode, done.stderr) == (0, "")
    assert log_of(store) == records_of(CAPTURE)


@pytest.mark.slow  # coordinators as processes, and commands with Spark on a server that fails
@pytest.mark.parametrize(
    ("faults", "slow_seconds", "ways", "stages"),
    [
        pytest.param(20, 1.0, [in_process], 1, id="sample"),
        pytest.param(150, 4.0, [in_process, in_process, in_a_group], 2, id="many", marks=pytest.mark.long),
    ],
)
def test_no_record_is_lost_or_stands_twice_after_faults_of_the_storage(
    server: tuple[FaultyS3, str],
    chance: random.Random,
    run_seed: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    faults: int,
    slow_seconds: float,
    ways: list[Callable[..., Done]],
    stages: int,  # in which the capture's segments grow
) -> None:
    """A sample has one ingest, and kills coordinators alone: Spark waits up to a minute for a killed task."""
    s3, uri = server
    if stages == 1:
        s3.victim_of = lambda process: process if program_of(process) == COORDINATOR else None
    monkeypatch.setenv("AWS_TIMEOUT", "800ms")
    s3.slow_seconds = slow_seconds
    owned = f"{uri}/owned"
    OwnedStore.create(owned, PARTITIONS)
    segments = []
    for stage in range(1, stages):
        prefix = write_prefix(segments_of(CAPTURE), tmp_path / f"prefix-{stage}", stage / stages, chance)
        segments.append((f"{uri}/segments-{stage}", prefix))
    segments.append((f"{uri}/segments", segments_of(CAPTURE)))
    for to, folder in segments:
        fs.copy_files(str(folder), to)

    def are_enough(*, of_coordinators: bool) -> bool:
        hits = [times for hit, times in list(s3.hits.items()) if (hit.sender == COORDINATOR) == of_coordinators]
        return sum(hits) >= faults

    def coordinators_are_enough() -> bool:
        return are_enough(of_coordinators=True) and {hit.fault for hit in list(s3.hits)} == {*FAULTS, Fault.KILLED}

    coordinators = Coordinators(owned, coordinators_are_enough)
    commands, mirrored = Commands(tmp_path), list[str]()
    s3.fault = BadNetwork(run_seed, [*FAULTS, *FAULTS, Fault.KILLED], SHARES, 0.04)
    try:
        with coordinators.running():
            way = iter(chain.from_iterable(ways for _ in count()))
            while not are_enough(of_coordinators=False):
                mirrored.append(f"{uri}/mirrored-{len(mirrored)}")
                for to, _ in segments:
                    commands.run(next(way), "ingest-segments", "--store", mirrored[-1], to)
                    commands.run(next(way), "fold", "--store", mirrored[-1], "--available-now")
                commands.run(next(way), "fold", "--store", owned, "--available-now")
                commands.run(next(way), "reload", "--store", chance.choice([mirrored[-1], owned]))
    finally:
        tell(f"seed {run_seed}: {s3.hits.total()} faults")
        for hit, times in sorted(s3.hits.items(), key=str):
            tell(f"{times} {hit.fault.name} {hit.operation} of {hit.sender}")
        tell(f"{len(coordinators.acknowledged)} commits acknowledged, {coordinators.killed} coordinators killed")
        tell(f"{commands.killed} commands killed; errors of commands and of coordinators that could not start:")
        for error in [*commands.errors, *coordinators.not_opened]:
            tell(error)
    s3.settle()
    monkeypatch.setenv("AWS_TIMEOUT", "60s")  # a read of every row may take its time

    for store in mirrored:
        assert log_of(store) == records_of(CAPTURE)
        assert_as_reference(store, records_of(CAPTURE))
        assert differences(store, oracle(CAPTURE)) == []
    assert_gapless(owned)  # first: rows that a compaction doubled have equal record offsets, doubled commits have not
    in_log = Counter(commits_in(owned))
    assert set(in_log.values()) == {1}
    assert {(group, partition, at) for group, at in coordinators.acknowledged for partition in (0, 1)} <= set(in_log)
    assert_answers_what_is_in_the_log(owned)
    commands.run(in_process, "fold", "--store", owned, "--available-now")
    assert_as_reference(owned, log_of(owned))
