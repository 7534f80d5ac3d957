"""`why` names the true causes of what a live broker deletes, with the retention that `follow` read from it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from benchmarks.broker import replace_segments
from offsets_pipeline.questions.history.history_tables import read_views
from offsets_pipeline.questions.query.state_reader import StateReader
from tests.kafka.live import LiveBroker, wait_until
from tests.kafka.past_log import PastLog
from tests.programs import in_process
from tests.unit.history.test_deletion_causes import HISTORY_PAGE

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.kafka.brokers import KafkaJvm

pytestmark = [pytest.mark.streaming, pytest.mark.slow]  # a minute: offsets have to expire

PARTITIONS = 3
RETENTION_MS, CHECK_MS = 9 * 60_000, 2_000
SETTINGS = f"offsets.retention.minutes=9\noffsets.retention.check.interval.ms={CHECK_MS}\n"
#: Until the first offsets of before expire: time to start the broker, its members and the first `follow`.
LEFT_MS, OF_MEMBERS_MS = 40_000, 46_000
EXPIRED = [f"x-{number}" for number in range(6)]  # two in each log partition
OF_TOPIC = [f"g-{number}" for number in range(6)]


def past(now_ms: int) -> PastLog:
    """Groups of which the offsets expire after LEFT_MS and OF_MEMBERS_MS, and others that have minutes left."""
    found = PastLog(now_ms, PARTITIONS)
    for group in EXPIRED:
        found.commit(group, "t", 0, RETENTION_MS - LEFT_MS)
    found.commit("x-left", "t", 0, RETENTION_MS)
    found.leave("x-left", RETENTION_MS - LEFT_MS)
    for group in ("x-member", "x-848"):
        found.commit(group, "u", 0, RETENTION_MS - OF_MEMBERS_MS)
    for group in ("d-old", "d-member"):
        found.commit(group, "u", 0, RETENTION_MS // 2)
    return found


def test_the_true_cause_of_each_deletion_on_a_live_broker(
    kafka: KafkaJvm, spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    broker = LiveBroker(kafka, tmp_path / "broker", PARTITIONS, SETTINGS)
    replace_segments(past(int(time.time() * 1000)).segments(tmp_path), broker.folder, PARTITIONS)
    follow = ("follow", "--store", store, "--bootstrap-server", broker.address, "--available-now")
    broker.start()
    try:
        for topic in ("t", "u", "gone"):
            broker.create_topic(topic, 2)
        for group, protocol in (("x-member", "classic"), ("x-848", "consumer"), ("d-member", "classic")):
            broker.consumer(group, ["t"], group_protocol=protocol).join(2)
        for group in ("d-young", "d-offsets", "d-all", *OF_TOPIC):
            broker.commit(group, {("t", 0): 1, ("gone" if group in OF_TOPIC else "u", 0): 1})
        assert in_process(root, *follow).returncode == 0
        broker.delete_group("d-young")
        broker.delete_group("d-old")
        broker.delete_offsets("d-offsets", [("t", 0)])
        broker.delete_offsets("d-all", [("t", 0), ("u", 0)])
        broker.delete_offsets("d-member", [("u", 0)])
        broker.delete_topic("gone")
        members = ["x-member", "x-848"]
        wait_until(
            lambda: not any(broker.answers.offsets([*members, *EXPIRED, "x-left"]).values()), "an offset is still there"
        )
        assert in_process(root, *follow).returncode == 0
    finally:
        broker.close()
    answer = in_process(root, "why", "--store", store, "--group", "x-left", "--topic", "t", "--partition", "0")
    assert " by retention (likely), because the group was empty since " in answer.stdout
    assert "the retention of 9 min (read from the broker at " in answer.stdout
    noted = StateReader(str(store)).properties.retention
    assert noted is not None
    assert (noted.retention_ms, noted.check_interval_ms) == (RETENTION_MS, CHECK_MS)
    rows = read_views(str(store), ["deleted_offsets"])["deleted_offsets"].to_pylist()
    found = {(row["group_id"], row["cause"]) for row in rows}
    assert found == {
        *((group, "expired (likely)") for group in (*EXPIRED, "x-left", *members)),
        *((group, "group removed") for group in ("d-young", "d-old")),
        *((group, "deleted") for group in ("d-offsets", "d-all", "d-member")),
        *((group, "topic gone") for group in OF_TOPIC),
    }
    likely = sum(cause.endswith("(likely)") for _, cause in found)
    assert (
        f"On a live broker of Kafka 4.2 with a retention of nine minutes {len(found)} groups lost offsets: `why` "
        f"proves {len(found) - likely} of the true causes, and names {likely} as likely"
    ) in " ".join(HISTORY_PAGE.read_text(encoding="utf-8").split())
