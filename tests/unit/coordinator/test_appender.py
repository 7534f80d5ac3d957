"""Group commit: one append for many requests, in order, on time, and validated again when it was overtaken (R27)."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.common.config.sections import CoordinatorSettings
from offsets_pipeline.coordinator import appender
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.registry import FOLDER
from offsets_pipeline.coordinator.requests import MemberOfGroup
from offsets_pipeline.errors import (
    CoordinatorNotAvailable,
    IllegalGeneration,
    InvalidProducerEpoch,
    InvalidRequiredAcks,
    NoSuchGroup,
    OffsetOutOfRange,
    RequestTimedOut,
)
from offsets_pipeline.store.delta import filesystems
from tests.unit.coordinator.groups import stable
from tests.unit.coordinator.states import at, refusal
from tests.unit.coordinator.stores import NOW_MS, log_of, opened
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    import pyarrow as pa

    from offsets_pipeline.coordinator.owned_log import PreparedAppend
    from offsets_pipeline.store.delta.snapshot import Commit


class Gate:
    """Holds a coordinator's appends until the test releases them."""

    def __init__(self, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        write = coordinator._core.log.write

        def gated(append: PreparedAppend, *, durable: bool) -> list[Commit]:
            self.reached.set()
            assert self.opened.wait(10)
            return write(append, durable=durable)

        monkeypatch.setattr(coordinator._core.log, "write", gated)


def before_write(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, interferes: Callable[[], None]
) -> list[bool]:
    """Run a function once between a round's validation and its append; records the durability of appends."""
    write = coordinator._core.log.write
    writes: list[bool] = []

    def interfered(append: PreparedAppend, *, durable: bool) -> list[Commit]:
        writes.append(durable)
        if len(writes) == 1:
            interferes()
        return write(append, durable=durable)

    monkeypatch.setattr(coordinator._core.log, "write", interfered)
    return writes


def test_requests_that_wait_share_an_append(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(coordinator, monkeypatch)
    first = coordinator.commit_offsets_async("first", {("t", 0): 1})
    assert gate.reached.wait(10)
    rest = [coordinator.commit_offsets_async(f"g{number}", {("t", 0): number}) for number in range(50)]
    gate.opened.set()
    for each in [first, *rest]:
        each.result(10)
    assert coordinator.gauges().appends == 2
    assert coordinator.gauges().commits == 51


def test_a_condition_sees_the_commits_that_came_before(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator.commit_offsets("g", {("t", 1): 7})  # requests of a group that exists may share an append
    gate = Gate(coordinator, monkeypatch)
    coordinator.commit_offsets_async("first", {("t", 0): 1})
    assert gate.reached.wait(10)
    coordinator.commit_offsets_async("g", {("t", 0): 5})
    done = coordinator.commit_offsets_if("g", {("t", at): 1 for at in range(3)}, lambda _, held: held is None)
    gate.opened.set()
    assert done.result(10) == {("t", 2)}
    found = coordinator.fetch_offsets("g")
    assert {partition: each.offset for (_, partition), each in found.items()} == {0: 5, 1: 7, 2: 1}
    wait_until("four commits are counted", lambda: coordinator.gauges().commits == 4)
    assert coordinator.gauges().committed_offsets == 4  # not the two offsets that the condition left out


def test_nothing_shows_before_it_is_in_the_log(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(coordinator, monkeypatch)
    done = coordinator.commit_offsets_async("g", {("t", 0): 1})
    assert gate.reached.wait(10)
    assert coordinator.fetch_offsets("g") == {}  # a fetch does not wait for the append
    assert not done.done()
    gate.opened.set()
    done.result(10)
    assert coordinator.fetch_offsets("g")[at()].offset == 1


def test_requests_that_depend_on_each_other_see_what_came_before(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator.commit_offsets("g", {("t", 0): 0})
    gate = Gate(coordinator, monkeypatch)
    waits = coordinator.commit_offsets_async("other", {("t", 0): 1})
    assert gate.reached.wait(10)
    answers: dict[str, object] = {}

    def ask(what: str, call: Callable[[], object]) -> threading.Thread:
        waiting = len(coordinator._core.appender._waiting)

        def run() -> None:
            try:
                answers[what] = call()
            except NoSuchGroup as error:
                answers[what] = error

        thread = threading.Thread(target=run)
        thread.start()
        while len(coordinator._core.appender._waiting) == waiting:
            pass  # until it is queued
        return thread

    threads = [
        ask("commit", lambda: coordinator.commit_offsets("g", {("t", 1): 1})),
        ask("remove", lambda: coordinator.remove_group("g")),
        ask("again", lambda: coordinator.remove_group("g")),
        ask("new", lambda: coordinator.commit_offsets("g", {("t", 2): 2})),
    ]
    gate.opened.set()
    for thread in threads:
        thread.join(10)
    waits.result(10)
    assert answers["remove"] == 2  # of both commits
    assert isinstance(answers["again"], NoSuchGroup)
    assert coordinator.fetch_offsets("g").keys() == {at("t", 2)}


def test_conflicting_request_is_validated_again(
    coordinator: Coordinator, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator.store_group(stable(generation=3))

    def overtake() -> None:
        with opened(store) as other:
            other.store_group(stable(generation=4))

    before_write(coordinator, monkeypatch, overtake)
    with pytest.raises(IllegalGeneration, match="is in generation 4"):
        coordinator.commit_offsets("g", {("t", 0): 1}, member=MemberOfGroup("m", 3))
    assert coordinator.gauges().conflicts == 1
    assert coordinator.fetch_offsets("g") == {}


@pytest.mark.parametrize("others", [["b"], ["b", "b"], ["b", "c"]])
def test_append_goes_behind_those_of_other_log_partitions(
    coordinator: Coordinator, store: Path, monkeypatch: pytest.MonkeyPatch, others: list[str]
) -> None:
    partitions = {group_id: coordinator._core.store.partition_for(group_id) for group_id in "abc"}
    assert len(set(partitions.values())) == 3
    coordinator.commit_offsets("a", {("t", 0): 1})

    def overtake() -> None:
        with opened(store) as other:
            for number, group_id in enumerate(others):
                other.commit_offsets(group_id, {("t", 0): number})

    writes = before_write(coordinator, monkeypatch, overtake)
    coordinator.commit_offsets("a", {("t", 0): 2})
    assert len(writes) == 1
    assert coordinator.gauges().conflicts == 0
    coordinator.commit_offsets("a", {("t", 0): 3})
    expected = {"a": 3} | {group_id: number for number, group_id in enumerate(others)}
    with opened(store) as other:
        for each in (coordinator, other):
            assert {name: each.fetch_offsets(name)[at()].offset for name in expected} == expected
    log = log_of(store)
    assert {number: [row.record_offset for row in rows] for number, rows in log.items() if rows} == {
        partitions["a"]: [0, 1, 2],
        **{partitions[name]: list(range(others.count(name))) for name in others},
    }


def test_what_depends_on_other_log_partitions_is_validated_again(
    coordinator: Coordinator, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator.begin_transaction(7, 0)

    def overtake() -> None:
        with opened(store) as other:
            other.begin_transaction(7, 1)  # its marker is in log partition 1

    assert coordinator._core.store.partition_for("b") != 7 % 3
    before_write(coordinator, monkeypatch, overtake)
    with pytest.raises(InvalidProducerEpoch, match="fenced"):
        coordinator.txn_commit_offsets(7, 0, "b", {("t", 0): 1})
    assert coordinator.gauges().conflicts == 1


def test_conflicting_request_is_appended_after_the_other(
    coordinator: Coordinator, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtake() -> None:
        with opened(store) as other:
            other.commit_offsets("g", {("t", 0): 1, ("t", 1): 1})

    before_write(coordinator, monkeypatch, overtake)
    coordinator.commit_offsets("g", {("t", 0): 2})
    assert coordinator.gauges().conflicts == 1
    assert [row.record_offset for row in log_of(store)[coordinator.partition_for("g")]] == [0, 1, 2]
    assert {where.partition: each.offset for where, each in coordinator.fetch_offsets("g").items()} == {0: 2, 1: 1}


def test_acks_decide_when_a_commit_is_acknowledged(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:  # R27
    durable = before_write(coordinator, monkeypatch, lambda: None)
    coordinator.commit_offsets("g", {("t", 0): 1}, acks=1)
    coordinator.commit_offsets("g", {("t", 0): 2}, acks=-1)
    coordinator.commit_offsets("g", {("t", 0): 3})
    assert durable == [False, True, True]
    monkeypatch.undo()
    gate = Gate(coordinator, monkeypatch)
    coordinator.commit_offsets("g", {("t", 0): 4}, acks=0)  # returns though nothing is written
    assert gate.reached.wait(10)
    gate.opened.set()
    coordinator.commit_offsets("g", {("t", 1): 1})
    assert coordinator.fetch_offsets("g")[at()].offset == 4
    with pytest.raises(InvalidRequiredAcks, match="acks=2"):
        coordinator.commit_offsets("g", {("t", 1): 1}, acks=2)


def test_commits_lost_with_acks_0_are_counted(store: Path, caplog: pytest.LogCaptureFixture) -> None:  # R27
    with opened(store, offsets_commit_required_acks=0) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): -1})
        coordinator.commit_offsets("g", {("t", 0): 1}, acks=1)
        assert coordinator.gauges().lost == 1
    assert "lost a commit with acks=0: -1 is not an offset for t-0" in caplog.text


def test_a_request_that_waits_too_long_is_not_written(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(coordinator, monkeypatch)
    first = coordinator.commit_offsets_async("g", {("t", 0): 1})
    assert gate.reached.wait(10)
    with pytest.raises(RequestTimedOut, match="it was not written") as refused:
        coordinator.commit_offsets("g", {("t", 1): 1}, timeout_ms=1)
    assert refused.value.kafka_name == "REQUEST_TIMED_OUT"
    late = coordinator.commit_offsets_async("g", {("t", 2): 1}, timeout_ms=1)
    gate.opened.set()
    with pytest.raises(RequestTimedOut, match="it was not written"):
        late.result(10)
    first.result(10)
    assert coordinator.fetch_offsets("g").keys() == {at("t", 0)}


def test_a_request_keeps_its_timeout_while_the_storage_hangs(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator.commit_offsets("g", {("t", 0): 1})
    coordinator.begin_transaction(7, 0)
    looks, answered = threading.Event(), threading.Event()
    catch_up = coordinator._core.log.catch_up

    def hanging() -> Iterator[pa.Table]:
        looks.set()
        assert answered.wait(60)
        return catch_up()

    monkeypatch.setattr(coordinator._core.log, "catch_up", hanging)
    first = coordinator.commit_offsets_async("g", {("t", 1): 1})
    assert looks.wait(10)  # from now on the appender holds the lock
    with ThreadPoolExecutor(6) as threads:
        asked = [
            threads.submit(refusal, call, *arguments, **options, timeout_ms=1)
            for call, arguments, options in (
                (coordinator.commit_offsets, ("g", {("t", 2): 1}), {}),
                (coordinator.commit_offsets, ("g", {("t", 2): 1}), {"acks": 1}),
                (coordinator.delete_offsets, ("g", [("t", 0)]), {}),
                (coordinator.begin_transaction, (8, 0), {}),
                (coordinator.txn_commit_offsets, (7, 0, "g", {("t", 3): 1}), {}),
                (coordinator.end_transaction, (7, 0), {"commit": True}),
            )
        ]
        gauges = threads.submit(coordinator.gauges)
        try:
            assert [each.result(10) for each in asked] == ["REQUEST_TIMED_OUT"] * 6
            assert (gauges.result(10).groups, gauges.result(10).offsets, gauges.result(10).commits) == (1, 1, 1)
        finally:
            answered.set()
    first.result(10)
    assert coordinator.fetch_offsets("g").keys() == {at("t", 0), at("t", 1)}
    coordinator.end_transaction(7, 0, commit=True)  # the end that timed out was not written


def test_a_request_that_is_being_written_may_yet_be(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(coordinator, monkeypatch)
    with pytest.raises(RequestTimedOut, match="it may still be written"):
        coordinator.commit_offsets("g", {("t", 0): 1}, timeout_ms=200)
    gate.opened.set()
    coordinator.commit_offsets("g", {("t", 1): 1})
    assert coordinator.fetch_offsets("g").keys() == {at("t", 0), at("t", 1)}


def test_request_waits_while_the_queue_is_full(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "_MAX_WAITING", 1)
    gate = Gate(coordinator, monkeypatch)
    done = [coordinator.commit_offsets_async("g", {("t", 0): 1})]
    assert gate.reached.wait(10)
    done.append(coordinator.commit_offsets_async("g", {("t", 1): 1}))
    with pytest.raises(RequestTimedOut, match="1 requests are waiting; it was not written"):
        coordinator.commit_offsets_async("g", {("t", 2): 1}, timeout_ms=1)
    gate.opened.set()
    done.append(coordinator.commit_offsets_async("g", {("t", 3): 1}))
    for each in done:
        each.result(10)
    assert {where.partition for where in coordinator.fetch_offsets("g")} == {0, 1, 3}


def test_request_that_waits_for_a_place_in_the_queue_is_refused_by_close(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appender, "_MAX_WAITING", 1)
    gate = Gate(coordinator, monkeypatch)
    done = [coordinator.commit_offsets_async("g", {("t", 0): 1})]
    assert gate.reached.wait(10)
    done.append(coordinator.commit_offsets_async("g", {("t", 1): 1}))
    with ThreadPoolExecutor(2) as threads:
        waits = threads.submit(refusal, coordinator.commit_offsets_async, "g", {("t", 2): 1})
        closed = threads.submit(coordinator.close)
        try:
            assert waits.result(10) == "COORDINATOR_NOT_AVAILABLE"
        finally:
            gate.opened.set()
        closed.result(10)
    assert [each.result(10) for each in done] == [None, None]


def test_failed_append_is_reported_and_the_next_succeeds(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError("disk full")

    before_write(coordinator, monkeypatch, fail)
    with pytest.raises(CoordinatorNotAvailable, match="disk full; it was not written") as refused:
        coordinator.commit_offsets("g", {("t", 0): 1})
    assert refused.value.kafka_name == "COORDINATOR_NOT_AVAILABLE"
    coordinator.commit_offsets("g", {("t", 1): 1})
    assert coordinator.fetch_offsets("g").keys() == {at("t", 1)}


def test_written_commit_is_never_reported_as_not_written(
    coordinator: Coordinator, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator.commit_offsets("g", {("t", 0): 1})

    def broken(_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(coordinator._core.appender, "_replay", broken)
    coordinator.commit_offsets("g", {("t", 0): 2})
    assert [row.record_offset for row in log_of(store)[coordinator.partition_for("g")]] == [0, 1]


@pytest.mark.local_only("fsync of a folder")
@pytest.mark.parametrize(
    ("number", "acks", "answer"),
    [(errno.EIO, -1, "REQUEST_TIMED_OUT"), (errno.EIO, 1, ""), (errno.EINVAL, -1, ""), (errno.ENOTSUP, -1, "")],
)
def test_commit_whose_folder_cannot_be_synchronised_may_have_been_written(
    coordinator: Coordinator, store: Path, monkeypatch: pytest.MonkeyPatch, number: int, acks: int, answer: str
) -> None:  # R27
    sync = filesystems.synchronise

    def fail(path: str) -> None:
        if path.endswith("_delta_log"):
            raise OSError(number, os.strerror(number))
        sync(path)

    monkeypatch.setattr("offsets_pipeline.store.delta.storage.synchronise", fail)
    assert refusal(coordinator.commit_offsets, "g", {("t", 0): 1}, acks=acks) == answer
    assert coordinator.fetch_offsets("g")[at()].offset == 1
    monkeypatch.undo()
    coordinator.commit_offsets("g", {("t", 0): 2})
    assert [row.record_offset for row in log_of(store)[coordinator.partition_for("g")]] == [0, 1]


def test_unreadable_log_is_reported(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(_: str) -> None:
        raise OSError("no access")

    monkeypatch.setattr(coordinator._core.log._table.storage, "read", unreadable)
    with pytest.raises(CoordinatorNotAvailable, match=r"no access; .* it was not written"):
        coordinator.commit_offsets("g", {("t", 0): 1})
    monkeypatch.undo()
    coordinator.commit_offsets("g", {("t", 0): 1})


def test_one_request_that_fails_does_not_harm_the_others(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(coordinator, monkeypatch)
    done = [coordinator.commit_offsets_async("g", {("t", 0): 1})]
    assert gate.reached.wait(10)
    done.append(coordinator.commit_offsets_async("h", {("t", 0): 2}))
    refused = coordinator.commit_offsets_async("i", {("t", 0): -1})
    broken = coordinator.commit_offsets_async("j", {("t", 0): "one"})  # type: ignore[arg-type]
    done.append(coordinator.commit_offsets_async("k", {("t", 0): 3}))
    gate.opened.set()
    for each in done:
        each.result(10)
    for failed in (refused, broken):
        with pytest.raises(OffsetOutOfRange):
            failed.result(10)
    assert [each.group_id for each in coordinator.list_groups()] == ["g", "h", "k"]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_an_error_of_a_callback_does_not_end_the_thread(
    coordinator: Coordinator,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: type[BaseException],
) -> None:
    def fail(_: object) -> None:
        raise error("a callback")

    def asked(*offsets: int) -> list[Future[None]]:
        """Commits of one append; the first one's callback fails."""
        gate = Gate(coordinator, monkeypatch)
        before = coordinator.commit_offsets_async("before", {("t", 0): 1})
        assert gate.reached.wait(10)
        found = [coordinator.commit_offsets_async(f"g{at}", {("t", 0): each}) for at, each in enumerate(offsets)]
        found[0].add_done_callback(fail)
        gate.opened.set()
        before.result(10)
        return found

    for done in asked(1, 2):  # accepted
        done.result(10)
    for done in asked(-1, -1):  # refused
        with pytest.raises(OffsetOutOfRange):
            done.result(10)

    def unwritable(*_: object, **__: object) -> list[Commit]:
        raise OSError("disk full")

    coordinator.commit_offsets("g", {("t", 0): 1})
    monkeypatch.setattr(coordinator._core.log, "write", unwritable)
    failed = coordinator.commit_offsets_async("g", {("t", 0): 2})
    failed.add_done_callback(fail)
    with pytest.raises(CoordinatorNotAvailable, match="disk full"):
        failed.result(10)
    monkeypatch.undo()
    coordinator.commit_offsets("g", {("t", 0): 3})
    assert [each.getMessage().partition(": ")[2] for each in caplog.records] == [
        "a callback of the request failed; the request was answered"
    ] * 3


def test_close_appends_waiting_requests_and_refuses_new_ones(
    coordinator: Coordinator, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(coordinator, monkeypatch)
    done = [coordinator.commit_offsets_async("g", {("t", 0): 1})]
    assert gate.reached.wait(10)
    done += [coordinator.commit_offsets_async(f"g{number}", {("t", 0): 1}) for number in range(10)]
    gate.opened.set()
    coordinator.close()
    assert all(each.result(0) is None for each in done)
    assert sum(map(len, log_of(store).values())) == 11
    for ask in (
        lambda: coordinator.commit_offsets("g", {("t", 0): 2}),
        lambda: coordinator.fetch_offsets("g"),
        coordinator.list_groups,
        coordinator.abort_overdue_transactions,
    ):
        with pytest.raises(CoordinatorNotAvailable, match="closed"):
            ask()
    coordinator.close()


def test_a_callback_of_a_request_may_close(
    coordinator: Coordinator, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(coordinator, monkeypatch)
    first = coordinator.commit_offsets_async("g", {("t", 0): 1})
    closed = threading.Event()

    def close(_: object) -> None:
        coordinator.close()
        closed.set()

    first.add_done_callback(close)
    assert gate.reached.wait(10)
    second = coordinator.commit_offsets_async("g", {("t", 1): 1})
    gate.opened.set()
    assert closed.wait(10)
    second.result(10)
    assert sum(map(len, log_of(store).values())) == 2
    assert refusal(coordinator.commit_offsets_async, "g", {("t", 2): 1}) == "COORDINATOR_NOT_AVAILABLE"
    coordinator._core.appender._thread.join(10)
    assert not coordinator._core.appender._thread.is_alive()


def test_a_callback_cannot_wait_for_another_answer(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(coordinator, monkeypatch)
    first = coordinator.commit_offsets_async("g", {("t", 0): 1})
    refused: list[str] = []

    def wait(_: object) -> None:
        other = coordinator.commit_offsets_async("g", {("t", 1): 2})
        refused.extend(refusal(each) for each in (other.result, other.exception))

    first.add_done_callback(wait)
    assert gate.reached.wait(10)
    gate.opened.set()
    wait_until("the other commit is there", lambda: len(coordinator.fetch_offsets("g")) == 2)
    assert refused == ["INVALID_REQUEST"] * 2
    assert first.result(0) is first.exception(0) is None


def test_close_in_a_callback_does_not_wait_for_housekeeping(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Housekeeping may wait for a request of its own, and so for the end of the callback."""
    with Coordinator.open(store) as coordinator:
        gate, closed = Gate(coordinator, monkeypatch), threading.Event()
        first = coordinator.commit_offsets_async("g", {("t", 0): 1})

        def close(_: object) -> None:
            coordinator.close()
            closed.set()

        first.add_done_callback(close)
        assert gate.reached.wait(10)
        waits = threading.Event()
        monkeypatch.setattr(coordinator._housekeeping, "_thread", threading.Thread(target=waits.wait, daemon=True))
        assert coordinator._housekeeping._thread is not None
        coordinator._housekeeping._thread.start()
        gate.opened.set()
        assert closed.wait(10)
        waits.set()


def test_each_step_of_close_runs_whatever_another_one_raises(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("away")

    coordinator = Coordinator.open(store, metrics_port=0)
    monkeypatch.setattr(coordinator._offsets, "close", fail)
    with pytest.raises(OSError, match="away"):
        coordinator.close()
    assert coordinator.metrics_port is None
    assert list((store / FOLDER).iterdir()) == []
    assert not {"offsets-appender", "offsets-housekeeping"} & {each.name for each in threading.enumerate()}


def test_housekeeping_expires_and_aborts_by_itself(store: Path) -> None:
    clock = FixedClock(NOW_MS)  # so that nothing expires before all is written
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offsets_pipeline.coordinator.coordinator._TICK_MS", 10)
        settings = Settings(coordinator=CoordinatorSettings(offsets_retention_check_interval_ms=1))
        with Coordinator.open(store, settings, clock=clock) as coordinator:
            coordinator.commit_offsets("g", {("t", 0): 1}, retention_time_ms=1)
            coordinator.begin_transaction(7, 0, transaction_timeout_ms=1)
            coordinator.txn_commit_offsets(7, 0, "h", {("t", 0): 1})
            clock.advance_ms(10)
            wait_until("the transaction is aborted", lambda: coordinator._core.log.producers.get(7).epoch == 1)
            wait_until("the offset is expired", lambda: coordinator.gauges().expired_offsets)
            assert coordinator.gauges().expired_groups >= 1  # h is one, too, if its transaction was aborted before
            assert coordinator._core.log.producers.get(7).open_since_ms == {}


def test_housekeeping_goes_on_when_a_clock_that_was_ahead_is_corrected(store: Path) -> None:
    clock = FixedClock(NOW_MS + 3_600_000)
    with opened(store, clock) as coordinator:
        coordinator._core.begin_registration()
        clock.advance_ms(-3_600_000)
        coordinator.commit_offsets("g", {("t", 0): 1}, retention_time_ms=1)
        clock.advance_ms(1)
        coordinator._keep_house()
        assert coordinator.gauges().expired_offsets == 1
        assert coordinator.find_coordinator("g").loaded_by == [coordinator.instance]
        coordinator.commit_offsets("g", {("t", 0): 1}, retention_time_ms=1)
        clock.advance_ms(1)
        coordinator._keep_house()  # the interval began again
        assert coordinator.gauges().expired_offsets == 1


def test_a_callback_cannot_wait_for_another_request(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, refused, called = Gate(coordinator, monkeypatch), [], threading.Event()

    def call(_: object) -> None:
        refused.append(refusal(coordinator.commit_offsets, "h", {("t", 0): 1}))
        coordinator.commit_offsets_async("k", {("t", 0): 1}).add_done_callback(lambda _: called.set())

    coordinator.commit_offsets_async("g", {("t", 0): 1}).add_done_callback(call)
    gate.opened.set()
    assert called.wait(10)
    assert refused == ["INVALID_REQUEST"]
    assert [each.group_id for each in coordinator.list_groups()] == ["g", "k"]


@pytest.mark.local_only("an object store acknowledges what is durable")
def test_a_durable_commit_makes_those_before_it_durable_too(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[int] = set()
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def unsynced() -> int:
        files = [*(store / "log").glob("*.parquet"), *(store / "log" / "_delta_log").glob("*.json")]
        return sum(each.stat().st_ino not in synced for each in files)

    with opened(store) as coordinator, opened(store) as other:
        monkeypatch.setattr(os, "fsync", noted)
        created = unsynced()
        coordinator.commit_offsets("g", {("t", 0): 1}, acks=1)
        other.commit_offsets("g", {("t", 0): 2}, acks=0)
        wait_until("the commit", lambda: other.fetch_offsets("g")["t", 0].offset == 2)  # type: ignore[index]
        assert unsynced() == created + 4
        coordinator.commit_offsets("g", {("t", 0): 3}, acks=-1)
        assert unsynced() == created
        synced.clear()
        coordinator.commit_offsets("g", {("t", 0): 4}, acks=-1)
        assert unsynced() == created + 6  # those are not written again
