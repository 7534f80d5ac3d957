"""The state at a point of the past is what the row-wise replay gives up to there."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from offsets_pipeline.errors import InvalidTime
from offsets_pipeline.questions.history.log_history import Completeness, LogHistory
from offsets_pipeline.questions.query.as_of import AsOfAnswer, PartitionAsOf, offsets_as_of, state_as_of
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.semantics.log_row import LogRow
from offsets_pipeline.semantics.partition_state import replay
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.semantics.survivors import SCHEMA, survivors
from offsets_pipeline.store.delta.schemas import LOG
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.log.metadata import note_topics
from tests.folded_stores import new_store
from tests.logs import CAPTURE_NAMES, LogPartition, capture_partitions, capture_rows, capture_semantics
from tests.property.broker_cleaning import cleaned, endings
from tests.random_logs import MANY, Shape, random_log
from tests.spark.stores import appended
from tests.unit.history.history_stores import START_MS, Times, capture_store, random_store, times_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

Rows = dict[int, list[LogRow]]
SHAPE = Shape(groups=MANY, log_partitions=3, strays=0.2, times_ms=(-1, 0, 1_700_000_000_000, 250_000_000_000_000))
CLASSIC = CoordinatorSemantics.CLASSIC
ID = "AAAAAAAAAAAAAAAAAAAAAQ"


def expected(
    rows: Mapping[int, Iterable[LogRow]], offsets_partitions: int, semantics: CoordinatorSemantics
) -> dict[str, tuple[object, ...]]:
    """What the specification answers: offsets with what is pending, type, state and members of each group.

    A damaged key can name a group of another log partition; that of R1 answers, else the lowest.
    """
    found: dict[str, tuple[object, ...]] = {}
    for at, of_one in sorted(rows.items()):
        state = replay(of_one, at, offsets_partitions, semantics)
        for group_id in state.groups:
            group = state.group(group_id)
            if group is None or (group_id in found and at != partition_for(group_id, offsets_partitions)):
                continue
            held = {} if state.group_with_offsets(group_id) is None else state.offsets_of(group_id)
            found[group_id] = (
                group.group_type,
                group.description.state,
                [member.member_id for member in group.description.members],
                sorted(
                    (
                        *where,
                        offset.committed_offset,
                        offset.leader_epoch,
                        offset.metadata,
                        state.is_pending(group_id, where),
                    )
                    for where, offset in held.items()
                    if offset.committed_offset >= 0
                ),
            )
    return found


def answered(answer: AsOfAnswer) -> dict[str, tuple[object, ...]]:
    return {
        group_id: (
            group.type,
            group.state,
            [member.member_id for member in group.members],
            [(o.topic, o.partition, o.offset, o.leader_epoch, o.metadata, o.pending) for o in group.offsets],
        )
        for group_id, group in answer.groups.items()
        if not group.misplaced
    }


def cut_by_position(rows: Rows, positions: Mapping[int, int]) -> Rows:
    return {at: [row for row in rows[at] if row.record_offset < end] for at, end in positions.items() if at in rows}


def cut_by_time(rows: Rows, times: Times, time_ms: int) -> Rows:
    """Each log partition before its first record with a later timestamp."""
    found: Rows = {}
    for at, of_one in rows.items():
        found[at] = []
        for row in of_one:
            if (times[at, row.record_offset] or 0) > time_ms:
                break
            found[at].append(row)
    return found


def some_positions(rows: Rows, chance: random.Random) -> dict[int, int]:
    return {at: chance.randrange(of_one[-1].record_offset + 2) for at, of_one in rows.items()}


@pytest.mark.parametrize("name", CAPTURE_NAMES)
def test_captures_at_random_positions(tmp_path: Path, chance: random.Random, name: str) -> None:
    check_capture(capture_store(tmp_path / "store", name), name, chance, points=2)


@pytest.mark.long
def test_captures_at_a_thousand_positions(tmp_path: Path, chance: random.Random) -> None:
    for name in CAPTURE_NAMES:
        check_capture(capture_store(tmp_path / name, name), name, chance, points=-(-1_000 // len(CAPTURE_NAMES)))


def check_capture(store: str, name: str, chance: random.Random, points: int) -> None:
    rows, partitions, semantics = capture_rows(name), capture_partitions(name), capture_semantics(name)
    for _ in range(points):
        positions = some_positions(rows, chance)
        answer = offsets_as_of(store, positions=positions)
        assert answered(answer) == expected(cut_by_position(rows, positions), partitions, semantics), positions


def random_rows(chance: random.Random, steps: int, semantics: CoordinatorSemantics) -> tuple[Rows, Times]:
    shape = SHAPE if not semantics.is_classic else Shape(groups=MANY, log_partitions=3, strays=0.0)
    rows = random_log(chance, steps, shape).partitions
    return rows, times_of(rows, chance)


@pytest.mark.parametrize("semantics", [MODERN, CLASSIC])
@pytest.mark.parametrize(("logs", "points"), [(3, 6), pytest.param(50, 20, marks=pytest.mark.long)])
def test_random_logs_at_random_positions_and_times(
    tmp_path: Path, chance: random.Random, semantics: CoordinatorSemantics, logs: int, points: int
) -> None:
    for log in range(logs):
        rows, times = random_rows(chance, 150, semantics)
        store = random_store(tmp_path / str(log), rows, times, 3, semantics=semantics)
        for number in range(points):
            at: dict[str, Any]
            if number % 2:
                at = {"positions": some_positions(rows, chance)}
                point = cut_by_position(rows, at["positions"])
            else:
                at = {"time_ms": chance.randrange(START_MS - 2000, START_MS + 60_000)}
                point = cut_by_time(rows, times, at["time_ms"])
            answer = offsets_as_of(store, **at)
            assert answered(answer) == expected(point, 3, semantics)
            group_ids = [*chance.sample(MANY, 2), "no such group"]
            one = offsets_as_of(store, group_ids=group_ids, **at)
            wanted = {name: each for name, each in answered(answer).items() if name in group_ids}
            assert answered(one) == wanted


@pytest.mark.parametrize(("logs", "points"), [(2, 5), pytest.param(60, 20, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["mirrored", "owned"])
def test_a_cleaned_log_answers_exactly_where_it_says_that_it_is_complete(
    tmp_path: Path, chance: random.Random, kind: str, logs: int, points: int
) -> None:
    complete = incomplete = 0
    for log in range(logs):
        rows, times = random_rows(chance, 200, MODERN)
        ends = {at: chance.randrange(of_one[-1].record_offset) for at, of_one in rows.items()}
        left = {at: _cleaned_here(of_one, ends[at]) for at, of_one in rows.items()}
        store = random_store(tmp_path / str(log), left, times, 3, cleaned_to=ends, kind=kind)
        for _ in range(points):
            positions = some_positions(rows, chance)
            answer = offsets_as_of(store, positions=positions)
            for each in answer.partitions:
                known = offsets_as_of(store, positions={each.log_partition: each.end})
                point = cut_by_position(rows, {each.log_partition: each.end})
                if each.is_complete:
                    complete += 1
                    assert answered(known) == expected(point, 3, MODERN)
                else:
                    incomplete += 1
                    assert each.complete_from > each.end
    assert complete > incomplete // 20
    assert incomplete


@pytest.mark.parametrize(("logs", "points"), [(6, 8), pytest.param(100, 20, marks=pytest.mark.long)])
def test_a_log_that_a_broker_compacted_answers_exactly_where_it_says_that_it_is_complete(
    tmp_path: Path, chance: random.Random, logs: int, points: int
) -> None:
    """R16: without removals of groups, whose tombstones a broker's compaction separates from what they hide."""
    steps = {"commit": 8, "tombstone": 2, "marker": 3}
    shape = Shape(steps=steps, groups=("g", "h"), tombstones_in_transactions=False)
    complete = incomplete = 0
    for log in range(logs):
        rows = random_log(chance, 120, shape).partitions
        times = times_of(rows, chance)
        of_one = rows[0]
        up_to = chance.randrange(1, of_one[-1].record_offset)
        before = [row for row in of_one if row.record_offset < up_to]
        while still_open := [at for at, end in endings(before).items() if end is None]:
            up_to = min(still_open)  # a broker cleans up to its last stable offset
            before = [row for row in of_one if row.record_offset < up_to]
        left = [*cleaned(before, up_to), *of_one[len(before) :]]
        store = random_store(tmp_path / str(log), {0: left}, times, 1)
        for _ in range(points):
            end = chance.randrange(of_one[-1].record_offset + 2)
            answer = offsets_as_of(store, positions={0: end})
            if answer.is_complete:
                complete += 1
                assert _offsets(answered(answer)) == _offsets(expected(cut_by_position(rows, {0: end}), 1, MODERN))
            else:
                incomplete += 1
                assert answer.complete_since_ms is not None
    assert complete > 5
    assert incomplete > 5


def test_a_gap_that_a_point_lies_in_may_have_held_records(tmp_path: Path) -> None:
    log = LogPartition()
    log.commit(("g", "t", 0), 1)
    log.skip(6)
    for offset in (2, 3):
        log.commit(("g", "t", 1), offset)
    store = random_store(tmp_path / "store", {0: log.rows}, {(0, at): START_MS + at for at in (0, 7, 8)}, 1)
    # a compaction keeps one record of the key of the last two, so it ended before the second one
    cases: list[tuple[dict[str, Any], int, int, int | None]] = [
        ({"positions": {0: 5}}, 5, 8, START_MS + 7),
        ({"time_ms": START_MS + 6}, 7, 8, START_MS + 7),
        ({"positions": {0: 1}}, 1, 0, None),
        ({"positions": {0: 8}}, 8, 8, START_MS + 7),
        ({"time_ms": START_MS + 8}, 9, 8, START_MS + 7),
    ]
    for point, end, complete_from, since_ms in cases:
        answer = offsets_as_of(store, **point)
        asked = point.get("positions", {}).get(0)
        assert answer.partitions == [PartitionAsOf(0, end, complete_from, since_ms, asked)]
        assert (answer.is_complete, answer.complete_since_ms) == (end >= complete_from, since_ms)


def test_an_answer_beyond_the_end_of_the_log_is_one_at_its_end_and_not_complete(tmp_path: Path) -> None:
    log = LogPartition()
    log.commit(("g", "t", 0), 1)
    store = random_store(tmp_path / "store", {0: log.rows}, {(0, 0): START_MS}, 2)
    for positions, ends in (({0: 1}, {0: 1}), ({0: 99}, {0: 1}), ({0: 1, 1: 5}, {0: 1, 1: 0})):
        answer = offsets_as_of(store, positions=positions)
        assert {each.log_partition: each.end for each in answer.partitions} == ends
        assert answer.is_complete is (positions == ends)


def test_an_answer_is_complete_if_each_log_partition_is() -> None:
    told = {
        PartitionAsOf(0, 5, 5, None, 5): (False, False, True),
        PartitionAsOf(1, 4, 5, 7): (True, False, False),
        PartitionAsOf(2, 5, 5, 9, 6): (False, True, False),
    }
    assert {each: (each.is_cleaned, each.ends_early, each.is_complete) for each in told} == told
    answer = AsOfAnswer({}, list(told), 0)
    assert (answer.is_complete, answer.complete_since_ms) == (False, 9)
    assert AsOfAnswer({}, answer.partitions[:1], 0).complete_since_ms is None


def test_a_topic_with_two_names_has_the_lower_one(tmp_path: Path) -> None:  # R35
    log = LogPartition()
    log.commit(("g", "b", 0), 1, version=4, topic_id=ID)
    log.commit(("g", "a", 0), 1, version=4, topic_id=ID)
    store = new_store(tmp_path / "store", 1)
    appended(store.location, log.rows)
    for noted, names in (([], ["b", "a"]), ([(ID, "aa")], ["aa", "a"])):
        note_topics(store, noted)
        found = [state_as_of(LogHistory(store.location), positions={0: end}).topic_names for end in (1, 2)]
        assert found == [{ID: name} for name in names]


def test_a_key_that_an_earlier_piece_of_the_log_has_shows_where_its_compaction_ended() -> None:
    """A compaction keeps one record of a key: from the second on it has removed nothing."""
    found = Completeness(None, 8, is_owned=False)
    for offsets, keys in (([0, 1], [b"a", b"b"]), ([2], [b"c"]), ([5, 6, 7], [b"d", b"b", b"e"])):
        size = len(offsets)
        columns = {"record_offset": offsets, "key": pa.array(keys, pa.binary())}
        times = pa.array([START_MS * 1_000 + offset for offset in offsets], pa.timestamp("us", "UTC"))
        found.add(pa.table({**columns, "record_timestamp": times, "control_type": pa.nulls(size, pa.string())}))
    assert found.complete_from == 6
    assert not found.is_complete_at(5)
    assert found.is_complete_at(8)
    assert found.complete_since_ms == START_MS + 1  # offset 5 is of 5 microseconds after it


def _offsets(answers: dict[str, tuple[object, ...]]) -> dict[str, object]:
    """Offsets of groups that have some: R16 lets a compaction lose simple groups that hold nothing."""
    return {group_id: each[3] for group_id, each in answers.items() if each[3]}


def _cleaned_here(rows: Sequence[LogRow], end: int) -> list[LogRow]:
    """The rows that a cleaning of this program leaves."""
    before = [row for row in rows if row.record_offset < end]
    columns = {
        **{name: [getattr(row, name) for row in before] for name in LogRow._fields},
        "backfill": [False] * len(before),
        "aged": [True] * len(before),
    }
    table = pa.Table.from_arrays([pa.array(columns[each.name], each.type) for each in SCHEMA], schema=SCHEMA)
    keep = survivors(table)
    return [row for row, stays in zip(before, keep.tolist(), strict=True) if stays] + list(rows[len(before) :])


def test_one_group_reads_only_the_files_of_its_log_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    original = TableFolder.open_file

    def counted(self: TableFolder, file: object, **options: object) -> object:
        if self.table == LOG:
            opened.append(file.name)  # type: ignore[attr-defined]
        return original(self, file, **options)  # type: ignore[arg-type]

    store = random_store(
        tmp_path / "store",
        {at: [LogRow(at, offset, b"\x00\x63" + bytes([at]), b"") for offset in range(40)] for at in range(10)},
        {(at, offset): START_MS for at in range(10) for offset in range(40)},
        10,
    )
    monkeypatch.setattr(TableFolder, "open_file", counted)
    offsets_as_of(store, time_ms=START_MS, group_ids=["g"])
    assert len(set(opened)) == 1  # each of the ten files has one log partition


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({}, "give one of both"),
        ({"time_ms": 1, "positions": {0: 1}}, "give one of both"),
        ({"positions": {3: 1}}, "log partitions 0 to 2"),
        ({"positions": {2: 1, -1: 1}}, "cannot read log partition -1: .* log partitions 0 to 2"),
    ],
)
def test_a_point_that_is_not_one_is_refused(tmp_path: Path, point: dict[str, object], message: str) -> None:
    rows, times = random_rows(random.Random(1), 20, MODERN)
    store = random_store(tmp_path / "store", rows, times, 3)
    with pytest.raises(InvalidTime, match=message):
        offsets_as_of(store, **point)  # type: ignore[arg-type]


def test_a_group_whose_log_partition_has_no_position_is_not_one_that_does_not_exist(tmp_path: Path) -> None:
    home = partition_for("g", 2)
    log = LogPartition(home)
    log.commit(("g", "t", 0), 1)
    store = random_store(tmp_path / "store", {home: log.rows}, {(home, 0): START_MS}, 2)
    assert [*offsets_as_of(store, positions={home: 1}, group_ids=["g"]).groups] == ["g"]
    with pytest.raises(InvalidTime, match=f"group 'g': its log partition {home} "):
        offsets_as_of(store, positions={1 - home: 1}, group_ids=["g"])
