"""The columnar replay against the specification, on logs worked out by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.semantics import columnar_replay
from offsets_pipeline.semantics.columnar_replay import Replay
from offsets_pipeline.semantics.compaction import last_values_and_tombstones
from offsets_pipeline.semantics.effects import EARLIEST_MS, LATEST_MS
from tests.folded_state import StateInMemory, assert_same
from tests.logs import (
    Identity,
    LogPartition,
    capture_partitions,
    capture_rows,
    commit_key,
    commit_value,
    input_table,
)
from tests.replays import effects_of, references

if TYPE_CHECKING:
    import pyarrow as pa

    from offsets_pipeline.kafka.record.records import Int64s
    from offsets_pipeline.semantics.log_row import LogRow

A: Identity = ("g", "t", 0)
B: Identity = ("g", "t", 1)
PRODUCER = 7


@pytest.fixture
def log() -> LogPartition:
    return LogPartition()


def folded(*batches: list[LogRow]) -> StateInMemory:
    """The state tables after these batches, checked against the reference."""
    tables = StateInMemory(1)
    for batch in batches:
        tables.fold(batch)
    assert_same(tables, references((row for batch in batches for row in batch), 1))
    return tables


def committed(tables: StateInMemory) -> dict[Identity, int | None]:
    return {identity: row["committed_offset"] for (_, identity), row in tables.offsets.items()}


def rows_of(name: str) -> list[LogRow]:
    return [row for rows in capture_rows(name).values() for row in rows]


@pytest.mark.parametrize(("limit", "at"), [("_COMPACT_AT_ROWS", 3), ("_COMPACT_AT_BYTES", 200)])
@pytest.mark.parametrize("name", ["4.2.0-txn-open", "4.2.0-kip848", "4.2.0-inject"])
def test_limits_of_batches_do_not_matter(name: str, limit: str, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar_replay, limit, at)
    monkeypatch.setattr(columnar_replay, "_RESULT_ROWS", 2)
    tables = StateInMemory(capture_partitions(name))
    tables.fold(rows_of(name), chunk_rows=2)
    assert_same(tables, references(rows_of(name), capture_partitions(name)))


@pytest.mark.parametrize(
    ("limit", "at", "expected"),
    [
        ("_COMPACT_AT_ROWS", 3, [4, 4 + 5, 8 + 9]),  # of the first 4 rows all stay, of the next 9 8
        ("_COMPACT_AT_BYTES", 1, [1, 2, 3, 4, 5, 6, 7, 8, *[9] * 10]),
    ],
)
def test_rows_are_compacted_again_when_there_are_as_many_new_ones(
    log: LogPartition, limit: str, at: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    compacted: list[int] = []

    def noted(table: pa.Table) -> Int64s:
        compacted.append(table.num_rows)
        return last_values_and_tombstones(table)

    monkeypatch.setattr(columnar_replay, limit, at)
    monkeypatch.setattr(columnar_replay, "last_values_and_tombstones", noted)
    replayed = Replay(1)
    for number in range(18):
        log.commit(("g", "t", min(number, 7)), number)
        replayed.add(input_table(log.rows[-1:]))
    assert compacted == expected
    assert len(effects_of(replayed)["offsets"]) == 8


def test_marker_in_a_later_batch_commits_what_is_pending(log: LogPartition) -> None:  # R11
    log.commit(A, 1, PRODUCER)
    first, log.rows = log.rows, []
    tables = folded(first)
    assert committed(tables) == {}
    log.end_commit(PRODUCER)
    assert committed(folded(first, log.rows)) == {A: 1}


def test_tombstone_in_a_later_batch_empties_the_transaction(log: LogPartition) -> None:  # R12
    log.commit(A, 1, PRODUCER)
    log.commit(B, 2, PRODUCER)
    first, log.rows = log.rows, []
    log.delete(A)
    log.commit(A, 3)
    second, log.rows = log.rows, []
    log.end_commit(PRODUCER)
    tables = folded(first, second)
    assert [(row["topic"], row["partition"]) for row in tables.progress[0].pending] == [("t", 1)]
    assert committed(folded(first, second, log.rows)) == {A: 3, B: 2}


@pytest.mark.parametrize("end", ["open", "COMMIT", "ABORT"])
def test_tombstone_of_a_transaction_applies_at_once(log: LogPartition, end: str) -> None:  # R12
    log.commit(A, 1)
    log.delete(A, PRODUCER)
    if end != "open":
        log.marker(PRODUCER, end)
    tables = folded(log.rows)
    assert committed(tables) == {A: None}
    assert tables.progress[0].pending == []


def test_group_in_two_log_partitions_has_the_offsets_of_each() -> None:  # R1
    here, there = LogPartition(0), LogPartition(1)
    here.commit(A, 1)
    there.skip(5)
    there.commit(A, 2)
    there.group_tombstone(2, "g")
    tables = StateInMemory(2)
    tables.fold(here.rows + there.rows)
    assert_same(tables, references(here.rows + there.rows, 2))
    assert {at: row["committed_offset"] for (at, _), row in tables.offsets.items()} == {0: 1, 1: 2}
    assert list(tables.groups()) == [(0, "g")]


def test_deleted_identity_does_not_come_back(log: LogPartition) -> None:  # R15
    log.commit(A, 1)
    log.delete(A)
    assert committed(folded(log.rows, log.rows[:1], log.rows)) == {A: None}


def test_pending_of_a_log_partition_without_new_records_stays() -> None:  # R11
    quiet, busy = LogPartition(0), LogPartition(1)
    quiet.commit(A, 1, PRODUCER)
    busy.commit(A, 2, PRODUCER)
    tables = StateInMemory(2)
    tables.fold(quiet.rows + busy.rows)
    busy.rows = []
    busy.end_abort(PRODUCER)
    tables.fold(busy.rows)
    assert [row["committed_offset"] for row in tables.progress[0].pending] == [1]
    assert tables.progress[1].pending == []


def test_nothing_new_has_no_effects(log: LogPartition) -> None:  # R15
    log.commit(A, 1, PRODUCER)
    replayed = Replay(1, {0: 1})
    replayed.add(input_table(log.rows))
    replayed.add(input_table(log.rows, carried=True))
    replayed.add(input_table([]))
    assert not any(effects_of(replayed).values())
    assert not any(effects_of(Replay(1)).values())


def test_producers_of_two_log_partitions_are_apart() -> None:  # R11: a marker counts in its own log partition
    here, there = LogPartition(0), LogPartition(1)
    here.commit(A, 1, PRODUCER)
    there.commit(A, 2, PRODUCER)
    there.end_commit(PRODUCER)
    tables = StateInMemory(2)
    tables.fold(there.rows + here.rows)
    assert_same(tables, references(here.rows + there.rows, 2))
    assert {at for (at, _) in tables.offsets} == {1}


def test_other_control_record_decides_nothing(log: LogPartition) -> None:  # R11
    log.commit(A, 1, PRODUCER)
    log.marker(PRODUCER, "OTHER")
    log.record(None, None, None, "OTHER")
    tables = folded(log.rows)
    assert [row["committed_offset"] for row in tables.progress[0].pending] == [1]
    log.end_commit(PRODUCER)
    assert committed(folded(log.rows)) == {A: 1}


def test_progress_counts_new_records_of_all_sorts(log: LogPartition) -> None:
    log.commit(A, 1)
    log.end_abort(PRODUCER)
    log.record(None, b"corrupt")
    log.record(b"\x00\x63unknown", None)
    log.skip(10)
    log.group(3, "g")
    replayed = Replay(1, {0: 1})
    replayed.add(input_table(log.rows))
    assert replayed.place() == "log partitions 0 up to record offset 15"
    ((_, progress),) = effects_of(replayed)["progress"]
    assert (progress.folded_to, progress.records, progress.unknown_records) == (15, 4, 1)


def test_quarantine_keeps_the_raw_bytes(log: LogPartition) -> None:  # R6
    log.record(commit_key(*A), commit_value(1)[:-1])
    log.record(None, b"no key")
    replayed = Replay(1)
    replayed.add(input_table(log.rows))
    rows = effects_of(replayed)["quarantine"]
    assert [(row["record_offset"], row["key"], row["value"]) for row in rows] == [
        (0, commit_key(*A), commit_value(1)[:-1]),
        (1, None, b"no key"),
    ]
    assert rows[1]["reason"] == "key: record has no key"


def test_pending_keeps_what_the_next_fold_needs(log: LogPartition) -> None:  # R11
    log.commit(A, 1, PRODUCER)
    log.commit(A, 2, PRODUCER)
    replayed = Replay(1)
    replayed.add(input_table(log.rows))
    (row,) = effects_of(replayed)["pending"]
    assert (row["record_offset"], row["key"], row["producer_id"]) == (1, commit_key(*A), PRODUCER)
    assert row["value"] == commit_value(2)


def test_misplaced_offset_says_so(log: LogPartition) -> None:  # R1
    log.commit(A, 1)
    for offsets_partitions, misplaced in ((1, False), (50, True)):
        replayed = Replay(offsets_partitions)
        replayed.add(input_table(log.rows))
        assert [row["misplaced"] for row in effects_of(replayed)["offsets"]] == [misplaced]


def test_topic_names_are_told_by_commits_and_types_4_and_15(log: LogPartition) -> None:  # R35
    ids = ["A" * 21 + last for last in "QgwA"]
    log.commit(A, 1, version=4, topic_id=ids[0])
    log.group(4, "g", topics=[{"topic_id": ids[1], "topic_name": "u", "num_partitions": 1, "partition_metadata": []}])
    log.group(15, "s", initialized_topics=[{"topic_id": ids[2], "topic_name": "v", "partitions": [0]}])
    log.commit(B, 1, version=4, topic_id=ids[3])  # all zero: none
    assert folded(log.rows).topics == {ids[0]: "t", ids[1]: "u", ids[2]: "v"}


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 100])
def test_topic_names_do_not_depend_on_where_a_batch_ends(log: LogPartition, batch_rows: int) -> None:  # R15, R35
    ids = ["A" * 20 + number + "A" for number in "BCDEFG"]
    log.commit(A, 1, version=4, topic_id=ids[0])
    log.commit(A, 2, version=4, topic_id=ids[1])  # recreated: another id of the same name
    log.commit(A, 3)  # by a client that knows no ids
    log.commit(B, 1, version=4, topic_id=ids[2])
    log.delete(B)
    log.commit(B, 2, PRODUCER, version=4, topic_id=ids[3])
    log.end_abort(PRODUCER)
    log.commit(("g", "z", 0), 1, version=4, topic_id=ids[4])
    log.commit(("g", "y", 0), 1, version=4, topic_id=ids[4])  # no broker writes two names of one id
    log.commit(("g", "z", 0), 2, version=4, topic_id=ids[4])
    tables = StateInMemory(1)
    for start in range(0, len(log.rows), batch_rows):
        tables.fold(log.rows[start : start + batch_rows])
    assert tables.topics == {ids[0]: A[1], ids[1]: A[1], ids[2]: B[1], ids[3]: B[1], ids[4]: "y"}


@pytest.mark.parametrize("timestamp_ms", [2**63 - 1, -(2**63), LATEST_MS + 1])
def test_timestamp_beyond_what_a_table_holds_is_kept_within(log: LogPartition, timestamp_ms: int) -> None:
    log.commit(A, 1, version=1, commit_timestamp=timestamp_ms, expire_timestamp=timestamp_ms)
    row = folded(log.rows).offsets[0, A]
    assert row["commit_timestamp"] == (LATEST_MS if timestamp_ms > 0 else EARLIEST_MS) * 1000
    assert row["expire_timestamp"] == row["commit_timestamp"]


def test_timestamps_that_are_kept_can_be_told_in_every_time_zone() -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    for offset_hours in (-14, 14):
        zone = timezone(timedelta(hours=offset_hours))
        for timestamp_ms in (EARLIEST_MS, LATEST_MS):
            assert (epoch + timedelta(milliseconds=timestamp_ms)).astimezone(zone).year in {1, 9999}


def test_a_commit_has_effects_of_three_kinds(log: LogPartition) -> None:
    log.commit(A, 1)
    replayed = Replay(1)
    replayed.add(input_table(log.rows))
    found = [kind for kind, of_kind in effects_of(replayed).items() if of_kind]
    assert found == ["progress", "offsets", "group_commits"]
