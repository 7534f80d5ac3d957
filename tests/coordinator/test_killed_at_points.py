"""Commands that are killed at their calls into the system and into Delta's library, alone and two at once.

A killed command has done all of its change or nothing, and holds nothing up: the next one does it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.coordinator.owned_store import OwnedStore
from tests.coordinator.killed_at import POINT
from tests.coordinator.test_kill import PARTITIONS, assert_gapless
from tests.unit.coordinator.stores import opened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

pytestmark = pytest.mark.process  # SIGKILL ends a process

KILLED_AT = Path(__file__).parent / "killed_at.py"
SECONDS = 120
#: The points of a commit.
FEWEST_POINTS = 80

Offsets = dict[str, dict[int, int]]  # committed offsets of a topic's partitions by group

BEFORE: Offsets = {"g": {0: 1, 1: 2}, "d": {0: 9, 1: 2}, "h": {0: 3}, "old": {0: 4, 1: 5}}
#: Arguments by command, and the offsets that it changes: each those of another group. None: of a group that is gone.
COMMANDS: Mapping[str, tuple[Sequence[str], Mapping[str, dict[int, int] | None]]] = {
    "commit": (("--group", "g", "t:0=7", "t:1=8"), {"g": {0: 7, 1: 8}}),
    "delete-offsets": (("--group", "d", "t:1"), {"d": {0: 9}}),
    "delete-group": (("--group", "h"), {"h": None}),
    "expire-offsets": ((), {"old": None}),
    "import-zookeeper": (("--dump", "dump.txt"), {"z": {0: 5, 1: 6}}),
    "maintain": ((), {}),
}


def after(*names: str) -> Offsets:
    """The offsets after these commands."""
    found: dict[str, dict[int, int] | None] = {**BEFORE}
    for name in names:
        found.update(COMMANDS[name][1])
    return {group_id: offsets for group_id, offsets in found.items() if offsets is not None}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a store, a dump of ZooKeeper, and settings."""
    OwnedStore.create(tmp_path / "store", PARTITIONS)
    now_ms = time.time_ns() // 1_000_000
    for group_id, offsets in BEFORE.items():
        clock = FixedClock(now_ms - 30 * 24 * 3_600_000 * (group_id == "old"))
        with opened(tmp_path / "store", clock) as coordinator:
            coordinator.commit_offsets(group_id, {("t", at): offset for at, offset in offsets.items()})
    dump = "".join(f"/consumers/z/offsets/t/{at} {offset}\n" for at, offset in ((0, 5), (1, 6)))
    (tmp_path / "dump.txt").write_text(dump)
    return tmp_path


def words_of(name: str) -> list[str]:
    return [name, "--store", "store", *COMMANDS[name][0]]


def started(folder: Path, name: str, point: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(KILLED_AT), str(point), *words_of(name)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(KILLED_AT.parents[2])},
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """The exit status, and the points that it came to."""
    _, err = process.communicate(timeout=SECONDS)
    return process.returncode, [line for line in err.splitlines() if line.startswith(POINT)]


def answers(folder: Path) -> Offsets:
    with opened(folder / "store", FixedClock(time.time_ns() // 1_000_000)) as coordinator:
        found = coordinator.fetch_all_offsets()
    return {
        group_id: {where.partition: each.offset for where, each in offsets.items() if each.offset is not None}
        for group_id, offsets in found.items()
    }


def points_of(folder: Path, name: str) -> int:
    """How many points a whole run of the command has, on a copy of the folder."""
    copy = folder / "whole"
    copy.mkdir()
    shutil.copytree(folder / "store", copy / "store")
    shutil.copy(folder / "dump.txt", copy)
    status, points = ended(started(copy, name, 0))
    assert status == 0
    assert answers(copy) == after(name)
    shutil.rmtree(copy)
    return len(points)


def assert_whole(folder: Path, names: Sequence[str]) -> None:
    """The commands that were killed did all or nothing; run again, they do what is left."""
    found = answers(folder)
    for group_id in BEFORE.keys() | after(*names).keys():
        assert found.get(group_id) in [BEFORE.get(group_id), after(*names).get(group_id)]
    for name in names:
        with contextlib.chdir(folder), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as err:
            status = main(words_of(name))
        errors = [line for line in err.getvalue().splitlines() if line.startswith("offsets: error: ")]
        is_gone = name == "delete-group" and "h" not in found  # it was killed after the deletion
        assert (status, errors) == ((1, ["offsets: error: no group 'h' in log partition 0"]) if is_gone else (0, []))
    assert answers(folder) == after(*names)
    assert_gapless(folder / "store")


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("kills", [1, pytest.param(70, marks=pytest.mark.long)], ids=["sample", "many"])
def test_a_command_killed_at_a_point_did_all_or_nothing(
    run_seed: int, folder: Path, tmp_path_factory: pytest.TempPathFactory, name: str, kills: int
) -> None:
    most = points_of(folder, name)
    hit = set()
    points = range(1, most + 1)
    for point in random.Random(f"{run_seed} {name}").sample(points, min(kills, most)):
        copy = tmp_path_factory.mktemp("killed")
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        status, told = ended(started(copy, name, point))
        assert (status, len(told)) == (-signal.SIGKILL, point)
        hit.add(told[-1].split(maxsplit=2)[2])
        assert_whole(copy, [name])
        shutil.rmtree(copy)
    sys.stdout.write(f"{name}: {most} points, killed at {json.dumps(sorted(hit))}\n")


@pytest.mark.parametrize("kills", [2, pytest.param(100, marks=pytest.mark.long)], ids=["sample", "many"])
def test_of_two_commands_at_once_both_killed_each_did_all_or_nothing(
    chance: random.Random, folder: Path, tmp_path_factory: pytest.TempPathFactory, kills: int
) -> None:
    killed = 0
    while killed < kills:
        copy = tmp_path_factory.mktemp("killed")
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        names = chance.sample(list(COMMANDS), 2)
        both = [started(copy, name, chance.randint(1, FEWEST_POINTS)) for name in names]
        statuses = [ended(each)[0] for each in both]
        # the other one may take it to fewer points, or lose it its group: then it comes to its end
        assert {*statuses} <= {-signal.SIGKILL, 0, 1}
        killed += statuses.count(-signal.SIGKILL)
        assert_whole(copy, names)
        shutil.rmtree(copy)
