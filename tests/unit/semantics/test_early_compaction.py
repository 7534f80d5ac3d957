"""Early compaction changes nothing but the number of rows: the replay of what it leaves is the same."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from offsets_pipeline.semantics.columnar_replay import Replay
from offsets_pipeline.semantics.compaction import are_commits, compact_early
from tests.logs import CAPTURES, LogPartition, capture_rows, input_table

PARTITIONS = 5


def facts(tables: list[pa.Table], folded_to: dict[int, int]) -> list[str]:
    replay = Replay(PARTITIONS, folded_to)
    for table in tables:
        replay.add(table)
    return sorted(repr(row) for batch in replay.effects() for row in batch.to_pylist())


@pytest.mark.parametrize("capture", sorted(path.name for path in CAPTURES.iterdir() if path.is_dir()))
def test_replay_of_compacted_rows_equals_replay_of_all(capture: str) -> None:
    chance = random.Random(capture)
    rows = [row for rows in capture_rows(capture).values() for row in rows]
    for folded in (False, True):
        folded_to = {row.log_partition: chance.randrange(30) for row in rows} if folded else {}
        chance.shuffle(rows)
        cut = sorted(chance.sample(range(len(rows)), 3))
        tables = [input_table(rows[start:end]) for start, end in zip([0, *cut], [*cut, len(rows)], strict=True)]
        compacted = [compact_early(table, folded_to) for table in tables]
        assert facts(compacted, folded_to) == facts(tables, folded_to)


def test_of_plain_commits_the_last_value_and_the_last_tombstone_stay_and_stand_for_all() -> None:
    log = LogPartition(log_partition=1)
    for offset in range(10):
        log.commit(("g", "t", 0), offset)
    log.delete(("g", "t", 0))
    log.commit(("g", "t", 0), 99)
    compacted = compact_early(input_table(log.rows), {})
    assert compacted["record_offset"].to_pylist() == [10, 11]
    assert sum(compacted["records"].to_pylist()) == 12


def test_of_plain_commits_one_stays_for_each_topic_id_of_a_key() -> None:  # R35
    log = LogPartition(log_partition=1)
    old, new = ("A" * 20 + number + "A" for number in "BC")
    for topic_id in (old, old, None, new, new, None, None):
        log.commit(("g", "t", 0), 1, version=4, topic_id=topic_id)
    log.commit(("g", "u", 0), 1, version=4, topic_id=old)
    log.commit(("g", "u", 0), 2, version=4, topic_id=old)
    compacted = compact_early(input_table(log.rows), {})
    assert compacted["record_offset"].to_pylist() == [0, 3, 6, 8]
    assert sum(compacted["records"].to_pylist()) == 9
    assert compact_early(compacted, {}) == compacted


def test_what_is_late_or_carried_stays_and_what_is_folded_goes() -> None:
    log = LogPartition(log_partition=0)
    for offset in range(4):
        log.commit(("g", "t", 0), offset)
    folded_to = {0: 3}
    assert compact_early(input_table(log.rows), folded_to)["record_offset"].to_pylist() == [3]
    assert compact_early(input_table(log.rows, backfill=True), folded_to).num_rows == 4
    assert compact_early(input_table(log.rows, carried=True), folded_to).num_rows == 4


def test_keys_too_short_to_tell_are_no_commits() -> None:
    keys = pa.array([b"\x00\x01rest", b"\x00\x00", b"\x00\x02", b"\x00", b"", None], pa.binary())
    assert are_commits(keys).tolist() == [True, True, False, False, False, False]


def test_keys_that_are_null_are_compacted_in_pieces_too() -> None:  # R3: they are corrupt, and stay for quarantine
    log = LogPartition(log_partition=0)
    log.record(None, b"x")
    log.commit(("g", "t", 0), 1)
    log.commit(("g", "t", 0), 2)
    pieces = pa.concat_tables([input_table(log.rows[:1]), input_table(log.rows[1:2]), input_table(log.rows[2:])])
    assert compact_early(pieces, {})["record_offset"].to_pylist() == [0, 2]
