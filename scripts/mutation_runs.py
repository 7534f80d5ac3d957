"""Runs of tests in a copy of the project that has one mutant: the mechanism of all mutations.

Only a failed assertion counts as noticed. A mutant that does not compile, or that its tests cannot import, proves
nothing about the tests, nor does an exception on the way to an assertion; each is a result of its own.

As a plugin of pytest (`-p scripts.mutation_runs`) this module ends a run at the first failed assertion.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "offsets_pipeline"
FOLDERS = (PACKAGE, "tests", "benchmarks", "scripts", "docs", "conf", "deploy", "examples", "jobs", "notebooks")
FILES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE",
    "NOTICE",
    "Makefile",
    "pyproject.toml",
    "requirements.lock",
)
COPIED = (*FOLDERS, *FILES)
#: The results of a mutant.
NOTICED, RAISED, SURVIVED, TIMED_OUT, BROKEN = "noticed", "raised", "survived", "timeout", "broken"
#: A line of pytest's summary: the test, and the first line of its exception.
_FAILED = re.compile(r"^FAILED (\S+?\.py::[^\s\[]+(?:\[.*?\])?) - (.*)$", re.MULTILINE)
_ASSERTED = re.compile(r"assert |AssertionError|Failed: DID NOT |Failed: (?!Timeout)|ExceptionGroup: Hypothesis")
_TIMED_OUT = re.compile(r"Failed: Timeout")


def pytest_exception_interact(node: pytest.Item | pytest.Collector, report: pytest.TestReport) -> None:
    """End the run if this is a failed assertion; after another exception other tests may still fail by one."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None and _ASSERTED.match(crash.message):
        node.session.shouldfail = "an assertion failed"


class Outcome(NamedTuple):
    """A result of a mutant, and the test that it comes from or the reason."""

    result: str
    by: str = ""


class MutatedProject:
    """A copy of the project. Each mutation replaces one of its files."""

    def __init__(self, folder: Path) -> None:
        """``folder``: has the copy."""
        self.folder = folder

    def outcome(self, file: str, source: str, tests: Sequence[str], most_seconds: int | None = None) -> Outcome:
        """Return what these tests say of a mutant: a file of the package, with the source that it has instead."""
        try:
            compile(source, file, "exec")
        except (SyntaxError, ValueError) as error:
            return Outcome(BROKEN, str(error))
        path = self.folder / PACKAGE / file
        before = path.read_text(encoding="utf-8")
        self._replace(path, source)
        try:
            return self.tested(tests, most_seconds)
        finally:
            self._replace(path, before)

    def tested(self, tests: Sequence[str], most_seconds: int | None = None) -> Outcome:
        """Run these tests until an assertion fails; none begins after ``most_seconds``, and none has more than half."""
        options = ["-p", "scripts.mutation_runs", "--tb=no", "-rf", *tests]
        if most_seconds is not None:
            options += [f"--session-timeout={most_seconds}", f"--timeout={most_seconds // 2}"]
        try:
            done = self.pytest(options, 2 * most_seconds if most_seconds else None)
        except subprocess.TimeoutExpired:  # an endless loop may catch the exception of the timeout
            return Outcome(TIMED_OUT)
        failed = _FAILED.findall(done.stdout)
        for result, reason_is in ((NOTICED, _ASSERTED), (TIMED_OUT, _TIMED_OUT), (RAISED, re.compile(""))):
            for test, reason in failed:
                if reason_is.match(reason):
                    return Outcome(result, test)
        if done.returncode == 0 or "session-timeout" in done.stdout:
            return Outcome(SURVIVED)
        return Outcome(BROKEN, f"pytest ended with {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}")

    def pytest(
        self, arguments: Sequence[str], timeout: float | None = None, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run pytest in the copy, with these variables in its environment.

        Raises:
            subprocess.TimeoutExpired: it ran for longer than ``timeout`` seconds.
        """
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", *arguments],
            cwd=self.folder,
            # with CI pytest prints whole lines
            env={**os.environ, "PYTHONPATH": str(self.folder), "CI": "true", **(variables or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )

    def _replace(self, path: Path, source: str) -> None:
        path.write_text(source, encoding="utf-8")
        Path(cache_from_source(str(path))).unlink(missing_ok=True)  # it may be as old and as long as the last


@contextmanager
def mutated_project() -> Iterator[MutatedProject]:
    """A copy of the project in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as name:
        folder = Path(name)
        for each in COPIED:
            source = ROOT / each
            if source.is_dir():
                shutil.copytree(source, folder / each, ignore=shutil.ignore_patterns("__pycache__", "data"))
            else:
                shutil.copy2(source, folder / each)
        (folder / "tests" / "data").symlink_to(ROOT / "tests" / "data")
        yield MutatedProject(folder)
