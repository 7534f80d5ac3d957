"""A live `__share_group_state` is followed, and share groups stand where the broker says (R39)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.common.clock import SystemClock
from offsets_pipeline.fold.stream.follow import follow
from offsets_pipeline.ingest.topic.topic_ingest import TopicIngest
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from tests.kafka.live import live_broker
from tests.kafka.share_groups import SETTINGS, TOPIC, described_offsets, leave_open, share_and_reset

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kafka.brokers import KafkaJvm
    from tests.spark.stores import Workbench

# a broker, consumers that wait for records to come again, Kafka's tools in JVMs of their own, and two streams
pytestmark = [pytest.mark.streaming, pytest.mark.slow]


def test_followed_share_groups_stand_where_the_broker_says(
    workbench: Workbench, kafka: KafkaJvm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(tmp_path / "share")
    with live_broker(kafka, tmp_path / "broker", more=SETTINGS) as broker:
        options = KafkaOptions(broker.address, {})

        def followed() -> list[dict[str, str]]:
            ingest = TopicIngest(workbench.spark, store, options, workbench.settings, SystemClock(), topic=TOPIC)
            ingest.prepare()
            follow(ingest, workbench.settings, SystemClock(), available_now=True)
            capsys.readouterr()
            words = ["--store", store, "--bootstrap-server", broker.address, "--format", "json"]
            assert main(["share-partitions", *words]) == 0
            return [
                {
                    "GROUP": each["group"],
                    "TOPIC": each["topic"],
                    "PARTITION": str(each["partition"]),
                    "LEADER-EPOCH": str(each["leader_epoch"]),
                    "START-OFFSET": str(each["start_offset"]),
                    "LAG": "-" if each["lag"] is None else str(each["lag"]),
                }
                for each in json.loads(capsys.readouterr().out)["share_partitions"]
            ]

        share_and_reset(kafka, broker)
        found = followed()
        assert [each["GROUP"] for each in found] == ["mixed", "reset"]
        assert found == described_offsets(broker.address)
        leave_open(kafka, broker)
        assert followed() == described_offsets(broker.address)
    assert workbench.verify(store).equal
    query = "SELECT group_id, start_offset, size(state_batches) AS batches FROM share_partitions ORDER BY 1"
    rows = [(row.group_id, row.start_offset, row.batches) for row in workbench.sql(store, query)]
    assert [group_id for group_id, _, _ in rows] == ["mixed", "open", "reset"]
    assert rows[1][1:] == (0, 6)
