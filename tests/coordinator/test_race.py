"""One store, three processes at once: the coordinator, upkeep, and folds with reloads. Nothing is lost (R2, R15, R23).

Needs processes of its own: two of them start a JVM, and only locks of the file system coordinate the three.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.coordinator.owned_store import OwnedStore
from tests.coordinator.test_kill import Writer
from tests.unit.coordinator.stores import log_of, opened

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from tests.spark.stores import Workbench

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.process]

SECONDS = float(os.environ.get("OFFSETS_RACE_SECONDS", "600"))
PATIENCE_SECONDS = 300
FOLDER = Path(__file__).parent


def beside(store: Path, what: str, prefix: Sequence[str], said: Path) -> subprocess.Popen[str]:
    """A process of `beside.py`; its output goes to a file."""
    return subprocess.Popen(
        [*prefix, str(FOLDER / "beside.py"), str(store), what],
        stdin=subprocess.PIPE,
        stdout=said.open("w"),
        stderr=said.with_suffix(".err").open("w"),
        text=True,
        env={**os.environ, "PYTHONPATH": str(FOLDER.parents[1])},
    )


def wait_for(said: Path, line: str) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while line not in said.read_text().splitlines():
        assert time.monotonic() < until, said.with_suffix(".err").read_text()
        time.sleep(0.1)


@pytest.mark.parametrize("delayed", [False, True], ids=["as it is", "links and renames delayed"])
def test_acknowledged_commits_survive_concurrent_upkeep_folds_and_reloads(
    workbench: Workbench, chance: random.Random, tmp_path: Path, delayed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    OwnedStore.create(store, 4)
    prefix = [sys.executable]
    if delayed:
        prefix += [str(FOLDER / "delayed.py"), str(chance.randrange(2**31))]
        monkeypatch.setattr("tests.coordinator.test_kill.START", prefix)
    said = {what: tmp_path / f"{what}.out" for what in ("upkeep", "folds")}
    others = {what: beside(store, what, prefix, said[what]) for what in said}
    for each in said.values():
        wait_for(each, "ready")
    writer = Writer(store, "w", 10_000_000, -1)
    writer.await_ready()
    writer.go()
    time.sleep(SECONDS)  # the time of the race, proof of nothing
    for what, process in others.items():
        assert process.poll() is None, said[what].with_suffix(".err").read_text()
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE_SECONDS) == 0, said[what].with_suffix(".err").read_text()
    writer.kill()
    writer.wait()
    rounds = {what: [line for line in each.read_text().splitlines() if " " in line] for what, each in said.items()}
    assert all(len(each) > 1 for each in rounds.values()), rounds
    counts = {what: len(each) for what, each in rounds.items()}
    sys.stdout.write(f"{len(writer.acknowledged)} commits beside rounds of {counts}\n")

    last: dict[str, int] = {}
    for group_id, offset in writer.acknowledged:
        last[group_id] = max(offset, last.get(group_id, 0))
    assert len(last) == 2
    log = log_of(store)
    for rows in log.values():  # each record once, in order; a cleaning may have removed older ones
        offsets = [row.record_offset for row in rows]
        assert offsets == sorted(set(offsets))
    assert max(Counter((row.log_partition, row.record_offset) for rows in log.values() for row in rows).values()) == 1
    with opened(store) as coordinator:
        for group_id, offset in last.items():
            answers = {where: each.offset for where, each in coordinator.fetch_offsets(group_id).items()}
            assert set(answers) == {("t", 0), ("t", 1)}
            assert all(answer in (offset, offset + 1) for answer in answers.values())  # one may not have been heard
    workbench.fold(store)
    assert workbench.verify(store).equal
    assert workbench.verify(store, independent=True).equal
