"""The installed program and the jobs for spark-submit: as processes, as users start them, or in the tests' process.

A new process starts a JVM, which takes ten seconds. `in_process` runs a command in the session of the `spark` fixture,
without that cost.
"""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING
from unittest import mock

from pyspark.sql import SparkSession

from offsets_pipeline.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

OFFSETS = Path(sys.executable).with_name("offsets")
SPARK_SUBMIT = Path(sys.prefix) / "bin" / "spark-submit"
#: How the README, the Makefile and these tests call spark-submit, in the project's folder.
PROPERTIES = ("--properties-file", "conf/spark-defaults.conf")
# The quick compiler alone: these processes are short.
QUICK = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"}

_SECONDS_TO_STOP = 60  # of a service that stops in order

Done = subprocess.CompletedProcess[str]


def start(folder: Path, *command: str | Path, environment: Mapping[str, str] | None = None) -> Done:
    """Run a command in a process of its own."""
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
        env={**os.environ, **QUICK, **(environment or {})},
    )


def offsets(folder: Path, *arguments: str | Path) -> Done:
    """Run the installed program in a process of its own."""
    return start(folder, OFFSETS, *arguments)


def stopped_process(folder: Path, beside: Callable[[Callable[[], str]], object], *arguments: str | Path) -> Done:
    """Run the installed program in a process group of its own until SIGTERM, which the whole group gets.

    ``beside`` runs meanwhile; the signal follows it. It is passed a function that returns what the program has printed
    so far, which fails if the program has ended.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        environment = {**os.environ, **QUICK}
        process = subprocess.Popen(
            [OFFSETS, *arguments], cwd=folder, stdout=out, stderr=err, start_new_session=True, env=environment
        )

        def printed(file: IO[str] = out) -> str:
            return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode()

        def printed_so_far() -> str:
            assert process.poll() is None, f"it ended with status {process.returncode}: {printed(err)}"
            return printed()

        try:
            beside(printed_so_far)
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(_SECONDS_TO_STOP)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return subprocess.CompletedProcess([OFFSETS, *arguments], process.returncode, printed(), printed(err))


def in_process(folder: Path, *arguments: str | Path) -> Done:
    """Run a command of `offsets` in this process, with this folder as the working one."""
    words = [str(each) for each in arguments]
    return _captured(folder, words, lambda: main(words))


def stopped_in_process(folder: Path, beside: Callable[[], object], *arguments: str | Path) -> Done:
    """Run a command in this process until SIGTERM. ``beside`` runs meanwhile in a thread; the signal follows it.

    Raises the exception of ``beside``.
    """
    words = [str(each) for each in arguments]
    unhandled, ended, failures = signal.getsignal(signal.SIGTERM), threading.Event(), list[BaseException]()

    def stop() -> None:
        try:
            beside()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)
        while signal.getsignal(signal.SIGTERM) is unhandled:  # the signal would end the tests
            if ended.wait(0.05):
                return
        os.kill(os.getpid(), signal.SIGTERM)

    def run() -> int:
        thread = threading.Thread(target=stop)
        thread.start()
        try:
            return main(words)
        finally:
            ended.set()
            thread.join()

    done = _captured(folder, words, run)
    if failures:
        raise failures[0]
    return done


def job_in_process(folder: Path, name: str, *arguments: str | Path) -> Done:
    """Run a job in this process, with this folder as the working one."""
    words = [f"jobs/{name}.py", *map(str, arguments)]

    def run() -> int:
        with mock.patch.object(sys, "argv", words):
            runpy.run_path(words[0], run_name="__main__")
        raise AssertionError(f"{words[0]} does not end with an exit status")

    return _captured(folder, words, run)


def python_in_process(folder: Path, code: str) -> Done:
    """Run a program in this process, with this folder as the working one."""

    def run() -> int:
        exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
        return 0

    return _captured(folder, ["python", "-c", code], run)


def assert_said(done: Done, said: str) -> None:
    """It succeeded, printed this line, and nothing on stderr."""
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == said + "\n"


def assert_refused(done: Done, said: str) -> None:
    """It failed with one line on stderr, which begins so."""
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"offsets: error: {said}")
    assert len(done.stderr.splitlines()) == 1


def _captured(folder: Path, words: Sequence[str], run: Callable[[], int]) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        _session_and_signals_as_before(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            status = run()
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
    return subprocess.CompletedProcess(list(words), status, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _session_and_signals_as_before() -> Iterator[None]:
    """Undo what a command sets until its process ends: signals, options, variables of tasks. It leaves no query."""
    session = SparkSession.builder.getOrCreate()
    conf, environment = session.conf.getAll, session.sparkContext.environment
    session.sparkContext.environment = environment.copy()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        session.sparkContext.environment = environment
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for key in dict(session.conf.getAll.items() ^ conf.items()):
            if key in conf:
                session.conf.set(key, conf[key])
            else:
                session.conf.unset(key)
    assert session.streams.active == []
