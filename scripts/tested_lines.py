"""Which tests run each line of the package, by coverage: the choice of tests for a mutant.

As a plugin of pytest (`-p scripts.tested_lines`) it records the lines of each test, in each worker of pytest-xdist. A
fixture of a wider scope than a test runs with the first test that needs it; its lines are those of all tests that use
it. A test that does not pass is left out. Lines that processes of a test run are not recorded.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import coverage
import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

#: The variable of the environment that names the folder for what the plugin records.
FOLDER = "TESTED_LINES"
#: Bounds of the tests that are chosen for a mutant; the seconds are those of a processor in the recorded run.
MOST_SECONDS, MOST_TESTS = 30, 300
_FIXTURE = " fixture "


class Recorder:
    """The plugin: coverage with a context for each test, and for each fixture of several tests."""

    def __init__(self, folder: Path, package: Path) -> None:
        """``folder``: takes a file of coverage's, and one with the seconds and fixtures of each test that passed."""
        self._data = folder / f"{os.getpid()}.coverage"
        self._coverage = coverage.Coverage(str(self._data), config_file=False, source=[str(package)])
        self._coverage.start()
        self._tests: dict[str, tuple[float, list[str]]] = {}
        self._context = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Function) -> Generator[None, Any, Any]:
        """Record the lines and the seconds of a test, with its fixtures."""
        begun = time.process_time()  # as on a quiet machine: the choice of tests does not depend on what else runs
        self._switch(item.nodeid)
        self._tests[item.nodeid] = (0, [])
        done = yield
        if item.nodeid in self._tests:
            self._tests[item.nodeid] = (time.process_time() - begun, sorted(item.fixturenames))
        return done

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        """Record the lines of a fixture of several tests."""
        before = self._context
        if fixturedef.scope != "function":
            self._switch(f"{fixturedef.baseid}{_FIXTURE}{fixturedef.argname}")
        try:
            return (yield)
        finally:
            self._switch(before)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Forget a test that does not pass."""
        if not report.passed:
            self._tests.pop(report.nodeid, None)

    def pytest_sessionfinish(self) -> None:
        """Write the records."""
        self._coverage.stop()
        self._coverage.save()
        self._data.with_suffix(".json").write_text(json.dumps(self._tests), encoding="utf-8")

    def _switch(self, context: str) -> None:
        if context != self._context:
            self._coverage.switch_context(context)
            self._context = context


def pytest_configure(config: pytest.Config) -> None:
    """Record in the processes that run tests: the workers of pytest-xdist if there are any."""
    if FOLDER in os.environ and (hasattr(config, "workerinput") or not config.getoption("numprocesses", 0)):
        folder = Path(os.environ[FOLDER])
        config.pluginmanager.register(Recorder(folder, Path.cwd() / "offsets_pipeline"))


class TestedLines:
    """What the plugin recorded."""

    def __init__(self, folder: Path, package: Path) -> None:
        """``folder``: has the files of all workers. ``package``: the source as it is."""
        self._package = package
        self._seconds: dict[str, float] = {}
        #: For each file below the package the tests of each line.
        self._tests: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        #: For each test the number of lines that it runs.
        self._all: Counter[str] = Counter()
        using = defaultdict[str, list[str]](list)
        for path in folder.glob("*.json"):
            for test, (seconds, fixtures) in json.loads(path.read_text(encoding="utf-8")).items():
                self._seconds[test] = seconds
                for each in fixtures:
                    using[each].append(test)
        for path in folder.glob("*.coverage"):
            data = coverage.CoverageData(str(path))
            data.read()
            for file in data.measured_files():
                lines = self._tests[file.rpartition(f"/{package.name}/")[2]]
                for line, contexts in data.contexts_by_lineno(file).items():
                    for context in contexts:
                        base, is_fixture, name = context.partition(_FIXTURE)
                        tests = (each for each in using[name] if each.startswith(base)) if is_fixture else (context,)
                        lines[line].update(each for each in tests if each in self._seconds)
        for lines in self._tests.values():
            for found in lines.values():
                self._all.update(found)

    def of_line(self, file: str, line: int, statement: int) -> list[str]:
        """Return the tests that run a line; for an expression that none reaches, those of its ``statement``."""
        return self._nearest({(file, line)}) or self._nearest({(file, statement)})

    def of_names(self, file: str, names: frozenset[str]) -> list[str]:
        """Return the tests of lines with names that the file sets at import, else of lines that may use the file.

        Half of the time is for the quickest tests in test modules that import the file: what a test reads without
        running a line of the package, as a schema, has no record.
        """
        word = re.compile(rf"\b({'|'.join(names) or '(?!)'})\b")
        module = re.compile(rf"\b{Path(file).stem} import |import .*\b{Path(file).stem}\b")
        mentions, using = set[tuple[str, int]](), {file}
        for path in self._package.glob("**/*.py"):
            text, name = path.read_text(encoding="utf-8"), str(path.relative_to(self._package))
            if name == file or module.search(text):
                using.add(name)
                mentions |= {(name, number) for number, line in enumerate(text.splitlines(), 1) if word.search(line)}
        near = self._nearest(mentions) or self._nearest({(name, line) for name in using for line in self._tests[name]})
        importing = {
            path
            for path in {test.partition("::")[0] for test in self._seconds}
            if module.search((self._package.parent / path).read_text(encoding="utf-8"))
        }
        quick = sorted(self._seconds, key=lambda test: (self._seconds[test], test))
        of_importing = [test for test in quick if test.partition("::")[0] in importing]
        halves = self._in_time(near, MOST_SECONDS / 2), self._in_time(of_importing, MOST_SECONDS / 2)
        return list(dict.fromkeys(itertools.chain(*halves)))

    def _nearest(self, places: set[tuple[str, int]]) -> list[str]:
        """The tests that run one of the places; first those with the largest share of lines in the places' files."""
        near: Counter[str] = Counter()
        for file in {file for file, _ in places}:
            for tests in self._tests[file].values():
                near.update(tests)
        found = {test for file, line in places for test in self._tests[file].get(line, ())}
        by_share = sorted(found, key=lambda test: (-near[test] / self._all[test], self._seconds[test], test))
        return self._in_time(by_share, MOST_SECONDS)

    def _in_time(self, tests: Iterable[str], most_seconds: float) -> list[str]:
        """As many of the tests as run in this time, at least one, at most MOST_TESTS."""
        chosen, left = list[str](), most_seconds
        for test in tests:
            if self._seconds[test] <= left or not chosen:
                left -= self._seconds[test]
                chosen.append(test)
        return chosen[:MOST_TESTS]
