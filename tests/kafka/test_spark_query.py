"""Spark queries over a real broker, with Spark's own Kafka source: their offsets in groups and in checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from benchmarks.broker import KAFKA_JARS
from offsets_pipeline.cli import main
from offsets_pipeline.coordinator.owned_store import OwnedStore
from tests.kafka.committing_query import COUNT, GROUP, HALF, NAMED, NUMBERED, TOPIC
from tests.kafka.live import live_broker, wait_until
from tests.kafka.zookeeper import run_java
from tests.programs import QUICK
from tests.streaming.test_kill import kill
from tests.unit.coordinator.stores import references_of

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from tests.kafka.brokers import KafkaJvm
    from tests.kafka.live import LiveBroker

# Spark has a JVM for each run, since a kill of a query kills its process
pytestmark = [pytest.mark.process, pytest.mark.streaming, pytest.mark.slow]

Offsets = dict[int, int]
PARTITIONS = 2
RECORDS = 60  # of a partition and round: twelve batches
JOB = (sys.executable, "-m", "tests.kafka.committing_query")


class RunningQuery:
    """The job of committing_query.py as a process, and what it has done so far."""

    def __init__(self, root: Path, folder: Path, broker: LiveBroker) -> None:
        self._root = root
        self._broker = broker
        self.folder = folder
        self.store = folder / "owned"
        OwnedStore.create(self.store, 1)

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        """Start it."""
        with (self.folder / "query.err").open("ab") as stderr:
            return subprocess.Popen(
                [*JOB, self._broker.address, str(self.store), str(self.folder), *more],
                cwd=self._root,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
                env={**os.environ, **QUICK},
            )

    def completed(self) -> list[Offsets]:
        """End offsets of the completed batches, as its checkpoint has them."""
        checkpoint = self.folder / NUMBERED
        commits = sorted(int(each.name) for each in (checkpoint / "commits").glob("[0-9]*"))
        lines = [(checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1] for batch in commits]
        return [{int(at): offset for at, offset in json.loads(line)[TOPIC].items()} for line in lines]

    def in_broker(self, group: str = GROUP) -> Offsets:
        """The broker's answer for the group."""
        found = self._broker.answers.offsets([group])[group]
        return {each["partition"]: each["offset"] for each in found}

    def in_store(self, group: str = GROUP) -> Offsets:
        """The group's offsets by a replay of the owned log with the specification."""
        return {
            at: each.committed_offset
            for state in references_of(self.store, 1).values()
            for (of_group, _, at), each in state.current.items()
            if of_group == group
        }

    def assert_not_ahead(self) -> None:
        """No group is ahead of the last completed batch."""
        found = [self.in_broker(), self.in_store()]  # before the look at the checkpoint
        completed = (self.completed() or [{}])[-1]
        for offsets in found:
            assert all(offset <= completed[at] for at, offset in offsets.items()), (found, completed)


def shown_by_kafka_consumer_groups(bootstrap_server: str, group: str) -> dict[int, tuple[int, int, int]]:
    """What Kafka's own tool prints of a group, by partition: committed offset, log end offset and lag."""
    command = ["org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--bootstrap-server", bootstrap_server]
    lines = run_java(KAFKA_JARS, *command, "--describe", "--group", group, "--timeout", "60000").splitlines()
    rows = [dict(zip(lines[1].split(), each.split(), strict=True)) for each in lines[2:]]
    assert {(row["GROUP"], row["TOPIC"], row["CONSUMER-ID"]) for row in rows} == {(group, TOPIC, "-")}
    names = ("CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")
    return {int(row["PARTITION"]): tuple(int(row[name]) for name in names) for row in rows}  # type: ignore[misc]


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.long)])
def test_query_killed_and_restarted_never_commits_ahead_of_a_completed_batch(
    kafka: KafkaJvm, chance: random.Random, root: Path, tmp_path: Path, rounds: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with live_broker(kafka, tmp_path / "broker") as broker:
        broker.create_topic(TOPIC, PARTITIONS)
        query = RunningQuery(root, tmp_path, broker)
        for _ in range(rounds):
            for at in range(PARTITIONS):
                broker.produce(TOPIC, at, RECORDS)
            before = len(query.completed())
            process = query.start()
            try:
                wait_until(
                    lambda: len(query.completed()) > before + 2 and query.in_broker() != {} != query.in_store(),  # noqa: B023
                    "no batch was committed",
                    say=lambda: (tmp_path / "query.err").read_text()[-3000:],
                )
                for _ in range(3):
                    query.assert_not_ahead()
                time.sleep(chance.uniform(0, 0.5))  # anywhere in a batch
            finally:
                kill(process)
            query.assert_not_ahead()
        half = [f"{TOPIC}:0=10", f"{TOPIC}:1=20"]
        assert main(["commit", "--store", str(query.store), "--group", HALF, *half]) == 0
        capsys.readouterr()
        with (tmp_path / "query.err").open() as errors:
            assert query.start("--available-now").wait(180) == 0, errors.read()[-3000:]
        total = dict.fromkeys(range(PARTITIONS), RECORDS * rounds)
        assert query.completed()[-1] == total
        assert int((tmp_path / COUNT).read_text()) == sum(total.values()) - 30  # those that Spark reads from there on
        # the broker's answer, that of the owned store, and that of the checkpoint are one
        assert query.in_broker() == query.in_store() == total
        assert broker.answers.groups()["groups"][GROUP]["describe"]["state"] == "Empty"
        assert shown_by_kafka_consumer_groups(broker.address, GROUP) == {at: (total[at], total[at], 0) for at in total}
        completed = query.completed()

        def imported(checkpoint: str, group: str, *more: str) -> list[str]:
            path = str(tmp_path / checkpoint)
            status = main(["import-checkpoint", path, "--group", group, "--store", str(query.store), *more])
            output = capsys.readouterr()
            return [f"status {status}", *(output.out + output.err).splitlines()]

        assert imported(NUMBERED, "imported")[1].startswith(f"{len(completed)} batches (0 to {len(completed) - 1}) of")
        assert query.in_store("imported") == total
        assert imported(NUMBERED, GROUP)[1].startswith("0 batches of")  # the listener committed them
        assert "two Kafka sources with topic orders, early and late" in imported(NAMED, "named")[1]
        assert imported(NAMED, "named", "--source", "late")[0] == "status 0"
        assert query.in_store("named") == total
