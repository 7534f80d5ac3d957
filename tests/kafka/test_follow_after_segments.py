"""A store takes a broker's segment files first, and then follows the live topic."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.questions.query.log_info import log_info
from offsets_pipeline.questions.query.state_reader import StateReader
from tests.kafka.following import Heard, answers_of, caught_up, following, log_places
from tests.kafka.live import live_broker

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.common.config import Settings
    from tests.kafka.brokers import KafkaJvm
    from tests.spark.stores import Workbench

pytestmark = [pytest.mark.streaming, pytest.mark.slow]


def test_segment_files_come_first_and_the_live_topic_follows_them_in_one_store(
    kafka: KafkaJvm, workbench: Workbench, quick: Settings, tmp_path: Path
) -> None:
    store, heard, segments = tmp_path / "store", Heard(), tmp_path / "copy"
    with live_broker(kafka, tmp_path / "broker", 2) as broker:
        broker.create_topic("t", 2)
        for number in range(10):
            broker.commit(f"g{number}", {("t", 0): number})
        copied = broker.log_places()
        for at in range(2):
            shutil.copytree(broker.folder / f"__consumer_offsets-{at}", segments / f"__consumer_offsets-{at}")
        workbench.ingest(store, segments)
        workbench.fold(store)
        assert log_places(store) == copied
        assert len(answers_of(store)) == 10
        broker.delete_group("g3")
        broker.commit("g4", {("t", 1): 40})
        with following(workbench, store, broker, quick, heard):
            caught_up(store, broker)
            assert "g3" not in answers_of(store)
        assert log_places(store, 1) == broker.log_places()  # all of the topic, as another log incarnation
        assert log_places(store) == copied  # the records of the files stay in the log
    assert any("has no progress in this log" in each for each in heard.warnings)
    assert {each.log_incarnation for each in log_info(StateReader(str(store)))} == {1}
    assert workbench.verify(store).equal
