"""Many writers in several processes, killed at random: each acknowledged commit is in the log exactly once."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.kafka.record.decode import decode_key, decode_value
from offsets_pipeline.semantics.partitioning import partition_for
from tests.coordinator.line_process import LineProcess
from tests.places import S3Path
from tests.replays import Replayed, replay
from tests.unit.coordinator.stores import log_of, opened

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

PARTITIONS = 4
PROCESSES = 4
WRITER = Path(__file__).parent / "writer.py"
PATIENCE_SECONDS = 60
START = [sys.executable]  # how a writer is started
COMMITS_ON_S3 = (20, 60)  # between the deaths of a round: eight writers' threads race for each commit, over HTTP


class Writer(LineProcess):
    """A process of `writer.py`, and the commits that it told of."""

    patience_seconds = PATIENCE_SECONDS

    def __init__(self, store: Path | str, name: str, commits: int, acks: int) -> None:
        super().__init__(START, WRITER, store, name, commits, acks)
        self.acknowledged: list[tuple[str, int]] = []
        self.latencies_ms: list[float] = []  # from one acknowledgement of a group to its next
        self._last: dict[str, float] = {}

    def await_ready(self) -> None:
        assert self.first_line() == "ready\n"

    def on_line(self, line: str) -> None:
        group_id, offset = line.split()
        self.acknowledged.append((group_id, int(offset)))
        now = time.monotonic()
        if group_id in self._last:
            self.latencies_ms.append(1000 * (now - self._last[group_id]))
        self._last[group_id] = now

    def describe_latency(self) -> str:
        """The median and the 99th percentile of the time of a commit: each group commits without a rest."""
        ordered = sorted(self.latencies_ms)
        return f"p50 {ordered[len(ordered) // 2]:.1f} ms, p99 {ordered[len(ordered) * 99 // 100]:.1f} ms"


def commits_in(store: Path | str) -> Iterator[tuple[str, int, int]]:
    """Group, partition and offset of every commit in the log."""
    for rows in log_of(store).values():
        for row in rows:
            key = decode_key(row.key)
            assert row.value is not None
            yield key.group_id, key.fields["partition"], decode_value(key.record_type, row.value).fields["offset"]


def assert_gapless(store: Path | str) -> None:
    """R2: of our own log, where nothing is ever removed, record offsets are 0, 1, 2 ... without repeat."""
    log = log_of(store)
    assert log
    for rows in log.values():
        assert [row.record_offset for row in rows] == list(range(len(rows)))


def assert_answers_what_is_in_the_log(store: Path | str) -> None:
    with opened(store) as coordinator:
        for partition, rows in log_of(store).items():
            state = coordinator._core.partitions.state(partition)
            assert Replayed.of(state) == replay(rows, partition, PARTITIONS)
        for group_id in {group_id for group_id, _, _ in commits_in(store)}:
            found = replay(log_of(store)[partition_for(group_id, PARTITIONS)], partition_for(group_id, PARTITIONS), 4)
            assert {where: each.offset for where, each in coordinator.fetch_offsets(group_id).items()} == {
                identity[1:]: offset.committed_offset
                for identity, offset in found.current.items()
                if identity[0] == group_id
            }


@pytest.mark.parametrize(
    ("rounds", "commits"),
    [(2, (40, 100)), pytest.param(8, (150, 400), marks=pytest.mark.long)],
)
def test_acknowledged_commits_are_there_once_however_writers_are_killed(
    chance: random.Random, place: Path, rounds: int, commits: tuple[int, int]
) -> None:
    store = place / "store"
    OwnedStore.create(store, PARTITIONS)
    if isinstance(place, S3Path):
        commits = COMMITS_ON_S3
    acknowledged: list[tuple[str, int]] = []
    killed = 0
    for round_ in range(rounds):  # all but the first find what the killed ones of before left
        writers = [Writer(store, f"r{round_}p{number}", 10_000, -1) for number in range(PROCESSES)]
        for writer in writers:
            writer.await_ready()
        for writer in writers:
            writer.go()
        wanted = len(acknowledged) + chance.randint(*commits)
        for writer in chance.sample(writers, len(writers)):  # one after the other, as the others go on
            until = time.monotonic() + PATIENCE_SECONDS
            while len(acknowledged) + sum(len(each.acknowledged) for each in writers) < wanted:
                assert time.monotonic() < until
                time.sleep(0.001)
            writer.kill()
            wanted += chance.randint(1, 20) if writer is not writers[-1] else 0
            killed += writer.wait() == -signal.SIGKILL
            acknowledged += writer.acknowledged
            writer.acknowledged = []
    assert killed == rounds * PROCESSES
    in_log = Counter(commits_in(store))
    assert set(in_log.values()) == {1}  # none twice
    for group_id, offset in acknowledged:  # both partitions of every one: all of an append or nothing
        assert in_log[group_id, 0, offset] == in_log[group_id, 1, offset] == 1
    for group_id, partition, offset in in_log:  # what was not acknowledged is there whole or not at all
        assert in_log[group_id, 1 - partition, offset] == 1
    unacknowledged = {(group_id, offset) for group_id, _, offset in in_log} - set(acknowledged)
    assert len(unacknowledged) <= 2 * killed  # at most what each thread was about to hear of
    assert_gapless(store)
    assert_answers_what_is_in_the_log(store)


def test_commits_without_acknowledgement_may_be_lost_and_are_never_there_twice(place: Path) -> None:  # R27
    store = place / "store"
    OwnedStore.create(store, PARTITIONS)
    writers = [Writer(store, f"p{number}", 5_000, 0) for number in range(PROCESSES)]
    for writer in writers:
        writer.await_ready()
    for writer in writers:
        writer.go()
    until = time.monotonic() + PATIENCE_SECONDS
    while not log_of(store):
        assert time.monotonic() < until
    for writer in writers:
        writer.kill()
        writer.wait()
    in_log = Counter(commits_in(store))
    sent = {each for writer in writers for each in writer.acknowledged}
    assert set(in_log.values()) == {1}
    assert {(group_id, offset) for group_id, _, offset in in_log} < sent  # some are lost, and it was said
    assert_gapless(store)
    assert_answers_what_is_in_the_log(store)


def test_a_stopped_writer_does_not_stop_the_others(place: Path) -> None:
    store = place / "store"
    OwnedStore.create(store, PARTITIONS)
    writers = [Writer(store, f"p{number}", 10_000, -1) for number in range(2)]
    for writer in writers:
        writer.await_ready()
    for writer in writers:
        writer.go()
    stopped, other = writers
    for _ in range(5):  # some of these hit it while it has its turn
        stopped._process.send_signal(signal.SIGSTOP)
        seen, until = len(other.acknowledged), time.monotonic() + PATIENCE_SECONDS
        while len(other.acknowledged) < seen + 10:
            assert time.monotonic() < until
            time.sleep(0.001)
        stopped._process.send_signal(signal.SIGCONT)
        seen = len(stopped.acknowledged)
        while len(stopped.acknowledged) < seen + 3:
            assert time.monotonic() < until
            time.sleep(0.001)
    for writer in writers:
        writer.kill()
        writer.wait()
    assert set(Counter(commits_in(store)).values()) == {1}
    assert_gapless(store)
