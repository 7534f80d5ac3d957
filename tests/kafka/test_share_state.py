"""A live `__share_group_state` is followed, and share groups stand where the broker says (R39)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.questions.query.describe import describe_groups
from offsets_pipeline.questions.query.share_partitions import SharePartitionInfo
from offsets_pipeline.questions.query.state_reader import StateReader
from tests.kafka.live import live_broker
from tests.kafka.share_groups import (
    SETTINGS,
    TOPIC,
    described_offsets,
    described_states,
    leave_open,
    reset,
    share_and_reset,
)
from tests.programs import in_process
from tests.unit.share_logs import as_described

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kafka.brokers import KafkaJvm
    from tests.spark.stores import Workbench

# a broker, consumers that wait for records to come again, Kafka's tools in JVMs of their own, and two streams
pytestmark = [pytest.mark.streaming, pytest.mark.slow]


def test_followed_share_groups_stand_where_the_broker_says(
    workbench: Workbench, kafka: KafkaJvm, tmp_path: Path, root: Path
) -> None:
    store = str(tmp_path / "share")
    with live_broker(kafka, tmp_path / "broker", more=SETTINGS) as broker:

        def asked(*words: str, of: str = store) -> str:
            done = in_process(root, *words, "--store", of, "--bootstrap-server", broker.address)
            assert (done.returncode, done.stderr) == (0, "")
            return done.stdout

        def followed() -> list[dict[str, str]]:
            asked("follow", "--topic", TOPIC, "--available-now", "--metrics-file", str(tmp_path / "metrics"))
            found = json.loads(asked("share-partitions", "--format", "json"))["share_partitions"]
            lags = [json.loads(line) for line in asked("lag", "--format", "json").splitlines()]
            names = ("group", "topic", "partition", "lag")
            assert [[row[name] for name in names] for row in lags] == [[row[name] for name in names] for row in found]
            return as_described(SharePartitionInfo(**each) for each in found)

        share_and_reset(kafka, broker)
        found = followed()
        assert [each["GROUP"] for each in found] == ["mixed", "reset"]
        assert found == described_offsets(broker.address)
        leave_open(kafka, broker)
        assert followed() == described_offsets(broker.address)
        reset("never-joined", broker.address)
        # the broker makes this group without a record of its epochs (R33)
        groups = str(tmp_path / "groups")
        asked("follow", "--available-now", of=groups)
        states = described_states(broker.address)
        answers = describe_groups(StateReader(groups), group_ids=[group_id for group_id, *_ in states])
        assert ("never-joined", "Empty", 0, 0, 0) in states
        assert [
            (name, each.state, each.group_epoch, each.assignment_epoch, len(each.members))
            for name, each in sorted(answers.items())
        ] == states
    lag = next(each["LAG"] for each in found if each["GROUP"] == "mixed")
    metrics = (tmp_path / "metrics").read_text(encoding="utf-8")
    assert f'kafka_consumergroup_group_sum_lag{{cluster_name="share",group="mixed"}} {float(lag)}\n' in metrics
    assert workbench.verify(store).equal
    query = "SELECT group_id, start_offset, size(state_batches) AS batches FROM share_partitions ORDER BY 1"
    rows = [(row.group_id, row.start_offset, row.batches) for row in workbench.sql(store, query)]
    assert [group_id for group_id, _, _ in rows] == ["mixed", "open", "reset"]
    assert rows[1][1:] == (0, 6)
