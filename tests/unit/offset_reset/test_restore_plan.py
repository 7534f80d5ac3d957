"""The rules of `offsets restore`, without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from offsets_pipeline.cli import restore_command
from offsets_pipeline.ingest.topic_positions.position_samples import PositionSamples, Sample, rows_of
from offsets_pipeline.ingest.topic_positions.positions import Position, Positions
from offsets_pipeline.questions.query.describe import OffsetAnswer
from offsets_pipeline.repair.offset_reset.plan import GroupOffsets
from offsets_pipeline.repair.offset_reset.restore_plan import (
    FoundBy,
    FoundOffset,
    RestoredOffset,
    RestorePlan,
    moments_by_samples,
    plan_restore,
    same_offset,
)
from offsets_pipeline.semantics.partition_state import TopicPartition

T0, T1, OTHER = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("other", 0)
POSITIONS = Positions("a broker", {T0: Position(10, 20), T1: Position(0, 5)})


def past_offset(offset: int, metadata: str = "") -> OffsetAnswer:
    return OffsetAnswer("t", 0, offset, None, metadata)


@pytest.mark.parametrize(
    ("past", "new", "method", "detail"),
    [
        (10, 10, FoundBy.COMMITTED, "the committed offset"),
        (20, 20, FoundBy.COMMITTED, "the committed offset"),
        (9, 10, FoundBy.LOG_START, "9 is below the log start: its records were deleted"),
        (0, 10, FoundBy.LOG_START, "0 is below the log start: its records were deleted"),
        (21, 20, FoundBy.LOG_END, "21 is above the log end: the log lost records, or it is another log"),
    ],
)
def test_offset_is_limited_to_the_log(past: int, new: int, method: FoundBy, detail: str) -> None:
    then = past_offset(past, "m")
    plan = plan_restore({"g": {T0: then}}, {"g": GroupOffsets(None, {})}, POSITIONS, same_offset)
    assert plan == RestorePlan([RestoredOffset("g", T0, then, FoundOffset(new, method, detail), None)])


def test_partition_that_the_cluster_lacks_is_left_out_with_the_reason() -> None:
    past = {"g": {OTHER: past_offset(1), TopicPartition("t", 2): past_offset(1)}}
    plan = plan_restore(past, {"g": GroupOffsets("Empty", {})}, POSITIONS, same_offset)
    assert [each.new for each in plan.offsets] == [
        (None, None, "a broker has no partition other-0"),
        (None, None, "a broker has no partition t-2"),
    ]


@pytest.mark.parametrize("state", ["Stable", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"])
def test_group_with_members_is_left_out(state: str) -> None:
    past = {name: {T0: past_offset(12)} for name in ("active", "empty", "none")}
    states = {"active": state, "empty": "Empty", "none": None}
    standings = {name: GroupOffsets(states[name], {T0: 1}) for name in past}
    plan = plan_restore(past, standings, POSITIONS, same_offset)
    assert plan.active == {"active": state}
    assert [each.group_id for each in plan.offsets] == ["empty", "none"]


def test_offsets_that_the_group_had_not_at_the_time_stay() -> None:
    standings = {"g": GroupOffsets("Empty", {T0: 11, T1: 3, OTHER: 1})}
    plan = plan_restore({"g": {T0: past_offset(12, "note")}}, standings, POSITIONS, same_offset)
    assert plan.later == {"g": 2}
    assert [(each.where, each.new.offset, each.current_offset, each.past.metadata) for each in plan.offsets] == [
        (T0, 12, 11, "note")
    ]


def test_topic_that_was_created_again_is_named() -> None:
    plan = plan_restore({"g": {T0: past_offset(12)}}, {"g": GroupOffsets(None, {})}, POSITIONS, same_offset, ["t"])
    assert plan.offsets[0].new.detail == "the committed offset; the topic was created again since"


def test_translated_offset_is_limited_to_the_log_too() -> None:
    def translated(where: TopicPartition, offset: int) -> FoundOffset:
        return (
            FoundOffset(offset - 5, FoundBy.TIMESTAMP, "by time")
            if where == T0
            else FoundOffset(None, None, "no record")
        )

    past = {"g": {T0: past_offset(12), T1: past_offset(3)}}
    plan = plan_restore(past, {"g": GroupOffsets(None, {})}, POSITIONS, translated)
    assert [each.new for each in plan.offsets] == [
        (10, FoundBy.LOG_START, "7 is below the log start: its records were deleted"),
        (None, None, "no record"),
    ]


def test_last_sample_whose_log_end_is_not_above_the_offset_tells_the_time() -> None:
    place = ("t", 0)
    samples = PositionSamples(
        pa.concat_tables(
            [rows_of([(place, Sample(0, end, at_ms))], "x") for end, at_ms in ((5, 1), (8, 2), (8, 3), (9, 4))]
        )
    )
    points = [(place, offset) for offset in (4, 5, 7, 8, 9, 100)] + [(("u", 0), 1)]
    found = moments_by_samples(samples, points)
    none = "the store has no sample from before the record; add --source-bootstrap-server, brokers of its cluster"
    known = {5: (5, 1), 7: (5, 1), 8: (8, 3), 9: (9, 4), 100: (9, 4)}
    assert found == {
        (place, 4): none,
        (("u", 0), 1): none,
        **{
            (place, offset): (
                *(at_ms, FoundBy.SAMPLE),
                f"the log ended at {end} at 1970-01-01T00:00:00.00{at_ms}Z, so record {offset} is not older",
            )
            for offset, (end, at_ms) in known.items()
        },
    }


@pytest.mark.parametrize(("known", "recreated"), [([], []), (["new"], []), (["old"], ["t"]), (["old", "new"], ["t"])])
def test_a_topic_that_was_created_again_is_named(
    capsys: pytest.CaptureFixture[str], known: list[str], recreated: list[str]
) -> None:
    rows = [{"topic": "t", "topic_id": each} for each in known]  # `follow` adds the new id when it sees it
    table = SimpleNamespace(rows=lambda: SimpleNamespace(to_pylist=lambda: rows))
    reader: Any = SimpleNamespace(table=lambda _: table)
    live: Any = SimpleNamespace(topics=lambda _: {"t": SimpleNamespace(topic_id="new")})
    assert restore_command._recreated(reader, live, {"t"}) == recreated
    assert capsys.readouterr().err.count("topic 't' was created again since") == len(recreated)


@pytest.mark.parametrize(
    ("of_store", "of_live", "same_offsets", "finder"),
    [
        ("a", "b", False, "translated"),
        ("a", "b", True, "same"),
        ("a", "a", False, "same"),
        (None, "b", False, "same"),
        ("a", None, False, "same"),
    ],
)
def test_offsets_of_another_cluster_are_translated_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    of_store: str | None,
    of_live: str | None,
    same_offsets: bool,
    finder: str,
) -> None:
    reader: Any = SimpleNamespace(location="s", properties=SimpleNamespace(cluster_id=of_store))
    live: Any = SimpleNamespace(settings=SimpleNamespace(at="a broker"), cluster_id=lambda: of_live)
    for name, result in {
        "cluster_group_offsets": {"g": GroupOffsets(None, {})},
        "positions_of": POSITIONS,
        "_recreated": [],
        "table_of": None,
        "read_samples": None,
        "moments_by_samples": {},
        "translated": lambda *_: FoundOffset(13, FoundBy.LOG_START, ""),
    }.items():
        monkeypatch.setattr(restore_command, name, lambda *_, result=result: result)
    options: Any = SimpleNamespace(same_offsets=same_offsets)
    plan = restore_command._plan(options, reader, live, None, {"g": {T0: past_offset(15)}})
    assert [each.new.offset for each in plan.offsets] == [13 if finder == "translated" else 15]
    warned = "offsets: warning: s has the offsets of cluster a, and a broker is cluster b: offsets are translated by "
    assert capsys.readouterr().err.startswith(warned) == (finder == "translated")
