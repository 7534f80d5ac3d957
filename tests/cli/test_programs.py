"""The installed program and the jobs for spark-submit, as users start them: processes of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from tests.compare import compare
from tests.logs import capture_rows, oracle
from tests.spark.stores import segments_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CAPTURE = "4.2.0-kip848"
OFFSETS = Path(sys.executable).with_name("offsets")
SPARK_SUBMIT = Path(sys.prefix) / "bin" / "spark-submit"
Done = subprocess.CompletedProcess[str]


def start(root: Path, *command: str | Path, environment: Mapping[str, str] | None = None) -> Done:
    # the quick compiler alone: these processes are short
    quick = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1"}
    return subprocess.run(
        command,
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
        env={**os.environ, **quick, **(environment or {})},
    )


def offsets(root: Path, *arguments: str | Path) -> Done:
    return start(root, OFFSETS, *arguments)


def job(root: Path, name: str, *arguments: str | Path) -> Done:
    defaults = root / "conf" / "spark-defaults.conf"
    done = start(root, SPARK_SUBMIT, "--properties-file", defaults, root / "jobs" / f"{name}.py", *arguments)
    # Java itself says this of a JVM that spark-submit starts, before anything of ours runs
    lines = [line for line in done.stderr.splitlines(keepends=True) if "Using incubator modules" not in line]
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout, "".join(lines))


def assert_said(done: Done, said: str) -> None:
    """It succeeded, printed this line, and nothing on stderr."""
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == said + "\n"


def assert_refused(done: Done, said: str) -> None:
    """It failed with one line on stderr, which begins so; of a job spark-submit puts all that it writes on stdout."""
    is_job = SPARK_SUBMIT in done.args
    line, nothing = (done.stdout, done.stderr) if is_job else (done.stderr, done.stdout)
    assert (done.returncode, nothing) == (1, "")
    assert line.startswith(f"offsets: error: {said}")
    assert len(line.splitlines()) == 1


def assert_describes(root: Path, store: Path) -> None:
    done = offsets(root, "describe", "--store", store, "--all-groups", "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert compare(json.loads(done.stdout), oracle(CAPTURE)) == []


@pytest.mark.slow
def test_log_goes_in_and_answers_come_out(root: Path, tmp_path: Path) -> None:
    store = tmp_path / "a store"
    records = sum(map(len, capture_rows(CAPTURE).values()))
    ingested = f"{records} records added to {store} from 5 segment files (5 log partitions)"
    assert_said(job(root, "ingest_segments", "--store", store, segments_of(CAPTURE)), ingested)
    assert_said(offsets(root, "fold", "--store", store, "--available-now"), f"{records} records folded in {store}")
    assert_describes(root, store)
    assert_said(job(root, "fold_stream", "--store", store, "--available-now"), f"0 records folded in {store}")
    verified = offsets(root, "verify", "--store", store)
    assert (verified.returncode, verified.stderr) == (0, "")
    assert verified.stdout.startswith("equal: ")

    DeltaTable(str(store / "committed_offsets")).update(
        {"committed_offset": "committed_offset + 1"}, predicate="log_partition = 0 AND committed_offset >= 0"
    )
    assert_refused(job(root, "verify", "--store", store), f"{store} differs from its log: ")
    assert_said(
        job(root, "reload", "--store", store, "--partition", "0"),
        f"{len(capture_rows(CAPTURE)[0])} records replayed in {store}",
    )
    maintained = job(root, "maintain", "--store", store)
    assert (maintained.returncode, maintained.stderr) == (0, "")
    assert re.search(r"^log +\d+ +\d+ +1 +\d+ +0$", maintained.stdout, re.MULTILINE)
    assert_describes(root, store)
    cleaned = job(root, "clean_log", "--store", store)
    assert (cleaned.returncode, cleaned.stderr) == (0, "")
    assert cleaned.stdout.startswith("STORE ")
    forecast = job(root, "expire_offsets", "--store", store, "--dry-run", "--at", "2100-01-01", "--format", "csv")
    assert (forecast.returncode, forecast.stderr) == (0, "")
    assert forecast.stdout.startswith("when,expires,group,topic,partition,rule,reason\nnow,")
    assert_refused(job(root, "expire_offsets", "--store", store), f"{store} is a mirrored store: ")
    assert_describes(root, store)
    assert {path.name for path in tmp_path.iterdir()} == {"a store"}


@pytest.mark.slow
def test_programs_refuse_in_one_line(root: Path, tmp_path: Path) -> None:
    assert_refused(job(root, "ingest_segments", "--store", tmp_path / "s", tmp_path / "x"), "no such file or folder: ")
    assert_refused(offsets(root, "verify", "--store", tmp_path / "s"), f"no store at {tmp_path / 's'}: ")
    bad = tmp_path / "__consumer_offsets-0" / f"{0:020}.log"
    bad.parent.mkdir()
    bad.write_bytes(b"no log segment; " * 50)
    assert_refused(offsets(root, "ingest-segments", "--store", tmp_path / "s", bad), f"{bad}")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("command", [("fold", "--available-now"), ("verify",), ("sql", "SELECT 1")])
def test_where_java_is_missing_that_is_what_is_said(root: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "env", "dirname", "basename"):
        (tools / name).symlink_to(shutil.which(name) or name)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": str(tools)}
    name, *rest = command
    done = subprocess.run(
        [OFFSETS, name, "--store", tmp_path / "s", *rest],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env=environment,
    )
    assert_refused(
        done, "no Java in PATH: Spark needs Java 17 or newer; install one, and put it in PATH or set JAVA_HOME"
    )
    assert not (tmp_path / "s").exists()
    environment["JAVA_HOME"] = str(tmp_path / "jdk")
    done = subprocess.run(
        [OFFSETS, name, "--store", tmp_path / "s", *rest],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env=environment,
    )
    assert_refused(done, f"no Java in JAVA_HOME, which is {tmp_path / 'jdk'}: Spark needs Java 17")


def test_describe_needs_no_java(folded: Callable[[str], Path], root: Path, tmp_path: Path) -> None:
    for command in (("describe", "--all-groups"), ("log-info",), ("expire-offsets", "--dry-run", "--at", "2100-01-01")):
        name, *rest = command
        done = start(
            root,
            OFFSETS,
            name,
            "--store",
            folded(CAPTURE),
            *rest,
            environment={"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)},
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert len(done.stdout.splitlines()) > 5


def test_reader_that_has_seen_enough_is_no_error(folded: Callable[[str], Path], root: Path) -> None:
    with subprocess.Popen(
        [OFFSETS, "describe", "--store", folded(CAPTURE), "--all-groups"],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == ""


def test_version_and_help_go_to_stdout(root: Path) -> None:
    for option, said in (("--version", "0."), ("--help", "usage: offsets [-h]")):
        done = offsets(root, option)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(said)
