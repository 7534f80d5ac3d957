"""Commits, fetches and deletions of several processes, some killed, take effect one by one (R15, R26).

Each one takes effect between its call and its answer: no process is answered with what an earlier answer has replaced.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.coordinator.owned_store import OwnedStore
from tests.coordinator.line_process import LineProcess
from tests.coordinator.test_kill import assert_gapless
from tests.linearizable import COMMIT, DELETE, FETCH, NEVER, Operation, is_linearizable
from tests.unit.delta.faulty_s3 import FAULTS, BadNetwork, Fault, FaultyS3

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

pytestmark = [pytest.mark.slow, pytest.mark.process]  # processes share a store by its files alone

REGISTERS = Path(__file__).parent / "registers.py"
PROCESSES = 3
PATIENCE_SECONDS = 120


class Process(LineProcess):
    """A process of `registers.py`, and the operations that it told of, by register."""

    patience_seconds = PATIENCE_SECONDS

    def __init__(self, store: Path | str, number: int, seed: int) -> None:
        super().__init__([sys.executable], REGISTERS, store, number, seed)
        self.errors: Counter[str] = Counter()
        self.told = 0
        self._lines: list[str] = []

    def starts(self) -> bool:
        """Wait until it is ready; returns False if it cannot open the store, or was killed."""
        if self.first_line() != "ready\n":
            self.end()
            return False
        return True

    def end(self) -> None:
        """Kill it, and wait until all is read that it told."""
        self.kill()
        assert self.wait() in {-signal.SIGKILL, 0}

    def on_line(self, line: str) -> None:
        self._lines.append(line)
        self.told += "answer" in line

    def operations(self) -> dict[str, list[Operation]]:
        begun, ended = dict[int, dict[str, Any]](), dict[int, dict[str, Any]]()
        found: dict[str, list[Operation]] = {}
        for line in self._lines:
            told = json.loads(line)
            if "kind" in told:
                begun[told["operation"]] = told
            elif "answer" in told:
                ended[told["operation"]] = told
            else:
                self.errors[told["error"]] += 1
        for number, call in begun.items():
            answer = ended.get(number, {"at_ns": NEVER, "answer": number if call["kind"] == COMMIT else None})
            operation = Operation(call["at_ns"], answer["at_ns"], call["kind"], answer["answer"])
            found.setdefault(call["register"], []).append(operation)
        return found


def run(
    store: Path | str, chance: random.Random, wanted: int, kills: int, is_enough: Callable[[], bool]
) -> list[Process]:
    """Run processes until they had so many answers; kill some on the way, each followed by another one."""
    numbers = iter(range(1, 10_000))

    def started() -> Process:
        while True:
            process = Process(store, next(numbers), chance.randrange(2**31))
            if process.starts():
                return process
            ended.append(process)

    ended: list[Process] = []
    running = [started() for _ in range(PROCESSES)]
    try:
        for process in running:
            process.go()
        kill_at = sorted(chance.sample(range(wanted), kills))
        until = time.monotonic() + PATIENCE_SECONDS * 5
        while (told := sum(each.told for each in (*running, *ended))) < wanted or not is_enough():
            assert time.monotonic() < until
            victims = [at for at, each in enumerate(running) if not each.runs()]
            if kill_at and told >= kill_at[0]:
                del kill_at[0]
                victims.append(chance.randrange(PROCESSES))
            for at in sorted({*victims}):
                running[at].end()
                ended.append(running[at])
                running[at] = started()
                running[at].go()
            time.sleep(0.001)
    finally:
        for process in running:
            process.end()
    return [*ended, *running]


def assert_linearizable(processes: Sequence[Process]) -> None:
    registers: dict[str, list[Operation]] = {}
    for process in processes:
        for register, operations in process.operations().items():
            registers.setdefault(register, []).extend(operations)
    counts: Counter[str] = Counter()
    for register, operations in registers.items():
        assert is_linearizable(operations), f"{register}: {sorted(operations)}"
        counts += Counter("without answer" if each.end == NEVER else each.kind for each in operations)
        # proof that the test can fail: not if a fetch is answered with what was never there
        read = next(each for each in operations if each.kind == FETCH and each.end != NEVER)
        assert not is_linearizable([*operations, read._replace(value=-1)])
    sys.stdout.write(f"{len(processes)} processes, {dict(counts)}\n")
    assert min(counts[kind] for kind in (COMMIT, FETCH, DELETE)) > 10


@pytest.mark.parametrize(
    ("wanted", "kills"), [(600, 3), pytest.param(10_000, 40, marks=pytest.mark.long)], ids=["sample", "many"]
)
def test_on_a_folder_whose_processes_are_killed(chance: random.Random, tmp_path: Path, wanted: int, kills: int) -> None:
    store = tmp_path / "store"
    OwnedStore.create(store, 2)
    assert_linearizable(run(store, chance, wanted, kills, lambda: True))
    assert_gapless(store)


@pytest.mark.parametrize(
    ("wanted", "faults"), [(100, 20), pytest.param(1_000, 200, marks=pytest.mark.long)], ids=["sample", "many"]
)
def test_on_object_storage_whose_requests_are_lost_and_doubled(
    chance: random.Random, run_seed: int, wanted: int, faults: int
) -> None:
    s3 = FaultyS3()
    s3.slow_seconds = 2.0
    with s3.serving("registers", timeout_ms=800) as uri:
        store = f"{uri}/store"
        OwnedStore.create(store, 2)
        s3.fault = BadNetwork(run_seed, FAULTS, {"PUT commit": 0.3, "GET commit": 0.01}, 0.02)
        processes = run(store, chance, wanted, 2, lambda: s3.hits.total() >= faults)
        s3.settle()
        hits = Counter(each.fault for each in s3.hits.elements())
        assert_linearizable(processes)
        assert_gapless(store)
    assert {*hits} == {*FAULTS} if faults > 100 else Fault.DOUBLED in hits
