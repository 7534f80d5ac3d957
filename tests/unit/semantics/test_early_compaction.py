"""Early compaction reduces the rows, and their replay is the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsets_pipeline.semantics.columnar_replay import Replay
from offsets_pipeline.semantics.compaction import are_commits, compact_early
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from tests.logs import CAPTURE_NAMES, LogPartition, capture_rows, input_table
from tests.random_logs import NARROW, Log, examples, logs, several
from tests.replays import effects_of

if TYPE_CHECKING:
    import random

PARTITIONS = 5


both = pytest.mark.parametrize("semantics", CoordinatorSemantics)


def facts(
    tables: list[pa.Table], folded_to: dict[int, int], semantics: CoordinatorSemantics = CoordinatorSemantics.MODERN
) -> list[str]:
    replay = Replay(PARTITIONS, folded_to, semantics)
    for table in tables:
        replay.add(table)
    return sorted(f"{kind}: {row!r}" for kind, rows in effects_of(replay).items() for row in rows)


@both
@pytest.mark.parametrize("capture", CAPTURE_NAMES)
def test_replay_of_compacted_rows_equals_replay_of_all(
    capture: str, semantics: CoordinatorSemantics, chance: random.Random
) -> None:
    rows = [row for rows in capture_rows(capture).values() for row in rows]
    for folded in (False, True):
        folded_to = {row.log_partition: chance.randrange(30) for row in rows} if folded else {}
        chance.shuffle(rows)
        cut = sorted(chance.sample(range(len(rows)), 3))
        tables = [input_table(rows[start:end]) for start, end in zip([0, *cut], [*cut, len(rows)], strict=True)]
        compacted = [compact_early(table, folded_to, semantics) for table in tables]
        assert facts(compacted, folded_to, semantics) == facts(tables, folded_to, semantics)


@both
@examples(100)
@given(log=logs(NARROW, max_steps=30) | logs(several(2), max_steps=60), data=st.data())
def test_any_part_of_any_log_may_be_compacted_before_its_replay(
    log: Log, data: st.DataObject, semantics: CoordinatorSemantics
) -> None:  # R10-R16
    rows = data.draw(st.sampled_from([log.rows(), log.rows() * 2]))
    if data.draw(st.booleans()):
        rows = data.draw(st.permutations(rows))
    size = data.draw(st.sampled_from([1, 3, 10, 1000]))
    tables = [input_table(rows[start : start + size]) for start in range(0, len(rows), size)]
    keep_producers = data.draw(st.booleans())
    compacted = [compact_early(table, {}, semantics, keep_producers=keep_producers) for table in tables]
    expected = facts([input_table(rows)], {}, semantics)
    assert facts(compacted, {}, semantics) == expected
    again = compact_early(pa.concat_tables(compacted), {}, semantics, keep_producers=keep_producers)
    assert facts([again], {}, semantics) == expected


def test_transactional_commits_with_their_marker_are_compacted_as_plain_ones() -> None:  # R11
    log = LogPartition()
    for offset in range(10):
        log.commit(("g", "t", 0), offset, producer_id=7)
        log.commit(("g", "t", 0), offset, producer_id=8)
        log.commit(("h", "t", 0), offset, producer_id=8)
        log.marker(7, "COMMIT")
        log.marker(8, "ABORT")
    log.commit(("g", "t", 0), 99, producer_id=9)  # open
    compacted = compact_early(input_table(log.rows), {})
    data = compacted.filter(pc.is_null(compacted["control_type"]))
    assert data.select(["record_offset", "producer_id"]).to_pylist() == [
        {"record_offset": 45, "producer_id": None},  # the last committed one of its key
        {"record_offset": 46, "producer_id": 8},  # aborted, and later: they made their groups (R14)
        {"record_offset": 47, "producer_id": 8},
        {"record_offset": 50, "producer_id": 9},
    ]
    assert sum(compacted["records"].to_pylist()) == len(log.rows)
    kept = compact_early(input_table(log.rows), {}, keep_producers=True)
    assert kept.filter(pc.is_null(kept["control_type"]))["producer_id"].to_pylist() == [7, 8, 8, 9]


def test_classic_transaction_that_brings_an_offset_back_is_not_compacted() -> None:  # R12
    log = LogPartition()
    log.commit(("g", "t", 0), 1, producer_id=7)
    log.commit(("g", "u", 0), 2, producer_id=7)
    log.commit(("h", "t", 0), 3, producer_id=8)
    log.delete(("g", "t", 0), key_version=0)  # another raw key of the same identity
    log.end_commit(7)
    log.end_abort(8)
    compacted = compact_early(input_table(log.rows), {}, CoordinatorSemantics.CLASSIC)
    assert compacted.select(["record_offset", "producer_id"]).to_pylist() == [
        {"record_offset": 0, "producer_id": 7},
        {"record_offset": 1, "producer_id": None},
        {"record_offset": 3, "producer_id": None},
        {"record_offset": 4, "producer_id": 7},
        {"record_offset": 5, "producer_id": 8},
    ]
    assert sum(compacted["records"].to_pylist()) == len(log.rows)


def test_markers_stand_for_classic_commits_that_they_aborted() -> None:
    log = LogPartition()
    log.commit(("g", "t", 0), 1, producer_id=8)
    log.commit(("g", "t", 1), 1, producer_id=8)
    log.end_abort(8)
    carried, rows = input_table(log.rows[:1], carried=True), input_table(log.rows)
    for before, records in ((rows.slice(0, 0), [3]), (carried, [0, 3])):
        compacted = compact_early(pa.concat_tables([before, rows]), {}, CoordinatorSemantics.CLASSIC)
        assert compacted["records"].to_pylist() == records
        assert compacted["record_offset"].to_pylist()[-1:] == [2]


def test_tombstone_of_an_aborted_transaction_is_compacted_as_a_plain_one() -> None:  # R12
    log = LogPartition()
    log.commit(("g", "t", 0), 1)
    log.delete(("g", "t", 0), producer_id=7)
    log.commit(("g", "t", 0), 2, producer_id=7)
    log.marker(7, "ABORT")
    compacted = compact_early(input_table(log.rows), {})
    assert compacted["record_offset"].to_pylist() == [0, 1, 2, 3]
    assert facts([compacted], {}) == facts([input_table(log.rows)], {})


def test_commit_whose_marker_may_be_elsewhere_waits_for_it() -> None:  # R11
    log = LogPartition()
    log.commit(("g", "t", 0), 1, producer_id=7)
    log.skip(1)  # here another file of the log may have the marker
    log.commit(("g", "t", 0), 2, producer_id=7)
    log.marker(7, "ABORT")
    compacted = compact_early(input_table(log.rows), {})
    assert compacted["producer_id"].to_pylist() == [7, 7, 7]


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


def test_what_is_carried_stays_and_what_is_folded_goes() -> None:
    log = LogPartition(log_partition=0)
    for offset in range(4):
        log.commit(("g", "t", 0), offset)
    folded_to = {0: 3}
    assert compact_early(input_table(log.rows), folded_to)["record_offset"].to_pylist() == [3]
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
