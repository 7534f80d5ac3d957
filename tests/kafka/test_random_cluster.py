"""`follow` beside random histories on three brokers: what no list of cases has.

Leaders move, a broker stops in order or is killed, elections lose records, and `follow` ends and begins again, while
clients commit, delete, and run transactions. Only real brokers show what a new leader has and answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from offsets_pipeline.questions.query.log_info import log_info
from offsets_pipeline.questions.query.state_reader import StateReader
from tests.kafka.following import Heard, answers_of, caught_up, following, log_places
from tests.kafka.live_clients import wait_until
from tests.kafka.three_brokers import VICTIM, ThreeBrokers, three_brokers

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from offsets_pipeline.common.config import Settings
    from tests.kafka.brokers import KafkaJvm
    from tests.kafka.live_clients import Transaction
    from tests.spark.stores import Workbench

pytestmark = [pytest.mark.streaming, pytest.mark.slow, pytest.mark.long]
PARTITIONS = 4
STEPS = 40
NODES = (1, 2, VICTIM)
TOPICS = {"t": 3, "u": 2}


class History:
    """Random steps on a cluster. A request may fail: a broker is away, or there is nothing to delete."""

    def __init__(self, cluster: ThreeBrokers, store: Path, chance: random.Random) -> None:
        self._cluster, self._store, self._chance = cluster, store, chance
        self._open: dict[str, Transaction] = {}  # each has sent offsets
        self._idle: dict[str, Transaction] = {}
        self._away: int | None = None
        self._number = 0

    def step(self) -> None:
        """Do one of them."""
        steps = {self.commit: 10, self.transact: 8, self.delete: 4, self.move: 3, self.lose_records: 2}
        steps |= {self.leave: 2} if self._away is None else {self.come_back: 8}
        (chosen,) = self._chance.choices(list(steps), list(steps.values()))
        chosen()

    def commit(self) -> None:
        """Commit offsets of some groups."""
        for _ in range(self._chance.randint(1, 5)):
            _accepted(lambda: self._cluster.commit(self._group(), self._offsets()))

    def delete(self) -> None:
        """Delete a group, or offsets of one."""
        group, offsets = self._group(), list(self._offsets())
        if self._chance.random() < 0.5:
            _accepted(lambda: self._cluster.delete_group(group))
        else:
            _accepted(lambda: self._cluster.delete_offsets(group, offsets))

    def transact(self) -> None:
        """Begin or end a transaction of one of three producers."""
        name = self._chance.choice("abc")
        if name in self._open:
            transaction = self._open.pop(name)
            if _accepted(transaction.commit if self._chance.random() < 0.7 else transaction.abort):
                self._idle[name] = transaction
            return
        begun: list[Transaction] = []

        def begin() -> None:
            transaction = self._idle.pop(name, None) or self._cluster.transaction(name)
            transaction.begin(self._group(), self._offsets())
            begun.append(transaction)

        if _accepted(begin):
            self._open[name] = begun[0]

    def move(self) -> None:
        """Give each log partition two or three replicas and a leader at random."""
        if self._away is None:
            count = self._chance.choice((2, 2, 3))
            self._cluster.place({at: self._chance.sample(NODES, count) for at in range(PARTITIONS)})

    def leave(self) -> None:
        """Stop broker 2 in order, or kill broker 3."""
        self._away = self._chance.choice((2, VICTIM))
        if self._away == VICTIM:
            self._cluster.kill()
        else:
            self._cluster.stop(2)

    def come_back(self) -> None:
        """Start the broker that is away."""
        if self._away == VICTIM:
            self._cluster.revive()
        elif self._away == 2:
            self._cluster.start(2)
        self._away = None

    def lose_records(self) -> None:
        """Let a replica lead that lacks what broker 3 alone has; `follow` has read some of that, or not."""
        if self._away is not None:
            return
        places = {at: [VICTIM, 2] for at in self._chance.sample(range(PARTITIONS), self._chance.randint(1, PARTITIONS))}
        self._cluster.place(places)
        self._cluster.stop(2)
        self.commit()
        self.transact()
        self._number += 1
        seen = {("t", 0): self._number}
        if self._chance.random() < 0.7 and _accepted(lambda: self._cluster.commit("seen", seen)):
            wait_until(lambda: answers_of(self._store).get("seen") == seen, "follow does not read it")
        self._cluster.kill()
        self._cluster.start(2)
        self._away = VICTIM
        wait_until(lambda: all(self._cluster.leaders()[at] == 2 for at in places), "broker 2 does not lead")

    def end(self) -> None:
        """End the transactions, and let another broker load each log partition."""
        self.come_back()
        for transaction in self._open.values():
            _accepted(transaction.commit)
        self._cluster.abort_transactions()
        self._cluster.wait_for_markers()
        for order in ([1, 2, 3], [2, 3, 1]):
            self._cluster.place(dict.fromkeys(range(PARTITIONS), order))

    def _group(self) -> str:
        return f"g{self._chance.randrange(20)}"

    def _offsets(self) -> dict[tuple[str, int], int]:
        self._number += 1
        topic = self._chance.choice(list(TOPICS))
        some = self._chance.sample(range(TOPICS[topic]), self._chance.randint(1, TOPICS[topic]))
        return {(topic, partition): self._number for partition in some}


def _accepted(request: Callable[[], object]) -> bool:
    try:
        request()
    except Py4JJavaError:
        return False
    return True


def test_follow_answers_as_the_brokers_after_a_random_history(
    kafka: KafkaJvm, workbench: Workbench, quick: Settings, tmp_path: Path, chance: random.Random
) -> None:
    store, heard = tmp_path / "store", Heard()
    with three_brokers(kafka, tmp_path / "brokers", PARTITIONS) as cluster:
        for topic, partitions in TOPICS.items():
            cluster.create_topic(topic, partitions)
        cluster.set_topic("__consumer_offsets", unclean_leader_election_enable="true")
        history = History(cluster, store, chance)
        for steps in (STEPS // 4, STEPS // 4, STEPS // 2):
            with following(workbench, store, cluster, quick, heard):
                for _ in range(steps):
                    history.step()
            history.commit()  # without `follow`
            history.move()
        history.end()
        with following(workbench, store, cluster, quick, heard):
            caught_up(store, cluster)
            newest = max(each.log_incarnation for each in log_info(StateReader(str(store))))
            wait_until(lambda: log_places(store, newest) == cluster.log_places(), "the log is not the topic")
    assert not [each for each in heard.warnings if "STREAM_FAILED" in each]
    assert workbench.verify(store).equal
