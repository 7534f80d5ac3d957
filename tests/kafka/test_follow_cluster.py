"""`follow` reads each record once while partition leaders move, die, and lose records.

Only real brokers show how long a leader is away, which records replicas have then, and what the epochs tell. A broker
that is killed takes a JVM of its own.
"""

from __future__ import annotations

import itertools
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from offsets_pipeline.questions.query.log_info import log_info
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics.log_row import COMMIT
from offsets_pipeline.semantics.partitioning import partition_for
from tests.kafka.following import Heard, answers_of, beside, caught_up, following, log_places, log_records
from tests.kafka.live_clients import wait_until
from tests.kafka.three_brokers import VICTIM, ThreeBrokers, three_brokers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from offsets_pipeline.common.config import Settings
    from tests.kafka.brokers import KafkaJvm
    from tests.spark.stores import Workbench

pytestmark = [pytest.mark.streaming, pytest.mark.slow]


@contextmanager
def clients_committing(cluster: ThreeBrokers) -> Iterator[Callable[[int], None]]:
    """Clients commit meanwhile, also in transactions; the function waits until they have committed so often again."""
    ended, commits = threading.Event(), itertools.count()
    done = 0

    def commit_all() -> None:
        nonlocal done
        transaction = cluster.transaction("moves")
        for number in commits:
            if ended.is_set():
                return
            try:
                cluster.commit(f"g{number % 30}", {("t", 0): number})
                if number % 10 == 0:
                    transaction.begin(f"txn-{number % 3}", {("t", 1): number})
                    transaction.commit()
            except Py4JJavaError:  # a broker died; another producer of this id aborts the transaction if one is open
                transaction = cluster.transaction("moves")
            else:
                done += 1

    with beside(commit_all, ended.set) as failures:

        def wait_for(more: int) -> None:
            goal = done + more
            wait_until(lambda: done >= goal or bool(failures), "no commit is accepted")

        yield wait_for


@pytest.mark.parametrize("rounds", [1, pytest.param(4, marks=pytest.mark.long)])
def test_leaders_that_move_and_a_broker_that_dies_and_returns_cost_no_record_and_repeat_none(
    kafka: KafkaJvm, workbench: Workbench, quick: Settings, tmp_path: Path, rounds: int
) -> None:
    store, heard = tmp_path / "store", Heard()
    with three_brokers(kafka, tmp_path / "brokers", 3) as cluster:
        cluster.create_topic("t", 2)
        with following(workbench, store, cluster, quick, heard):
            with clients_committing(cluster) as wait_for:
                for round_ in range(rounds):
                    for order in ([2, 3, 1], [3, 1, 2]):
                        cluster.place({at: order[at:] + order[:at] for at in range(3)})
                        wait_for(15)
                    assert VICTIM in cluster.leaders().values()
                    cluster.kill()
                    wait_for(30)
                    assert set(cluster.leaders().values()) == {1, 2}
                    cluster.revive()
                    if round_:  # in order: it hands its leaders over
                        cluster.place({at: [2, 3, 1] for at in range(3)})
                        cluster.stop(2)
                        wait_for(15)
                        assert 2 not in cluster.leaders().values()
                        cluster.start(2)
                cluster.place({at: [VICTIM, 1, 2] for at in range(3)})
                wait_for(15)
            cluster.wait_for_markers()
            caught_up(store, cluster)
            records = cluster.log_records()
            wait_until(lambda: len(log_places(store)) >= len(records), "the log lacks records")
        assert log_records(store) == records
    assert {each.control_type for each in records} >= {None, COMMIT}
    assert len(answers_of(store)) == 33
    assert {each.log_incarnation for each in log_info(StateReader(str(store)))} == {0}
    assert workbench.verify(store).equal


def test_unclean_election_that_loses_records_starts_a_new_incarnation_of_the_log(
    kafka: KafkaJvm, workbench: Workbench, quick: Settings, tmp_path: Path
) -> None:
    store, heard = tmp_path / "store", Heard()
    with three_brokers(kafka, tmp_path / "brokers", 1) as cluster:
        cluster.create_topic("t", 2)
        cluster.place({0: [VICTIM, 2]})
        cluster.set_topic("__consumer_offsets", unclean_leader_election_enable="true")
        cluster.commit("stays", {("t", 0): 1})
        with following(workbench, store, cluster, quick):
            caught_up(store, cluster)
            cluster.stop(2)
            for number in range(5):
                cluster.commit("lost", {("t", 0): number})  # broker 3 alone has them
            wait_until(lambda: answers_of(store).get("lost") == {("t", 0): 4}, "the commits did not land")
        before = log_places(store)
        cluster.kill()
        cluster.start(2)
        wait_until(lambda: cluster.leaders() == {0: 2}, "broker 2 does not lead")
        for number in range(9):  # the log grows past the point that was read
            cluster.commit("new", {("t", 1): number})
        with following(workbench, store, cluster, quick, heard):
            caught_up(store, cluster)
            wait_until(lambda: log_places(store, 1) == cluster.log_places(), "the log is not the topic")
    assert answers_of(store) == {"stays": {("t", 0): 1}, "new": {("t", 1): 8}}
    assert log_places(store) == before
    assert {each.log_incarnation for each in log_info(StateReader(str(store)))} == {1}
    assert any("a new leader of log partition 0 has the records of leader epoch" in each for each in heard.warnings)
    assert workbench.verify(store).equal


def test_a_log_partition_without_a_leader_does_not_stop_the_others(
    kafka: KafkaJvm, workbench: Workbench, quick: Settings, tmp_path: Path
) -> None:
    """The first `follow` sees the leader die, the second one begins without it."""
    store, heard = tmp_path / "store", Heard()
    group_at = {partition_for(name, 2): name for name in ("a", "b", "c", "d")}
    with three_brokers(kafka, tmp_path / "brokers", 2) as cluster:
        cluster.create_topic("t", 2)
        cluster.place({0: [1], 1: [VICTIM]})

        def committed(at: int, number: int) -> None:
            cluster.commit(group_at[at], {("t", 0): number})
            wait_until(lambda: answers_of(store).get(group_at[at]) == {("t", 0): number}, f"{number} did not land")

        with following(workbench, store, cluster, quick, heard):
            committed(1, 1)
            cluster.kill()
            wait_until(lambda: cluster.leaders() == {0: 1, 1: None}, "the partition still has a leader")
            committed(0, 2)
        with following(workbench, store, cluster, quick, heard):
            committed(0, 3)
            assert answers_of(store)[group_at[1]] == {("t", 0): 1}
            cluster.revive()
            committed(1, 4)
            caught_up(store, cluster)
        assert log_places(store) == cluster.log_places()
    assert [each for each in heard.warnings if "no leader" in each and "trying again" not in each]
    assert {each.log_incarnation for each in log_info(StateReader(str(store)))} == {0}
    assert workbench.verify(store).equal
