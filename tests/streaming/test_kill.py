"""A fold in a process of its own that is killed again and again loses nothing and repeats nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.places import copied
from tests.programs import PROPERTIES, QUICK, SPARK_SUBMIT, assert_said, stopped_in_process
from tests.spark.segments import write_prefix
from tests.spark.stores import assert_as_reference, folded_in, log_of, segments_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.spark.stores import Workbench

pytestmark = pytest.mark.streaming

DEADLINE_SECONDS = 240
#: The job as users start it.
SUBMITTED = (SPARK_SUBMIT, *PROPERTIES, "jobs/fold_stream.py")


def started(root: Path, stderr: Path, *command: str | Path, **environment: str) -> subprocess.Popen[bytes]:
    """A command in a process group of its own."""
    with stderr.open("wb") as file:
        return subprocess.Popen(
            command,
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=file,
            start_new_session=True,
            env={**os.environ, **QUICK, **environment},
        )


def wait_until(
    true: Callable[[], bool], process: subprocess.Popen[bytes] | None = None, stderr: Path | None = None
) -> None:
    """Look again and again; a process that ended, or never gets there, is an error."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not true():
        said = stderr.read_text()[-2000:] if stderr else ""
        assert process is None or process.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.05)


def kill(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """kill -9 of it and of the Java and Python that it started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    wait_until(lambda: not _runs(process.pid))  # Java's Python may end later than Java


def _runs(group: int) -> bool:
    """A process of this group has not ended."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            state, _, of_group = stat.read_text().rpartition(") ")[2].split()[:3]
            if int(of_group) == group and state not in "ZX":
                return True
    return False


def _has_a_batch(planned: Path) -> bool:
    return any(planned.glob("*/offsets/0"))


def _is_in_a_batch(planned: Path) -> bool:
    """A batch is planned and not committed."""
    batches, committed = ({path.name for path in planned.glob(f"*/{each}/[0-9]*")} for each in ("offsets", "commits"))
    return bool(batches - committed)


@pytest.mark.process  # SIGKILL takes a process; tests/kafka/test_follow_service.py sends SIGTERM to one
@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.long)])
def test_fold_that_is_killed_at_random_moments_is_finished_by_the_next_which_ends_in_order_by_sigterm(
    workbench: Workbench,
    empty: Callable[[int], Path],
    root: Path,
    place: Path,
    tmp_path: Path,
    kills: int,
    chance: random.Random,
) -> None:
    store = copied(empty(5), place / "store")
    config = tmp_path / "offsets.toml"
    config.write_text("[fold]\ntrigger_interval_ms = 200\n")
    inside = 0
    for run in range(kills):
        share = (run + 1) / (kills + 1)
        workbench.ingest(store, write_prefix(segments_of("4.2.0-kip848"), tmp_path / f"prefix-{run}", share, chance))
        stderr = tmp_path / f"stderr-{run}"
        planned = tmp_path / f"checkpoints-{run}"  # a batch is planned here before it runs
        planned.mkdir()
        process = started(root, stderr, *SUBMITTED, "--store", store, "--config", config, TMPDIR=str(planned))
        try:
            wait_until(partial(_has_a_batch, planned), process, stderr)
            time.sleep(chance.uniform(0, 6 if run else 1))  # anywhere in the first batch; later kills may be behind it
        finally:
            kill(process)
        inside += _is_in_a_batch(planned)
    assert inside > 0
    workbench.ingest(store, segments_of("4.2.0-kip848"))
    records, before = len(log_of(store)), folded_in(store)
    fold = ("fold", "--store", store, "--config", config)
    done = stopped_in_process(root, lambda: wait_until(lambda: folded_in(store) == records), *fold)
    assert_said(done, f"{records - before} records folded in {store}")
    assert_as_reference(store, log_of(store))
    assert folded_in(store) == records > before
