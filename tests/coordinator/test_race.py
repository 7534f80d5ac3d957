"""One store, three processes at once: the coordinator, upkeep, and folds with reloads. Nothing is lost (R2, R15, R23).

Needs processes of its own: two of them start a JVM, and only locks of the file system coordinate the three.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.kafka.record.decode import decode_key, decode_value
from tests.coordinator.test_kill import Writer
from tests.unit.coordinator.stores import log_of, opened

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from offsets_pipeline.semantics.log_row import LogRow
    from tests.spark.stores import Workbench

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.process]

SECONDS = float(os.environ.get("OFFSETS_RACE_SECONDS", "600"))
PATIENCE_SECONDS = 300
FOLDER = Path(__file__).parent


def beside(store: Path, what: str, prefix: Sequence[str], said: Path) -> subprocess.Popen[str]:
    """A process of `beside.py`; its output goes to a file."""
    with said.open("w") as out, said.with_suffix(".err").open("w") as err:
        return subprocess.Popen(
            [*prefix, str(FOLDER / "beside.py"), str(store), what],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            text=True,
            env={**os.environ, "PYTHONPATH": str(FOLDER.parents[1])},
        )


def wait_for(said: Path, line: str) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while line not in said.read_text().splitlines():
        assert time.monotonic() < until, said.with_suffix(".err").read_text()
        time.sleep(0.1)


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@contextmanager
def timed(what: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    tell(f"{what} took {time.monotonic() - begun:.1f} s")


def most_files(rounds: Sequence[str]) -> str:
    """The largest numbers of files before and after a round of upkeep."""
    before, after = zip(*(map(int, each.split()[-2:]) for each in rounds), strict=True)
    return f"{max(before)} {max(after)}"


def assert_only_cleaned_records_are_gone(
    log: Mapping[int, Sequence[LogRow]], cleaned: Mapping[int, int], acknowledged: Collection[tuple[str, int]]
) -> None:
    """Each record is there once and in order (R2), and each one that no cleaning may have removed is there (R23).

    A group commits 1, 2, 3 ... so the order of its commits is the order of their records.
    """
    there: dict[tuple[str, int], list[int]] = {}
    uncleaned_from: dict[tuple[str, int], int] = {}
    for partition, rows in log.items():
        offsets = [row.record_offset for row in rows]
        assert offsets == sorted(set(offsets))
        uncleaned = [offset for offset in offsets if offset >= cleaned.get(partition, 0)]
        assert uncleaned == list(range(cleaned.get(partition, 0), offsets[-1] + 1))
        for row in rows:
            key = decode_key(row.key)
            assert row.value is not None
            of_key = key.group_id, key.fields["partition"]
            committed = decode_value(key.record_type, row.value).fields["offset"]
            there.setdefault(of_key, []).append(committed)
            if row.record_offset >= cleaned.get(partition, 0):
                uncleaned_from.setdefault(of_key, committed)
    assert len(there) == 2 * len({group_id for group_id, _ in acknowledged})
    for of_key, found in there.items():
        assert found == sorted(set(found))  # none twice
        of_group = {offset for group_id, offset in acknowledged if group_id == of_key[0]}
        assert max(of_group) in found
        gone = of_group - set(found)
        assert max(gone, default=0) < uncleaned_from.get(of_key, found[-1])


@pytest.mark.parametrize("delayed", [False, True], ids=["as it is", "links and renames delayed"])
def test_acknowledged_commits_survive_concurrent_upkeep_folds_and_reloads(
    workbench: Workbench,
    chance: random.Random,
    place: Path,
    tmp_path: Path,
    delayed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = place / "store"
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
    rounds: dict[str, list[str]] = {}
    for line in (line for each in said.values() for line in each.read_text().splitlines()):
        rounds.setdefault(line.split()[0], []).append(line)
    counts = {what: len(rounds.get(what, ())) for what in ("removed", "folded", "reloaded")}
    assert all(count > 1 for count in counts.values()), rounds
    tell(f"{len(writer.acknowledged)} commits in {writer.describe_latency()} beside rounds of {counts}")
    tell(f"files of the log before and after upkeep: {most_files(rounds['removed'])} at most, {rounds['removed'][-1]}")

    last: dict[str, int] = {}
    for group_id, offset in writer.acknowledged:
        last[group_id] = max(offset, last.get(group_id, 0))
    assert len(last) == 2
    with timed("reading the log"):
        log = log_of(store)
    assert max(Counter((row.log_partition, row.record_offset) for rows in log.values() for row in rows).values()) == 1
    assert_only_cleaned_records_are_gone(log, workbench.open(store).current_log().cleaned_to, writer.acknowledged)
    with timed("loading a coordinator"), opened(store) as coordinator:
        for group_id, offset in last.items():
            answers = {where: each.offset for where, each in coordinator.fetch_offsets(group_id).items()}
            assert set(answers) == {("t", 0), ("t", 1)}
            assert all(answer in (offset, offset + 1) for answer in answers.values())  # one may not have been heard
    with timed("the fold"):
        workbench.fold(store)
    with timed("verify"):
        assert workbench.verify(store).equal
    with timed("verify --independent"):
        assert workbench.verify(store, independent=True).equal
