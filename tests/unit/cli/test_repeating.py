"""A command that runs again and again: when it runs, which errors end it, and how it is stopped."""

from __future__ import annotations

import logging
import signal
import threading

import click
import pytest

from offsets_pipeline.cli.command import Options
from offsets_pipeline.cli.options import every_option
from offsets_pipeline.cli.stopping import repeated
from offsets_pipeline.cli.values import AS_SET
from offsets_pipeline.common.clock import FixedClock, parse_time_ms
from offsets_pipeline.common.warnings import _LogLines, set_line_times, warn
from offsets_pipeline.errors import CannotClean, CommitUnknown, WriteConflict
from tests.unit.test_periodic import BEGIN_MS, HOUR_MS, Waits


def parsed(*arguments: str, default: str | None = None) -> object:
    class Repeated(Options):
        every_ms: int | None = every_option(default)

    command = click.Command("repeated", params=Repeated.parameters(), callback=lambda every_ms: every_ms)
    return command.main(list(arguments), standalone_mode=False)


def test_interval_is_in_seconds_or_a_duration() -> None:
    assert parsed() is None
    assert parsed("--every", "90") == 90_000
    assert parsed("--every", "PT1H30M") == 5_400_000
    assert parsed("--every", "PT1H", default="a_setting") == HOUR_MS
    assert parsed("--every", default="a_setting") == AS_SET
    assert parsed(default="a_setting") is None


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "soon", "", "PT0S", "-PT1H", "PT0.0001S", "1h", "٣"])
def test_invalid_interval_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a duration: write seconds, or ISO 8601 such as PT1H30M"):
        parsed(f"--every={text}")


def test_one_run_without_an_interval_raises_its_errors_and_leaves_signals_alone() -> None:
    clock, handlers = FixedClock(BEGIN_MS), [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    assert list(repeated(lambda: "done", None, clock)) == ["done"]

    def fail() -> None:
        raise WriteConflict("overtaken")

    with pytest.raises(WriteConflict):
        list(repeated(fail, None, clock))
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == handlers


@pytest.mark.usefixtures("signal_handlers")
def test_warning_that_repeats_is_said_once_until_a_run_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    clock = FixedClock(BEGIN_MS)
    stopped, runs = Waits(clock), 0

    def run() -> int:
        nonlocal runs
        runs += 1
        if runs == 7:
            stopped.set()
        elif runs != 4:
            raise WriteConflict("overtaken")
        return runs

    assert list(repeated(run, HOUR_MS, clock, stopped)) == [4, 7]
    said = [line.partition(" offsets: ")[2] for line in capsys.readouterr().err.splitlines()]
    assert said == ["warning: overtaken; the next run tries again"] * 2


@pytest.mark.usefixtures("signal_handlers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_error_that_passes_is_warned_of_and_the_next_run_tries_again(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = FixedClock(BEGIN_MS)
    stopped, began = Waits(clock), []

    def run() -> int:
        began.append(clock.now_ms() - BEGIN_MS)
        if len(began) == 2:
            raise WriteConflict("another writer came first")
        if len(began) == 3:
            raise OSError("disk full\nand more")
        if len(began) == 4:
            raise CommitUnknown("version 7 may have been committed")
        if len(began) == 6:
            signal.raise_signal(number)
            for thread in threading.enumerate():
                if thread.name == "stop":
                    thread.join()
        return len(began)

    assert list(repeated(run, HOUR_MS, clock, stopped)) == [1, 5, 6]
    assert began == [count * HOUR_MS for count in range(6)]
    times, lines = zip(*(line.split(" ", 1) for line in capsys.readouterr().err.splitlines()), strict=True)
    assert all(parse_time_ms(time) for time in times)
    assert "".join(f"{line}\n" for line in lines) == (
        "offsets: warning: another writer came first; the next run tries again\n"
        "offsets: warning: OSError: disk full; the next run tries again\n"
        "offsets: warning: version 7 may have been committed; the next run tries again\n"
    )


@pytest.mark.usefixtures("signal_handlers")
@pytest.mark.parametrize("error", [CannotClean("its files lie elsewhere"), ConnectionRefusedError("no JVM")])
def test_error_that_does_not_pass_ends_the_runs(error: Exception) -> None:
    clock, runs = FixedClock(BEGIN_MS), []
    stopped = Waits(clock)

    def run() -> None:
        runs.append(clock.now_ms())
        if len(runs) == 2:
            raise error
        if len(runs) > 2:
            stopped.set()

    with pytest.raises(type(error), match=str(error)):
        list(repeated(run, HOUR_MS, clock, stopped))
    assert len(runs) == 2


def test_lines_of_a_process_that_runs_until_a_signal_have_times(capsys: pytest.CaptureFixture[str]) -> None:
    record = logging.LogRecord("a", logging.WARNING, "a.py", 1, "cannot %s", ("answer",), None)
    set_line_times(are_on=True)
    warn("first")
    _LogLines().emit(record)
    set_line_times(are_on=False)
    warn("last")
    *timed, last = capsys.readouterr().err.splitlines()
    assert [line.partition(" ")[2] for line in timed] == [
        *("offsets: warning: first", "offsets: warning: cannot answer")
    ]
    assert all(parse_time_ms(line.partition(" ")[0]) for line in timed)
    assert last == "offsets: warning: last"


def test_exception_in_python_s_logging_is_one_line_and_that_of_a_callback_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    set_line_times(are_on=True)
    error = ValueError("no answer\nat line 7")
    logging.getLogger("a.library").error("cannot ask", exc_info=error)
    logging.getLogger("py4j.clientserver").error("an exception while executing the Python Proxy", exc_info=error)
    what = "KeyboardInterrupt while sending command."
    trace = (KeyboardInterrupt, KeyboardInterrupt(), None)
    logging.getLogger().handle(logging.LogRecord("root", logging.ERROR, "java_gateway.py", 1070, what, (), trace))
    set_line_times(are_on=False)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.partition(" ")[2] == "offsets: warning: cannot ask: ValueError: no answer"
