"""How far the published tables reach, and as of when (R38)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from deltalake import DeltaTable

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.connect.connect_log import ConnectLog
from offsets_pipeline.connect.offset_backing_store import OffsetBackingStore, OffsetStorageWriter
from offsets_pipeline.fold.state.fold import fold_log
from offsets_pipeline.fold.state.publishing import publish
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.store.delta.data_file import COMPLETE
from offsets_pipeline.store.delta.properties import SNAPSHOT
from offsets_pipeline.store.delta.schemas import LOG
from offsets_pipeline.store.delta.store_folder import properties_of
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.log.metadata import LogMetadata, TopicRead
from offsets_pipeline.store.store import Store
from tests.logs import LogPartition
from tests.spark.stores import CLOCK, appended

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

NOW_MS = 1_795_000_100_000
LATER_MS = 2 * NOW_MS  # than this machine's clock
READ_MS = NOW_MS - 1_000
COMMITTED_MS = NOW_MS - 60_000
HOME = partition_for("g", 2)
AWAY = 1 - HOME
PUBLISHED = ("consumer_groups", "current_offsets", "group_members", "unstable_offsets")


def reached(location: str) -> dict[tuple[str, int], tuple[int, int | None, int]]:
    """Record offset, data time and time of publishing in milliseconds, by table and log partition."""
    rows = DeltaTable(f"{location}/published_as_of").to_pyarrow_table().to_pylist()
    found = {
        (row["table_name"], row["log_partition"]): (
            row["record_offset"],
            None if row["data_time"] is None else round(row["data_time"].timestamp() * 1000),
            round(row["published_at"].timestamp() * 1000),
        )
        for row in rows
    }
    assert len(found) == len(rows)
    return found


def read_to(store: Store, ends: dict[int, int]) -> None:
    """Note as `follow` that it has read log partitions to these ends at READ_MS."""
    notes = {}
    for at, end in ends.items():
        known = {"start_offset": 0, "end_offset": end, "topic_end_offset": end, "stable_offset": end}
        times = {"complete_since_ms": NOW_MS - 10**6, "read_at_ms": READ_MS}
        fields: dict[str, Any] = {**dict.fromkeys(TopicRead._fields), **known, **times}
        notes[at] = TopicRead(**fields)
    LogMetadata(store, CLOCK).read(notes)


@pytest.fixture
def logs(store: Store) -> list[LogPartition]:
    """Two log partitions with a record each, folded."""
    logs = [LogPartition(0), LogPartition(1)]
    for log in logs:
        log.commit(("g", "t", 0), 1, commit_timestamp=COMMITTED_MS)
    appended(store.location, [row for log in logs for row in log.rows])
    fold_log(store, Settings(), CLOCK)
    for log in logs:
        log.rows.clear()
    return logs


def test_each_table_reaches_the_end_of_the_fold_and_has_the_time_of_the_last_reading(
    store: Store, logs: list[LogPartition]
) -> None:
    read_to(store, {log.log_partition: 1 for log in logs})
    assert publish(store, FixedClock(NOW_MS))
    assert reached(store.location) == {(name, at): (1, READ_MS, NOW_MS) for name in PUBLISHED for at in (0, 1)}


def test_append_and_commit_after_the_last_reading_bring_a_later_time(store: Store, logs: list[LogPartition]) -> None:
    """R36: `follow` notes a reading every half minute, and appends more often."""
    logs[HOME].commit(("g", "t", 0), 2, commit_timestamp=READ_MS + 700)
    appended(store.location, logs[HOME].rows, record_timestamp=(READ_MS + 700) * 1000, appended_ms=NOW_MS)
    fold_log(store, Settings(), CLOCK)
    read_to(store, {AWAY: 1, HOME: 2})
    table = TableFolder(f"{store.location}/log", LOG)
    table.commit([], seen=table.snapshot(), advance={COMPLETE: READ_MS + 500})
    assert publish(store, FixedClock(NOW_MS))
    found = {AWAY: (1, READ_MS + 500, NOW_MS), HOME: (2, READ_MS + 700, NOW_MS)}
    assert reached(store.location) == {(name, at): found[at] for name in PUBLISHED for at in (0, 1)}


def test_a_commit_of_a_clock_ahead_is_as_of_its_append(store: Store, logs: list[LogPartition]) -> None:  # R36
    ahead_ms = NOW_MS - 100
    logs[HOME].commit(("g", "t", 0), 2, commit_timestamp=ahead_ms)
    appended(store.location, logs[HOME].rows, record_timestamp=ahead_ms * 1000, appended_ms=READ_MS + 300)
    fold_log(store, Settings(), CLOCK)
    read_to(store, {AWAY: 1, HOME: 2})
    assert publish(store, FixedClock(NOW_MS))
    found = {AWAY: (1, READ_MS, NOW_MS), HOME: (2, READ_MS + 300, NOW_MS)}
    assert reached(store.location) == {(name, at): found[at] for name in PUBLISHED for at in (0, 1)}


def test_segment_files_are_published_as_of_their_reading(store: Store, logs: list[LogPartition]) -> None:  # R36
    files_ms = COMMITTED_MS - 1_000  # by a clock that is a second behind that of the broker
    LogMetadata(store, FixedClock(files_ms)).bounds({AWAY: (0, 1), HOME: (0, 1)})
    assert publish(store, FixedClock(NOW_MS))
    found = {(name, at): (1, files_ms, NOW_MS) for name in PUBLISHED for at in (0, 1)}
    assert reached(store.location) == found


def test_a_snapshot_looks_at_the_groups_of_all_log_partitions(store: Store, logs: list[LogPartition]) -> None:  # R36
    logs[HOME].commit(("g", "t", 0), 2, commit_timestamp=READ_MS)
    appended(store.location, logs[HOME].rows, record_timestamp=READ_MS * 1000)
    fold_log(store, Settings(), CLOCK)
    of_snapshots = Store(lambda: store.spark, store.location, replace(store.properties, kind=SNAPSHOT))
    assert publish(of_snapshots, FixedClock(NOW_MS))
    found = {AWAY: (1, READ_MS, NOW_MS), HOME: (2, READ_MS, NOW_MS)}
    assert reached(store.location) == {(name, at): found[at] for name in PUBLISHED for at in (0, 1)}


def test_log_with_later_records_has_the_time_of_its_newest_commit(store: Store, logs: list[LogPartition]) -> None:
    logs[HOME].commit(("g", "t", 0), 2, commit_timestamp=NOW_MS)
    appended(store.location, logs[HOME].rows)
    read_to(store, {AWAY: 1, HOME: 2})
    assert publish(store, FixedClock(NOW_MS))
    times = {AWAY: READ_MS, HOME: COMMITTED_MS}
    assert reached(store.location) == {(name, at): (1, times[at], NOW_MS) for name in PUBLISHED for at in (0, 1)}


def test_a_commit_of_the_future_is_no_data_time(store: Store, logs: list[LogPartition]) -> None:
    logs[HOME].commit(("g", "t", 0), 2, commit_timestamp=NOW_MS + 10**9)
    appended(store.location, logs[HOME].rows)
    fold_log(store, Settings(), CLOCK)
    for log in logs:
        log.rows.clear()
    logs[HOME].commit(("g", "t", 0), 3, commit_timestamp=NOW_MS)
    appended(store.location, logs[HOME].rows)  # so the newest commit of the last publishing tells the time
    for now_ms in (NOW_MS, NOW_MS + 1):
        publish(store, FixedClock(now_ms))
    times = [data_ms for _, data_ms, _ in reached(store.location).values() if data_ms is not None]
    assert times
    assert max(times) == NOW_MS + 1


def test_data_time_never_steps_back(store: Store, logs: list[LogPartition]) -> None:
    read_to(store, {0: 1, 1: 1})
    assert publish(store, FixedClock(NOW_MS))
    logs[HOME].commit(("g", "t", 0), 2, commit_timestamp=NOW_MS)
    appended(store.location, logs[HOME].rows)  # so the log has later records than the published tables
    assert publish(store, FixedClock(NOW_MS + 1))
    assert reached(store.location) == {(name, at): (1, READ_MS, NOW_MS + 1) for name in PUBLISHED for at in (0, 1)}


def test_no_commit_is_pending_after_its_marker(store: Store, logs: list[LogPartition]) -> None:
    """R11, R17: another engine finds the pending commit until its transaction ends, and none then."""

    def pending() -> list[tuple[str, int]]:
        rows = DeltaTable(f"{store.location}/unstable_offsets").to_pyarrow_table().to_pylist()
        return [(row["group_id"], row["partition"]) for row in rows]

    def publish_rest() -> None:
        appended(store.location, logs[HOME].rows)
        logs[HOME].rows.clear()
        fold_log(store, Settings(), CLOCK)
        publish(store, FixedClock(NOW_MS))

    logs[HOME].commit(("g", "t", 5), 2, producer_id=7)
    publish_rest()
    assert pending() == [("g", 5)]
    logs[HOME].end_commit(7)
    publish_rest()
    assert pending() == []


def test_connect_store_is_published_beside_a_worker_that_writes(place: Path) -> None:
    location = str(place / "store")
    ConnectLog.create(location, "lab", 1)

    def flush(offset: int) -> None:
        with OffsetBackingStore(location) as backing:
            writer = OffsetStorageWriter(backing, "inbox")
            writer.offset({"file": "a"}, {"position": offset})
            assert writer.begin_flush()
            writer.do_flush().result(10)

    def published() -> tuple[str, int]:
        (row,) = DeltaTable(f"{location}/connector_offsets").to_pyarrow_table().to_pylist()
        return row["source_offset"], round(row["record_timestamp"].timestamp() * 1000)

    store = Store(cast("SparkSession", None), location, properties_of(location))
    flush(1)
    fold_log(store, Settings(), CLOCK)
    flush(2)  # the log has a record that is not folded
    assert publish(store, FixedClock(LATER_MS))
    position, first_ms = published()
    assert position == '{"position":1}'
    assert reached(location) == {(name, 0): (1, first_ms, LATER_MS) for name in ("connector_offsets", "connectors")}
    fold_log(store, Settings(), CLOCK)
    flush(3)
    assert publish(store, FixedClock(LATER_MS))
    position, second_ms = published()
    assert position == '{"position":2}'
    assert reached(location) == {(name, 0): (2, second_ms, LATER_MS) for name in ("connector_offsets", "connectors")}
    fold_log(store, Settings(), CLOCK)  # of all records: the tables are as of their publishing
    assert publish(store, FixedClock(LATER_MS))
    assert reached(location) == {(name, 0): (3, LATER_MS, LATER_MS) for name in ("connector_offsets", "connectors")}
