"""`follow` reproduces the classic group coordinator of a live broker of 3.9.

Only such a broker shows which API versions and features it has, and what its coordinator answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.questions.query.log_info import log_info
from offsets_pipeline.questions.query.state_reader import StateReader
from tests.kafka.client_actions import classic_clients, leaving_member
from tests.kafka.following import Heard, answers_of, caught_up, following, log_places, log_records
from tests.kafka.live import LiveBroker, live_broker

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.common.config import Settings
    from tests.kafka.brokers import KafkaJvm
    from tests.spark.stores import Workbench

pytestmark = [pytest.mark.streaming, pytest.mark.slow]


def clients_do_it_all(broker: LiveBroker, round_: int) -> None:
    """Clients commit, reset and delete; some stay members of their groups."""
    classic_clients(broker, f"t{round_}", round_)
    leaving_member(broker, f"t{round_}", f"gone-{round_}", "classic")


def test_broker_of_3_9_is_followed_with_the_answers_of_its_classic_coordinator_and_then_of_its_upgrade(
    kafka: KafkaJvm, classic_kafka: KafkaJvm, workbench: Workbench, quick: Settings, tmp_path: Path
) -> None:
    store, heard = tmp_path / "store", Heard()
    with live_broker(kafka, tmp_path / "broker", 3, server=classic_kafka) as broker:
        clients_do_it_all(broker, 1)
        broker.commit("back", {("t1", 0): 1})
        transaction = broker.transaction("deleted-below")
        transaction.begin("back", {("t1", 0): 7})
        with following(workbench, store, broker, quick):
            caught_up(store, broker)
            assert {each.coordinator_semantics for each in log_info(StateReader(str(store)))} == {"classic"}
            clients_do_it_all(broker, 2)
            caught_up(store, broker)
            broker.delete_offsets("back", [("t1", 0)])
            transaction.commit()
            aborted = broker.transaction("is-aborted")
            aborted.begin("only-aborted", {("t1", 0): 3})
            aborted.abort()
            broker.wait_for_markers()
            broker.stop()
            broker.start()  # only the load of the log shows R12 and R14: until then it remembers more
            clients_do_it_all(broker, 3)
            caught_up(store, broker)
        assert log_places(store) == broker.log_places()
        answers = answers_of(store)
        assert answers["back"] == {("t1", 0): 7}
        assert {"classic-1", "static-2", "gone-3", "simple-3"} <= answers.keys()
        assert "only-aborted" not in answers
        assert workbench.verify(store).equal

        broker.stop()
        broker.upgrade(kafka)  # 4.2 loads what 3.9 wrote, and continues it
        broker.commit("upgraded", {("t1", 0): 8})
        with following(workbench, store, broker, quick, heard):
            caught_up(store, broker)
        assert log_records(store) == broker.log_records()
    assert {each.coordinator_semantics for each in log_info(StateReader(str(store)))} == {"modern"}
    assert any("the broker's coordinator is modern" in each for each in heard.warnings)
    answers = answers_of(store)
    assert answers["back"] == {}  # R12
    assert answers["upgraded"] == {("t1", 0): 8}
    assert "only-aborted" in answers  # R14
    assert {each.log_incarnation for each in log_info(StateReader(str(store)))} == {0}
    assert workbench.verify(store).equal
