"""Slow, lost, doubled and refused requests to an object store: no acknowledged commit is lost or stands twice."""

from __future__ import annotations

import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

import pytest
from pyarrow import fs

from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.errors import (
    ConfigError,
    CoordinatorNotAvailable,
    RequestTimedOut,
    StorageFailed,
    WriteConflict,
)
from offsets_pipeline.store.delta import retry, table_folder
from offsets_pipeline.store.delta.schemas import LOG_PARTITIONS
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.delta.upkeep import compact
from tests.unit.coordinator.states import at
from tests.unit.coordinator.stores import log_of, opened
from tests.unit.delta.faulty_s3 import FAULTS, BadNetwork, Fault, FaultyS3, is_commit
from tests.unit.delta.test_table_folder import again, append, numbers
from tests.waiting import wait_until

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Mapping, Sequence

    from offsets_pipeline.coordinator.coordinator import Coordinator
    from offsets_pipeline.semantics.log_row import LogRow


@pytest.fixture(scope="module")
def serving() -> Iterator[tuple[FaultyS3, str]]:
    server = FaultyS3()
    with server.serving("faults") as uri:
        yield server, uri


@pytest.fixture
def server(serving: tuple[FaultyS3, str]) -> Iterator[FaultyS3]:
    server, _ = serving
    server.released.clear()
    server.slow_seconds = 60.0
    server.hits.clear()
    server.commits.clear()
    yield server
    server.settle()


@pytest.fixture
def s3_store(serving: tuple[FaultyS3, str], server: FaultyS3) -> str:
    """An empty owned store of three log partitions."""
    store = f"{serving[1]}/{uuid.uuid4()}"
    OwnedStore.create(store, 3)
    return store


def first_commits(server: FaultyS3, *faults: Fault) -> None:
    """The next commits have these faults, one each; later ones have none."""
    left = list(faults)
    server.commits.clear()
    server.fault = lambda method, path: left.pop(0) if left and is_commit(method, path) else None


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a commit without an answer again only once."""
    monkeypatch.setattr(retry, "_UNANSWERED_SECONDS", 0.0)


def patient(store: str) -> Coordinator:
    """A coordinator whose commits do not time out before the storage answers."""
    return opened(store, offsets_commit_timeout_ms=60_000)


def assert_first_took_the_version(commits: Sequence[str]) -> None:
    """Only the first of these requests to create a commit succeeded."""
    assert len(commits) > 1
    assert commits[0] == "200 OK"
    assert set(commits[1:]) == {"412 PRECONDITION FAILED"}


def offsets_of(store: str) -> list[int | None]:
    """The committed offsets of group g as a new coordinator reads them, after a read of every row."""
    assert_without_gaps(log_of(store))
    with patient(store) as coordinator:
        return [each.offset for each in coordinator.fetch_offsets("g").values()]


def assert_without_gaps(log: Mapping[int, Sequence[LogRow]]) -> None:
    """No record offset is missing or given twice (R2)."""
    for rows in log.values():
        assert [row.record_offset for row in rows] == list(range(len(rows)))


def test_a_commit_that_outlives_the_clients_timeout_stands_once(server: FaultyS3, s3_store: str) -> None:
    with patient(s3_store) as coordinator:
        first_commits(server, Fault.SLOW)
        coordinator.commit_offsets("g", {("t", 0): 1})
        server.settle()  # now the slow request arrives
        assert_first_took_the_version(server.commits)
        coordinator.commit_offsets("g", {("t", 0): 2})
    assert offsets_of(s3_store) == [2]
    assert sum(map(len, log_of(s3_store).values())) == 2


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.ERROR_500])
def test_a_commit_that_arrived_without_an_answer_is_acknowledged(server: FaultyS3, s3_store: str, fault: Fault) -> None:
    with patient(s3_store) as coordinator:
        first_commits(server, fault)
        coordinator.commit_offsets("g", {("t", 0): 1})
    assert server.commits == ["200 OK"]
    assert offsets_of(s3_store) == [1]


@pytest.mark.parametrize("fault", [Fault.SLOW, Fault.LOST_REQUEST, Fault.ERROR_503])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_commit_that_stays_unknown_keeps_its_records_if_it_arrives(
    server: FaultyS3, s3_store: str, monkeypatch: pytest.MonkeyPatch, fault: Fault, is_restarted: bool
) -> None:
    """Also if the coordinator was killed while its request was on its way, and started again."""
    impatient(monkeypatch)
    with patient(s3_store) as coordinator:
        first_commits(server, fault, Fault.SLOW)
        with pytest.raises(RequestTimedOut, match=r"may have been committed: http://.* does not answer; check AWS_"):
            coordinator.commit_offsets("g", {("t", 0): 1})
        server.settle()
        if not is_restarted:
            assert coordinator.fetch_offsets("g")[at("t", 0)].offset == 1
            coordinator.commit_offsets("g", {("t", 0): 2})
    assert offsets_of(s3_store) == [1 if is_restarted else 2]


def test_a_restarted_coordinator_takes_the_version_of_a_request_that_is_on_its_way(
    server: FaultyS3, s3_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    with patient(s3_store) as coordinator:
        first_commits(server, Fault.SLOW, Fault.SLOW)
        with pytest.raises(RequestTimedOut):
            coordinator.commit_offsets("g", {("t", 0): 1})
        with patient(s3_store) as again:
            again.commit_offsets("g", {("t", 1): 2})
        server.settle()
        assert_first_took_the_version(server.commits)
        assert coordinator.fetch_offsets("g")[at("t", 1)].offset == 2
        coordinator.commit_offsets("g", {("t", 1): 3})
    assert offsets_of(s3_store) == [3]
    assert sum(map(len, log_of(s3_store).values())) == 2


def test_a_table_is_created_although_answers_are_lost(server: FaultyS3, s3_store: str) -> None:
    first_commits(server, Fault.ERROR_500, Fault.ERROR_503)
    assert TableFolder(f"{s3_store}/made", LOG_PARTITIONS).create()
    assert_first_took_the_version(server.commits)


def test_a_refused_commit_leaves_no_file(server: FaultyS3, s3_store: str) -> None:
    with patient(s3_store) as coordinator:
        first_commits(server, Fault.REFUSED)
        with pytest.raises(CoordinatorNotAvailable, match=r"cannot write to .* refused access .*; it was not written$"):
            coordinator.commit_offsets("g", {("t", 0): 1})
    assert server.commits == []
    assert data_files(s3_store) == set()


def test_a_request_that_fails_is_told_in_one_line(
    server: FaultyS3, s3_store: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = TableFolder(f"{s3_store}/{LOG_PARTITIONS.name}", LOG_PARTITIONS)
    seen = table.snapshot()
    server.fault = lambda method, path: Fault.REFUSED if method == "DELETE" or is_commit(method, path) else None
    with pytest.raises(StorageFailed, match=r"^cannot write to .*: http://.* refused access to .*; check .*s$"):
        append(table, 1, seen=seen)

    def said() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.name == table_folder.__name__]

    wait_until("the removal has failed", said)
    (text,) = said()
    assert re.fullmatch(r"cannot remove an unused file of .* \(.* 403 Forbidden:\); VACUUM removes it", text)
    server.fault = lambda *_: Fault.REFUSED
    with pytest.raises(StorageFailed, match=r"^cannot read the table .*: http://.* refused access .*; check .*s$"):
        again(table).snapshot()


def test_a_look_for_waiting_writers_that_takes_long_delays_no_commit(server: FaultyS3, s3_store: str) -> None:
    server.fault = lambda _, path: Fault.SLOW if path.endswith("/.waiting") else None
    with opened(s3_store, offsets_commit_timeout_ms=2_000) as coordinator:
        for offset in range(3):
            coordinator.commit_offsets("g", {("t", 0): offset})
    assert {hit.fault for hit in server.hits} == {Fault.SLOW}


def test_a_timeout_of_the_environment_that_is_no_duration_is_refused_in_one_line(
    s3_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_TIMEOUT", "soon")
    with pytest.raises(ConfigError, match=r'^wrong variable AWS_TIMEOUT: it is not a duration, as "10s" or "500ms"; '):
        OwnedStore.open(s3_store)


def data_files(store: str) -> set[str]:
    """The data files in the folder of the log, also those that no commit names."""
    system, path = fs.FileSystem.from_uri(f"{store}/log")
    return {each.base_name for each in system.get_file_info(fs.FileSelector(path)) if each.extension == "parquet"}


# --- many faults

WORKERS = 3


class Work:
    """Work of threads, until the server has had enough faults."""

    def __init__(self, server: FaultyS3, enough: int) -> None:
        self._server = server
        self._enough = enough

    def numbers(self, worker: int) -> Iterator[int]:
        """Yield numbers that no other worker has, until there were enough faults."""
        for number in count(worker, WORKERS):
            if self._server.hits.total() >= self._enough:
                return
            yield number

    def committed(self, coordinator: Coordinator, worker: int) -> set[int]:
        """Commit each number as the offset of a partition of its own; returns those that were acknowledged."""
        done = set()
        for number in self.numbers(worker):
            with suppress(RequestTimedOut, CoordinatorNotAvailable):
                coordinator.commit_offsets(f"group {worker}", {("t", number): number})
                done.add(number)
        return done

    def written(self, folder: TableFolder, worker: int) -> set[int]:
        """Append a row for each number; the first worker compacts, too. Returns those that were acknowledged."""
        done = set()
        for number in self.numbers(worker):
            with suppress(StorageFailed, WriteConflict):
                append(folder, number)
                done.add(number)
                if worker == 0 and len(done) % 3 == 0:
                    compact(folder)
        return done


@pytest.mark.slow  # 300 faults for six threads: most of the time is the server's
@pytest.mark.parametrize("faults", [300, pytest.param(3_000, marks=pytest.mark.long)])
def test_no_acknowledged_commit_is_lost_or_stands_twice_after_many_faults(
    server: FaultyS3, s3_store: str, chance: random.Random, monkeypatch: pytest.MonkeyPatch, faults: int
) -> None:
    """Three coordinators of one store, and three writers of another table, through one bad network."""
    rows = TableFolder(f"{s3_store}/rows", LOG_PARTITIONS)
    rows.create()
    server.slow_seconds = 0.25
    with monkeypatch.context() as patch, ThreadPoolExecutor(2 * WORKERS) as threads:
        patch.setattr(retry, "_UNANSWERED_SECONDS", 0.3)
        patch.setenv("AWS_TIMEOUT", "100ms")
        coordinators = [patient(s3_store) for _ in range(WORKERS)]
        server.fault = BadNetwork(chance.randrange(2**32), FAULTS, {"PUT commit": 0.8}, 0.12)
        work = Work(server, faults)
        committing = threads.map(work.committed, coordinators, range(WORKERS))
        writing = threads.map(work.written, map(again, [rows] * WORKERS), range(WORKERS))
        committed, written = list(committing), list(writing)
        server.settle()
        for each in coordinators:
            each.close()

    monkeypatch.setenv("AWS_TIMEOUT", "60s")  # a read of every row may take its time
    assert {hit.fault for hit in server.hits} == set(FAULTS)
    found = numbers(rows)
    assert len(found) == len(set(found))
    assert set().union(*written) <= set(found)
    log = log_of(s3_store)
    assert_without_gaps(log)
    keys = [row.key for of_partition in log.values() for row in of_partition]
    assert len(keys) == len(set(keys))  # a commit without an answer is not made twice either
    with patient(s3_store) as coordinator:
        for worker, offsets in enumerate(committed):
            answer = coordinator.fetch_offsets(f"group {worker}")
            assert all(where.partition == each.offset for where, each in answer.items())
            assert offsets <= {each.offset for each in answer.values()}
