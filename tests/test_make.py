"""Output and refusals of `make`. These tests run inside an environment, so they do not create one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from itertools import chain
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TESTS = {"test", "test-slow", "test-fast", "test-lowest", "test-spark", "test-long", "test-sample", "test-mutations"}
TARGETS = {
    "setup",
    "kafka",
    "s3",
    "run",
    "lint",
    "format",
    "bench",
    "bench-quick",
    "docs",
    "dist",
    "lock",
    "clean",
} | TESTS
#: The project itself, as an extra that includes another one, and the one package of an extra that no test uses.
NOT_LOCKED = {"offsets_pipeline", "jupyterlab"}
JAVA_17 = 'openjdk version "17.0.15" 2025-04-15'


class Machine:
    """A copy of the project's set-up files, and a PATH with only the test's programs."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.project = folder / "a clone"
        self.project.mkdir(parents=True)
        for name in ["Makefile", "scripts", "conf"]:
            source = root / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, self.project / name)
        self.path = folder / "bin"
        self.path.mkdir()
        for tool in ["sh", "bash", "awk", "make"]:
            found = shutil.which(tool)
            assert found, f"the tests need {tool}"
            (self.path / tool).symlink_to(found)

    def has(self, name: str, script: str) -> None:
        """Put a command into PATH."""
        (self.path / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (self.path / name).chmod(0o755)

    def has_python(self, name: str, version: str | None = None) -> None:
        """Put a Python into PATH: this one, or one that only says that it is `version`."""
        self.has(name, f'echo "Python {version}"' if version else f'exec "{sys.executable}" "$@"')

    def has_java(self, says: str) -> None:
        """Put a Java into PATH that prints `says`, on stderr as Java does."""
        self.has("java", f"echo '{says}' >&2")

    def make(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run make in the project's copy."""
        return run_make(self.project, {"PATH": str(self.path), **environment}, *arguments)


def run_make(folder: Path, environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    make = shutil.which("make")
    assert make, "the tests need make"
    # Without what a make that runs these tests would hand on.
    return subprocess.run(
        [make, *arguments], cwd=folder, env=dict(environment), capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture
def machine(root: Path, tmp_path: Path) -> Machine:
    return Machine(root, tmp_path)


@pytest.mark.parametrize("arguments", [[], ["help"]])
def test_make_alone_and_make_help_list_every_target_with_what_it_does(machine: Machine, arguments: list[str]) -> None:
    done = machine.make(*arguments)
    assert done.returncode == 0
    said = dict(re.findall(r"^  make (\S+) +(\S.*)$", done.stdout, flags=re.MULTILINE))
    assert said.keys() >= TARGETS


@pytest.mark.parametrize("target", ["setup", "run", "lint", *sorted(TESTS)])
def test_without_java_one_line_says_so_before_anything_is_made(machine: Machine, target: str) -> None:
    machine.has_python("python3")
    done = machine.make(target)
    assert done.returncode != 0
    assert done.stdout == ""
    assert re.fullmatch(r"Makefile:\d+: \*\*\* setup: no java in PATH: install Java 17 or newer.*Stop\.\n", done.stderr)
    assert not (machine.project / ".venv").exists()


def test_a_java_home_without_java_is_named(machine: Machine, tmp_path: Path) -> None:
    machine.has_python("python3")
    machine.has_java(JAVA_17)
    done = machine.make("setup", JAVA_HOME=str(tmp_path / "gone"))
    assert done.returncode != 0
    assert f"no Java in JAVA_HOME, which is {tmp_path / 'gone'}: install Java 17" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("says", "version"), [('openjdk version "11.0.2" 2019-01-15', "11"), ('java version "1.8.0_402"', "8")]
)
def test_a_java_that_is_too_old_is_one_line(machine: Machine, says: str, version: str) -> None:
    machine.has_python("python3")
    machine.has_java(says)
    done = machine.make("setup")
    assert done.returncode != 0
    assert f"setup: {machine.path / 'java'} is Java {version}: install Java 17 or newer" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (machine.project / ".venv").exists()


def test_no_python_is_one_line(machine: Machine) -> None:
    machine.has_java(JAVA_17)
    done = machine.make("setup")
    assert done.returncode != 0
    assert "setup: no python3 in PATH: install Python 3.11 or newer" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_python_that_is_too_old_is_one_line_even_with_a_newer_one_beside_it(machine: Machine) -> None:
    machine.has_java(JAVA_17)
    machine.has_python("python3", version="3.9.18")
    machine.has_python("python3.11")
    done = machine.make("setup")
    assert done.returncode != 0
    assert f"setup: {machine.path / 'python3'} is Python 3.9: install Python 3.11 or newer, or name one" in done.stderr
    assert done.stderr.count("\n") == 1
    assert machine.make("check", "PYTHON=python3.11").returncode == 0


@pytest.mark.parametrize("name", ["python3", "python3.11"])
def test_python_may_be_named_python3_or_python3_11(machine: Machine, name: str) -> None:
    machine.has_java(JAVA_17)
    machine.has_python(name)
    done = machine.make("check")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("store", "jars"), [("a store", False), ("s3://bucket/a store", True), ("s3a://bucket/store", True)]
)
def test_a_run_on_s3_fetches_the_jars_for_it(machine: Machine, store: str, *, jars: bool) -> None:
    machine.has_java(JAVA_17)
    machine.has_python("python3")
    for name in ("requirements.lock", "pyproject.toml"):
        (machine.project / name).touch()
    done = machine.make("--dry-run", "run", f"STORE={store}")
    assert done.returncode == 0, done.stderr
    assert ("fetch_jars.py s3" in done.stdout) == jars


@pytest.mark.parametrize(
    ("given", "chosen"),
    [((), "3/8"), (("-m", "not slow"), "3/8"), (("-m", "not long"), "3/8"), (("-m", "long"), "5/8")],
)
def test_long_tests_are_left_out_unless_they_are_asked_for(root: Path, given: tuple[str, ...], chosen: str) -> None:
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/coordinator/test_kill.py", *given]
    done = subprocess.run(collect, cwd=root, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.splitlines()[-1].startswith(f"{chosen} tests collected (")


@pytest.mark.slow  # collects tests twice
def test_a_sample_is_the_share_of_the_chosen_tests_that_its_seed_draws(root: Path) -> None:
    def sample(seed: int) -> list[str]:
        collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/readers", "-m", "long"]
        environment = {**os.environ, "OFFSETS_TEST_SEED": str(seed), "OFFSETS_TEST_SHARE": "0.25"}
        done = subprocess.run(
            collect, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        return [line for line in done.stdout.splitlines() if "::" in line]

    one, other = sample(1), sample(2)
    assert len(one) == len(other) == 4  # of 16
    assert one != other


TESTS_OF_A_SAMPLE = """
import time
import pytest

class SaidSlowly(Exception):
    def __str__(self):
        time.sleep(6)
        return "slow"

@pytest.fixture
def jvm():
    yield
    raise OSError("out of step")

@pytest.mark.long
def test_fails_at_once_and_is_reported_slowly():
    raise SaidSlowly

@pytest.mark.long
def test_takes_too_long(jvm):
    time.sleep(60)

@pytest.mark.long
def test_begins_too_late():
    pass
"""


@pytest.mark.slow  # the time that a test of a sample gets has to pass
@pytest.mark.parametrize(
    ("chosen", "status", "counts"),
    [
        # for itself, for what it tears down, and the one that begins too late
        ("test_takes or test_begins", 0, "3 skipped"),
        ("test_fails", 1, "1 failed"),
    ],
)
def test_a_test_of_a_sample_that_is_not_done_in_time_counts_as_not_run(
    root: Path, tmp_path: Path, chosen: str, status: int, counts: str
) -> None:
    test = tmp_path / "test_sample.py"
    test.write_text(TESTS_OF_A_SAMPLE, encoding="utf-8")
    options = ["-n", "1", "-rs", "-c", str(root / "pyproject.toml"), "-p", "tests.conftest", "-m", "long", "-k", chosen]
    run = [sys.executable, "-m", "pytest", *options, str(test)]
    environment = {**os.environ, "OFFSETS_TEST_SECONDS": "10"}
    done = subprocess.run(run, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == status, done.stdout
    assert re.search(rf"^=+ {counts} in ", done.stdout, flags=re.MULTILINE), done.stdout
    if not status:
        assert "not done within 5 s" in done.stdout
        assert "not one of the tests that began within 5 s" in done.stdout


@pytest.mark.usefixtures("set_up")
def test_set_up_again_does_nothing(root: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    done = run_make(root, environment, "setup")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_lock_holds_every_extra_with_hashes_and_names_no_host(root: Path) -> None:
    lock = (root / "requirements.lock").read_text(encoding="utf-8")
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"].values()
    wanted = [*project["project"]["dependencies"], *chain(*extras), *project["build-system"]["requires"]]
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, flags=re.MULTILINE))
    for each in map(Requirement, wanted):
        if each.name not in NOT_LOCKED:
            assert each.specifier.contains(locked[each.name]), each
    blocks = re.split(r"^(?=[a-z])", lock, flags=re.MULTILINE)[1:]
    assert all("--hash=sha256:" in block for block in blocks)
    assert "://" not in lock
    assert set(re.findall(r"^\s*(-[^=\s]*)", lock, flags=re.MULTILINE)) == {"--hash"}


def test_the_jars_of_this_environment_are_those_whose_sums_are_committed(root: Path) -> None:
    """A second run of fetch_jars finds every JAR in place: it needs no Java, no network, and prints nothing."""
    done = subprocess.run(
        [sys.executable, str(root / "scripts" / "fetch_jars.py"), "delta", "delta-spark-4.2"],
        env={"PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_jar_set_that_does_not_exist_is_refused_in_one_line(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(root / "scripts" / "fetch_jars.py"), "no-such-set"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert re.fullmatch(r"fetch_jars: error: no set of JARs named no-such-set: .* is missing\n", done.stderr)
