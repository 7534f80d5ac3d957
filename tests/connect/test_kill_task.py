"""A source task is killed at random while it copies a file: no line is lost, and none repeated but as documented."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from deltalake import DeltaTable

from offsets_pipeline.connect.connect_log import ConnectLog
from offsets_pipeline.connect.offset_backing_store import OffsetBackingStore, OffsetStorageReader
from tests.connect.copying import CONNECTOR

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

COPYING = Path(__file__).parent / "copying.py"
LINES = 6_000
MOST_LINES = 9  # of a poll
ROUNDS = [3, pytest.param(50, marks=pytest.mark.long)]


class Copied(NamedTuple):
    """Where a copy goes on: the store, the file, and where the lines go."""

    store: Path
    file: Path
    sink: Path

    def flushed(self) -> int:
        """The position of the last flush."""
        with OffsetBackingStore(self.store) as store:
            offset = OffsetStorageReader(store, CONNECTOR).offset({"filename": str(self.file)})
        return 0 if offset is None else int(offset["position"])


class Program:
    """The program `copying.py`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(self, lines: int) -> int:
        """Start a task that polls so many lines at a time; returns its process id."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{lines}\n")
        self._process.stdin.flush()
        return self._read()

    def status(self) -> int:
        """Wait for the task's end; returns its exit status, or minus the number of a signal."""
        return self._read()

    def _read(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


@contextmanager
def program(mode: str, copied: Copied) -> Iterator[Program]:
    """The program; it imports once, so that a kill costs no start of an interpreter."""
    with subprocess.Popen(
        [sys.executable, str(COPYING), mode, *map(str, copied)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(COPYING.parents[2])},
    ) as process:
        yield Program(process)
        assert process.stdin is not None
        process.stdin.close()


def copied_to(folder: Path) -> tuple[Copied, list[str]]:
    """An empty store, and a file to copy with its lines."""
    ConnectLog.create(folder / "store", "lab", 3)
    expected = [f"{number} é 😀"[: number % 9 + 1] for number in range(LINES)]
    text = "".join(line + ("\r\n" if number % 2 else "\n") for number, line in enumerate(expected))
    (folder / "source.txt").write_bytes(text.encode())
    return Copied(folder / "store", folder / "source.txt", folder / "sink"), expected


def killed(task: int, chance: random.Random) -> None:
    """Kill the task at a random time: some of its polls later, or before the first."""
    time.sleep(chance.uniform(0.01, 0.3))
    os.kill(task, signal.SIGKILL)


@pytest.mark.process
@pytest.mark.parametrize("kills", ROUNDS)
def test_with_transactions_a_killed_task_loses_no_line_and_repeats_none(
    tmp_path: Path, chance: random.Random, kills: int
) -> None:
    copied, expected = copied_to(tmp_path)
    with program("exactly-once", copied) as running:
        for _ in range(kills):
            task = running.start(chance.randint(1, MOST_LINES))
            killed(task, chance)
            assert running.status() == -signal.SIGKILL
        running.start(LINES)
        assert running.status() == 0
    rows = DeltaTable(copied.sink).to_pyarrow_table().sort_by("position")
    assert rows["line"].to_pylist() == expected
    assert len(set(rows["position"].to_pylist())) == LINES
    assert copied.flushed() == rows["position"][-1].as_py()
    assert (DeltaTable(copied.sink).transaction_version(f"lab-{CONNECTOR}-0/epoch") or 0) > 0


@pytest.mark.process
@pytest.mark.parametrize("kills", ROUNDS)
def test_a_killed_task_loses_no_line_and_repeats_none_before_its_last_flush(
    tmp_path: Path, chance: random.Random, kills: int
) -> None:
    copied, expected = copied_to(tmp_path)
    repeated, lines = 0, dict[int, str]()
    with program("committer", copied) as running:
        for number in range(kills + 1):
            flushed = copied.flushed()
            task = running.start(chance.randint(1, MOST_LINES) if number < kills else LINES)
            if number < kills:
                killed(task, chance)
            assert running.status() == (-signal.SIGKILL if number < kills else 0)
            found = (copied.sink / str(task)).read_text().splitlines() if (copied.sink / str(task)).exists() else []
            run = {int(position): line for position, _, line in (each.partition(" ") for each in found)}
            assert len(run) == len(found)
            assert all(position > flushed for position in run)
            repeated += len(run.keys() & lines.keys())
            assert all(lines.get(position, line) == line for position, line in run.items())
            lines |= run
    assert [line for _, line in sorted(lines.items())] == expected
    assert repeated <= kills * 2 * MOST_LINES  # those of a flush under way, and those after it
    assert copied.flushed() == max(lines)
