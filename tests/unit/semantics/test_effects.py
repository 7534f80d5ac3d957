"""Effects have the columns of facts, and the facts about groups are theirs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from offsets_pipeline.kafka.record.decode import decode_key, decode_value
from offsets_pipeline.semantics import group_facts
from offsets_pipeline.semantics.columnar_replay import Replay
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from offsets_pipeline.semantics.effects import (
    COMMIT_RECORD_TYPE,
    EARLIEST_MS,
    LATEST_MS,
    OFFSET_SCHEMA,
    PENDING_SCHEMA,
    RECORD_SCHEMA,
    in_milliseconds,
    timestamps,
    within_bounds,
)
from offsets_pipeline.semantics.group_facts import GROUP_SCHEMA, GroupFacts, described
from tests.logs import LogPartition, group_key, group_value, input_table


@pytest.mark.parametrize("semantics", CoordinatorSemantics)
def test_each_kind_has_its_own_columns_with_and_without_rows(semantics: CoordinatorSemantics) -> None:
    log = LogPartition()
    log.commit(("g", "t", 0), 1)
    log.commit(("g", "t", 1), 1, producer_id=7)
    log.group(2, "g")
    log.record(None, b"corrupt")
    for rows in (log.rows, []):
        replay = Replay(1, semantics=semantics)
        replay.add(input_table(rows))
        effects = replay.effects()
        found = [effects.offsets, effects.pending, effects.group_records, effects.group_commits]
        assert [each.num_rows > 0 for each in found] == [bool(rows)] * 4
        assert [each.schema for each in found] == [OFFSET_SCHEMA, PENDING_SCHEMA, RECORD_SCHEMA, RECORD_SCHEMA]
        assert [len(effects.quarantine), len(effects.progress)] == [bool(rows)] * 2


def take(facts: GroupFacts, at: int, record_type: int, value: bytes | None, name: str = "m") -> None:
    key = decode_key(group_key(record_type, "g", name))
    facts.add(0, at, key, value, None if value is None else decode_value(record_type, value).fields)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1, 0, 2]])
def test_last_value_and_last_tombstone_are_kept_in_any_order(order: list[int]) -> None:  # R15
    values = [group_value(5, rebalance_timeout_ms=1), None, group_value(5, rebalance_timeout_ms=2), None]
    facts = GroupFacts()
    for at in order:
        take(facts, at, 5, values[at])
    (row,) = facts.records().to_pylist()
    assert (row["value_offset"], row["value"], row["tombstone_offset"]) == (2, values[2], 3)
    assert (row["group_id"], row["record_type"], row["record_key"]) == ("g", 5, "m")


def test_unused_type_is_no_fact() -> None:  # R14: type 9 makes no group
    facts = GroupFacts()
    take(facts, 0, 9, group_value(9))
    assert (facts.records(), facts.commits()) == (RECORD_SCHEMA.empty_table(), RECORD_SCHEMA.empty_table())


def test_highest_commit_of_a_group_is_kept_for_each_log_partition() -> None:  # R1, R14
    facts = GroupFacts()
    partitions = np.array([0, 1, 0, 0], dtype=np.int32)
    facts.add_commits(partitions, pa.array(["g", "g", "g", "h"]), np.array([4, 9, 2, 0], dtype=np.int64))
    facts.add_commits(partitions[:1], pa.array(["g"]), np.array([3], dtype=np.int64))
    rows = facts.commits().to_pylist()
    assert {(row["log_partition"], row["group_id"]): row["value_offset"] for row in rows} == {
        (0, "g"): 4,
        (0, "h"): 0,
        (1, "g"): 9,
    }
    assert {row["record_type"] for row in rows} == {COMMIT_RECORD_TYPE}
    assert facts.records().num_rows == 0


def test_times_are_kept_within_what_tables_hold() -> None:
    given = [EARLIEST_MS - 1, EARLIEST_MS, 0, LATEST_MS, LATEST_MS + 1, None]
    expected = [EARLIEST_MS, EARLIEST_MS, 0, LATEST_MS, LATEST_MS, None]
    assert [None if each is None else within_bounds(each) for each in given] == expected
    column = timestamps(pa.array(given, pa.int64()))
    assert column.cast(pa.int64()).to_pylist() == [None if each is None else each * 1000 for each in expected]
    assert in_milliseconds(pa.table({"at": column, "n": [1] * 6})).to_pydict() == {"at": expected, "n": [1] * 6}


@pytest.mark.parametrize("batch_rows", [1, 2, 2_000])
def test_rows_about_groups_come_in_the_order_of_their_records(batch_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two log partitions "a", whose hash is 97, belongs to 1, and "b" to 0 (R1)."""
    monkeypatch.setattr(group_facts, "_BATCH_ROWS", batch_rows)
    names = ("log_partition", "group_id", "record_type", "record_key", "value_offset", "value", "tombstone_offset")
    records = [
        (0, "a", 1, "", 7, None, None),
        (0, "b", 1, "", 9, None, None),
        (0, "b", 2, "", 4, group_value(2, generation=3), 2),
        (0, "c", 1, "", None, None, 8),  # `classic`: it lost its last offset
        (1, "a", 1, "", 6, None, None),
        (1, "b", 5, "m", 3, group_value(5), None),
        (1, "b", 5, "n", None, None, 5),
        (1, "c", 1, "", 1, None, None),
        (1, "c", 2, "", None, None, 2),
    ]
    table = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in records], schema=RECORD_SCHEMA)
    columns = ("log_partition", "group_id", "group_type", "state", "generation", "record_offset")
    expected = [
        (0, "a", "Classic", "Empty", None, 7, True),
        (0, "b", "Classic", "Empty", 3, 9, False),
        (0, "c", None, "Dead", None, 8, True),
        (1, "a", "Classic", "Empty", None, 6, False),
        (1, "b", "Consumer", "Stable", None, 5, True),
        (1, "c", None, "Dead", None, 2, False),
    ]
    for semantics in CoordinatorSemantics:
        found = described(table, 2, semantics)
        assert found.schema == GROUP_SCHEMA
        assert list(zip(*(found[name].to_pylist() for name in columns), strict=True)) == [row[:-1] for row in expected]
        misplaced = [row[-1] and semantics is CoordinatorSemantics.MODERN for row in expected]
        assert found["misplaced"].to_pylist() == misplaced
        members = [row and [each["member_id"] for each in row] for row in found["members"].to_pylist()]
        assert members == [[], [], None, [], ["m"], None]
        assert described(table.slice(0, 0), 2, semantics) == GROUP_SCHEMA.empty_table()
