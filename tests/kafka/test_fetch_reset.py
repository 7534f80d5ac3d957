"""`offsets fetch --reset` beside a real consumer: where it starts to read, for each value of auto.offset.reset."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from tests.kafka.live import LiveBroker, live_broker
from tests.programs import in_process
from tests.unit.lag.stores import folded_segments

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from offsets_pipeline.common.config import Settings
    from tests.kafka.brokers import KafkaJvm

RESETS = ("earliest", "latest", "none", "by_duration:PT10M")
#: Groups by what they have committed of partition 0, which has the records 3 to 19.
COMMITTED = {"valid": 7, "too-low": 1, "too-high": 50, "at-the-end": 20, "new": None}
#: Others, whose commits have the leader epoch, as those of Java's consumers do.
WITH_EPOCH = {"valid-epoch": 7, "low-epoch": 1, "truncated": 50}
#: A group that has committed in a leader epoch that the leader does not have, as after the topic was created again.
AHEAD = "epoch-ahead"
FIRST, END, OLD = 3, 20, 12  # the records before OLD are an hour old


@pytest.fixture(scope="module")
def read(
    kafka: KafkaJvm, settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LiveBroker, Path]]:
    """A broker, and a store with its log."""
    folder = tmp_path_factory.mktemp("fetch-reset")
    with live_broker(kafka, folder / "broker") as broker:
        broker.create_topic("t", 1)
        now_ms = int(time.time() * 1000)
        broker.send("t", [(0, None, "x")] * OLD, now_ms - 3_600_000)
        broker.produce("t", 0, END - OLD)
        broker.delete_records("t", 0, FIRST)
        for group, offset in COMMITTED.items():
            if offset is not None:
                broker.commit(group, {("t", 0): offset})
        for group, offset in WITH_EPOCH.items():
            broker.commit(group, {("t", 0): offset}, leader_epoch=0)
        broker.commit(AHEAD, {("t", 0): 7}, leader_epoch=5)
        yield broker, folded_segments(broker.folder, folder / "store", 5, settings)


@pytest.mark.parametrize("group", [*COMMITTED, *WITH_EPOCH])
@pytest.mark.parametrize("reset", RESETS)
def test_fetch_answers_where_a_real_consumer_starts_to_read(
    read: tuple[LiveBroker, Path], root: Path, reset: str, group: str
) -> None:
    broker, _ = read
    row = fetched(read, root, reset, group)
    consumer = broker.consumer(group, auto_offset_reset=reset)
    try:
        started = consumer.start_of("t", 0)
    except Py4JJavaError as error:
        name = error.java_exception.getClass().getSimpleName()
        assert name in ("NoOffsetForPartitionException", "OffsetOutOfRangeException", "LogTruncationException")
        started = None
    finally:
        consumer.close()
    assert row["offset"] == started, row["reason"]
    known: dict[str, int] = {"valid": 7, "at-the-end": END, "valid-epoch": 7}
    if reset != "none":
        known["truncated"] = END
    by_reset = {"earliest": FIRST, "latest": END, "none": None, "by_duration:PT10M": OLD}
    assert started == known.get(group, by_reset[reset])


def test_a_consumer_waits_for_a_leader_epoch_that_is_later_than_the_leader_s(
    read: tuple[LiveBroker, Path], root: Path
) -> None:
    row = fetched(read, root, "earliest", AHEAD)
    consumer = read[0].consumer(AHEAD, auto_offset_reset="earliest", default_api_timeout_ms="3000")
    try:
        with pytest.raises(Py4JJavaError, match="expired before the position for partition t-0 could be determined"):
            consumer.start_of("t", 0)
    finally:
        consumer.close()
    assert (row["offset"], row["committed_offset"]) == (None, 7)
    assert "a consumer waits until the leader has it" in row["reason"]


def fetched(read: tuple[LiveBroker, Path], root: Path, reset: str, group: str) -> dict[str, Any]:
    """The row that `offsets fetch` prints about the partition."""
    broker, store = read
    at = ("--store", store, "--bootstrap-server", broker.address, "--group", group, "--topic", "t", "--partition", "0")
    done = in_process(root, "fetch", *at, "--reset", reset, "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    row: dict[str, Any] = json.loads(done.stdout)
    return row
