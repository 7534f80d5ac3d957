"""Topics of Connect over columns and row by row: recorded workers' answers, and random logs (R30)."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offsets_pipeline.connect.connector_offsets import source_answer
from offsets_pipeline.fold.state.merge_on_read import CONNECT
from offsets_pipeline.fold.state.verify import specified_topic
from offsets_pipeline.semantics.effects import ReplayedPartition
from offsets_pipeline.semantics.log_row import ABORT, COMMIT
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.semantics.topic_replay import compact_topic, replay_topic
from offsets_pipeline.semantics.topic_state import ConnectRow, TopicPartitionState
from tests.unit.connect.connect_logs import (
    TOPICS,
    WITH_ANSWERS,
    Folded,
    answers,
    capture_rows,
    in_order,
    input_rows,
)

KIND = TopicKind.CONNECT_OFFSETS
KEY_A, KEY_B = b'["c",{"f":"a","g":1}]', b'["c",{"g":1, "f":"a"}]'


def folded(rows: list[ConnectRow], kind: TopicKind = KIND, *, sizes: list[int], compact: bool = False) -> Folded:
    """The state after batches of these sizes, and one with the rest."""
    state = Folded()
    start = 0
    for size in [*sizes, len(rows)]:
        table = input_rows(rows[start : start + size])
        if compact:
            table = compact_topic(table, kind, state.folded_to)
        state.take(replay_topic([table, state.carried()], kind, dict(state.folded_to)))
        start += size
    return state


def specified(rows: list[ConnectRow], kind: TopicKind = KIND) -> dict[int, TopicPartitionState]:
    """The specification's states by log partition."""
    states: dict[int, TopicPartitionState] = {}
    for row in sorted(rows, key=lambda row: row[:2]):
        states.setdefault(row.log_partition, TopicPartitionState(kind)).replay(row)
    return states


def comparable(states: dict[int, TopicPartitionState]) -> tuple[object, ...]:
    """As `Folded.comparable`."""
    pending = {
        at: sorted(
            (producer, raw_key.encode(), record.record_offset)
            for producer, records in state.pending.items()
            for raw_key, record in records.items()
        )
        for at, state in states.items()
    }
    return (
        {
            (at, raw_key): (each.value, each.record_timestamp, each.record_offset, each.key.connector)
            for at, state in states.items()
            for raw_key, each in state.records.items()
        },
        {at: each for at, each in pending.items() if each},
        {at: state.end for at, state in states.items()},
    )


@pytest.mark.parametrize("capture", WITH_ANSWERS)
@pytest.mark.parametrize("sizes", [[], [7, 1, 5, 2], [1] * 60], ids=["at once", "in batches", "one by one"])
@pytest.mark.parametrize("compact", [False, True], ids=["all rows", "compacted"])
def test_offsets_are_what_the_worker_answered(capture: str, sizes: list[int], *, compact: bool) -> None:
    offsets = folded(capture_rows(capture, "connect-offsets"), sizes=sizes, compact=compact).offsets()
    expected = answers(capture, "file-.+")
    assert len(expected) > 3
    pairs = {name: [(row["source_partition"], row["source_offset"]) for row in offsets[name]] for name in expected}
    assert {name: in_order(source_answer(of_name)["offsets"]) for name, of_name in pairs.items()} == expected


@pytest.mark.parametrize("capture", [*WITH_ANSWERS, "4.2.0-connect-workerdown"])
@pytest.mark.parametrize("topic", TOPICS)
def test_both_replays_agree_on_recorded_topics(capture: str, topic: str) -> None:
    rows = capture_rows(capture, topic)
    expected = comparable(specified(rows, TOPICS[topic]))
    for compact in (False, True):
        state = folded(rows, TOPICS[topic], sizes=[len(rows) // 3, len(rows) // 4], compact=compact)
        assert state.comparable() == expected
        assert state.count == len(rows)


_KEYS = (KEY_A, KEY_B, b'["c",{"f":"b"}]', b'["d",null]', b'["d"]', b"x", None, b'["\\ud800",{}]')
_VALUES = (b'{"p":1}', b'{"p":2}', None, b"null", b"[1]", b"{")
_ROWS = st.lists(
    st.tuples(
        st.sampled_from([0, 1]),
        st.sampled_from(_KEYS),
        st.sampled_from(_VALUES),
        st.sampled_from([None, None, 7, 8]),
        st.sampled_from([None, None, COMMIT, ABORT, "OTHER"]),
    ),
    max_size=40,
)


@settings(max_examples=200)
@given(drawn=_ROWS, sizes=st.lists(st.integers(0, 9), max_size=6), compact=st.booleans(), seed=st.integers(0, 99))
def test_both_replays_agree_on_random_logs(  # R11, R15, R30
    drawn: list[tuple[int, bytes | None, bytes | None, int | None, str | None]],
    sizes: list[int],
    seed: int,
    *,
    compact: bool,
) -> None:
    rows = [
        ConnectRow(at, offset, 1000 - offset, key, value, producer, None if producer is None else control)
        for offset, (at, key, value, producer, control) in enumerate(drawn)
    ]
    expected = comparable(specified(rows))
    assert folded(rows, sizes=sizes, compact=compact).comparable() == expected
    shuffled = random.Random(seed).sample(rows, len(rows))
    assert folded(shuffled, sizes=[], compact=compact).comparable() == expected
    state = Folded()
    effects = replay_topic([input_rows(rows)], KIND, {})
    state.take(effects)
    quarantined = {(row["log_partition"], row["record_offset"]): row["reason"] for row in effects.quarantine}
    states = specified(rows)
    assert quarantined == {(at, o): reason for at, each in states.items() for o, reason in each.quarantined.items()}


def test_a_tombstone_in_a_transaction_waits_for_its_marker() -> None:  # R30
    rows = [
        ConnectRow(0, 0, 5, KEY_A, b'{"p":1}'),
        ConnectRow(0, 1, 6, KEY_A, None, 7),
        ConnectRow(0, 2, 7, b"", b"", 7, ABORT),
        ConnectRow(0, 3, 8, KEY_A, None, 7),
    ]
    assert [row["source_offset"] for row in folded(rows, sizes=[2]).offsets()["c"]] == ['{"p":1}']
    ended = [*rows, ConnectRow(0, 4, 9, b"", b"", 7, COMMIT)]
    assert folded(ended, sizes=[2, 2]).offsets() == {}


@pytest.mark.parametrize("sizes", [[], [1], [2]])
def test_a_marker_brings_no_record_back_that_a_later_one_overwrote(sizes: list[int]) -> None:  # R10
    rows = [ConnectRow(0, 0, 5, KEY_A, b'{"p":1}', 7), ConnectRow(0, 1, 6, KEY_A, b'{"p":2}')]
    rows.append(ConnectRow(0, 2, 7, b"", b"", 7, COMMIT))
    assert [each.value for each in specified(rows)[0].records.values()] == ['{"p":2}']
    assert folded(rows, sizes=sizes).comparable() == comparable(specified(rows))


def test_a_compaction_keeps_what_a_later_marker_needs() -> None:  # R11
    rows = [ConnectRow(0, 0, 5, KEY_A, b'{"p":1}'), ConnectRow(0, 1, 6, KEY_A, b'{"p":2}', 7)]
    rows += [ConnectRow(0, 2, 7, KEY_A, b'{"p":3}'), ConnectRow(0, 3, 8, KEY_A, b'{"p":4}')]
    left = compact_topic(input_rows(rows), KIND, {})
    assert left["record_offset"].to_pylist() == [1, 3]
    assert sum(left["records"].to_pylist()) == len(rows)
    assert left["producer_id"].to_pylist() == [7, None]


@pytest.mark.parametrize("later", [KEY_A, KEY_B])
@pytest.mark.parametrize("partitions", [(0, 0), (0, 1), (1, 0)])
def test_the_latest_of_two_raw_keys_answers_and_both_are_shown(later: bytes, partitions: tuple[int, int]) -> None:
    earlier = KEY_B if later == KEY_A else KEY_A
    rows = [
        ConnectRow(partitions[0], 9, 100, earlier, b'{"p":"earlier"}'),
        ConnectRow(partitions[1], 12 if partitions[0] == partitions[1] else 3, 101, later, b'{"p":"later"}'),
    ]
    (offset,) = folded(rows, sizes=[1]).offsets()["c"]
    assert offset["source_offset"] == '{"p":"later"}'
    assert offset["raw_keys"] == sorted((KEY_A.decode(), KEY_B.decode()))
    deleted = [*rows, ConnectRow(partitions[1], 13, 102, later, None)]
    assert folded(deleted, sizes=[1]).offsets() == {}


def test_of_two_raw_keys_with_one_timestamp_the_higher_record_offset_answers() -> None:
    rows = [ConnectRow(0, 4, 100, KEY_A, b'{"p":4}'), ConnectRow(1, 5, 100, KEY_B, b'{"p":5}')]
    (offset,) = folded(rows, sizes=[]).offsets()["c"]
    assert offset["source_offset"] == '{"p":5}'


def test_dictionary_encoded_keys_are_compacted_as_others() -> None:
    table = input_rows([ConnectRow(0, at, at, KEY_A, b'{"p":1}') for at in range(3)])
    encoded = table.set_column(2, "key", table["key"].cast(pa.binary()).dictionary_encode())
    assert compact_topic(encoded, KIND, {}) == compact_topic(table, KIND, {})


def test_specified_topic_has_the_records_that_count_and_those_that_wait_for_a_marker() -> None:
    rows = [
        ConnectRow(0, 0, 1000, KEY_A, b'{"p":1}', None, None),
        ConnectRow(0, 1, 2000, KEY_A, b'{"p":2}', 7, None),
        ConnectRow(1, 4, 3000, KEY_B, b'{"p":3}', 8, None),
        ConnectRow(1, 5, 4000, b"", b"", 8, COMMIT),
    ]
    partitions, tables = specified_topic([input_rows(rows[2:]), input_rows(rows[1::-1])], KIND)
    waiting = [{"producer_id": 7, "key": KEY_A, "record_offset": 1}]
    assert partitions == {0: ReplayedPartition(2, 2, pending=waiting), 1: ReplayedPartition(6, 2)}
    found = [
        (each["log_partition"], each["raw_key"].encode(), each["connector"], each["value"], each["record_offset"])
        for each in tables[CONNECT.name].to_pylist()
    ]
    assert sorted(found) == [(0, KEY_A, "c", '{"p":1}', 0), (1, KEY_B, "c", '{"p":3}', 4)]
