"""Folds, reloads, upkeep and a coordinator at once, killed at random, beside a reader of the published tables.

The reader is a program of its own and knows only deltalake. Slow: all of them are processes, most with Spark.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from offsets_pipeline.coordinator.owned_store import OwnedStore
from tests.programs import QUICK, offsets

if TYPE_CHECKING:
    import random

pytestmark = [pytest.mark.streaming, pytest.mark.slow]

PARTITIONS = 4
ROOT = Path(__file__).parents[2]
PUBLISHED = ("current_offsets", "consumer_groups", "group_members", "unstable_offsets", "published_as_of")
SETTINGS = """
[log]
history_hours = 1
[fold]
trigger_interval_ms = 300
publish_within_ms = 500
publish_large_within_ms = 1000
compact_files = 5
expire_in_stream = false
[spark]
master = "local[2]"
shuffle_partitions = 2
driver_memory = "1g"
"""


#: The command `offsets`, with more retries of a write that other writers overtake.
PATIENT = """
import sys
from offsets_pipeline.cli import main
from offsets_pipeline.store.delta import retry
retry.MAX_RETRIES, retry.MAX_BACKOFF_MS = 100, 500
sys.exit(main())
"""
PATIENT_OFFSETS = (sys.executable, "-c", PATIENT)


class Program:
    """A process that starts again whenever it has ended, until `kill`; ``output`` is a file."""

    def __init__(self, output: Path, *command: str | Path) -> None:
        self.command = [str(each) for each in command]
        self.starts = self.kills = 0
        self.failures: list[int] = []
        self.output = output
        self._process: subprocess.Popen[bytes] | None = None

    def keep_up(self) -> None:
        if self._process is not None:
            status = self._process.poll()
            if status is None:
                return
            self.failures += [status] if status else []
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **QUICK, "PYTHONPATH": str(ROOT)},
            )
        self.starts += 1

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # with its JVM
            self._process.wait()
            self.kills += 1
            self._process = None


def run(*arguments: str | Path) -> str:
    done = offsets(ROOT, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_a_reader_never_sees_half_a_state(chance: random.Random, place: Path, tmp_path: Path) -> None:
    store, settings = place / "store", tmp_path / "offsets.toml"
    settings.write_text(SETTINGS)
    OwnedStore.create(store, PARTITIONS)
    at = ("--store", store, "--config", settings)
    output = tmp_path / "output"
    writer = Program(output, sys.executable, ROOT / "tests/coordinator/writer.py", store, "w", "1000000", "-1")
    fold = Program(output, *PATIENT_OFFSETS, "fold", *at, "--if-held", "wait")
    others = [
        Program(output, *PATIENT_OFFSETS, "reload", *at),
        Program(output, *PATIENT_OFFSETS, "maintain", *at),
        Program(output, *PATIENT_OFFSETS, "clean-log", *at, "--older-than", "0"),
    ]
    reader = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("published_reader.py")), str(store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    until = time.monotonic() + min(600, float(os.environ.get("OFFSETS_TEST_SECONDS", "inf")) / 3)
    programs = [writer, fold, *others]
    generation = 0
    try:
        while time.monotonic() < until and reader.poll() is None:
            writer.command[3] = f"w{generation}"  # a new process commits for new groups
            for each in (writer, fold, others[generation % len(others)]):
                each.keep_up()
            time.sleep(chance.uniform(1, 12))
            generation += 1
            chance.choice(programs).kill()
    finally:
        for each in programs:
            each.kill()
    said, _ = reader.communicate("")
    assert reader.returncode == 0, said
    assert [each.failures for each in programs] == [[]] * len(programs), output.read_text()[-10_000:]
    assert sum(each.kills for each in programs) > len(programs)
    run("fold", *at, "--available-now")
    assert run("verify", *at, "--independent").startswith("equal")
    before = {table: DeltaTable(str(store / table)).to_pyarrow_table() for table in PUBLISHED}
    assert before["current_offsets"].num_rows > 0
    for table in (path.name for path in store.iterdir() if (path / "_delta_log").is_dir()):
        DeltaTable(str(store / table)).alter.set_table_properties(
            {"delta.deletedFileRetentionDuration": "interval 0 hours"}
        )
    run("maintain", *at)
    after = {table: DeltaTable(str(store / table)).to_pyarrow_table() for table in PUBLISHED}
    for table in PUBLISHED[:-1]:
        assert after[table].equals(before[table])
    assert run("verify", *at, "--independent").startswith("equal")
