"""What the log shows around deletions, record by record, worked by hand."""

from __future__ import annotations

import pyarrow as pa
import pytest

from offsets_pipeline.questions.history.deletion_evidence import GroupDeletion, GroupWrites, LostCommits, TopicHolders
from offsets_pipeline.questions.history.log_history import Completeness
from offsets_pipeline.semantics.group_types import CLASSIC
from offsets_pipeline.semantics.partition_state import CommittedOffset, Group, TopicPartition
from tests.logs import LogPartition
from tests.unit.history.history_stores import table_of

WHERE = TopicPartition("t", 1)


@pytest.mark.parametrize("keep_all", [True, False])
def test_consecutive_tombstones_of_one_time_are_one_write(keep_all: bool) -> None:
    log = LogPartition()
    log.commit(("g", "t", 0), 1)
    log.group_tombstone(2, "h")
    log.delete(("h", "t", 0))
    log.record(b"\x00\x63", None)  # of no known type
    log.delete(("g", "t", 0))
    log.delete(("g", "u", 0))  # a millisecond later
    log.commit(("g", "t", 0), 1)
    log.delete(("g", "t", 0))
    log.record(b"\x00\x00\x00\x01", None, 7, "COMMIT")
    log.delete(("g", "t", 0))
    log.delete(("h", "t", 0))
    times = dict(zip(((0, at) for at in range(11)), (1, 5, 5, 5, 5, 6, 6, 6, 6, None, None), strict=True))
    rows, expected = table_of(log.rows, times), [0, 1, 1, 1, 1, 2, 3, 4, 5, 6, 6]
    for size in range(1, 12):
        writes, found = GroupWrites(keep_all=keep_all), list[int]()
        for start in range(0, 11, size):
            found += writes.numbered(rows.slice(start, size))["write"].to_pylist()
            writes.numbered(rows.slice(0, 0))
            last = found[-1]
            if last in (1, 6) and (start + size) % 11 in (0, 5):  # all of the write is there
                others = ({"g": False}, {"h": True}) if last == 1 else ({"g": False}, {"h": False})
                assert (writes.others(last, "h"), writes.others(last, "g")) == others
        assert found == expected
        assert writes.others(5, "g") == {}
        assert writes.others(1, "g") == ({"h": True} if keep_all else {})


def deletion(time_ms: int | None) -> GroupDeletion:
    held = TopicPartition("t", 0)
    found = GroupDeletion("g", time_ms, 50, 0, Group(CLASSIC), {}, ())
    found.deleted = {held: 50}
    return found


#: What a group does: commit (hold) or delete (release) in a topic, at a record offset and a time.
Step = tuple[str, str, str, int, int | None]


@pytest.mark.parametrize(
    ("before", "after", "is_decided", "is_kept"),
    [
        ([("hold", "h", "t", 49, 900)], [], False, True),
        ([("hold", "g", "t", 49, 900)], [], False, False),
        ([("hold", "h", "u", 49, 900)], [], False, False),
        ([("hold", "h", "t", 49, 900), ("release", "h", "t", 49, 900)], [], False, False),
        ([], [("hold", "h", "t", 51, 1_000)], False, False),  # it came later
        ([("hold", "h", "t", 49, 900)], [("hold", "h", "t", 51, 1_000)], False, True),
        # a coordinator deletes the offsets of a topic within ten seconds
        ([("hold", "h", "t", 49, 900)], [("release", "h", "t", 51, 11_000)], False, False),
        ([("hold", "h", "t", 49, 900)], [("release", "h", "t", 51, 11_001)], True, True),
        ([("hold", "h", "t", 49, 900)], [("hold", "i", "t", 51, 11_001), ("release", "h", "t", 52, None)], True, True),
        ([("hold", "h", "t", 49, 900)], [("hold", "i", "u", 51, 99_000), ("release", "h", "t", 52, 9)], False, False),
        ([("hold", "h", "t", 49, 900)], [("release", "h", "t", 51, None)], False, False),
    ],
)
def test_a_group_that_keeps_an_offset_of_the_topic_shows_that_the_topic_is_there(
    before: list[Step], after: list[Step], is_decided: bool, is_kept: bool
) -> None:
    holders, found = TopicHolders(), deletion(1_000)
    for number, (kind, group, topic, record_offset, time_ms) in enumerate([*before, *after]):
        if number == len(before):
            holders.wait_for(found)
        where = TopicPartition(topic, 1)
        if kind == "hold":
            holders.hold(group, where, record_offset, time_ms, None)
        else:
            holders.release(group, where, time_ms)
    if not after:
        holders.wait_for(found)
    assert found.undecided == (set() if is_decided else {"t"})
    holders.finish()
    assert (found.undecided, found.topics_kept) == (set(), {"t"} if is_kept else set())
    holders.hold("z", WHERE, 49, None, None)
    at_once = deletion(None)
    holders.wait_for(at_once)
    assert (at_once.undecided, at_once.topics_kept) == (set(), {"t"})


@pytest.mark.parametrize(
    ("deleted", "held", "is_kept"),
    [
        ("new", [(49, "old")], False),  # the broker deletes by id
        ("new", [(49, "new")], True),
        ("new", [(49, None)], True),  # it would delete that, too
        (None, [(49, "old")], False),
        (None, [(49, None)], True),
        ("new", [(48, "old"), (49, "new")], True),
        ("new", [(48, "new"), (49, "old")], False),
        ("new", [(48, "old"), (51, "new")], False),  # it came later
    ],
)
def test_an_offset_of_another_topic_with_the_name_shows_nothing(
    deleted: str | None, held: list[tuple[int, str | None]], is_kept: bool
) -> None:
    holders, found = TopicHolders(), deletion(None)
    found.offsets = {TopicPartition("t", 0): CommittedOffset(40, 7, None, "", 0, None, deleted)}
    for record_offset, topic_id in held:
        holders.hold("h", TopicPartition("t", 1), record_offset, None, topic_id)
    holders.wait_for(found)
    assert found.topics_kept == ({"t"} if is_kept else set())


@pytest.mark.parametrize(
    ("pieces", "records", "missing"),
    [
        ([[0, 1], [2]], [("g", 0), ("g", 1), ("h", 2)], [False, False, False]),
        ([[1, 2]], [("g", 1), ("g", 2)], [True, False]),
        (
            [[2, 3], [], [4, 6], [8]],
            [("g", 3), ("g", 4), ("g", 6), ("g", 8), ("h", 8)],
            [True, False, True, True, True],
        ),
        ([[0, 2, 4]], [("g", 0), ("g", 2), ("h", 2), ("g", 4)], [False, True, True, True]),
        ([[0, 1, 5]], [("g", 1), ("h", 1)], [False, False]),  # the gap comes later
    ],
)
def test_records_are_missing_where_a_gap_lies_between_two_of_an_offset(
    pieces: list[list[int]], records: list[tuple[str, int]], missing: list[bool]
) -> None:
    lost = LostCommits()
    for piece in pieces:
        lost.look_for_gaps(pa.table({"record_offset": pa.array(piece, pa.int64())}))
    assert [lost.note_record(group, WHERE, at) for group, at in records] == missing
    assert lost.note_record(records[0][0], TopicPartition("t", 2), records[0][1]) is missing[0]


#: Record offset, key (None: a control record), and timestamp in microseconds.
Record = tuple[int, bytes | None, int | None]


@pytest.mark.parametrize(
    ("cleaned_to", "end", "is_owned", "records", "expected"),
    [
        (None, 0, False, [], (0, 0, None)),
        (None, 3, False, [(0, b"a", 5), (1, b"a", 9)], (3, 0, None)),
        (None, 1, False, [(0, b"a", 5), (1, b"b", 9)], (2, 0, None)),
        # the second record of a key ends what was compacted
        (None, 0, False, [(1, b"a", 5_000), (2, b"b", 9_001), (3, b"a", 1)], (4, 3, 10)),
        (None, 0, False, [(1, b"a", 5_000), (2, b"b", 4_000), (4, b"a", 6_000), (5, b"b", 1)], (6, 4, 5)),
        (None, 9, False, [(1, b"a", 5_000), (2, b"b", 7_001), (3, None, 1), (4, None, 1)], (9, 9, 8)),
        (None, 0, False, [(0, b"a", None), (2, b"b", None), (3, b"b", 6)], (4, 3, None)),
        # a cleaning notes how far it came
        (2, 0, False, [(0, b"a", 5_001), (1, b"b", 1_000), (2, b"c", 9_000)], (3, 2, 6)),
        (4, 0, False, [(0, b"a", 5_000), (2, b"a", 6_000), (3, b"b", 7_000), (4, b"c", 8_000)], (5, 4, 7)),
        (2, 0, True, [(1, b"a", 5_001), (2, b"b", 9_000)], (3, 2, 6)),
        (None, 0, True, [(1, b"a", 5_001), (3, b"b", 9_000)], (4, 0, None)),
    ],
)
def test_history_is_complete_from_the_end_of_what_was_cleaned_and_compacted(
    cleaned_to: int | None, end: int, is_owned: bool, records: list[Record], expected: tuple[int, int, int | None]
) -> None:
    schema = pa.schema([("record_offset", "int64"), ("key", "binary"), ("record_timestamp", pa.timestamp("us", "UTC"))])
    for size in range(1, len(records) + 1):
        found = Completeness(cleaned_to, end, is_owned=is_owned)
        for start in range(0, len(records), size):
            some = records[start : start + size]
            rows = [dict(zip(schema.names, each, strict=True)) | {"key": each[1] or b"marker"} for each in some]
            control = pa.array([None if key else "COMMIT" for _, key, _ in some], pa.string())
            found.add(pa.Table.from_pylist(rows, schema).append_column("control_type", control))
        assert (found.end, found.complete_from, found.complete_since_ms) == expected
        complete_from, next_offset = expected[1], records[-1][0] + 1
        assert not found.is_complete_at(complete_from - 1)
        assert found.is_complete_at(next_offset) == (complete_from <= next_offset)
        assert found.is_complete_at(next_offset + 1) == is_owned
