"""Progress bars: on a terminal, for work that takes long, and on stderr alone."""

from __future__ import annotations

import io
import sys
import threading
from contextlib import redirect_stderr
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import SparkContext

from offsets_pipeline.cli.progress_bar import progress_bar, tasks

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsets_pipeline.cli.progress_bar import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A stderr for `redirect_stderr`: pytest replaces stderr after fixtures are set up."""
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def test_bar_shows_how_much_is_done_on_stderr_alone(terminal: Terminal, capsys: pytest.CaptureFixture[str]) -> None:
    looks = threading.Semaphore(0)

    def progress() -> Progress:
        looks.release()
        return 1_500, 3_000, "records"

    with redirect_stderr(terminal), progress_bar("exporting", progress, after_seconds=0):
        for _ in range(3):  # what one look found is on the screen before the next but one
            assert looks.acquire(timeout=20)
        sys.stdout.write("output\n")
    assert "exporting" in terminal.getvalue()
    assert "1,500/3,000 records" in terminal.getvalue()
    assert capsys.readouterr().out == "output\n"


def test_short_work_shows_no_bar(terminal: Terminal) -> None:
    with redirect_stderr(terminal), progress_bar("exporting", lambda: (0, None, "records"), after_seconds=60):
        pass
    assert terminal.getvalue() == ""


def test_output_to_a_file_shows_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    threads = threading.active_count()
    with progress_bar("exporting", lambda: (0, None, "records"), after_seconds=0):
        assert threading.active_count() == threads
    assert capsys.readouterr() == ("", "")


def test_bar_that_fails_fails_no_command(terminal: Terminal) -> None:
    asked = threading.Event()

    def progress() -> Progress:
        asked.set()
        raise ConnectionError("no JVM")

    with redirect_stderr(terminal), progress_bar("folding", progress, after_seconds=0):
        assert asked.wait(20)
    assert "no JVM" not in terminal.getvalue()


def tracker(stages: dict[int, tuple[int, int]], jobs: dict[int, list[int]]) -> SimpleNamespace:
    def found(kind: dict[int, Any], of: Callable[[Any], object]) -> Callable[[int], object | None]:
        return lambda at: of(kind[at]) if at in kind else None

    return SimpleNamespace(
        getActiveJobsIds=lambda: list(range(3)),
        getJobInfo=found(jobs, lambda ids: SimpleNamespace(stageIds=ids)),
        getStageInfo=found(stages, lambda s: SimpleNamespace(numCompletedTasks=s[0], numTasks=s[1])),
    )


def test_tasks_are_those_of_all_stages_of_active_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tracker({1: (3, 4), 2: (0, 5), 4: (1, 1)}, {0: [1, 2], 2: [3, 4]})  # job 1 and stage 3 have just ended
    monkeypatch.setattr(SparkContext, "_active_spark_context", SimpleNamespace(statusTracker=lambda: found))
    assert tasks() == (4, 10, "tasks")
    monkeypatch.setattr(SparkContext, "_active_spark_context", SimpleNamespace(statusTracker=lambda: tracker({}, {})))
    assert tasks() == (0, None, "tasks")
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)  # nothing has needed Spark yet
    assert tasks() == (0, None, "tasks")
