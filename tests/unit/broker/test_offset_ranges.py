"""Ranges of record offsets are read whole and once, whatever becomes of leaders, connections and the log."""

from __future__ import annotations

import itertools
import socket
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kafka.protocol.consumer import FetchRequest, FetchResponse, OffsetForLeaderEpochRequest
from kafka.protocol.metadata import MetadataRequest

from offsets_pipeline.errors import BrokerUnreachable, KafkaFailed, LogTruncated
from offsets_pipeline.kafka.broker import offset_ranges
from offsets_pipeline.kafka.broker.cluster import Cluster
from offsets_pipeline.kafka.broker.fetch import FetchPosition
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from offsets_pipeline.kafka.broker.offset_ranges import FetchedBatches, OffsetRange, read_ranges, require_same_log
from offsets_pipeline.kafka.record.corrupt import NotASegment
from offsets_pipeline.kafka.record.segment import read_segment
from tests.unit.broker.fake_broker import TOPIC
from tests.unit.broker.fake_topic import (
    FakeBatch,
    FakePartition,
    FakeTopic,
    batch,
    cluster_of,
    damaged,
    fake_topic,
    with_last_offset,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Offsets = dict[int, list[int]]


def batches(*sizes: int) -> FakePartition:
    """A log of batches of these sizes."""
    starts = itertools.accumulate(sizes, initial=0)
    return FakePartition([batch(start, size) for start, size in zip(starts, sizes, strict=False)])


def within(fetched: FetchedBatches) -> list[int]:
    """The record offsets that count."""
    reader = read_segment(fetched.records, source="t")
    try:
        rows = [row for columns in reader.batches() for row in columns.to_pylist()]
    except NotASegment:  # damaged batches alone
        rows = []
    offsets = [row["record_offset"] for row in rows if fetched.position <= row["record_offset"] < fetched.range.end]
    assert [int(row["value"]) for row in rows if row["record_offset"] in offsets] == offsets
    return offsets


def read(
    topic: FakeTopic,
    *ranges: OffsetRange,
    after: Callable[[int], object] = lambda _: None,
    **options: str,
) -> tuple[Offsets, list[int]]:
    """Record offsets by partition, and the partition of each fetch; `after` is called with the number of each fetch."""
    found: Offsets = {}
    turns = []
    with cluster_of(topic, **options) as cluster:
        for number, fetched in enumerate(read_ranges(cluster, TOPIC, ranges)):
            found.setdefault(fetched.range.partition, []).extend(within(fetched))
            turns.append(fetched.range.partition)
            after(number)
    return found, turns


def test_partitions_of_a_leader_take_turns() -> None:
    """An answer has a batch of one of them; that of each other one is empty, and not at its end."""
    with fake_topic({at: batches(1, 1, 1) for at in range(3)}) as topic:
        one = str(len(batch(0).data))
        ranges = [OffsetRange(0, 0, 3), OffsetRange(1, 1, 3), OffsetRange(2, 0, 3)]
        found, turns = read(topic, *ranges, fetch_max_bytes=one)
    assert found == {0: [0, 1, 2], 1: [1, 2], 2: [0, 1, 2]}
    assert turns == [0, 1, 2, 0, 1, 2, 0, 2]


def test_ranges_end_and_start_in_the_middle_of_a_batch() -> None:
    with fake_topic({0: batches(4, 10, 5)}) as topic:
        assert read(topic, OffsetRange(0, 2, 9))[0] == {0: list(range(2, 9))}
        assert read(topic, OffsetRange(0, 9, 16))[0] == {0: list(range(9, 16))}


def test_two_ranges_that_share_a_batch_both_have_its_records() -> None:
    with fake_topic({0: batches(4, 10, 5)}) as topic:
        found, _ = read(topic, OffsetRange(0, 1, 6), OffsetRange(0, 6, 12), OffsetRange(0, 15, 19))
    assert found == {0: [*range(1, 12), *range(15, 19)]}


def test_empty_ranges_ask_for_nothing() -> None:
    with fake_topic({0: batches(1)}) as topic:
        assert read(topic, OffsetRange(0, 1, 1)) == ({}, [])
        assert topic.brokers[1].requests == []


def claiming(whole: FakeBatch, last: int | None) -> FakeBatch:
    """A damaged batch with this last offset in its header; None: the right one."""
    return damaged(whole) if last is None else with_last_offset(whole, last)


@pytest.mark.parametrize("last", [None, -20, 2, 4, 9, 1_000_000], ids=str)
@pytest.mark.parametrize("segments", [(), (2,), (4,)], ids=["one segment", "it is alone in a segment", "ends one"])
@pytest.mark.parametrize("limit", [1, 200, 1_000_000])
def test_damaged_last_offset_hides_no_record_of_the_batches_behind_it(
    last: int | None, segments: tuple[int, ...], limit: int
) -> None:
    sound = [batch(0, 2), batch(4, 3), batch(7), batch(8, 4)]
    log = FakePartition([sound[0], claiming(batch(2, 2), last), *sound[1:]], segments=segments)
    with fake_topic({0: log}) as topic:
        found, _ = read(topic, OffsetRange(0, 0, 12), max_partition_fetch_bytes=str(limit))
    assert found == {0: [0, 1, *range(4, 12)]}


@pytest.mark.parametrize("last", [None, -20, 2, 1_000_000], ids=str)
def test_damaged_batch_at_the_end_of_a_log_hides_no_later_record(last: int | None) -> None:
    log = FakePartition([batch(0, 2), claiming(batch(2, 2), last)], high_watermark=4)
    with fake_topic({0: log}) as topic:
        assert read(topic, OffsetRange(0, 0, 4))[0] == {0: [0, 1]}
        with topic.changing():
            log.batches.append(batch(4, 2))
            log.high_watermark = 6
        assert read(topic, OffsetRange(0, 4, 6))[0] == {0: [4, 5]}


@pytest.mark.parametrize(
    ("log", "limit", "asked", "rest"),
    [
        # twice the bytes each time, until a sound batch comes along
        ([damaged(batch(0, 18)), batch(18, 2)], 1, [(0, 2**power) for power in range(1, 10)], []),
        # the end of the log: halves, for the first offset at which none of the fetched batches comes first
        ([damaged(batch(0, 18))], 300, [(0, 600), *((at, 1) for at in (10, 15, 17, 18))], [18]),
        ([with_last_offset(batch(0, 18), 7)], 300, [(0, 600), *((at, 1) for at in (10, 5, 7, 8))], [8]),
        # a sound batch behind it in the same answer
        ([damaged(batch(0, 2)), batch(2, 2)], 1000, [], [4]),
    ],
)
def test_requests_that_pass_a_damaged_batch(
    log: list[FakeBatch], limit: int, asked: list[tuple[int, int]], rest: list[int]
) -> None:
    with fake_topic({0: FakePartition(log, high_watermark=20)}) as topic:
        read(topic, OffsetRange(0, 0, 20), max_partition_fetch_bytes=str(limit), fetch_max_bytes="1000")
        (broker,) = topic.brokers.values()
        requests = [broker.request(FetchRequest, number) for number in range(broker.count(FetchRequest.API_KEY))]
    found = [(each.topics[0].partitions[0], each.max_bytes, each.max_wait_ms) for each in requests]
    assert [(at.fetch_offset, at.partition_max_bytes, most, wait_ms) for at, most, wait_ms in found] == [
        (0, limit, 1000, 20),
        *((offset, size, size, 0) for offset, size in asked),
        *((offset, limit, 1000, 20) for offset in rest),
    ]


def test_records_that_a_cleaner_removed_are_not_waited_for() -> None:
    with fake_topic({0: FakePartition([batch(0, 3), batch(7, 2), batch(20)])}) as topic:
        assert read(topic, OffsetRange(0, 1, 12))[0] == {0: [1, 2, 7, 8]}
    with fake_topic({0: FakePartition([batch(0, 3)], high_watermark=12)}) as topic:  # also at the end of the log
        assert read(topic, OffsetRange(0, 1, 12))[0] == {0: [1, 2]}


@pytest.mark.parametrize("knows_epoch", [True, False])
def test_a_leader_that_moves_is_followed(knows_epoch: bool) -> None:
    at = batches(2, 2, 2)
    with fake_topic({0: at}, brokers=(1, 2)) as topic:

        def move(number: int) -> None:
            if number == 0:
                with topic.changing():
                    at.leader, at.epoch, at.epoch_ends = 2, 4, {3: 6}

        one = str(len(batch(0, 2).data))
        read_by = OffsetRange(0, 0, 6, 3 if knows_epoch else None)
        found, _ = read(topic, read_by, after=move, fetch_max_bytes=one)
        assert topic.brokers[2].count(FetchRequest.API_KEY) == 2
    assert found == {0: list(range(6))}


def test_a_leader_that_is_away_is_waited_for() -> None:
    at = batches(2, 2)
    at.leader = None
    with fake_topic({0: at}) as topic:
        known = topic._metadata
        asked = itertools.count()

        def metadata(request: object, node_id: int) -> Any:  # noqa: ANN401 - kafka-python has no types
            if next(asked) == 2:
                at.leader = 1
            return known(request, node_id)

        topic._metadata = metadata  # type: ignore[method-assign, assignment]
        topic.serve(1, topic.brokers[1])
        assert read(topic, OffsetRange(0, 0, 4))[0] == {0: [0, 1, 2, 3]}


def test_a_broken_connection_is_replaced() -> None:
    with fake_topic({0: batches(2, 2, 2)}) as topic:
        found, _ = read(
            topic,
            OffsetRange(0, 0, 6),
            after=lambda number: topic.brokers[1].disconnect() if number == 0 else None,
            fetch_max_bytes=str(len(batch(0, 2).data)),
        )
    assert found == {0: list(range(6))}


def test_records_that_a_new_leader_lacks_are_not_read() -> None:
    at = batches(2, 2, 10)
    at.epoch, at.epoch_ends = 4, {3: 4}  # grown past the range since
    with (
        fake_topic({0: at}) as topic,
        pytest.raises(LogTruncated, match="only the records before 4 of leader epoch 3"),
    ):
        read(topic, OffsetRange(0, 0, 6, 3))


def test_a_log_that_loses_records_while_it_is_read_is_noticed() -> None:
    at = batches(2, 2, 2)
    with fake_topic({0: at}) as topic:

        def elect(number: int) -> None:
            if number == 0:
                with topic.changing():
                    at.epoch, at.epoch_ends, at.batches = 4, {3: 3}, [batch(0, 2), batch(2), batch(3, 9)]

        with pytest.raises(LogTruncated, match=f"partition 0 of topic {TOPIC} has another log before record 6"):
            read(topic, OffsetRange(0, 0, 6, 3), after=elect, fetch_max_bytes=str(len(batch(0, 2).data)))


def test_a_partition_that_is_gone_has_another_log() -> None:
    with fake_topic({0: batches(2)}) as topic:
        with cluster_of(topic) as cluster, pytest.raises(LogTruncated, match="has no partition 7 now"):
            require_same_log(cluster, cluster.topic(TOPIC), {0: FetchPosition(2, 3), 7: FetchPosition(1, 3)})
        with pytest.raises(LogTruncated, match="has no partition 7 now"):
            read(topic, OffsetRange(7, 0, 2))


@pytest.mark.parametrize("epoch_ends", [{3: 4}, {3: 9}, {}])
def test_positions_that_the_new_leader_has_are_of_the_same_log(epoch_ends: dict[int, int]) -> None:
    at = batches(2, 2)
    at.epoch, at.epoch_ends = 5, epoch_ends  # {}: a leader that does not know the epoch
    with fake_topic({0: at}) as topic, cluster_of(topic) as cluster:
        require_same_log(cluster, cluster.topic(TOPIC), {0: FetchPosition(4, 3)})
        require_same_log(cluster, cluster.topic(TOPIC), {0: FetchPosition(99, None)})


def test_a_log_that_starts_behind_the_range_is_an_error() -> None:
    at = FakePartition([batch(5, 5)], start=5)
    with (
        fake_topic({0: at}) as topic,
        pytest.raises(KafkaFailed, match=r"cannot read record 3 of partition 0 .* no longer has it"),
    ):
        read(topic, OffsetRange(0, 3, 9))


def test_a_batch_that_does_not_reach_the_position_is_an_error_and_not_read_for_ever() -> None:
    wrong = FakeBatch(0, 9, batch(0, 2).data)  # its header says that it ends at record offset 1
    with (
        fake_topic({0: FakePartition([wrong])}) as topic,
        pytest.raises(KafkaFailed, match=r"record 2 of partition 0 .* does not reach it; check the broker's log"),
    ):
        read(topic, OffsetRange(0, 0, 9))


def test_a_partition_without_a_leader_for_too_long_is_unreachable() -> None:
    at = batches(2)
    at.leader = None
    with (
        fake_topic({0: at}) as topic,
        pytest.raises(BrokerUnreachable, match=f"cannot read partition 0 of topic {TOPIC}: no leader answers"),
    ):
        read(topic, OffsetRange(0, 0, 2), default_api_timeout_ms="50")


def test_brokers_that_are_away_for_too_long_are_unreachable() -> None:
    with fake_topic({0: batches(2, 2)}) as topic:

        def leave(_: int) -> None:
            topic.brokers[1].close()

        with pytest.raises(BrokerUnreachable, match="no broker answers"):
            read(
                topic,
                OffsetRange(0, 0, 4),
                after=leave,
                default_api_timeout_ms="50",
                fetch_max_bytes=str(len(batch(0, 2).data)),
            )


def test_a_slow_reader_is_no_missing_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(offset_ranges, "time", SimpleNamespace(monotonic=lambda: now, sleep=time.sleep))

    def write_slowly(_: int) -> None:
        nonlocal now
        now += 1000

    with fake_topic({0: batches(1, 1, 1), 1: batches(1)}) as topic:
        one = str(len(batch(0).data))
        ranges: Iterable[OffsetRange] = (OffsetRange(0, 0, 3), OffsetRange(1, 0, 1))
        found, _ = read(topic, *ranges, after=write_slowly, fetch_max_bytes=one)
    assert found == {0: [0, 1, 2], 1: [0]}


def test_what_a_damaged_batch_used_up_is_not_taken_for_a_cleaned_range() -> None:
    """The second look at the damage is throttled: its answer has no partitions."""
    with fake_topic({0: FakePartition([damaged(batch(0)), batch(1)]), 1: FakePartition([batch(0, 40)])}) as topic:
        answer = topic.brokers[1].answers[FetchRequest.API_KEY]
        throttled = FetchResponse(throttle_time_ms=10, error_code=0, session_id=0, responses=[])
        topic.brokers[1].answers[FetchRequest.API_KEY] = lambda number: throttled if number == 1 else answer(number)
        with cluster_of(topic, max_partition_fetch_bytes=str(len(batch(0).data) + 10)) as cluster:
            found: Offsets = {0: [], 1: []}
            for each in read_ranges(cluster, TOPIC, [OffsetRange(0, 0, 2, 3), OffsetRange(1, 0, 40, 3)]):
                reader = read_segment(each.records, source="a test", max_records=10**6, good_at=each.good_at)
                found[each.range.partition] += [
                    offset for rows in reader.batches() for offset in rows["record_offset"].to_pylist()
                ]
    assert found == {0: [1], 1: [*range(40)]}


def test_a_leader_that_never_had_the_epoch_has_another_log() -> None:
    """A topic without an id that was created again: its leader epochs begin anew."""
    with (
        fake_topic({0: FakePartition([batch(each) for each in range(25)], epoch=0)}) as topic,
        cluster_of(topic) as cluster,
    ):
        metadata = cluster.topic(TOPIC)
        require_same_log(cluster, metadata, {0: FetchPosition(10, 0)})
        assert topic.brokers[1].count(OffsetForLeaderEpochRequest.API_KEY) == 0  # in the leader's own epoch
        with pytest.raises(
            LogTruncated, match=r"partition 0 of topic .* has another log: its leader epoch is 0, and was 3"
        ):
            require_same_log(cluster, metadata, {0: FetchPosition(10, 3)})


def test_a_broker_with_old_metadata_is_asked_last_by_the_next_client() -> None:
    with fake_topic({0: FakePartition([batch(0)])}, (1, 2, 3)) as topic:
        leader = topic.partitions[0]
        leader.leader, leader.epoch, leader.epoch_ends = 3, 4, {3: 1}
        fresh = topic.brokers[1].answers[MetadataRequest.API_KEY]

        def old(number: int) -> object:
            leader.leader, leader.epoch = 2, 3
            try:
                return fresh(number)
            finally:
                leader.leader, leader.epoch = 3, 4

        topic.brokers[1].answers[MetadataRequest.API_KEY] = old
        with cluster_of(topic, default_api_timeout_ms="400") as cluster, pytest.raises(BrokerUnreachable):
            list(read_ranges(cluster, TOPIC, [OffsetRange(0, 0, 1, 3)]))
        with cluster_of(topic, default_api_timeout_ms="4000") as cluster:
            (found,) = read_ranges(cluster, TOPIC, [OffsetRange(0, 0, 1, 3)])
        assert found.range == OffsetRange(0, 0, 1, 3)


def test_addresses_that_do_not_answer_are_tried_last_by_the_next_client() -> None:
    silent = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    with fake_topic({0: FakePartition([batch(0)])}) as topic:
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in silent]
        options = KafkaOptions(
            ",".join([*addresses, topic.brokers[1].address]),
            {"request.timeout.ms": "200", "default.api.timeout.ms": "300"},  # as the defaults: there is time for two
        )
        with (
            Cluster(options) as cluster,
            pytest.raises(BrokerUnreachable, match=f"no broker answers at {addresses[1]}"),
        ):
            cluster.topic(TOPIC)
        with Cluster(options) as cluster:
            assert cluster.topic(TOPIC).name == TOPIC
    for each in silent:
        each.close()
