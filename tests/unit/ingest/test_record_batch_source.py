"""The streaming source of raw record batches, on a broker of our own: offsets, limits, tasks, rows and damage."""

from __future__ import annotations

import json
import pickle
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchRequest
from pyspark import cloudpickle
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from offsets_pipeline.errors import BrokerUnreachable, LogTruncated
from offsets_pipeline.ingest.topic import record_batch_source, topic_append
from offsets_pipeline.ingest.topic.record_batch_source import (
    FORMAT,
    Offsets,
    RecordBatchSource,
    RecordBatchStreamReader,
    SourceOptions,
    are_few,
    are_undivided,
    parsed,
    read_stream,
    rendered,
    shared,
    shared_out,
)
from offsets_pipeline.ingest.topic.topic_append import RANGES_SCHEMA, RECORDS_SCHEMA, TopicReader
from offsets_pipeline.kafka.broker.fetch import FetchPosition
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from offsets_pipeline.kafka.broker.offset_ranges import FetchedBatches, OffsetRange
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from tests.unit.broker.fake_broker import TOPIC
from tests.unit.broker.fake_topic import FakePartition, FakeTopic, batch, damaged, fake_topic, options_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ALL = ReadAllAvailable()
counts = st.dictionaries(st.integers(0, 60), st.integers(1, 10_000), max_size=12)


def source_of(options: SourceOptions) -> RecordBatchSource:
    """The source as a task gets it."""
    registered: list[type[RecordBatchSource]] = []
    spark: Any = MagicMock()
    spark.dataSource.register = registered.append
    read_stream(spark, options)
    source: RecordBatchSource = pickle.loads(cloudpickle.dumps(registered[0]))({})  # type: ignore[no-untyped-call]
    return source


@contextmanager
def reader_of(
    topic: FakeTopic, *, starts: Offsets | None = None, api_timeout_ms: str = "3000", wait_ms: int = 20, **options: int
) -> Iterator[RecordBatchStreamReader]:
    """A reader, made as Spark makes it, from the pickled class."""
    kafka = options_of(topic, default_api_timeout_ms=api_timeout_ms)
    logs_starts = {number: FetchPosition(each.start, 3) for number, each in topic.partitions.items()}
    positions = logs_starts if starts is None else parsed(starts)
    source = source_of(SourceOptions(TOPIC, kafka, positions, **{"max_offsets": 7, "wait_ms": wait_ms, **options}))
    reader = source.streamReader(source.schema())
    try:
        yield reader
    finally:
        reader.stop()


def offsets(**at: int) -> Offsets:
    """Offsets of the source, at leader epoch 3: offsets(_0=5)."""
    return {name.removeprefix("_"): {"offset": offset, "leader_epoch": 3} for name, offset in at.items()}


def ends(found: Offsets) -> list[int]:
    return [each["offset"] for _, each in sorted(found.items())]


def batches_of(reader: RecordBatchStreamReader, start: Offsets, end: Offsets) -> list[pa.RecordBatch]:
    """The records of all tasks, each with readers of its own, as Spark ships them."""
    found = []
    topic_reader = TopicReader(TOPIC, reader._options.kafka, "kafka://c/t", StoreProperties(MIRRORED, 1))
    for task in reader.partitions(start, end):
        planned, records = pickle.loads(pickle.dumps((reader, topic_reader)))
        ranges = list(planned.read(pickle.loads(pickle.dumps(task))))
        assert [each.num_rows for each in ranges] == [1]
        found += records.read_all(ranges)
    return found


def rows_of(reader: RecordBatchStreamReader, start: Offsets, end: Offsets) -> list[dict[str, Any]]:
    return [row for each in batches_of(reader, start, end) for row in each.to_pylist()]


def ones(count: int, start: int = 0) -> FakePartition:
    """A log of batches of one record."""
    return FakePartition([batch(each) for each in range(start, start + count)], start=start)


# --- offsets


def test_offsets_are_numbers_in_json_and_come_back_the_same() -> None:
    positions = {10: FetchPosition(7, None), 2: FetchPosition(5, 0)}
    found = json.loads(json.dumps(rendered(positions)))
    assert found == {"2": {"offset": 5, "leader_epoch": 0}, "10": {"offset": 7, "leader_epoch": -1}}
    assert parsed(found) == positions


def test_the_first_batch_starts_at_the_option() -> None:
    with fake_topic({0: ones(3)}) as topic, reader_of(topic, starts=offsets(_0=2, _1=5)) as reader:
        assert reader.initialOffset() == offsets(_0=2, _1=5)


def test_a_password_that_looks_like_a_reference_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "env:OTHER")
    source = source_of(SourceOptions(TOPIC, KafkaOptions("b:1", {"ssl.key.password": "env:PASSWORD"}), {}, 7))
    assert source.source_options.kafka.for_clients() == {"bootstrap.servers": "b:1", "ssl.key.password": "env:OTHER"}


def test_name_schema_and_default_limit() -> None:
    assert (RecordBatchSource.name(), RecordBatchSource({}).schema()) == (FORMAT, RANGES_SCHEMA)
    with fake_topic({0: ones(1)}) as topic, reader_of(topic, max_offsets=9) as reader:
        assert reader.getDefaultReadLimit() == ReadMaxRows(9)


# --- limits


@pytest.mark.parametrize(
    ("ahead", "most", "expected"),
    [
        ({0: 10, 1: 5, 2: 1}, 8, {0: 4, 1: 3, 2: 1}),  # one each; of 5 more 3 6/13, 1 7/13 and 0
        ({0: 3, 1: 3}, 3, {0: 2, 1: 1}),
        ({0: 9, 1: 9, 2: 9}, 2, {2: 1, 0: 1}),
    ],
)
def test_offsets_are_shared_in_proportion_or_in_turn(
    ahead: dict[int, int], most: int, expected: dict[int, int]
) -> None:
    assert shared(ahead, most, 2) == expected


def test_up_to_20_000_offsets_are_few() -> None:
    for each in (20_000, 20_001):
        ranges = [OffsetRange(0, 5, 10_005), OffsetRange(1, 5, each - 10_000 + 5)]
        assert (are_few(ranges), len(shared_out(ranges, 2))) == ((True, 1) if each == 20_000 else (False, 2))


@given(counts, st.integers(1, 20_000), st.integers(0, 1000))
def test_shared_offsets_never_exceed_the_limit_and_use_it(ahead: dict[int, int], most: int, turn: int) -> None:
    found = shared(ahead, most, turn)
    assert sum(found.values()) == min(most, sum(ahead.values()))
    assert all(0 < number <= ahead[each] for each, number in found.items())
    assert most < len(ahead) or found.keys() == ahead.keys()


@given(st.dictionaries(st.integers(0, 9), st.integers(1, 50), min_size=1, max_size=10), st.integers(1, 12))
def test_no_log_partition_waits_for_others_that_grow_for_ever(ahead: dict[int, int], most: int) -> None:
    turn, waited = 0, dict.fromkeys(ahead, 0)
    for _ in range(40):  # every partition grows by what was read
        found = shared(ahead, most, turn)
        turn += len(found)
        waited = {each: 0 if each in found else waited[each] + 1 for each in ahead}
        assert max(waited.values()) * most < len(ahead) + most


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (ALL, [6, 12]),
        (ReadMaxRows(6), [2, 4]),
        (ReadMaxRows(1), [1, 0]),
        (ReadMaxRows(100), [6, 12]),
    ],
    ids=repr,
)
def test_a_read_limit_is_honoured(limit: ReadLimit, expected: list[int]) -> None:
    with fake_topic({0: ones(6), 1: ones(12)}) as topic, reader_of(topic) as reader:
        assert ends(reader.latestOffset(offsets(_0=0, _1=0), limit)) == expected


@pytest.mark.parametrize("limit", [ALL, ReadMaxRows(1), ReadMaxRows(5)], ids=repr)
def test_limited_batches_reach_the_end(limit: ReadLimit) -> None:
    cleaned = FakePartition([batch(0), batch(3)], high_watermark=7)  # a cleaner removed the last records
    with fake_topic({0: ones(4), 1: cleaned}) as topic, reader_of(topic) as reader:
        at = offsets(_0=0, _1=0)
        for _ in range(12):
            at = reader.latestOffset(at, limit)
        assert ends(at) == [4, 7]


def test_log_partitions_take_turns_over_batches_of_one_record() -> None:
    with fake_topic({0: ones(9), 1: ones(9), 2: ones(9)}) as topic, reader_of(topic) as reader:
        at, found = offsets(_0=0, _1=0, _2=0), []
        for _ in range(4):
            at = reader.latestOffset(at, ReadMaxRows(1))
            found.append(ends(at))
    assert found == [[1, 0, 0], [1, 1, 0], [1, 1, 1], [2, 1, 1]]


# --- available now


def test_available_now_ends_where_the_log_ended() -> None:
    at = ones(4)
    with fake_topic({0: at, 1: ones(2)}) as topic, reader_of(topic, starts=offsets(_0=1, _1=2)) as reader:
        reader.prepareForTriggerAvailableNow()
        with topic.changing():
            at.batches += [batch(4), batch(5)]
        found = [reader.initialOffset()]
        for _ in range(4):
            found.append(reader.latestOffset(found[-1], ReadMaxRows(2)))
    assert [ends(each) for each in found] == [[1, 2], [3, 2], [4, 2], [4, 2], [4, 2]]


def test_available_now_reads_few_records_although_more_are_wanted() -> None:
    with (
        fake_topic({0: ones(3)}) as topic,
        reader_of(topic, min_offsets=100, min_offsets_wait_ms=600_000) as reader,
    ):
        reader.prepareForTriggerAvailableNow()
        assert ends(reader.latestOffset(offsets(_0=0), ALL)) == [3]


def test_available_now_does_not_end_early_because_no_broker_answers() -> None:
    with fake_topic({0: ones(3)}) as topic, reader_of(topic, api_timeout_ms="50") as reader:
        topic.brokers[1].close()
        with pytest.raises(BrokerUnreachable):
            reader.prepareForTriggerAvailableNow()


# --- waiting for new records


@pytest.mark.parametrize(("grows_by", "waits", "end"), [(1, [0.2, 0.2], 4), (0, [0.2, 0.2, 0.1], 2), (None, [], 1)])
def test_a_batch_waits_for_enough_records_but_not_for_its_first(
    monkeypatch: pytest.MonkeyPatch, grows_by: int | None, waits: list[float], end: int
) -> None:
    at, slept, now = ones(1 if grows_by is None else 2), list[float](), [100.0]

    def sleep(seconds: float) -> None:
        slept.append(round(seconds, 3))
        now[0] += seconds
        at.batches.extend(batch(at.end) for _ in range(grows_by or 0))

    monkeypatch.setattr(record_batch_source, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    with fake_topic({0: at}) as topic, reader_of(topic, min_offsets=3, min_offsets_wait_ms=500) as reader:
        assert ends(reader.latestOffset(offsets(_0=1), ALL)) == [end]
        broker = topic.brokers[1]
        assert grows_by is None or FetchRequest.API_KEY not in broker.encoded
        if grows_by is None:  # a fetch has waited for the first record
            wait_until("the fetch", lambda: broker.encoded.get(FetchRequest.API_KEY))
            poll = broker.request(FetchRequest, 0)
            assert (poll.min_bytes, poll.max_bytes, poll.max_wait_ms) == (1, 1, 20)
    assert slept == waits


def test_new_records_end_the_wait() -> None:
    at = ones(2)
    with fake_topic({0: at, 1: ones(1)}) as topic, reader_of(topic, wait_ms=60_000) as reader:

        def append_when_it_waits() -> None:
            broker = topic.brokers[1]
            wait_until("a fetch waits", lambda: broker.count(FetchRequest.API_KEY))
            with topic.changing():
                at.batches.append(batch(2))

        thread = threading.Thread(target=append_when_it_waits)
        begun = time.monotonic()
        thread.start()
        assert ends(reader.latestOffset(offsets(_0=2, _1=1), ALL)) == [3, 1]
        assert time.monotonic() - begun < 30  # the wait's end would find them too
        thread.join()


def test_without_new_records_a_batch_ends_where_it_starts() -> None:
    at = ones(2)
    start = offsets(_0=2)
    with fake_topic({0: at}) as topic, reader_of(topic, api_timeout_ms="50") as reader:
        broker = topic.brokers[1]
        assert [reader.latestOffset(start, ALL) for _ in range(3)] == [start] * 3
        waited = broker.count(FetchRequest.API_KEY)
        broker.disconnect()  # the next wait connects again
        assert any(
            reader.latestOffset(start, ALL) == start and broker.count(FetchRequest.API_KEY) > waited for _ in range(100)
        )
        at.leader = None  # as well as without a leader
        broker.disconnect()
        assert reader.latestOffset(start, ALL) == start


def test_while_no_broker_answers_a_batch_ends_where_it_starts_and_goes_on_later() -> None:
    start = offsets(_0=1)
    with fake_topic({0: ones(3)}) as topic, reader_of(topic, api_timeout_ms="50") as reader:
        topic.down.add(1)
        assert reader.latestOffset(start, ALL) == start
        topic.down.clear()
        assert ends(reader.latestOffset(start, ALL)) == [3]
        topic.brokers[1].close()
        assert reader.latestOffset(start, ALL) == start


def test_a_partition_without_a_leader_stays_where_it_is_while_others_go_on() -> None:
    """Its new leader lacks records that were read: that is noticed once it leads."""
    without = ones(5)
    without.leader, without.epoch, without.epoch_ends = None, 4, {3: 2}
    with fake_topic({0: ones(3), 1: without}) as topic, reader_of(topic, api_timeout_ms="50") as reader:
        assert reader.latestOffset(offsets(_0=1, _1=4), ALL) == offsets(_0=3, _1=4)
        assert reader.latestOffset(offsets(_0=3, _1=4), ALL) == offsets(_0=3, _1=4)
        with pytest.raises(BrokerUnreachable, match=r"partition 1 of topic .* has no leader"):
            reader.prepareForTriggerAvailableNow()
        without.leader = 1
        with pytest.raises(LogTruncated, match="another log before record 4"):
            reader.latestOffset(offsets(_0=3, _1=4), ALL)


def test_a_leader_that_moved_since_the_last_wait_is_asked() -> None:
    at = ones(2)
    with fake_topic({0: at}, brokers=(1, 2)) as topic, reader_of(topic) as reader:
        assert ends(reader.latestOffset(offsets(_0=2), ALL)) == [2]
        with topic.changing():
            at.leader, at.epoch, at.epoch_ends = 2, 4, {3: 2}
            at.batches.append(batch(2))
        found = reader.latestOffset(offsets(_0=2), ALL)
    assert found == {"0": {"offset": 3, "leader_epoch": 4}}


def test_a_log_that_lost_records_is_an_error_also_for_available_now() -> None:
    at = ones(5)
    at.epoch, at.epoch_ends = 4, {3: 2}
    with fake_topic({0: at}) as topic:
        with reader_of(topic) as reader, pytest.raises(LogTruncated, match="another log before record 4"):
            reader.latestOffset(offsets(_0=4), ALL)
        with reader_of(topic, starts=offsets(_0=4)) as reader, pytest.raises(LogTruncated):
            reader.prepareForTriggerAvailableNow()


# --- tasks


@given(
    st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 10**9), st.integers(1, 50_000)), max_size=8),
    st.integers(1, 9),
)
def test_tasks_cover_each_record_offset_once_in_nearly_equal_parts(
    ahead: dict[int, tuple[int, int]], tasks: int
) -> None:
    ranges = [OffsetRange(each, start, start + count, 3) for each, (start, count) in sorted(ahead.items())]
    found = shared_out(ranges, tasks)
    pieces = [each for task in found for each in task]
    assert all(piece.start < piece.end and piece.leader_epoch == 3 for piece in pieces)
    joined: dict[int, list[int]] = {}
    for piece in pieces:
        start, end = joined.setdefault(piece.partition, [piece.start, piece.start])
        assert piece.start == end
        joined[piece.partition] = [start, piece.end]
    assert joined == {each.partition: [each.start, each.end] for each in ranges}
    sizes = [sum(each.end - each.start for each in task) for task in found]
    assert len(found) <= tasks
    whole = are_undivided(found)
    assert whole == (len(pieces) == len(ranges))
    assert not sizes or max(sizes) <= (1.25 * -(-sum(sizes) // tasks) if whole and len(found) > 1 else sizes[0])
    assert sum(sizes) > record_batch_source._FEW_OFFSETS or len(found) <= 1


@pytest.mark.parametrize(
    ("sizes", "tasks"),
    [
        ([30_000] * 4, [[30_000, 30_000], [30_000, 30_000]]),
        ([34_000, 26_000, 30_000], [[34_000], [26_000, 30_000]]),  # a share is 45,000: less than a quarter more
        ([50_000, 30_000], [[50_000], [30_000]]),  # a quarter more than a share of 40,000
        ([90_000, 10_000], [[50_000], [40_000, 10_000]]),
    ],
)
def test_a_log_partition_is_cut_only_where_the_tasks_would_differ_much(
    sizes: list[int], tasks: list[list[int]]
) -> None:
    found = shared_out([OffsetRange(each, 0, size, None) for each, size in enumerate(sizes)], 2)
    assert [[each.end - each.start for each in task] for task in found] == tasks


def test_a_batch_has_the_rows_of_its_range_in_the_columns_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batch_source, "_FEW_OFFSETS", 0)
    log = FakePartition([batch(0, 4), batch(4, 4)])
    with fake_topic({0: log, 1: ones(3)}) as topic, reader_of(topic, tasks=3) as reader:
        start, end = offsets(_0=1, _1=0), offsets(_0=7, _1=3)
        assert len(reader.partitions(start, end)) == 3
        rows = rows_of(reader, start, end)
        assert reader.partitions(end, end) == []
    places = sorted((row["log_partition"], row["record_offset"]) for row in rows)
    assert places == [*((0, each) for each in range(1, 7)), *((1, each) for each in range(3))]
    assert all(int(row["value"]) == row["record_offset"] and row["key"] == b"key" for row in rows)
    assert {(row["source"], row["producer_id"], row["control_type"], row["damage"]) for row in rows} == {
        ("kafka://c/t", None, None, None)
    }
    assert list(rows[0]) == RECORDS_SCHEMA.names


# --- damage


def test_a_damaged_batch_is_one_row_with_its_bytes_and_costs_no_other_record() -> None:
    bad = damaged(batch(3, 2))
    log = FakePartition([batch(0, 3), bad, batch(5, 2)])
    with fake_topic({0: log}) as topic, reader_of(topic) as reader:
        rows = rows_of(reader, offsets(_0=1), offsets(_0=7))
    assert [row["record_offset"] for row in rows if row["damage"] is None] == [1, 2, 5, 6]
    (row,) = [row for row in rows if row["damage"] is not None]
    assert (row["log_partition"], row["record_offset"], row["value"]) == (0, 3, bad.data)
    assert row["source"] == "kafka://c/t"
    assert f"({len(bad.data)} bytes)" in row["damage"]


def test_a_fetch_without_one_whole_batch_is_one_row_with_its_bytes() -> None:
    fetched = FetchedBatches(OffsetRange(0, 5, 9), 5, b"\xff" * 100)
    ((row,),) = [rows.to_pylist() for rows in topic_append._rows(fetched, "kafka://c/t", StoreProperties(MIRRORED, 1))]
    assert (row["record_offset"], row["value"], row["source"]) == (5, b"\xff" * 100, "kafka://c/t")
    assert row["damage"] == "no record batch of it decodes (100 bytes)"


def test_a_damaged_batch_is_the_same_stretch_for_each_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batch_source, "_FEW_OFFSETS", 0)
    log = FakePartition([batch(0, 3), damaged(batch(3, 4)), damaged(batch(7)), batch(8, 2)])
    with fake_topic({0: log}) as topic, reader_of(topic, tasks=2) as reader:
        rows = rows_of(reader, offsets(_0=0), offsets(_0=10))  # the tasks share the first damaged batch
        rows += rows_of(reader, offsets(_0=4), offsets(_0=8))
    found = {tuple(row.items()) for row in rows if row["damage"] is not None}
    assert sorted(dict(each)["record_offset"] for each in found) == [3, 7]


def test_rows_of_damage_have_the_columns_of_records() -> None:
    log = FakePartition([batch(0), damaged(batch(1))])
    with fake_topic({0: log}) as topic, reader_of(topic) as reader:
        batches = batches_of(reader, offsets(_0=0), offsets(_0=2))
    assert isinstance(pa.Table.from_batches(batches), pa.Table)  # raises if the schemas differ
