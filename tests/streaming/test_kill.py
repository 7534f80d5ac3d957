"""A fold in a process of its own that is killed again and again loses nothing and repeats nothing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.segments import write_prefix
from tests.spark.stores import assert_as_reference, copied, log_of, rows_of, segments_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.spark.stores import Workbench

pytestmark = [pytest.mark.streaming, pytest.mark.slow]

KILLS = 3
DEADLINE_SECONDS = 240


def submit(root: Path, store: Path, config: Path, stderr: Path) -> subprocess.Popen[bytes]:
    """The job as users start it, in a process group of its own."""
    command: list[str | Path] = [
        Path(sys.prefix) / "bin" / "spark-submit",
        "--properties-file",
        root / "conf" / "spark-defaults.conf",
        "--driver-java-options",
        "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        root / "jobs" / "fold_stream.py",
        "--store",
        store,
        "--config",
        config,
    ]
    with stderr.open("wb") as file:
        return subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL, stderr=file, start_new_session=True)


def wait_until(true: Callable[[], bool], process: subprocess.Popen[bytes], stderr: Path) -> None:
    """Look again and again; a process that ended, or never gets there, is an error."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not true():
        assert process.poll() is None, stderr.read_text()[-2000:]
        assert time.monotonic() < deadline, stderr.read_text()[-2000:]
        time.sleep(0.05)


def kill(process: subprocess.Popen[bytes]) -> None:
    """kill -9 of it and of the Java and Python that it started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _holds_more_than(planned: Path, batches: int) -> bool:
    return len(list(planned.glob("[0-9]*"))) > batches


def test_fold_that_is_killed_at_random_moments_is_finished_by_the_next(
    workbench: Workbench, empty: Callable[[int], Path], root: Path, tmp_path: Path
) -> None:
    store = copied(empty(5), tmp_path / "store")
    config = tmp_path / "offsets.toml"
    config.write_text("[fold]\ntrigger_interval_ms = 200\n")
    chosen = random.Random(3)
    planned = store / "_checkpoints" / "fold" / "offsets"  # a batch is planned here before it runs
    for run in range(KILLS):
        share = (run + 1) / (KILLS + 1)
        workbench.ingest(store, write_prefix(segments_of("4.2.0-kip848"), tmp_path / f"prefix-{run}", share, chosen))
        process = submit(root, store, config, tmp_path / f"stderr-{run}")
        try:
            wait_until(partial(_holds_more_than, planned, run), process, tmp_path / f"stderr-{run}")
            time.sleep(chosen.uniform(0, 6))  # anywhere in the batch, or behind it
        finally:
            kill(process)
    workbench.ingest(store, segments_of("4.2.0-kip848"))
    workbench.fold(store)
    assert_as_reference(store, log_of(store))
    assert sum(row["records"] for row in rows_of(store, "fold_progress")) == len(log_of(store)) > 0


def test_fold_ends_in_order_when_all_its_processes_get_sigterm_at_once(
    workbench: Workbench, folded: Callable[[str], Path], root: Path, tmp_path: Path
) -> None:
    """SIGTERM to all processes, as service managers send it. Needs a process that the signal may end."""
    store = copied(folded("4.2.0-kip848"), tmp_path / "store")
    stderr = tmp_path / "stderr"
    command: list[str | Path] = [
        Path(sys.executable).with_name("offsets"),
        "fold",
        "--store",
        store,
        "--checkpoint",
        tmp_path / "c",
    ]
    with stderr.open("wb") as file:
        process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=file, start_new_session=True)
    try:
        commits = tmp_path / "c" / "commits" / "0"
        wait_until(commits.exists, process, stderr)
        os.killpg(process.pid, signal.SIGTERM)
        out, _ = process.communicate(timeout=DEADLINE_SECONDS)
    except BaseException:
        kill(process)
        raise
    assert (process.returncode, out.decode()) == (0, f"0 records folded in {store}\n")
    assert stderr.read_text() == ""
    assert_as_reference(store, log_of(store))
