"""Work at intervals: when it runs, what an error does, and how it ends. Times are set by the tests."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.common.foreign_errors import may_pass
from offsets_pipeline.common.periodic import Periodic, monotonic_ms
from offsets_pipeline.common.warnings import Warnings
from offsets_pipeline.errors import CannotClean, WriteConflict

if TYPE_CHECKING:
    from collections.abc import Callable

HOUR_MS = 3_600_000
BEGIN_MS = 1_795_000_000_000
LONGEST_SECONDS = 60


class Waits(threading.Event):
    """An event whose waits take no time: the clock goes on instead."""

    def __init__(self, clock: FixedClock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_set():
            assert timeout is not None
            self._clock.advance_ms(round(timeout * 1000))
        return self.is_set()


class Work:
    """Runs on a clock of its own: each takes some minutes, and may fail; the last one stops the work."""

    def __init__(self, *runs: int | Exception) -> None:
        self.clock = FixedClock(BEGIN_MS)
        self.stopped = Waits(self.clock)
        self.began: list[int] = []
        self.warnings: list[str] = []
        self._runs = list(runs)

    def __call__(self) -> int:
        self.began.append((self.clock.now_ms() - BEGIN_MS) // 60_000)
        run = self._runs.pop(0)
        if not self._runs:
            self.stopped.set()
        if isinstance(run, Exception):
            raise run
        self.clock.advance_ms(run * 60_000)
        return run

    def periodic(
        self,
        interval_ms: int | Callable[[], float] = HOUR_MS,
        *,
        at_once: bool = True,
        rests: bool = False,
        at_end: Callable[[], object] | None = None,
    ) -> Periodic[int]:
        return Periodic(
            self,
            interval_ms,
            self.clock.now_ms,
            at_once=at_once,
            rests=rests,
            warn=self.warnings.append,
            describe=lambda error: f"cannot work: {error}",
            may_pass=may_pass,
            at_end=at_end,
            stopped=self.stopped,
        )


def test_runs_begin_an_interval_apart_and_at_once_where_one_took_longer() -> None:
    work = Work(1, 120, 1, 1)
    assert list(work.periodic().results()) == [1, 120, 1, 1]
    assert work.began == [0, 60, 180, 240]


def test_first_run_may_come_after_one_interval() -> None:
    work = Work(1, 1)
    list(work.periodic(at_once=False).results())
    assert work.began == [60, 120]


def test_interval_may_begin_at_the_end_of_a_run() -> None:
    work = Work(1, 120, 1)
    list(work.periodic(rests=True).results())
    assert work.began == [0, 61, 241]


def test_run_is_due_when_the_clock_is_set_back_before_the_interval() -> None:
    work = Work(1, -120, 1, 1)  # the second run sees the clock go back by two hours
    list(work.periodic().results())
    assert work.began == [0, 60, -60, 0]


def test_interval_of_a_fraction_of_a_second_is_exact() -> None:
    clock = FixedClock(BEGIN_MS)
    stopped, began = Waits(clock), list[int]()

    def run() -> None:
        began.append(clock.now_ms() - BEGIN_MS)
        if len(began) == 3:
            stopped.set()

    list(Periodic(run, 1_700, clock.now_ms, stopped=stopped).results())
    assert began == [0, 1_700, 3_400]


def test_interval_that_changes_is_asked_for_again_while_the_work_waits() -> None:
    work = Work(1, 1)
    due_ms = BEGIN_MS + HOUR_MS
    asked = 0

    def left_ms() -> float:
        nonlocal due_ms, asked
        asked += 1
        if asked == 61:
            due_ms = BEGIN_MS + 20 * 60_000  # a minute after the start it is due earlier
        if len(work.began) == 1 and due_ms < BEGIN_MS + 2 * HOUR_MS:
            due_ms = BEGIN_MS + 2 * HOUR_MS
        return due_ms - work.clock.now_ms()

    list(work.periodic(left_ms).results())
    assert work.began == [20, 120]


def test_error_that_passes_is_one_warning_until_a_run_succeeds() -> None:
    overtaken, full = WriteConflict("overtaken"), OSError("disk full")
    work = Work(overtaken, overtaken, full, overtaken, 1, overtaken, 1)
    assert list(work.periodic().results()) == [1, 1]
    assert work.began == [hours * 60 for hours in range(7)]
    assert work.warnings == [f"cannot work: {each}" for each in ("overtaken", "disk full", "overtaken", "overtaken")]


def test_error_that_does_not_pass_ends_the_work_and_is_raised() -> None:
    work = Work(1, CannotClean("its files lie elsewhere"), 1)
    results = work.periodic().results()
    assert next(results) == 1
    with pytest.raises(CannotClean, match="its files lie elsewhere"):
        next(results)
    assert (work.began, work.warnings) == ([0, 60], [])


def test_thread_ends_with_an_error_that_does_not_pass_and_the_next_check_raises_it() -> None:
    work = Work(1, CannotClean("its files lie elsewhere"), 1)
    ended = threading.Event()
    periodic = work.periodic(at_end=ended.set)
    periodic.check()
    periodic.start()
    assert ended.wait(LONGEST_SECONDS)
    periodic.close()
    for _ in range(2):
        with pytest.raises(CannotClean, match="its files lie elsewhere"):
            periodic.check()
    assert work.began == [0, 60]


def test_thread_has_its_name_and_the_callers_target_around_its_runs() -> None:
    names, ran = list[str](), threading.Event()

    def wrapped(target: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            names.append("before")
            target()
            names.append("after")

        return run

    def work() -> None:
        names.append(threading.current_thread().name)
        ran.set()

    periodic = Periodic(work, 1, name="work", wrapped=wrapped)
    periodic.start()
    assert ran.wait(LONGEST_SECONDS)
    periodic.close()
    assert (names[:2], names[-1]) == (["before", "work"], "after")


def test_close_waits_for_the_run_and_the_work_at_the_end() -> None:
    done = list[str]()
    runs, goes_on = threading.Event(), threading.Event()

    def run() -> None:
        runs.set()
        assert goes_on.wait(LONGEST_SECONDS)
        done.append("run")

    periodic = Periodic(run, HOUR_MS, at_end=lambda: done.append("end"), close_seconds=0)
    periodic.start()
    assert runs.wait(LONGEST_SECONDS)
    periodic.close()  # the time is over: the run goes on
    assert done == []
    assert periodic.is_stopped()
    goes_on.set()
    periodic._close_seconds = None
    periodic.close()
    periodic.close()
    assert done == ["run", "end"]


def test_work_that_waits_ends_at_once() -> None:
    waits = threading.Event()

    class Noted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.set()
            return super().wait(None if timeout else timeout)  # only `stop` ends it

    periodic = Periodic(lambda: None, HOUR_MS, at_once=False, stopped=Noted())
    periodic.start()
    assert waits.wait(LONGEST_SECONDS)
    periodic.close()


def test_run_may_end_the_work_itself() -> None:
    def close() -> None:
        periodic.close()

    periodic = Periodic(close, 1)
    periodic.start()
    assert periodic._thread is not None
    periodic._thread.join(LONGEST_SECONDS)
    assert not periodic._thread.is_alive()
    Periodic(lambda: None, 1).close()  # before `start` it does nothing


def test_one_run_has_the_work_at_the_end_whatever_the_run_does() -> None:
    ends = list[int]()
    work = Work(1, WriteConflict("overtaken"), CannotClean("its files lie elsewhere"))
    periodic = work.periodic(at_end=lambda: ends.append(len(work.began)))
    periodic.run_once()
    periodic.run_once()
    assert work.warnings == ["cannot work: overtaken"]
    with pytest.raises(CannotClean):
        periodic.run_once()
    assert ends == [1, 2, 3]


def test_error_of_the_work_at_the_end_is_a_warning() -> None:
    def fail() -> None:
        raise OSError("disk full")

    work = Work(1)
    work.periodic(at_end=fail).run_once()
    assert work.warnings == ["cannot work: disk full"]


def test_warning_by_default_names_a_foreign_error_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise OSError("disk full\nand more")

    Periodic(fail, 1).run_once()
    assert capsys.readouterr().err == "offsets: warning: OSError: disk full\n"


def test_clock_of_intervals_is_not_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 0)
    monkeypatch.setattr("time.monotonic_ns", lambda: 12_345_678)
    assert monotonic_ms() == 12


def test_recovery_is_a_warning_after_a_failure_alone() -> None:
    said = list[str]()
    warnings = Warnings(said.append, "works again")
    warnings.recovered()
    for text in ("a", "a", "b"):
        warnings.warn(text)
    warnings.recovered()
    warnings.recovered()
    warnings.warn("b")
    assert said == ["a", "b", "works again", "b"]
