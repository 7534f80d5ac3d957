"""The first data record at or after an offset, in batches as brokers, cleaners and transactions leave them."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from kafka.protocol.consumer import FetchRequest

from offsets_pipeline.errors import KafkaFailed, NoSuchTopic
from offsets_pipeline.kafka.broker import fetch as module
from offsets_pipeline.kafka.broker.fetch import FirstRecord, first_records, whole_batches
from offsets_pipeline.kafka.broker.log_offsets import LogBounds
from offsets_pipeline.kafka.record.compression import Codec
from offsets_pipeline.kafka.record.log_batches import encode_log
from tests.unit.broker.fake_broker import TOPIC
from tests.unit.broker.fake_topic import FakePartition, batch, cluster_of, damaged, fake_topic

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

T = ("t", 0)


def batches(
    records: list[tuple[int, int]], *, markers: tuple[int, ...] = (), codec: Codec = Codec.NONE, batch_bytes: int = 1
) -> bytes:
    """Batches with records of these offsets and timestamps; some are markers of transactions."""
    rows = pa.table(
        {
            "record_offset": pa.array([offset for offset, _ in records], pa.int64()),
            "record_timestamp": pa.array([time_ms for _, time_ms in records], pa.timestamp("ms", tz="UTC")),
            "key": pa.array([None] * len(records), pa.binary()),
            "value": pa.array([b"x" * 50] * len(records), pa.binary()),
            "producer_id": pa.array([7 if offset in markers else None for offset, _ in records], pa.int64()),
            "producer_epoch": pa.array([0 if offset in markers else None for offset, _ in records], pa.int16()),
            "control_type": pa.array(["COMMIT" if offset in markers else None for offset, _ in records], pa.string()),
        }
    )
    return bytes(encode_log(rows, codec, batch_bytes).data)


@dataclass
class FakeCluster:
    """A partition's log; it answers a fetch as a broker does, and counts the rounds of requests."""

    log: bytes
    start: int
    end: int
    rounds: int = 0
    limits: list[int] = field(default_factory=list)
    settings: Any = field(default_factory=lambda: SimpleNamespace(at="a broker"))

    def fetched(
        self, _: object, positions: Mapping[tuple[str, int], int], limits: Mapping[tuple[str, int], int]
    ) -> dict[tuple[str, int], Any]:
        self.rounds += 1
        assert self.rounds < 20
        found: dict[tuple[str, int], Any] = {}
        for place, position in positions.items():
            self.limits.append(limits[place])
            if not self.start <= position <= self.end:
                found[place] = None
                continue
            at = 0
            for each in whole_batches(self.log):
                last = int.from_bytes(self.log[each.start : each.start + 8], "big") + int.from_bytes(
                    self.log[each.start + 23 : each.start + 27], "big"
                )
                if last >= position:
                    break
                at = each.end
            records = self.log[at : at + limits[place]]
            whole = whole_batches(records)
            # the partition is not the first of its request: it gets no part of a batch
            found[place] = module._Fetched(records if whole else b"", self.end, is_first=False)
        return found

    def bounds(self, _: object, places: Collection[tuple[str, int]]) -> dict[tuple[str, int], LogBounds]:
        return dict.fromkeys(places, LogBounds(self.start, self.end))


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401 - a function
    def find(cluster: FakeCluster, offset: int) -> object:
        monkeypatch.setattr(module, "_fetched", cluster.fetched)
        monkeypatch.setattr(module, "log_bounds", cluster.bounds)
        answers = first_records(cluster, {T: offset})  # type: ignore[arg-type]
        assert [*answers] == [T]
        return answers[T]

    return find


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_record_within_a_batch_has_its_own_timestamp(found: Any, codec: Codec) -> None:  # noqa: ANN401
    log = batches([(offset, 1000 * offset) for offset in range(200)], codec=codec, batch_bytes=100_000)
    for offset in (0, 1, 57, 199):
        assert found(FakeCluster(log, 0, 200), offset) == FirstRecord(offset, 1000 * offset)


def test_compacted_topic_answers_the_first_record_that_is_left(found: Any) -> None:  # noqa: ANN401
    """A cleaner removed records 3 to 8 and 10 to 99, the last ones of their batches among them."""
    log = batches([(0, 10), (1, 11), (2, 12), (9, 19), (100, 200)])
    assert found(FakeCluster(log, 0, 101), 3) == FirstRecord(9, 19)
    assert found(FakeCluster(log, 0, 101), 10) == FirstRecord(100, 200)
    assert found(FakeCluster(log, 0, 150), 101) is None  # its end was removed, too


def test_markers_of_transactions_are_no_records(found: Any) -> None:  # noqa: ANN401
    log = batches([(0, 10), (1, 11), (2, 12), (3, 13), (4, 14)], markers=(1, 3, 4))
    cluster = FakeCluster(log, 0, 5)
    assert found(cluster, 1) == FirstRecord(2, 12)
    assert found(FakeCluster(log, 0, 5), 3) is None  # only markers follow
    assert found(FakeCluster(log, 0, 5), 5) is None


def test_many_markers_are_passed_over_in_few_requests(found: Any) -> None:  # noqa: ANN401
    markers = tuple(range(1, 1001))
    log = batches([(offset, offset) for offset in range(1002)], markers=markers)
    cluster = FakeCluster(log, 0, 1002)
    assert found(cluster, 1) == FirstRecord(1001, 1001)
    assert cluster.rounds < 10


def test_large_batch_is_fetched_with_a_larger_limit(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN401
    monkeypatch.setattr(module, "_FIRST_BYTES", 100)
    log = batches([(offset, offset) for offset in range(500)], batch_bytes=1_000_000)
    cluster = FakeCluster(log, 0, 500)
    assert found(cluster, 499) == FirstRecord(499, 499)
    assert cluster.limits == [100, 1600, 25_600, 409_600][: len(cluster.limits)]


def test_offset_below_the_log_start_stands_for_the_log_start(found: Any) -> None:  # noqa: ANN401
    log = batches([(offset, offset) for offset in range(5, 10)])
    assert found(FakeCluster(log, 5, 10), 2) == FirstRecord(5, 5)
    assert found(FakeCluster(log, 5, 10), 99) is None


def test_record_without_a_timestamp_has_none(found: Any) -> None:  # noqa: ANN401
    assert found(FakeCluster(batches([(0, -1)]), 0, 1), 0) == FirstRecord(0, None)


def test_damaged_batch_is_an_error_of_its_partition(found: Any) -> None:  # noqa: ANN401
    log = bytearray(batches([(0, 1), (1, 2)]))
    log[70] ^= 0xFF
    record = found(FakeCluster(bytes(log[: len(log) // 2]), 0, 2), 0)
    assert isinstance(record, KafkaFailed)
    assert str(record) == (
        "the record batch at offset 0 of partition 0 of topic t is damaged; check the broker's log with "
        "kafka-dump-log.sh"
    )


def test_leaders_are_asked_for_the_first_batch_of_each_partition() -> None:
    partitions = {
        0: FakePartition([batch(0, 4), batch(9, 2)]),
        1: FakePartition([batch(5, 3)], start=5, leader=2, epoch=8),
        2: FakePartition([batch(0, 2)], high_watermark=9),  # a cleaner removed the last ones
        3: FakePartition([batch(0, 3000)], leader=2),  # larger than the first fetch
        4: FakePartition([]),
        5: FakePartition([damaged(batch(0, 2))]),
        7: FakePartition([batch(0)], leader=2),
    }
    offsets = {0: 5, 7: 0, 1: 2, 2: 4, 3: 2999, 4: 0, 5: 0, 6: 0}
    with fake_topic(partitions, (1, 2)) as topic, cluster_of(topic) as cluster:
        answers = first_records(cluster, {(TOPIC, at): offset for at, offset in offsets.items()})
        requests = [topic.brokers[at].request(FetchRequest, number) for at in (1, 2) for number in range(2)]
        versions = {version for key, version, _ in topic.brokers[1].requests if key == FetchRequest.API_KEY}
    errors = {at: answers.pop((TOPIC, at)) for at in (5, 6)}
    assert answers == {
        (TOPIC, at): FirstRecord(offset, 1000) if offset is not None else None
        for at, offset in {0: 9, 1: 5, 2: None, 3: 2999, 4: None, 7: 0}.items()
    }
    assert f"batch at offset 0 of partition 5 of topic {TOPIC} is damaged" in str(errors[5])
    assert isinstance(errors[6], NoSuchTopic)
    first = 16 * 1024
    asked_for = [
        [(each.partition, each.fetch_offset, each.current_leader_epoch, each.partition_max_bytes) for each in at_broker]
        for at_broker in ([each for topic in asked.topics for each in topic.partitions] for asked in requests)
    ]
    assert asked_for == [
        [(0, 5, 3, first), (2, 4, 3, first), (4, 0, 3, first), (5, 0, 3, first)],
        [(2, 4, 3, 16 * first)],
        [(7, 0, 3, first), (1, 2, 8, first), (3, 2999, 3, first)],
        [(3, 2999, 3, 16 * first), (1, 5, 8, first)],  # the largest one first: it gets a whole batch
    ]
    for asked in requests:
        assert (asked.min_bytes, asked.max_wait_ms, asked.max_bytes, asked.isolation_level) == (0, 0, 2**30, 0)
    assert versions == {12}
