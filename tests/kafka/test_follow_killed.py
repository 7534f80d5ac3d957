"""Processes that read and fold a topic, as users start them, are killed while clients go on.

`make test` kills one process with both queries (test_follow_service.py); `make test-long` kills processes of either
query again and again.
"""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from offsets_pipeline.semantics.log_row import COMMIT
from offsets_pipeline.semantics.partitioning import partition_for
from tests.kafka.following import log_records
from tests.kafka.live import LiveBroker, live_broker, wait_until
from tests.programs import OFFSETS, QUICK
from tests.spark.stores import differences
from tests.streaming.test_kill import kill

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from tests.kafka.brokers import KafkaJvm
    from tests.spark.stores import Workbench

pytestmark = [pytest.mark.process, pytest.mark.streaming, pytest.mark.slow]

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
