"""Processes that read and fold a topic, as users start them, are killed while clients go on.

`make test` kills one `follow` (test_follow_service.py); `make test-long` kills `follow`, or `ingest-topic` and `fold`,
again and again. OFFSETS_TEST_KILLS: how often; for more than 100 add `-o faulthandler_timeout=0`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from offsets_pipeline.questions.query.log_info import log_info
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics.log_row import COMMIT
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.store.delta.data_file import FOLDED
from tests.kafka.following import log_records
from tests.kafka.live import LiveBroker, live_broker, wait_until
from tests.programs import OFFSETS, QUICK
from tests.spark.stores import differences
from tests.streaming.test_kill import kill

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.kafka.brokers import KafkaJvm
    from tests.spark.stores import Workbench

pytestmark = [pytest.mark.process, pytest.mark.streaming, pytest.mark.slow]

KILLS = int(os.environ.get("OFFSETS_TEST_KILLS", "20"))
CONFIG = """
[topic]
min_records_wait_ms = 200
watch_interval_ms = 300
note_interval_ms = 300
[fold]
trigger_interval_ms = 200
upkeep_interval_ms = 300
[spark]
driver_memory = "1g"
"""


def start(root: Path, store: Path, tmp_path: Path, *command: str) -> subprocess.Popen[bytes]:
    config = tmp_path / "offsets.toml"
    with (tmp_path / f"{command[0]}.err").open("ab") as stderr:
        return subprocess.Popen(
            [OFFSETS, command[0], "--store", store, "--config", config, *command[1:]],
            cwd=root,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
            env={**os.environ, **QUICK},
        )


def version(store: Path, name: str) -> int:
    try:
        return DeltaTable(store / name).version()
    except DeltaError:  # it is still to be made
        return -1


def clients_commit(broker: LiveBroker, round_: int) -> None:
    for number in range(30):
        broker.commit(f"g{number}", {("t", 0): 100 * round_ + number})
    broker.delete_group(f"g{round_}")
    transaction = broker.transaction(f"t-{round_}")
    transaction.begin("txn", {("t", 1): round_})
    transaction.commit()


def assert_each_is_there_once(store: Path, broker: LiveBroker) -> None:
    landed = log_records(store)
    assert landed == broker.log_records()  # neither missing nor twice
    assert {each.log_partition for each in landed if each.control_type == COMMIT} >= {partition_for("txn", 5)}


@pytest.mark.long
def test_killed_again_and_again_ingest_topic_and_fold_append_and_fold_each_record_once(
    kafka: KafkaJvm, workbench: Workbench, chance: random.Random, root: Path, tmp_path: Path
) -> None:
    rounds = 20
    store = tmp_path / "store"
    (tmp_path / "offsets.toml").write_text(CONFIG)
    with live_broker(kafka, tmp_path / "broker") as broker:
        broker.create_topic("t", 2)
        clients_commit(broker, 0)
        ingest = ("ingest-topic", "--bootstrap-server", broker.address)
        queries: dict[str, subprocess.Popen[bytes]] = {"log": start(root, store, tmp_path, *ingest)}
        try:
            wait_until(lambda: version(store, "log") > 0, "nothing landed")
            queries["fold_progress"] = start(root, store, tmp_path, "fold")
            for round_ in range(1, rounds + 1):
                victim = ("log", "fold_progress")[round_ % 2]
                before = version(store, victim)
                clients_commit(broker, round_)
                wait_until(lambda: version(store, victim) > before, f"{victim} stands still")  # noqa: B023
                clients_commit(broker, round_)
                time.sleep(chance.uniform(0, 1))  # anywhere in a batch, or between two
                kill(queries[victim])
                command = ingest if victim == "log" else ("fold",)
                queries[victim] = start(root, store, tmp_path, *command)
            clients_commit(broker, rounds + 1)
            wait_until(
                lambda: differences(store, broker.answers.groups()) == [],
                "we answer otherwise than the broker",
                say=lambda: str(differences(store, broker.answers.groups())),
            )
            for query in queries.values():
                query.terminate()
            assert [query.wait(60) for query in queries.values()] == [0, 0]
        finally:
            for query in queries.values():
                if query.poll() is None:
                    kill(query)
        assert_each_is_there_once(store, broker)
    assert workbench.verify(store).equal
    for name in ("ingest-topic", "fold"):
        assert "Traceback" not in (tmp_path / f"{name}.err").read_text()


@pytest.fixture
def start_follow(root: Path) -> Iterator[Callable[[Path, LiveBroker], Follow]]:
    """Starts `offsets follow` in a folder; none outlives the test."""
    started: list[Follow] = []

    def start(folder: Path, broker: LiveBroker) -> Follow:
        started.append(Follow(root, folder, broker))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            kill(each.process)


class Follow:
    """`offsets follow` on a store of its own, and how far it was whenever it was killed."""

    def __init__(self, root: Path, folder: Path, broker: LiveBroker) -> None:
        folder.mkdir()
        (folder / "offsets.toml").write_text(CONFIG)
        self.store = folder / "store"
        self.errors = folder / "follow.err"
        self.appended = 0  # kills after an append of this process
        self.unfolded = 0  # of these, kills before its fold
        self._run = (root, self.store, folder, "follow", "--bootstrap-server", broker.address)
        self.start()

    def start(self) -> None:
        self._began_at = version(self.store, "log")
        self.process = start(*self._run)

    def has_appended(self) -> bool:
        assert self.process.poll() is None, self.errors.read_text()[-2000:]
        return version(self.store, "log") > self._began_at

    def kill(self) -> None:
        kill(self.process)
        newest = version(self.store, "log")
        self.appended += newest > self._began_at
        progress = self.store / "fold_progress"
        folded = DeltaTable(progress).transaction_version(FOLDED) if progress.exists() else None
        self.unfolded += newest > (-1 if folded is None else folded)


def killed_and_equal(broker: LiveBroker, follows: list[Follow], workbench: Workbench) -> None:
    """Each answers as the broker, and has each record once, when it has caught up."""
    for each in follows:
        each.start()
    for each in follows:
        wait_until(
            lambda: differences(each.store, broker.answers.groups()) == [],  # noqa: B023
            "we answer otherwise than the broker",
            say=lambda: str(differences(each.store, broker.answers.groups())),  # noqa: B023
        )
    for each in follows:
        each.process.terminate()
    assert [each.process.wait(60) for each in follows] == [0] * len(follows)
    for each in follows:
        (log_incarnation,) = {row.log_incarnation for row in log_info(StateReader(str(each.store)))}
        assert log_records(each.store, log_incarnation) == broker.log_records()  # neither missing nor twice
        assert workbench.verify(each.store, independent=True).equal
        assert "Traceback" not in each.errors.read_text()


@pytest.mark.long
@pytest.mark.timeout(max(1_800, 20 * KILLS))
def test_follow_killed_again_and_again_appends_and_folds_each_record_once(
    kafka: KafkaJvm,
    workbench: Workbench,
    chance: random.Random,
    start_follow: Callable[[Path, LiveBroker], Follow],
    tmp_path: Path,
) -> None:
    with live_broker(kafka, tmp_path / "broker") as broker:
        broker.create_topic("t", 2)
        clients_commit(broker, 0)
        follows = [start_follow(tmp_path / f"{number}", broker) for number in range(4)]
        for round_ in range(1, KILLS // len(follows) + 1):
            clients_commit(broker, round_ % 30)
            for each in chance.sample(follows, len(follows)):
                if chance.random() < 0.8:  # else it may still be starting
                    wait_until(each.has_appended, "nothing landed")
                    clients_commit(broker, round_ % 30)
                time.sleep(chance.uniform(0, 1))
                each.kill()
                if round_ < KILLS // len(follows):
                    each.start()
        clients_commit(broker, 1)
        killed_and_equal(broker, follows, workbench)
    appended, unfolded = sum(each.appended for each in follows), sum(each.unfolded for each in follows)
    print(f"{KILLS} kills: {appended} after an append, {unfolded} of these before its fold")  # noqa: T201
    assert appended >= KILLS // 2


@pytest.mark.long
def test_follow_killed_beside_an_ingest_of_older_segments_appends_and_folds_each_record_once(
    kafka: KafkaJvm,
    workbench: Workbench,
    chance: random.Random,
    start_follow: Callable[[Path, LiveBroker], Follow],
    root: Path,
    tmp_path: Path,
) -> None:
    kills = 20
    segments = tmp_path / "segments"
    with live_broker(kafka, tmp_path / "broker") as broker:
        broker.create_topic("t", 2)
        clients_commit(broker, 0)
        for folder in broker.folder.glob("__consumer_offsets-*"):
            shutil.copytree(folder, segments / folder.name)
        follows = []
        for round_ in range(1, kills + 1):
            clients_commit(broker, round_)
            folder = tmp_path / f"{round_}"
            each = start_follow(folder, broker)
            follows.append(each)
            ingest = start(root, each.store, folder, "ingest-segments", str(segments))
            if chance.random() < 0.7:
                wait_until(lambda: version(each.store, "log") > 0, "nothing landed")  # noqa: B023
            time.sleep(chance.uniform(0, 1))
            each.kill()
            assert ingest.wait(240) in (0, 1)  # a store that follows a topic takes no segments
            assert "Traceback" not in (folder / "ingest-segments.err").read_text()
        for first in range(0, kills, 4):
            killed_and_equal(broker, follows[first : first + 4], workbench)
