"""Effects as rows of one shape."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from offsets_pipeline.record.decode import decode_key, decode_value
from offsets_pipeline.semantics.effects import COMMIT_RECORD_TYPE, EFFECT_SCHEMA, GROUP_COMMIT, QUARANTINE, effect_rows
from offsets_pipeline.semantics.group_facts import GroupFacts
from tests.logs import group_key, group_value


def test_columns_that_are_left_out_are_null() -> None:
    rows = effect_rows(QUARANTINE, 2, {"log_partition": pa.array([0, 1]), "reason": pa.array(["a", "b"])})
    assert rows.schema == EFFECT_SCHEMA
    given = {"kind": QUARANTINE, "log_partition": 1, "reason": "b"}
    assert rows.to_pylist()[1] == dict.fromkeys(EFFECT_SCHEMA.names) | given


def test_no_rows_have_the_shape_too() -> None:
    assert effect_rows(QUARANTINE, 0, {}).schema == EFFECT_SCHEMA


def test_value_that_does_not_fit_its_column_is_refused() -> None:
    with pytest.raises(pa.ArrowInvalid):
        effect_rows(QUARANTINE, 1, {"log_partition": pa.array([2**31])})


def take(facts: GroupFacts, at: int, record_type: int, value: bytes | None, name: str = "m") -> None:
    key = decode_key(group_key(record_type, "g", name))
    facts.add(0, at, key, value, None if value is None else decode_value(record_type, value).fields)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1, 0, 2]])
def test_last_value_and_last_tombstone_are_kept_in_any_order(order: list[int]) -> None:  # R15
    values = [group_value(5, rebalance_timeout_ms=1), None, group_value(5, rebalance_timeout_ms=2), None]
    facts = GroupFacts()
    for at in order:
        take(facts, at, 5, values[at])
    (rows,) = facts.effects()
    (row,) = rows.to_pylist()
    assert (row["value_offset"], row["value"], row["tombstone_offset"]) == (2, values[2], 3)
    assert (row["group_id"], row["record_type"], row["record_key"]) == ("g", 5, "m")


def test_unused_type_is_no_fact() -> None:  # R14: type 9 makes no group
    facts = GroupFacts()
    take(facts, 0, 9, group_value(9))
    assert list(facts.effects()) == []


def test_highest_commit_of_a_group_is_kept_for_each_log_partition() -> None:  # R1, R14
    facts = GroupFacts()
    partitions = np.array([0, 1, 0, 0], dtype=np.int32)
    facts.add_commits(partitions, pa.array(["g", "g", "g", "h"]), np.array([4, 9, 2, 0], dtype=np.int64))
    facts.add_commits(partitions[:1], pa.array(["g"]), np.array([3], dtype=np.int64))
    (rows,) = facts.effects()
    assert {(row["log_partition"], row["group_id"]): row["value_offset"] for row in rows.to_pylist()} == {
        (0, "g"): 4,
        (0, "h"): 0,
        (1, "g"): 9,
    }
    assert {(row["kind"], row["record_type"]) for row in rows.to_pylist()} == {(GROUP_COMMIT, COMMIT_RECORD_TYPE)}
