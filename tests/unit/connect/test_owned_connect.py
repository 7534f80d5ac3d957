"""An owned store for Connect: backing store, reader, writer, committer and management (R30 to R32)."""

from __future__ import annotations

import io
import json
import threading
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.cli.opened import open_beside
from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.connect.connect_log import ConnectLog
from offsets_pipeline.connect.offset_backing_store import (
    OffsetBackingStore,
    OffsetStorageReader,
    OffsetStorageWriter,
)
from offsets_pipeline.connect.offset_committer import FlushSettings, OffsetCommitter, initialize_offsets
from offsets_pipeline.connect.offset_management import OffsetManagement, OffsetManagementClient
from offsets_pipeline.connect.target_states import PAUSED, RUNNING, STOPPED
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.owned_log import Record
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.coordinator.requests import Outcome
from offsets_pipeline.errors import (
    BadConnectRequest,
    ConnectorExists,
    ConnectorStopped,
    CoordinatorNotAvailable,
    FlushInProgress,
    InvalidRequest,
    NoSuchConnector,
    NoSuchOffset,
    StorageFailed,
    StoreMismatch,
)
from offsets_pipeline.kafka.record.corrupt import CorruptRecord
from offsets_pipeline.questions.query.connectors import describe_connector
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics.connect_keys import offset_key
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.properties import MIRRORED, OWNED, StoreProperties
from offsets_pipeline.store.delta.store_folder import create_tables
from tests.places import remove_place
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from offsets_pipeline.store.delta.snapshot import Commit

A, B = {"filename": "/a"}, {"filename": "/é"}
NOT_STOPPED = (
    "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for the specified "
    "connector by issuing a 'PUT' request to the '/connectors/files/stop' endpoint"
)


@pytest.fixture
def location(place: Path) -> Path:
    """An empty owned store."""
    ConnectLog.create(place / "owned", "lab", 3)
    return place / "owned"


@pytest.fixture
def backing(location: Path) -> Iterator[OffsetBackingStore]:
    """The store, started."""
    with OffsetBackingStore(location) as started:
        yield started


def flushed(backing: OffsetBackingStore, connector: str, *offsets: tuple[Any, Any]) -> None:
    """Flush offsets of a connector."""
    writer = OffsetStorageWriter(backing, connector)
    for partition, offset in offsets:
        writer.offset(partition, offset)
    assert writer.begin_flush()
    writer.do_flush().result(10)


class FakeBacking:
    """Holds values; a flush ends when the test says so, or at once with ``is_there`` or ``error``."""

    def __init__(self) -> None:
        self.is_there = False
        self.error: Exception | None = None
        self.values: dict[bytes, bytes | None] = {}
        self.sets: list[tuple[dict[bytes, bytes | None], Future[None]]] = []

    def stopped_at(self, _: str) -> int:
        """No connector was stopped."""
        return -1

    def set(self, values: dict[bytes, bytes | None], *_: float) -> Future[None]:
        """Begin a flush."""
        done: Future[None] = Future()
        self.sets.append((dict(values), done))
        if self.is_there or self.error is not None:
            self.end(-1, None if self.is_there else self.error)
        return done

    def end(self, number: int, error: Exception | None = None) -> None:
        """End a flush."""
        values, done = self.sets[number]
        if error is None:
            self.values |= values
            done.set_result(None)
        else:
            done.set_exception(error)


def in_memory() -> tuple[FakeBacking, OffsetStorageWriter]:
    """A writer without a store."""
    backing = FakeBacking()
    return backing, OffsetStorageWriter(backing, "files")  # type: ignore[arg-type]


# --- backing store and reader


def test_what_was_set_is_there_for_other_processes_and_after_a_restart(location: Path) -> None:
    key = offset_key("files", A)
    with OffsetBackingStore(location) as one, OffsetBackingStore(location) as other:
        one.set({key: b'{"position":1}', offset_key("files", B): b'{"position":2}'}).result(10)
        assert other.get([key, b'["x",{}]']) == {key: b'{"position":1}', b'["x",{}]': None}
        other.set({key: None}).result(10)
        assert one.get([key]) == {key: None}
        assert one.connector_partitions("files") == [B]
    with OffsetBackingStore(location) as again:
        assert again.get([key]) == {key: None}
        assert OffsetStorageReader(again, "files").offsets([B, A]) == [{"position": 2}, None]


def test_offsets_of_a_reordered_partition_are_the_same(backing: OffsetBackingStore) -> None:
    flushed(backing, "files", ({"a": 1, "b": 2}, {"p": 1}))
    assert OffsetStorageReader(backing, "files").offset({"b": 2, "a": 1}) == {"p": 1}
    assert OffsetStorageReader(backing, "other").offset({"b": 2, "a": 1}) is None


def test_a_flush_is_one_commit(backing: OffsetBackingStore) -> None:
    before = backing.log._log.version
    flushed(backing, "files", *(({"n": number}, {"p": number}) for number in range(50)))
    assert backing.log._log.version == before + 1
    assert len(backing.connector_partitions("files")) == 50
    assert backing.set({}).result(0) is None
    flushed(backing, "other", (None, {"p": 1}), (A, {"p": 2}))
    assert backing.connector_partitions("other") == [A]
    assert OffsetStorageReader(backing, "other").offsets([None, A]) == [{"p": 1}, {"p": 2}]
    assert backing.log._log.version == before + 2


def test_requests_that_change_nothing_append_nothing(backing: OffsetBackingStore) -> None:
    management, config = OffsetManagement(backing.log), {"connector.class": "x.FileStreamSource"}
    answer = {"name": "files", "config": {**config, "name": "files"}, "tasks": [], "type": "source"}
    assert management.put_config("files", config, STOPPED) == (True, answer)
    before = backing.log._log.version
    assert management.put_config("files", config) == (False, answer)
    management.set_target_state("files", STOPPED)
    management.reset("files")
    assert backing.log._log.version == before
    with pytest.raises(ConnectorExists, match=r"^Connector files already exists$"):
        management.put_config("files", config, allow_replace=False)
    assert management.put_config("files", config | {"a": "b"}, PAUSED)[0] is False
    assert management.target_states() == {"files": PAUSED}


def test_malformed_keys_and_values_are_refused(backing: OffsetBackingStore) -> None:
    for values in ({b"files": b"{}"}, {b'["c"]': b"{}"}, {b'["c",{}]': b"1"}):
        with pytest.raises(CorruptRecord):
            backing.set(values)
    writer = OffsetStorageWriter(backing, "files")
    for partition, offset, part in (
        ("p", {}, "key"),
        ({"f": b"a"}, {}, "key"),
        ({}, {"x": float("nan")}, "value"),
        ({}, 5, "value"),  # queued, it would fail every flush
    ):
        with pytest.raises(CorruptRecord, match=f"^{part}: "):
            writer.offset(partition, offset)  # type: ignore[arg-type]
    assert not writer.begin_flush()


def test_a_store_that_is_not_started_says_so(location: Path) -> None:
    backing = OffsetBackingStore(location)
    with pytest.raises(InvalidRequest, match="call start first"):
        backing.get([])
    backing.stop()


def test_a_store_that_is_stopped_has_closed_its_log(location: Path) -> None:
    backing = OffsetBackingStore(location)
    backing.start()
    log = backing.log
    backing.stop()
    with pytest.raises(CoordinatorNotAvailable, match="is closed"):
        log.submit("a commit", lambda _: Outcome([], None), {})


def test_stores_of_groups_and_of_connect_refuse_each_other(location: Path, place: Path) -> None:
    with pytest.raises(StoreMismatch, match="holds a topic of the kind connect, but this command needs consumer-off"):
        Coordinator.open(location)
    OwnedStore.create(place / "groups", 3)
    with pytest.raises(StoreMismatch, match="holds a topic of the kind consumer-offsets, but this command needs conn"):
        OffsetBackingStore(place / "groups").start()


# --- writer, R31


def test_newer_values_win_over_those_of_a_cancelled_flush() -> None:
    backing, writer = in_memory()
    writer.offset(A, {"p": 1})
    writer.offset(B, {"p": 1})
    assert writer.begin_flush()
    done = writer.do_flush()
    writer.offset(A, {"p": 2})
    writer.cancel_flush()
    assert writer.queued == 2
    assert not done.done()
    assert writer.begin_flush()
    writer.do_flush()
    backing.end(0)  # late: the flush was cancelled
    with pytest.raises(FlushInProgress):
        writer.begin_flush()
    backing.end(1)
    assert backing.values == {offset_key("files", A): b'{"p":2}', offset_key("files", B): b'{"p":1}'}
    assert not writer.begin_flush()


def test_a_failed_flush_queues_its_offsets_again() -> None:
    backing, writer = in_memory()
    writer.offset(A, {"p": 1})
    assert writer.begin_flush()
    writer.do_flush()
    backing.end(0, CoordinatorNotAvailable("away"))
    assert writer.queued == 1
    assert writer.begin_flush()

    def refusing(*_: object) -> Future[None]:
        raise ConnectorStopped("files is STOPPED")

    backing.set = refusing  # type: ignore[assignment]
    with pytest.raises(ConnectorStopped):
        writer.do_flush().result(0)
    assert writer.queued == 1


def test_one_flush_at_a_time() -> None:
    _, writer = in_memory()
    with pytest.raises(InvalidRequest):
        writer.do_flush()
    writer.offset(A, {"p": 1})
    assert writer.begin_flush()
    with pytest.raises(FlushInProgress):
        writer.begin_flush()


def test_the_next_flush_may_begin_as_soon_as_a_flush_is_done() -> None:
    backing, writer = in_memory()
    may_tell = threading.Event()

    class Written(Future[None]):
        """Wakes who waits for its result before it calls back, as futures do."""

        def _invoke_callbacks(self) -> None:
            assert may_tell.wait(10)
            super()._invoke_callbacks()  # type: ignore[misc]

    written = Written()
    backing.set = lambda *_: written  # type: ignore[method-assign]
    writer.offset(A, {"p": 1})
    assert writer.begin_flush()
    done = writer.do_flush()
    thread = threading.Thread(target=written.set_result, args=(None,))
    thread.start()
    written.result(10)
    assert not done.done()
    writer.offset(A, {"p": 2})
    may_tell.set()
    done.result(10)
    assert writer.begin_flush()
    thread.join()


def test_a_callback_of_a_flush_cannot_wait_for_another_one(backing: OffsetBackingStore) -> None:
    writer, other = OffsetStorageWriter(backing, "files"), OffsetStorageWriter(backing, "other")
    begun: list[Future[None]] = []
    refused: Future[list[str]] = Future()

    def flush_others(done: Future[None]) -> None:
        messages = []
        begun.append(backing.set({offset_key("set", A): b'{"p":1}'}))
        begun.append(other.do_flush())
        for wait in (begun[0].result, begun[0].exception, begun[1].result, begun[1].exception):
            try:
                wait()
            except InvalidRequest as error:
                messages.append(str(error))
        assert done.exception() is None  # a flush that is done has a result everywhere
        refused.set_result(messages)

    other.offset(B, {"p": 2})
    assert other.begin_flush()
    writer.offset(A, {"p": 3})
    assert writer.begin_flush()
    writer.do_flush().add_done_callback(flush_others)
    message = "a callback of a request cannot wait for another one: it would wait for itself; add a callback to that"
    assert refused.result(10) == [message] * 4
    assert [each.result(10) for each in begun] == [None, None]
    assert OffsetStorageReader(backing, "other").offset(B) == {"p": 2}


def test_a_flush_is_cancelled_if_its_append_has_not_begun(backing: OffsetBackingStore) -> None:
    reached, may_end = threading.Event(), threading.Event()

    def handler(_: int) -> Outcome[None]:
        reached.set()
        assert may_end.wait(10)
        return Outcome([], None)

    backing.log.submit("a slow request", handler, {})
    assert reached.wait(10)
    late, queued = (backing.set({offset_key("files", each): b'{"p":1}'}) for each in (A, B))
    assert late.cancel()
    assert late.cancelled()
    may_end.set()
    with pytest.raises(CancelledError):
        late.result(10)
    queued.result(10)
    assert not queued.cancel()
    assert backing.connector_partitions("files") == [B]


# --- committer


class Clock:
    """A clock that a test moves; seconds."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_flushes_come_by_interval_by_count_and_at_the_end() -> None:
    backing, writer = in_memory()
    backing.is_there = True
    clock = Clock()
    committer = OffsetCommitter(writer, FlushSettings(10_000, 1_000, offset_flush_records=3), clock)
    committer.record(A, {"p": 1})
    clock.now = 9.9
    assert not committer.commit_if_due()
    assert backing.values == {}
    clock.now = 10.0
    assert committer.commit_if_due()
    assert list(backing.values.values()) == [b'{"p":1}']
    for position in (2, 3):
        committer.record(A, {"p": position})
    assert list(backing.values.values()) == [b'{"p":1}']
    committer.record(A, {"p": 4})
    assert list(backing.values.values()) == [b'{"p":4}']
    committer.record(A, {"p": 5})
    assert committer.close()
    assert list(backing.values.values()) == [b'{"p":5}']


def test_a_flush_that_takes_too_long_is_cancelled_and_nothing_is_lost() -> None:
    backing, writer = in_memory()
    committer = OffsetCommitter(writer, FlushSettings(0, 1))
    committer.record(A, {"p": 1})
    assert not committer.commit()
    assert writer.queued == 1
    committer.record(A, {"p": 2})
    backing.is_there = True
    assert committer.close()
    assert list(backing.values.values()) == [b'{"p":2}']


def test_a_flush_that_ctrl_c_interrupts_is_made_by_close() -> None:
    backing, writer = in_memory()

    class Interrupted(Future[None]):
        """Ctrl-C while the task waits for the flush."""

        def result(self, _: float | None = None) -> None:
            raise KeyboardInterrupt

    do_flush = writer.do_flush
    writer.do_flush = lambda *_: Interrupted()  # type: ignore[method-assign]
    committer = OffsetCommitter(writer)
    committer.record(A, {"p": 1})
    with pytest.raises(KeyboardInterrupt):
        committer.commit()
    writer.do_flush = do_flush  # type: ignore[method-assign]
    backing.is_there = True
    assert committer.close()
    assert list(backing.values.values()) == [b'{"p":1}']


def test_a_store_that_is_away_loses_no_queued_offset(backing: OffsetBackingStore) -> None:
    writer = OffsetStorageWriter(backing, "files")
    committer = OffsetCommitter(writer)
    committer.record(A, {"p": 1})
    write, away = backing.log._log.write, threading.Event()
    away.set()

    def failing(*arguments: Any, **options: Any) -> list[Commit]:  # noqa: ANN401
        if away.is_set():
            raise OSError("storage is away")
        return write(*arguments, **options)

    backing.log._log.write = failing  # type: ignore[method-assign]
    assert not committer.commit()
    assert writer.queued == 1
    away.clear()
    assert committer.commit()
    assert OffsetStorageReader(backing, "files").offset(A) == {"p": 1}


def test_while_a_store_is_away_each_interval_tries_again_and_nothing_queued_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backing, writer = in_memory()
    clock = Clock()
    committer = OffsetCommitter(writer, FlushSettings(10_000, 1), clock)
    errors = [CoordinatorNotAvailable("away"), None, StorageFailed("away"), None]  # None: no answer in time
    expected: dict[bytes, bytes | None] = {}
    for number, error in enumerate(errors):
        for partition in (A, {"filename": f"/{number}"}):
            committer.record(partition, {"p": number})
            expected[offset_key("files", partition)] = f'{{"p":{number}}}'.encode()
        clock.now += 9.9
        assert not committer.commit_if_due()
        assert len(backing.sets) == number
        clock.now += 0.1
        backing.error = error
        assert not committer.commit_if_due()
        assert backing.sets[number][0] == expected  # all that was queued, each with its newest offset
    assert backing.values == {}
    assert writer.queued == len(errors) + 1
    reasons = ["away", "it took more than 1 ms"] * 2
    assert caplog.messages == [f"the flush of offsets failed: {reason}; they stay queued" for reason in reasons]
    backing.is_there = True
    clock.now += 10
    assert committer.commit_if_due()
    for number in range(len(errors)):  # late answers to cancelled flushes change nothing
        if not backing.sets[number][1].done():
            backing.end(number, StorageFailed("late"))
    assert (backing.values, writer.queued) == (expected, 0)


def test_a_store_that_answers_late_has_the_newest_offsets(backing: OffsetBackingStore) -> None:
    writer = OffsetStorageWriter(backing, "files")
    committer = OffsetCommitter(writer, FlushSettings(offset_flush_timeout_ms=50))
    write, is_back = backing.log._log.write, threading.Event()

    def hanging(*arguments: Any, **options: Any) -> list[Commit]:  # noqa: ANN401
        assert is_back.wait(10)
        return write(*arguments, **options)

    backing.log._log.write = hanging  # type: ignore[method-assign]
    for number in range(3):  # the first one hangs, the others wait behind it
        committer.record(A, {"p": number})
        committer.record({"filename": f"/{number}"}, {"p": number})
        assert not committer.commit()
    is_back.set()
    assert OffsetCommitter(writer, FlushSettings(offset_flush_timeout_ms=10_000)).close()
    found = OffsetStorageReader(backing, "files").offsets([A, *({"filename": f"/{number}"} for number in range(3))])
    assert found == [{"p": 2}, {"p": 0}, {"p": 1}, {"p": 2}]


def test_flushes_of_several_threads_come_one_after_the_other() -> None:
    backing, writer = in_memory()
    committer = OffsetCommitter(writer, FlushSettings(offset_flush_timeout_ms=10_000))
    committer.record(A, {"p": 1})
    first = threading.Thread(target=committer.commit)
    first.start()
    wait_until("the first flush", lambda: backing.sets)
    committer.record(B, {"p": 2})
    second = threading.Thread(target=committer.commit)
    second.start()
    with pytest.raises(FlushInProgress):  # the flush of the first is not ended
        writer.begin_flush()
    assert len(backing.sets) == 1
    backing.is_there = True
    backing.end(0)
    for thread in (first, second):
        thread.join(10)
    assert [values for values, _ in backing.sets] == [
        {offset_key("files", A): b'{"p":1}'},
        {offset_key("files", B): b'{"p":2}'},
    ]
    assert writer.queued == 0


def test_the_thread_flushes_by_interval(backing: OffsetBackingStore) -> None:
    writer = OffsetStorageWriter(backing, "files")
    with OffsetCommitter(writer, FlushSettings(offset_flush_interval_ms=1)) as committer:
        committer.start()
        committer.record(A, {"p": 1})
        reader = OffsetStorageReader(backing, "files")
        wait_until("a flush", lambda: reader.offset(A) is not None)


# --- recovery


def test_a_task_resumes_after_the_last_flush_or_as_offset_reset_says(backing: OffsetBackingStore) -> None:
    flushed(backing, "files", (A, {"p": 7}))
    reader = OffsetStorageReader(backing, "files")

    def positions(_: object, which: str) -> dict[str, int]:
        return {"p": {"earliest": 0, "latest": 99}[which]}

    assert initialize_offsets(reader, [A, B], "earliest", positions) == [{"p": 7}, {"p": 0}]
    assert initialize_offsets(reader, [A, B], "latest", positions) == [{"p": 7}, {"p": 99}]
    assert initialize_offsets(reader, [A, B], {"p": 5}) == [{"p": 7}, {"p": 5}]
    assert initialize_offsets(reader, [B]) == [None]
    with pytest.raises(InvalidRequest, match="'latest' needs the function positions"):
        initialize_offsets(reader, [A], "latest")
    assert initialize_offsets(reader, [A], "none") == [{"p": 7}]
    with pytest.raises(NoSuchOffset, match=r"offset\.reset is none"):
        initialize_offsets(reader, [A, B], "none")
    for wrong in ("first", None, 5):
        with pytest.raises(InvalidRequest, match="it takes earliest, latest, none or an offset"):
            initialize_offsets(reader, [A], wrong)  # type: ignore[arg-type]


# --- management, R32


def test_offsets_are_altered_and_reset_only_while_stopped(backing: OffsetBackingStore) -> None:
    flushed(backing, "files", (A, {"p": 1}), (B, {"p": 1}))
    management = OffsetManagement(backing.log)
    change = [{"partition": A, "offset": {"p": 5}}]
    for state in (RUNNING, PAUSED):
        management.set_target_state("files", state)
        requests: list[Callable[[], object]] = [
            lambda: management.alter("files", change),
            lambda: management.reset("files"),
        ]
        for request in requests:
            with pytest.raises(BadConnectRequest) as refused:
                request()
            assert str(refused.value) == NOT_STOPPED
    management.set_target_state("files", STOPPED)
    assert management.target_states() == {"files": STOPPED}
    with pytest.raises(BadConnectRequest, match=r"^Partitions / offsets need to be provided for an alter offsets requ"):
        management.alter("files", [])
    assert management.alter("files", change) == "The offsets for this connector have been altered successfully"
    assert management.offsets("files")["offsets"] == [
        {"partition": A, "offset": {"p": 5}},
        {"partition": B, "offset": {"p": 1}},
    ]
    new = {"partition": {"filename": "/new"}, "offset": {"p": 3}}
    management.alter("files", [new, {"partition": A, "offset": None}, {"partition": {"no": "such"}, "offset": None}])
    assert management.offsets("files")["offsets"] == [new, {"partition": B, "offset": {"p": 1}}]
    for _ in range(2):
        assert management.reset("files") == "The offsets for this connector have been reset successfully"
    assert management.offsets("files") == {"offsets": []}


def test_a_stopped_connector_takes_no_flush_and_its_offsets_stay_queued(backing: OffsetBackingStore) -> None:
    flushed(backing, "files", (A, {"p": 1}))
    OffsetManagement(backing.log).set_target_state("files", STOPPED)
    writer = OffsetStorageWriter(backing, "files")
    writer.offset(A, {"p": 2})
    assert writer.begin_flush()
    with pytest.raises(ConnectorStopped):
        writer.do_flush().result(10)
    assert writer.queued == 1
    flushed(backing, "other", (A, {"p": 2}))
    OffsetManagement(backing.log).set_target_state("files", RUNNING)
    assert OffsetCommitter(writer).commit()
    assert OffsetStorageReader(backing, "files").offset(A) == {"p": 2}


@pytest.mark.parametrize("is_read_again", [False, True])
def test_a_writer_ends_with_a_stop_that_it_did_not_see(location: Path, *, is_read_again: bool) -> None:
    with OffsetBackingStore(location) as task, ConnectLog.open(location) as operator:
        flushed(task, "files", (A, {"p": 1}))
        writer, other = OffsetStorageWriter(task, "files"), OffsetStorageWriter(task, "other")
        writer.offset(A, {"p": 2})
        other.offset(A, {"p": 2})
        management = OffsetManagement(operator)
        for state in (PAUSED, RUNNING):
            management.set_target_state("files", state)
        assert OffsetCommitter(writer).commit()  # a pause ends no task
        management.set_target_state("files", STOPPED)
        late = OffsetStorageWriter(task, "files")
        management.alter("files", [{"partition": A, "offset": {"p": 0}}])
        management.set_target_state("files", RUNNING)
        if is_read_again:  # the log has been cleaned: only the last state is left
            task.log._load()
        for stopped in (writer, late):
            stopped.offset(A, {"p": 3})
            assert stopped.begin_flush()
            with pytest.raises(ConnectorStopped, match="start the task again"):
                stopped.do_flush().result(10)
        assert OffsetStorageReader(task, "files").offset(A) == {"p": 0}
        assert OffsetCommitter(other).commit()
        flushed(task, "files", (A, {"p": 1}))  # a new writer


def test_a_connector_has_a_name(backing: OffsetBackingStore) -> None:
    writer = OffsetStorageWriter(backing, "")
    writer.offset(A, {"p": 1})
    assert writer.begin_flush()
    with pytest.raises(InvalidRequest, match="a connector's name must not be empty"):
        writer.do_flush().result(10)
    assert OffsetManagement(backing.log).target_states() == {}


def test_an_alteration_replaces_every_raw_key_of_an_identity(backing: OffsetBackingStore) -> None:
    keys = [b'["files", {"b":2,"a":1}]', offset_key("files", {"a": 1, "b": 2})]
    for key in keys:
        backing.set({key: b'{"p":1}'}).result(10)
    management = OffsetManagement(backing.log)
    management.set_target_state("files", STOPPED)
    management.alter("files", [{"partition": {"a": 1, "b": 2}, "offset": {"p": 5}}])
    assert backing.get(keys) == {keys[0]: None, keys[1]: b'{"p":5}'}


def test_changes_of_an_unknown_connector_are_refused(backing: OffsetBackingStore) -> None:
    management = OffsetManagement(backing.log)
    for request, message in (
        (lambda: management.alter("x", [{"partition": A, "offset": {"p": 5}}]), "Connector x not found"),
        (lambda: management.reset("x"), "Connector x not found"),
        (lambda: management.offsets("x"), "Connector x not found"),
        (lambda: management.set_target_state("x", STOPPED), "Unknown connector x"),
    ):
        with pytest.raises(NoSuchConnector, match=f"^{message}$"):
            request()
    assert management.target_states() == {}


def test_changes_of_a_process_whose_clock_is_behind_count(location: Path) -> None:  # R30
    other_key, behind = b'["files", {"filename":"/a"}]', FixedClock(1_000)

    def described() -> dict[str, list[Any]]:
        return describe_connector(StateReader(str(location)), "files")

    with OffsetBackingStore(location, FixedClock(2_000)) as ahead:
        ahead.set({other_key: b'{"p":1}'}).result(10)
    with OffsetBackingStore(location, behind) as backing:
        reader, management = OffsetStorageReader(backing, "files"), OffsetManagement(backing.log)
        flushed(backing, "files", (A, {"p": 2}))
        assert reader.offset(A) == {"p": 2}
        assert described() == {"offsets": [{"partition": A, "offset": {"p": 2}}]}
        flushed(backing, "files", (A, None))
        assert reader.offset(A) is None
        assert described() == {"offsets": []}
        management.set_target_state("files", STOPPED)
        management.alter("files", [{"partition": A, "offset": {"p": 3}}])
        assert reader.offset(A) == {"p": 3}
        assert described() == {"offsets": [{"partition": A, "offset": {"p": 3}}]}


@pytest.mark.parametrize("command", ["reset", "alter"])
def test_a_deletion_is_one_of_every_raw_key_of_an_identity(backing: OffsetBackingStore, command: str) -> None:
    keys = [b'["files",{"a":1,"b":2}]', b'["files", {"b":2,"a":1}]']
    for position, key in enumerate(keys):
        backing.set({key: json.dumps({"p": position}).encode()}).result(10)
    assert len(backing.connector_partitions("files")) == 1
    management = OffsetManagement(backing.log)
    management.set_target_state("files", STOPPED)
    if command == "reset":
        management.reset("files")
    else:
        management.alter("files", [{"partition": {"b": 2, "a": 1}, "offset": None}])
    assert backing.get(keys) == dict.fromkeys(keys)


def test_a_deleted_connector_takes_no_flush_and_resumes_at_its_offsets(location: Path) -> None:
    with OffsetBackingStore(location) as task, ConnectLog.open(location) as operator:
        management = OffsetManagement(operator)
        flushed(task, "files", (A, {"p": 1}))
        management.set_target_state("files", STOPPED)
        management.delete("files")
        assert management.target_states() == {}
        writer = OffsetStorageWriter(task, "files")
        writer.offset(A, {"p": 2})
        assert writer.begin_flush()
        with pytest.raises(ConnectorStopped, match="connector files was deleted; configure it again"):
            writer.do_flush().result(10)
        requests: list[Callable[[], object]] = [
            lambda: management.delete("files"),
            lambda: management.offsets("files"),
            lambda: management.reset("files"),
            lambda: management.alter("files", [{"partition": A, "offset": None}], creates=True),
            lambda: management.set_target_state("files", RUNNING),
        ]
        for request in requests:
            with pytest.raises(NoSuchConnector):
                request()
        assert management.put_config("files", {"connector.class": "x.FileStreamSource"})[0]
        assert management.target_states() == {"files": RUNNING}
        assert management.offsets("files")["offsets"] == [{"partition": A, "offset": {"p": 1}}]
        assert OffsetCommitter(writer).commit()
        assert OffsetStorageReader(task, "files").offset(A) == {"p": 2}


def test_a_deletion_writes_the_tombstones_of_a_worker(backing: OffsetBackingStore) -> None:
    management = OffsetManagement(backing.log)
    management.put_config("files", {"connector.class": "x.FileStreamSource"}, STOPPED)
    management.alter("files", [{"partition": A, "offset": {"p": 1}}])
    management.delete("files")
    values = {key.encode(): record.value for key, record in backing.log.records("files")}
    assert values == {b"connector-files": None, b"target-state-files": None, offset_key("files", A): '{"p":1}'}


def test_a_stop_of_another_process_counts_before_the_next_flush(location: Path) -> None:
    with OffsetBackingStore(location) as task, ConnectLog.open(location) as operator:
        flushed(task, "files", (A, {"p": 1}))
        OffsetManagement(operator).set_target_state("files", STOPPED)
        OffsetManagement(operator).alter("files", [{"partition": A, "offset": {"p": 0}}])
        with pytest.raises(ConnectorStopped):
            task.set({offset_key("files", A): b'{"p":2}'}).result(10)
        assert OffsetStorageReader(task, "files").offset(A) == {"p": 0}


def test_a_client_reads_and_commits_offsets_of_its_cluster_only(backing: OffsetBackingStore) -> None:
    client = OffsetManagementClient(backing.log)
    offsets = [{"partition": A, "offset": {"p": 5}}]
    client.commit_offsets("lab", "files", offsets)
    assert client.get_offsets("lab", "files") == offsets
    for request in (
        lambda: client.get_offsets("prod", "files"),
        lambda: client.commit_offsets("prod", "files", offsets),
    ):
        with pytest.raises(StoreMismatch, match="has the offsets of cluster lab, not of prod"):
            request()
    with pytest.raises(BadConnectRequest, match="STOPPED"):  # it exists now, and is RUNNING
        client.commit_offsets("lab", "files", offsets)


def test_connectors_of_two_clusters_are_listed_together(
    backing: OffsetBackingStore, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flushed(backing, "files", (A, {"position": 1}))
    ConnectLog.create(place / "other", "lab", 1)
    with OffsetBackingStore(place / "other") as other:
        flushed(other, "files", (A, {"position": 2}), (B, {"position": 3}))
    capsys.readouterr()
    both = ["connect", "list", "--store", str(place / "owned"), "--store", str(place / "other")]
    assert main([*both, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    listed = [(each["name"], each["offsets"], each["cluster"]) for each in document["connectors"]]
    assert listed == [("files", 1, "owned"), ("files", 2, "other")]
    assert (document["as_of"][-1], document["stale"]) == ("Z", [])
    assert main([*both, "--format", "csv"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.endswith(",cluster")
    assert [row.rpartition(",")[2] for row in rows] == ["owned", "other"]
    assert main([*both[:4]]) == 0  # one cluster has no column
    assert "CLUSTER" not in capsys.readouterr().out


def test_a_rebuilt_log_is_read_again(backing: OffsetBackingStore) -> None:
    flushed(backing, "files", (A, {"p": 1}))
    backing.log._load()
    assert OffsetStorageReader(backing, "files").offset(A) == {"p": 1}


def test_records_of_a_cancelled_request_are_not_written(backing: OffsetBackingStore) -> None:
    request = backing.log.submit(
        "a late one", lambda _: Outcome([Record(0, b'["late",{}]', b"{}")], None), {}, timeout_ms=-1
    )
    assert request.done.exception(10) is not None
    assert OffsetManagement(backing.log).target_states() == {}


# --- commands


@pytest.mark.parametrize("kind", [TopicKind.CONNECT, TopicKind.CONNECT_OFFSETS, TopicKind.CONNECT_STATUS])
def test_stores_beside_count_if_they_are_of_a_workers_other_topics(tmp_path: Path, kind: TopicKind) -> None:
    def made(name: str, kind: TopicKind) -> StateReader:
        create_tables(
            f"{tmp_path}/{name}", StoreProperties(OWNED if kind is TopicKind.CONNECT else MIRRORED, 1, topic_kind=kind)
        )
        return StateReader(f"{tmp_path}/{name}")

    def beside() -> list[str]:
        return [each.location for each in open_beside(reader.location, reader, Settings())]

    reader = made("c", kind)
    made("c-configs", kind)
    assert beside() == []
    made("c-status", TopicKind.CONNECT_STATUS)
    remove_place(tmp_path / "c-configs")
    made("c-configs", TopicKind.CONNECT_CONFIGS)
    assert beside() == (
        [] if kind is TopicKind.CONNECT else [f"{reader.location}-status", f"{reader.location}-configs"]
    )


def test_an_owned_store_lists_its_own_connectors_only(
    backing: OffsetBackingStore, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flushed(backing, "files", (A, {"position": 1}))
    for name in ("owned-status", "owned-configs"):
        ConnectLog.create(place / name, "lab", 1)
        with OffsetBackingStore(place / name) as neighbour:
            flushed(neighbour, "other", (B, {"position": 2}))
    listed = ["connect", "list", "--store", str(place / "owned"), "--format", "csv"]
    for command in (listed, ["sql", "--store", str(place / "owned"), "SELECT name FROM connectors", "--format", "csv"]):
        assert main(command) == 0
        assert [line.partition(",")[0] for line in capsys.readouterr().out.splitlines()] == ["name", "files"]


def test_commands_stop_alter_reset_and_resume(
    location: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with OffsetBackingStore(location) as backing:
        flushed(backing, "files", (A, {"p": 1}))
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps({"offsets": [{"partition": B, "offset": {"p": 9}}]}), encoding="utf-8-sig")

    def run(command: str, *options: str) -> tuple[int, str]:
        status = main(["connect", command, "--store", str(location), "--connector", "files", *options])
        said = capsys.readouterr()
        return status, said.out + said.err

    assert run("alter", "--offsets", str(file)) == (1, f"offsets: error: {NOT_STOPPED}\n")
    assert run("stop") == (0, f"connector files is STOPPED in {location}\n")
    assert run("alter", "--offsets", str(file)) == (
        0,
        "The offsets for this connector have been altered successfully\n",
    )
    right_settings = tmp_path / "right.json"
    right_settings.write_text('{"connector.class": "FileStreamSource"}', encoding="utf-8-sig")
    wrong_settings = tmp_path / "settings.json"
    wrong_settings.write_text('{"connector.class": "FileStreamSource", "tasks.max": "x", "api.key": "in-clear"}')
    status, said = run("config", "--settings", str(wrong_settings))
    assert (status, said.count("\n"), "the following 3 error(s): Invalid value x for" in said) == (1, 1, True)
    stdin = io.BytesIO('{"offsets": [{"partition": 1}]}'.encode("utf-8-sig"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(stdin, "utf-8"))
    status, said = run("alter", "--offsets", "-")
    assert (status, "does not hold offsets" in said) == (1, True)
    with ConnectLog.open(location) as log:
        assert len(OffsetManagement(log).offsets("files")["offsets"]) == 2
    assert run("reset") == (0, "The offsets for this connector have been reset successfully\n")
    assert run("pause")[0] == run("resume")[0] == 0
    assert run("delete") == (0, f"connector files is deleted from {location}; its offsets stay\n")
    assert run("delete") == (1, "offsets: error: Connector files not found\n")
    assert run("describe")[1].startswith("offsets: error: Connector files not found: ")
    assert run("config", "--settings", str(right_settings)) == (0, f"connector files is created in {location}\n")
    with ConnectLog.open(location) as log:
        assert OffsetManagement(log).target_states() == {"files": RUNNING}
        assert OffsetManagement(log).offsets("files") == {"offsets": []}
