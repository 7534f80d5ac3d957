"""`offsets snapshot` on a live broker: the state of a snapshot store is what the broker answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.cli import main
from tests.compare import compare
from tests.kafka.live import Consumer, LiveBroker, live_broker, wait_until
from tests.spark.stores import log_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kafka.brokers import KafkaJvm


def share_partitions(first: Consumer, second: Consumer) -> None:
    """Poll both consumers of a group until each has two partitions."""

    def shared() -> bool:
        first.poll(20)
        second.poll(20)
        return first.assigned() == second.assigned() == 2

    wait_until(shared, "the consumers do not share the partitions")


@pytest.fixture
def snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Takes one snapshot of a broker; returns what the command prints."""

    def snapshot(broker: LiveBroker, *more: str) -> str:
        at = ["--store", str(tmp_path / "groups"), "--bootstrap-server", broker.address, "--offsets-partitions", "5"]
        assert main(["snapshot", *at, "--once", *more]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return snapshot


def test_state_of_snapshots_is_what_the_broker_answers(
    kafka: KafkaJvm, tmp_path: Path, snapshot: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "groups"
    with live_broker(kafka, tmp_path / "broker") as broker:

        def assert_as_the_broker() -> int:
            """Compare all answers of `describe`; returns the number of records in the log."""
            oracle = broker.answers.groups()
            assert len(oracle["groups"]) > 4
            assert main(["describe", "--store", str(store), "--all-groups", "--format", "json"]) == 0
            assert compare(json.loads(capsys.readouterr().out), oracle) == []
            assert snapshot(broker).startswith("0 records appended")  # nothing has changed
            return len(log_of(store))

        broker.create_topic("t", 4)
        broker.create_topic("u", 1)
        broker.commit("simple", {("t", 0): 5, ("t", 1): 7, ("u", 0): 0}, "by hand")
        broker.commit("", {("t", 0): 1})
        broker.commit("deleted", {("t", 0): 1, ("t", 1): 2})
        transaction = broker.transaction("txn")
        transaction.begin("in a transaction", {("t", 0): 3})
        transaction.commit()
        broker.wait_for_markers()
        transaction.begin("in a transaction", {("t", 0): 4})  # stays open
        consumers = [
            broker.consumer(protocol, ["t"], group_protocol=protocol, client_id=f"{protocol}-{number}")
            for protocol in ("classic", "consumer")
            for number in range(2)
        ]
        for first, second in (consumers[:2], consumers[2:]):
            share_partitions(first, second)
        consumers[0].commit({("t", 0): 1})
        consumers[2].commit({("t", 0): 1}, "metadata")
        left = broker.consumer("left", ["u"])
        left.join()
        left.close()

        snapshot(broker)
        before = assert_as_the_broker()

        broker.commit("simple", {("t", 0): 6}, "by hand")
        broker.delete_offsets("simple", [("t", 1)])
        broker.delete_group("deleted")
        broker.commit("new", {("t", 0): 1})
        transaction.commit()
        broker.wait_for_markers()
        for consumer in consumers:
            consumer.close()
        broker.delete_group("classic")
        broker.commit("classic", {("t", 2): 9})  # now a simple group
        snapshot(broker)
        after = assert_as_the_broker()
        # a tombstone and a commit; three tombstones; a commit; a commit; a group that is another one; members that left
        assert after - before < 25
