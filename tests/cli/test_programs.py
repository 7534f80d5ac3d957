"""The installed program as a process, where it needs no Spark; and each job for spark-submit once, in this process.

Processes that start a JVM: `make run` in tests/test_readme.py, a program of its own in tests/test_session.py.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.handlers import FetchedOffset
from offsets_pipeline.semantics.partition_state import TopicPartition
from offsets_pipeline.store.delta.schemas import LEASES
from tests.compare import compare
from tests.logs import capture_rows, oracle
from tests.places import copied
from tests.programs import (
    OFFSETS,
    Done,
    assert_refused,
    assert_said,
    in_process,
    job_in_process,
    offsets,
    start,
)
from tests.spark.stores import alter, segments_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

CAPTURE = "4.2.0-kip848"
_SECONDS_TO_START = 3  # of one processor: more than a command needs before its query
ROOT = Path(__file__).parents[2]


def assert_describes(root: Path, store: Path) -> None:
    done = in_process(root, "describe", "--store", store, "--all-groups", "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert compare(json.loads(done.stdout), oracle(CAPTURE)) == []


def test_each_job_does_what_its_command_does(
    spark: SparkSession, folded: Callable[[str], Path], root: Path, tmp_path: Path
) -> None:
    store = copied(folded(CAPTURE), tmp_path / "a store")

    def job(name: str, *arguments: str | Path) -> Done:
        return job_in_process(root, name, "--store", store, *arguments)

    ingested = f"0 records added to {store} from 5 segment files (5 log partitions)"
    assert_said(job("ingest_segments", segments_of(CAPTURE)), ingested)
    assert_said(job("fold_stream", "--available-now"), f"0 records folded in {store}")
    verified = job("verify")
    assert (verified.returncode, verified.stderr) == (0, "")
    assert verified.stdout.startswith("equal: ")

    alter(store, "current_offsets", {"committed_offset": "committed_offset + 1"}, "log_partition = 0")
    assert_refused(job("verify"), f"{store} differs from its log: ")
    assert_said(job("reload", "--partition", "0"), f"{len(capture_rows(CAPTURE)[0])} records replayed in {store}")
    maintained = job("maintain")
    assert (maintained.returncode, maintained.stderr) == (0, "")
    assert re.search(r"^log +\d+ +\d+ +1 +\d+ +0 +\d+$", maintained.stdout, re.MULTILINE)
    assert_describes(root, store)
    cleaned = job("clean_log")
    assert (cleaned.returncode, cleaned.stderr) == (0, "")
    assert cleaned.stdout.startswith("FILES-BEFORE ")
    # a note, since the table is wide; it is wrapped, perhaps at the space of the path
    assert "".join(f"STORE: {store}".split()) in "".join(cleaned.stdout.split())
    forecast = job("expire_offsets", "--dry-run", "--at", "2100-01-01", "--format", "csv")
    assert (forecast.returncode, forecast.stderr) == (0, "")
    assert forecast.stdout.startswith("when,expires,group,topic,partition,rule,reason\nnow,")
    assert_refused(job("expire_offsets"), f"cannot expire offsets of {store}: in a mirrored store ")
    assert_describes(root, store)


@pytest.mark.parametrize("path", sorted((ROOT / "jobs").glob("*.py")), ids=lambda path: path.stem)
def test_each_job_is_a_command_with_the_same_options(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    named = re.search(r"`offsets ([a-z-]+)` for spark-submit", ast.get_docstring(tree) or "")
    assert named is not None
    assert ast.unparse(tree.body[-1]) == (
        f"if __name__ == '__main__':\n    sys.exit(main(['{named[1]}', *sys.argv[1:]]))"
    )
    assert main([named[1], "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: offsets {named[1]} ")


def files_of(store: Path) -> set[Path]:
    """The files of a store but for those of its leases."""
    return {path for path in store.rglob("*") if LEASES.name not in path.parts}


@pytest.mark.process
@pytest.mark.parametrize("command", [("fold",), ("create-views", "--schema", "s"), ("sql", "--spark", "SELECT 1")])
def test_missing_java_is_named_in_the_error(
    folded: Callable[[str], Path], root: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    store, tools = tmp_path / "s", tmp_path / "bin"
    copied(folded(CAPTURE), store)
    there = files_of(store)
    tools.mkdir()
    for name in ("bash", "env", "dirname", "basename"):
        (tools / name).symlink_to(shutil.which(name) or name)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": str(tools)}
    name, *rest = command

    def run() -> subprocess.CompletedProcess[str]:
        words: list[str | Path] = [OFFSETS, name, "--store", store, *rest]
        return subprocess.run(
            words, cwd=root, capture_output=True, text=True, check=False, timeout=100, env=environment
        )

    assert_refused(
        run(), "no Java in PATH: Spark needs Java 17 or newer; install one, and put it in PATH or set JAVA_HOME"
    )
    assert files_of(store) == there
    environment["JAVA_HOME"] = str(tmp_path / "jdk")
    assert_refused(run(), f"no Java in JAVA_HOME, which is {tmp_path / 'jdk'}: Spark needs Java 17")


@pytest.mark.process
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


@pytest.mark.process
@pytest.mark.parametrize(
    ("command", "said"),
    [(("reload",), "records replayed"), (("fold", "--available-now"), "0 records folded"), (("verify",), "equal")],
)
def test_replay_of_few_records_needs_no_java(
    folded: Callable[[str], Path], root: Path, tmp_path: Path, command: tuple[str, ...], said: str
) -> None:
    copied(folded(CAPTURE), tmp_path / "s")
    name, *rest = command
    words: list[str | Path] = [OFFSETS, name, "--store", tmp_path / "s", *rest]
    without_java = {"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)}
    done = subprocess.run(
        words, cwd=root, capture_output=True, text=True, check=False, timeout=100, env=os.environ | without_java
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert said in done.stdout


@pytest.mark.process
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


def cpu_seconds(process: int) -> float:
    """The seconds that all threads of a process have computed."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.process
def test_ctrl_c_ends_a_long_query(folded: Callable[[str], Path], root: Path) -> None:
    """Needs a process: the signal ends it."""
    query = "SELECT count(*) FROM range(100000000000) a WHERE a.range % 7 = 9"
    command: list[str | Path] = [OFFSETS, "sql", "--store", folded(CAPTURE), query]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_until("the query is running", lambda: cpu_seconds(process.pid) > _SECONDS_TO_START)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT
        assert process.communicate() == (b"", b"")


@pytest.mark.process
def test_a_command_whose_output_the_shell_closed_does_its_work(tmp_path: Path) -> None:
    """Needs a process: Python has no stdout then."""
    store = str(tmp_path / "store")
    commit = ["commit", "--store", store, "--group", "g"]
    for closed, words in (
        ('exec "$@" >&-', ["create", "--store", store]),
        ('exec "$@" >&-', [*commit, "t:0=1"]),
        ('exec "$@" >&- 2>&-', [*commit, "t:1=2"]),
    ):
        done = subprocess.run(["sh", "-c", closed, "sh", OFFSETS, *words], capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
    with Coordinator.open(store, housekeeping=False) as coordinator:
        assert coordinator.fetch_offsets("g") == {
            TopicPartition("t", 0): FetchedOffset(1),
            TopicPartition("t", 1): FetchedOffset(2),
        }


@pytest.mark.process
def test_spark_shows_times_in_utc_on_a_machine_in_another_zone(folded: Callable[[str], Path], root: Path) -> None:
    query = "SELECT TIMESTAMP '2026-03-01 12:00:00Z' AS at"
    for more in ([], ["--spark"]):
        done = subprocess.run(
            [OFFSETS, "sql", "--store", folded(CAPTURE), query, *more],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            env=os.environ | {"TZ": "America/New_York"},
        )
        assert done.stdout.split() == ["AT", "2026-03-01T12:00:00Z"], done.stderr


@pytest.mark.process
def test_help_on_a_full_disk_is_an_error_in_one_line(root: Path) -> None:
    for words in (["--help"], ["describe", "--help"], ["--version"]):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [OFFSETS, *words], cwd=root, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60
            )
        assert done.returncode == 1
        assert done.stderr == "offsets: error: cannot write to stdout: No space left on device\n"


@pytest.mark.process
def test_version_and_help_go_to_stdout(root: Path) -> None:
    for option, said in (("--version", "0."), ("--help", "Usage: offsets [OPTIONS] COMMAND")):
        done = offsets(root, option)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(said)
