"""The command `expire-offsets` on an owned store: forecasts, single and repeated runs, and failures (R18-R22)."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from offsets_pipeline.cli import main
from offsets_pipeline.common.clock import FixedClock, shown_time
from offsets_pipeline.coordinator.owned_log import OwnedLog, Record
from offsets_pipeline.coordinator.registry import FOLDER
from tests.unit.coordinator.stores import NOW_MS, append, opened, references_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from offsets_pipeline.coordinator.owned_log import PreparedAppend
    from offsets_pipeline.store.delta.snapshot import Commit

PARTITIONS = 3
HOUR_MS, WEEK_MS = 3_600_000, 7 * 24 * 3_600_000
LONG_AGO = FixedClock(0)
GROUPS = ("a", "b", "c")  # of log partitions 1, 2 and 0


@pytest.fixture
def filled(store: Path) -> Path:
    """Group "a" has expired at NOW_MS, "b" expires an hour later, and "c" is held, all but one offset."""
    with opened(store, FixedClock(NOW_MS - WEEK_MS)) as coordinator:
        coordinator.commit_offsets("a", {("t", 1): 1, ("t", 0): 1})
        coordinator.commit_offsets("b", {("t", 0): 1}, retention_time_ms=WEEK_MS + HOUR_MS)
        coordinator.commit_offsets("c", {("t", 0): 1, ("u", 0): 1})
        coordinator.begin_transaction(7, 0)
        coordinator.txn_commit_offsets(7, 0, "c", {("u", 0): 2})
    return store


@pytest.fixture
def offsets(filled: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command; returns its status and output."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        return main(["expire-offsets", "--store", str(filled), *arguments]), *capsys.readouterr()

    return run


def held(store: Path) -> set[tuple[str, str, int]]:
    return {identity for state in references_of(store, PARTITIONS).values() for identity in state.current}


def failing_on(monkeypatch: pytest.MonkeyPatch, log_partition: int) -> None:
    """Appends to a log partition fail."""
    write = OwnedLog.write

    def failing(log: OwnedLog, prepared: PreparedAppend, *, durable: bool) -> list[Commit]:
        if log_partition in prepared.ends:
            raise OSError("disk full")
        return write(log, prepared, durable=durable)

    monkeypatch.setattr(OwnedLog, "write", failing)


SIMPLE = "its group has no protocol; "
COUNTED, OWN = SIMPLE + "retention counts from its commit", SIMPLE + "its commit named the time"
HELD = "an open transaction holds a commit for it; retention counts from its commit"
NOW, LATER = shown_time(NOW_MS), shown_time(NOW_MS + HOUR_MS)
EXPIRING: list[list[Any]] = [
    ["now", NOW, "a", "t", 0, "R18c", COUNTED],
    ["now", NOW, "a", "t", 1, "R18c", COUNTED],
    ["now", NOW, "a", None, None, "R21", "the group is removed with its last offset"],
    ["now", NOW, "c", "t", 0, "R18c", COUNTED],
]
COMING: list[list[Any]] = [
    ["later", LATER, "b", "t", 0, "R18c", OWN],
    ["later", LATER, "b", None, None, "R21", "the group is removed with its last offset"],
]
KEPT: list[list[Any]] = [["held", NOW, "c", "u", 0, "R20", HELD]]


@pytest.mark.parametrize(
    ("at_ms", "within", "rows"),
    [
        (NOW_MS - 1, None, []),
        (NOW_MS, None, EXPIRING + KEPT),
        (NOW_MS, 1, EXPIRING + COMING + KEPT),
        (NOW_MS + HOUR_MS - 1, None, EXPIRING + KEPT),
        (NOW_MS - HOUR_MS, 1, [["later", *row[1:]] for row in EXPIRING] + KEPT),
        (NOW_MS - HOUR_MS - 1, 1, []),
    ],
)
def test_forecast_says_what_expires_when_and_why(
    filled: Path,
    offsets: Callable[..., tuple[int, str, str]],
    at_ms: int,
    within: int | None,
    rows: list[list[Any]],
) -> None:
    version = DeltaTable(filled / "log").version()
    more = [] if within is None else ["--within", str(within)]
    status, out, err = offsets("--dry-run", "--at", str(at_ms), *more, "--format", "json")
    assert (status, err) == (0, "")
    assert [list(json.loads(line).values()) for line in out.splitlines()] == rows
    status, out, err = offsets("--dry-run", "--at", shown_time(at_ms), *more, "--format", "csv")
    assert (status, err) == (0, "")
    header, *lines = csv.reader(io.StringIO(out))
    assert header == ["when", "expires", "group", "topic", "partition", "rule", "reason"]
    assert lines == [["" if cell is None else str(cell) for cell in row] for row in rows]
    assert DeltaTable(filled / "log").version() == version
    assert not (filled / FOLDER).exists()


def test_forecast_for_people_is_a_table(offsets: Callable[..., tuple[int, str, str]]) -> None:
    status, out, err = offsets("--dry-run", "--at", NOW)
    assert (status, err) == (0, "")
    *table, reason, expires, rules = out.splitlines()
    assert (reason[:4], expires, rules[:4]) == ("[1] ", f"EXPIRES: {EXPIRING[0][1]}", "R18:")
    assert [line.split()[:5] for line in table] == [
        ["WHEN", "GROUP", "TOPIC", "PARTITION", "RULE"],
        *([str("-" if cell is None else cell) for cell in (row[0], *row[2:6])] for row in EXPIRING + KEPT),
    ]


def test_forecast_is_of_another_retention_where_one_is_named(offsets: Callable[..., tuple[int, str, str]]) -> None:
    at_ms = NOW_MS - WEEK_MS + 60_000
    for at, expected in ((at_ms, ["a", "a", "a", "c", "c"]), (at_ms - 1, [])):
        status, out, _ = offsets("--dry-run", "--at", str(at), "--retention-minutes", "1", "--format", "json")
        assert status == 0
        assert [json.loads(line)["group"] for line in out.splitlines()] == expected


def test_run_expires_what_is_due(filled: Path, offsets: Callable[..., tuple[int, str, str]]) -> None:
    """A run by the machine's clock, far from NOW_MS, expires the offsets of the forecast for the same time."""
    with opened(filled, LONG_AGO) as coordinator:
        coordinator.commit_offsets("d", {("t", 0): 1, ("t", 1): 1}, retention_time_ms=1)
        coordinator.end_transaction(7, 0, commit=False)  # else the run aborts it
    status, out, _ = offsets("--dry-run", "--format", "json")
    rows = [json.loads(line) for line in out.splitlines()]
    due = {(row["group"], row["topic"], row["partition"]) for row in rows if row["when"] == "now" and row["topic"]}
    assert (status, {identity for identity in due if identity[0] == "d"}) == (0, {("d", "t", 0), ("d", "t", 1)})
    groups = sum(row["when"] == "now" and not row["topic"] for row in rows)
    before = held(filled)
    assert offsets() == (0, f"{len(due)} offsets and {groups} groups expired in {filled}\n", "")
    assert before - held(filled) == due
    status, out, err = offsets("--format", "json")
    run = json.loads(out)
    assert (status, err, len(out.splitlines())) == (0, "", 1)
    assert run.keys() == {"at", "store", "offsets", "groups", "failed"}
    assert (run["store"], run["offsets"], run["groups"], run["failed"]) == (str(filled), 0, 0, [])
    status, out, err = offsets("--format", "csv")
    assert (status, err, out.splitlines()[0]) == (0, "", "at,store,offsets,groups,failed")
    assert out.splitlines()[1].endswith(f"Z,{filled},0,0,")
    assert not (filled / FOLDER).exists()


def test_failed_partition_is_reported_and_does_not_stop_the_others(
    filled: Path, offsets: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:  # R22
    with opened(filled, LONG_AGO) as coordinator:
        where = [coordinator.partition_for(group_id) for group_id in ("x", "y", "z")]
        for group_id in ("x", "y", "z"):
            coordinator.commit_offsets(group_id, {("t", 0): 1}, retention_time_ms=1)
    assert sorted(where) == [0, 1, 2]
    with monkeypatch.context() as patch:
        failing_on(patch, where[1])
        status, out, err = offsets()
    assert status == 1
    assert out.endswith(f" expired in {filled}; log partitions {where[1]} failed\n")
    assert err == (
        f"offsets: warning: log partition {where[1]} of {filled}: expire log partition {where[1]}: disk full; "
        "it was not written; its offsets stay until the next run, which tries again\n"
    )
    assert {identity[0] for identity in held(filled)} & {"x", "y", "z"} == {"y"}
    assert offsets()[0::2] == (0, "")
    assert {identity[0] for identity in held(filled)} & {"x", "y", "z"} == set()


def test_partition_that_does_not_load_is_reported_and_does_not_stop_the_others(
    filled: Path, offsets: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    with opened(filled, LONG_AGO) as coordinator:
        corrupt = coordinator.partition_for("x")
        for group_id in ("x", "y", "z"):
            coordinator.commit_offsets(group_id, {("t", 0): 1}, retention_time_ms=1)
    append(filled, [Record(corrupt, b"\x00", b"no record")], PARTITIONS)
    (tmp_path / "strict.toml").write_text('[log]\ncorrupt_records = "fail"\n')
    strict = ("--config", str(tmp_path / "strict.toml"))
    status, out, err = offsets("--dry-run", *strict, "--format", "json")
    assert status == 1
    assert {json.loads(line)["group"] for line in out.splitlines()} >= {"y", "z"}
    assert not any(json.loads(line)["group"] == "x" for line in out.splitlines())
    assert err.startswith(f"offsets: warning: log partition {corrupt} of {filled}: log partition {corrupt}, record ")
    assert err.endswith("; the forecast is without it\n")
    status, out, err = offsets(*strict)
    assert (status, len(err.splitlines())) == (1, 1)
    assert out.endswith(f"; log partitions {corrupt} failed\n")
    assert err.startswith(f"offsets: warning: log partition {corrupt} of {filled}: log partition {corrupt}, record ")
    assert err.endswith("; its offsets stay until the next run, which tries again\n")
    assert {identity[0] for identity in held(filled)} & {"x", "y", "z"} == {"x"}
    assert offsets()[0] == 0  # by default a record that does not decode is left out (R6)
    assert {identity[0] for identity in held(filled)} & {"x", "y", "z"} == set()


WITHOUT_SPARK = """
import sys

class NoSpark:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"pyspark", "delta", "py4j"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NoSpark())
from offsets_pipeline.cli import main

sys.exit(main(["expire-offsets", *sys.argv[1:]]))
"""


@contextmanager
def running(store: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command with --every, as a process; it is killed where a test would wait for ever."""
    command = [sys.executable, "-c", WITHOUT_SPARK, "--store", str(store), "--every", *arguments]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=buffered) as process:
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        yield process
        watchdog.cancel()


def assert_ends_well(process: subprocess.Popen[str], store: Path) -> None:
    assert process.stderr is not None
    assert (process.wait(60), process.stderr.read()) == (0, "")
    assert not (store / FOLDER).exists()


@pytest.mark.parametrize("format_", ["table", "json", "csv"])
def test_runs_again_and_again(store: Path, tmp_path: Path, format_: str) -> None:
    (tmp_path / "often.toml").write_text("[coordinator]\noffsets_retention_check_interval_ms = 20\n")
    with running(store, "--format", format_, "--config", str(tmp_path / "often.toml")) as process:
        runs = expired_of(process, format_)
        assert next(runs) == 0
        with opened(store, LONG_AGO) as coordinator:
            for _ in range(2):  # what comes into the log while it runs expires too
                coordinator.commit_offsets("g", {("t", 0): 1, ("t", 1): 1}, retention_time_ms=1)
                assert next(expired for expired in runs if expired) == 2
            assert coordinator.list_groups() == []
        process.send_signal(signal.SIGTERM)
        assert_ends_well(process, store)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stops_at_once(store: Path, number: signal.Signals) -> None:
    with running(store) as process:  # it waits ten minutes for its second run
        assert next(expired_of(process, "table")) == 0
        process.send_signal(number)
        assert_ends_well(process, store)


def expired_of(process: subprocess.Popen[str], format_: str) -> Iterator[int]:
    """How many offsets each run expired."""
    assert process.stdout is not None
    for number, line in enumerate(process.stdout):
        if format_ == "json":
            yield json.loads(line)["offsets"]
        elif format_ == "csv":
            if number:
                yield int(line.split(",")[2])
        else:
            yield int(line.split()[1])
