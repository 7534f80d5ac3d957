"""Positions that a cluster tells, with samples behind it. The cluster is a table of offsets and timestamps."""

from __future__ import annotations

from bisect import bisect_left
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.errors import KafkaFailed
from offsets_pipeline.ingest.topic_positions.position_samples import Float64s, PositionSamples, Sample, rows_of
from offsets_pipeline.kafka.broker.fetch import FirstRecord
from offsets_pipeline.kafka.broker.log_offsets import LogBounds
from offsets_pipeline.questions.lag import broker_source
from offsets_pipeline.questions.lag.broker_source import BrokerPositions
from offsets_pipeline.questions.lag.lag_rows import lag_rows
from offsets_pipeline.questions.lag.position_sources import UNKNOWN_END, Method, Places, SampledPositions, TimeLag
from offsets_pipeline.questions.query.describe import GroupAnswer, OffsetAnswer
from tests.unit.lag.windows import windows_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsets_pipeline.common.clock import Clock

    Place = tuple[str, int]

T, BROKEN = ("t", 0), ("broken", 0)
#: A record each second from 0 to 99. The log has lost the first ten.
START, END = 10, 100
NOW_MS = 100_000


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The requests so far, with the number of partitions of each."""
    requests: list[tuple[str, int]] = []

    def bounds(_cluster: object, topics: list[str]) -> dict[Place, object]:
        return {("t", 0): LogBounds(START, END), BROKEN: KafkaFailed("no leader")} if "t" in topics else {}

    def offsets(_cluster: object, times_ms: Mapping[Place, int]) -> dict[Place, object]:
        requests.append(("offsets", len(times_ms)))
        found: dict[Place, object] = {}
        for place, time_ms in times_ms.items():
            offset = max(START, bisect_left(range(END), time_ms / 1000))
            found[place] = KafkaFailed("no leader") if place == BROKEN else offset if offset < END else None
        return found

    def records(_cluster: object, positions: Mapping[Place, int]) -> dict[Place, object]:
        requests.append(("records", len(positions)))
        return {
            place: FirstRecord(max(START, offset), max(START, offset) * 1000) if offset < END else None
            for place, offset in positions.items()
        }

    for name, fake in (("bounds_of_topics", bounds), ("list_offsets", offsets), ("first_records", records)):
        monkeypatch.setattr(broker_source, name, fake)
    return requests


def source(at_ms: int, *samples: tuple[int, int], is_past: bool = False, topic: str = "t") -> BrokerPositions:
    cluster: Any = SimpleNamespace(settings=SimpleNamespace(at="a broker"))
    rows = rows_of([(T, Sample(0, end, time_ms)) for time_ms, end in samples], "a test").drop_columns(["source"])
    return BrokerPositions(cluster, [topic], rows, FixedClock(NOW_MS), at_ms if is_past else None)


def places(*points: tuple[Place, int]) -> Places:
    """Partitions at times in ms."""
    times = np.array([time_ms for _, time_ms in points], dtype=np.int64)
    return Places([place for place, _ in points], np.arange(len(points)), times)


def bounds(positions: BrokerPositions, *points: tuple[Place, int]) -> list[tuple[int, int, str | None]]:
    """Log start, log end and reason of partitions at times."""
    found = positions.bounds(places(*points))
    starts, ends = found.log_start_offset.tolist(), found.log_end_offset.tolist()
    return [(starts[row], ends[row], found.reasons.get(row)) for row in range(len(points))]


def ends_at(positions: BrokerPositions, *points: tuple[Place, int]) -> Float64s:
    """Log ends at times, as the lag of an offset 0."""
    return positions.lags_at(places(*points), np.zeros(len(points), dtype=np.int64))


def time_lags(positions: BrokerPositions, at_ms: int, *offsets: int) -> list[TimeLag]:
    return positions.time_lags(places(*((T, at_ms) for _ in offsets)), np.array(offsets))


def test_present_is_what_the_brokers_say(asked: list[tuple[str, int]]) -> None:
    positions = source(NOW_MS)
    assert bounds(positions, (T, NOW_MS), (BROKEN, NOW_MS), (("none", 0), NOW_MS)) == [
        (START, END, None),
        (UNKNOWN_END, UNKNOWN_END, "no leader"),
        (UNKNOWN_END, UNKNOWN_END, "a broker has no such partition"),
    ]
    assert asked == []
    assert time_lags(positions, NOW_MS, 50, 60, 3, 100) == [
        TimeLag(50, Method.EXACT),
        TimeLag(40, Method.EXACT),
        TimeLag(90, Method.EXACT),  # the first record that the log still has
        TimeLag(0, Method.EXACT),
    ]
    assert asked == [("records", 1)] * 4  # a request names a partition once


def test_ends_of_now_are_exact_where_an_interpolation_would_round(
    asked: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    end = 2**60 + 1
    monkeypatch.setattr(broker_source, "bounds_of_topics", lambda *_: {T: LogBounds(end - 2, end)})
    assert bounds(source(NOW_MS), (T, NOW_MS)) == [(end - 2, end, None)]
    assert asked == []


def test_a_mirror_that_is_behind_is_not_compared_with_ends_of_now(asked: list[tuple[str, int]]) -> None:
    """R37: the broker's end is 100, and was 61 forty seconds ago."""
    positions = source(NOW_MS)
    assert bounds(positions, (T, 60_000), (T, NOW_MS)) == [(START, 61, None), (START, END, None)]
    assert asked == [("offsets", 1)] * 2  # once for the records after now
    assert time_lags(positions, 60_000, 50) == [TimeLag(10, Method.EXACT)]


def test_a_record_that_comes_while_a_question_waits_is_not_ahead_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """R37: a question begins at 100 s, a record comes at 100.5 s, the broker answers at 101 s."""
    times = [*range(0, 91_000, 1000), 100_500]
    clock = SimpleNamespace(now_ms=lambda: NOW_MS)

    def bounds_after_a_second(*_: object) -> dict[Place, LogBounds]:
        clock.now_ms = lambda: NOW_MS + 1_000
        return {T: LogBounds(0, len(times))}

    def offsets(_cluster: object, times_ms: Mapping[Place, int]) -> dict[Place, int | None]:
        return {place: next((at for at, ms in enumerate(times) if ms >= of), None) for place, of in times_ms.items()}

    monkeypatch.setattr(broker_source, "bounds_of_topics", bounds_after_a_second)
    monkeypatch.setattr(broker_source, "list_offsets", offsets)
    cluster: Any = SimpleNamespace(settings=SimpleNamespace(at="a broker"))
    samples = rows_of([], "a test").drop_columns(["source"])
    positions = BrokerPositions(cluster, ["t"], samples, cast("Clock", clock))
    assert bounds(positions, (T, 95_000)) == [(0, 91, None)]


def test_a_late_record_that_comes_after_the_answer_does_not_raise_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """R37: the log ends at 90. Then come records 90 to 94, with times before that of the question, and a later one."""
    times = [*range(0, 90_000, 1000), *[94_000] * 5, 101_000]

    def offsets(_cluster: object, times_ms: Mapping[Place, int]) -> dict[Place, int | None]:
        return {place: next((at for at, ms in enumerate(times) if ms >= of), None) for place, of in times_ms.items()}

    monkeypatch.setattr(broker_source, "bounds_of_topics", lambda *_: {T: LogBounds(0, 90)})
    monkeypatch.setattr(broker_source, "list_offsets", offsets)
    assert bounds(source(NOW_MS), (T, 95_000)) == [(0, 90, None)]


def test_a_sample_of_a_clock_ahead_is_no_topic_created_again(asked: list[tuple[str, int]]) -> None:
    ahead = NOW_MS + 20_000, 99
    assert bounds(source(NOW_MS, ahead), (T, 95_000)) == [(START, 96, None)]
    assert time_lags(source(NOW_MS, ahead), 95_000, 50) == [TimeLag(45, Method.EXACT)]
    past = source(70_000, (50_000, 51), ahead, is_past=True)
    assert time_lags(past, 70_000, 50) == [TimeLag(20, Method.EXACT)]


def test_a_commit_at_the_log_start_of_now_was_at_the_log_end_of_a_time_before_it(asked: list[tuple[str, int]]) -> None:
    """R37: records 0 to 9 came up to second 9, and are lost. So the log ended at 10 where a group had read them all."""

    def lag(offset: int) -> tuple[int | None, int | None, str | None]:
        held = [OffsetAnswer(*T, offset, None, "", committed_ms=9_200)]
        group = GroupAnswer("Classic", "Empty", "", "", None, 0, misplaced=False, offsets=held)
        positions = source(9_500, is_past=True)
        (row,) = lag_rows({"g": group}, positions, {0: 9_500}, lambda *_: windows_of({}), with_status=False)
        return row.log_end_offset, row.lag, row.reason

    reason = "the broker does not tell the log end of that time"
    assert lag(START) == (START, 0, None)
    assert [lag(START - 1), lag(START + 1)] == [(None, None, reason)] * 2


@pytest.mark.parametrize("is_past", [True, False])
def test_a_lag_before_the_first_record_of_the_log_is_known_of_a_commit_at_its_start(
    asked: list[tuple[str, int]], *, is_past: bool
) -> None:
    """R37: commits at second 9.5 and before. Up to second 7 the log had 8 records, not the 10 of its start of now."""
    positions = source(90_000, is_past=is_past)
    lags = positions.lags_at(places((T, 7_000), (T, 9_500), (T, 20_000)), np.array([3, START, START]))
    assert [None if np.isnan(each) else each for each in lags.tolist()] == [None, 0, 11]


def test_a_record_ahead_of_now_does_not_hide_the_end_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records 0 to 99 of each second, and record 40 with a time of an hour later."""
    times = [1000 * second + 3_600_000 * (second == 40) for second in range(END)]

    def offsets(_cluster: object, times_ms: Mapping[Place, int]) -> dict[Place, int | None]:
        return {
            place: next((at for at, ms in enumerate(times) if ms >= of_ms), None) for place, of_ms in times_ms.items()
        }

    monkeypatch.setattr(broker_source, "bounds_of_topics", lambda *_: {T: LogBounds(0, END)})
    monkeypatch.setattr(broker_source, "list_offsets", offsets)
    assert bounds(source(NOW_MS), (T, 99_500)) == [(0, END, None)]
    assert bounds(source(NOW_MS), (T, 20_000)) == [(0, 21, None)]  # before that record
    assert bounds(source(NOW_MS, (50_000, 51)), (T, 75_000)) == [(0, 76, None)]  # between samples
    reason = "the broker does not tell the log end of that time"
    assert bounds(source(75_000, is_past=True), (T, 75_000)) == [(UNKNOWN_END, UNKNOWN_END, reason)]
    assert np.isnan(ends_at(source(NOW_MS), (T, 75_000))).all()


def test_log_ends_of_commits_lie_between_samples_or_else_come_from_timestamps(asked: list[tuple[str, int]]) -> None:
    positions = source(NOW_MS, (50_000, 51), (80_000, 81))
    # the answer of now is a sample, too: 100 at second 100
    ends = ends_at(positions, (T, 20_000), (T, 60_000), (T, 90_000), (BROKEN, 5))
    assert ends.tolist()[:-1] == [21, 61, 90.5]
    assert np.isnan(ends[-1])
    assert asked == [("offsets", 2), ("offsets", 1)]


def test_past_is_the_log_up_to_that_time(asked: list[tuple[str, int]]) -> None:
    positions = source(70_000, (5_000, 6), (9_000, 10), (30_000, 31), is_past=True)
    # the record of second 70 was there, that of second 71 was not
    assert bounds(positions, (T, 70_000), (BROKEN, 70_000)) == [
        (0, 71, None),
        (UNKNOWN_END, UNKNOWN_END, "no leader"),
    ]
    found = time_lags(positions, 70_000, 50, 71, 6, START)
    assert found.pop() == TimeLag(60, Method.EXACT)  # the log begins with it
    assert found[0] == TimeLag(20, Method.EXACT)
    assert found[1] == TimeLag(0, Method.EXACT)  # record 71 is younger
    # the log has lost record 6: the samples tell that it came between second 5 and second 9
    assert found[2].method is Method.INTERPOLATED
    assert found[2].seconds == pytest.approx(64.5)
    assert ("records", 1) in asked


def test_a_time_before_the_first_record_of_the_log_is_told_by_samples(asked: list[tuple[str, int]]) -> None:
    """The log has lost records 0 to 9, of seconds 0 to 9: at second 7 its end was 8, not the log start of now."""
    sampled = [(5_000, 6), (9_000, 10), (30_000, 31)]
    assert bounds(source(7_000, *sampled, is_past=True), (T, 7_000)) == [(0, 8, None)]
    assert bounds(source(NOW_MS, *sampled), (T, 7_000)) == [(0, 8, None)]  # a mirror that is as far behind
    # samples alone tell 11, but record 10 is of second 10
    assert bounds(source(9_999, *sampled, is_past=True), (T, 9_999)) == [(0, 10, None)]
    unknown = UNKNOWN_END, UNKNOWN_END, "the broker does not tell the log end of that time"
    assert bounds(source(7_000, is_past=True), (T, 7_000)) == [unknown]
    assert np.isnan(ends_at(source(7_000, is_past=True), (T, 7_000))).all()
    assert bounds(source(NOW_MS), (T, 7_000)) == [(START, START, None)]
    assert bounds(source(10_000, is_past=True), (T, 10_000)) == [(UNKNOWN_END, START + 1, None)]


def test_a_time_before_a_topic_was_created_again_is_told_by_samples(asked: list[tuple[str, int]]) -> None:
    """The topic of now has a record each second; another one of the name had two, and grew from 200 to 240."""
    positions = source(30_000, (20_000, 200), (40_000, 240), (60_000, 61), is_past=True)
    assert bounds(positions, (T, 30_000)) == [(0, 220, None)]
    assert positions.bounds(places((T, 30_000))).highest.tolist() == [240]  # not that of the topic of now, 100
    assert time_lags(positions, 30_000, 210) == [TimeLag(4.75, Method.INTERPOLATED)]
    assert np.isnan(ends_at(positions, (T, 10_000))).all()  # before its first sample
    assert ("records", 1) not in asked


def test_a_time_before_a_topic_was_deleted_is_told_by_samples(asked: list[tuple[str, int]]) -> None:
    sampled = [(20_000, 200), (40_000, 240)]
    positions = source(30_000, *sampled, is_past=True, topic="deleted")
    assert bounds(positions, (T, 30_000)) == [(0, 220, None)]
    assert time_lags(positions, 30_000, 210) == [TimeLag(4.75, Method.INTERPOLATED)]
    assert ("records", 1) not in asked
    missing = UNKNOWN_END, UNKNOWN_END, "a broker has no such partition"
    assert bounds(source(30_000, is_past=True, topic="deleted"), (T, 30_000)) == [missing]
    assert bounds(source(NOW_MS, *sampled, topic="deleted"), (T, NOW_MS)) == [missing]


@pytest.mark.parametrize("samples", [[], [(50_000, 51)]])
def test_a_broker_knows_all_times_up_to_the_question_even_if_it_has_no_topic(
    asked: list[tuple[str, int]], samples: list[tuple[int, int]]
) -> None:
    assert source(NOW_MS, *samples, topic="none").until_ms == NOW_MS
    assert source(70_000, *samples, topic="none", is_past=True).until_ms == 70_000
    assert asked == []


def test_a_time_that_a_broker_cannot_tell_has_a_reason(
    asked: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_source, "list_offsets", lambda _, times_ms: dict.fromkeys(times_ms, KafkaFailed("no")))
    positions = source(70_000, is_past=True)
    reason = "the broker does not tell the log end of that time"
    assert bounds(positions, (T, 70_000)) == [(UNKNOWN_END, UNKNOWN_END, reason)]
    assert np.isnan(ends_at(positions, (T, 70_000))).all()
    assert asked == []


def test_the_first_sample_of_all_has_a_log_start() -> None:
    rows = rows_of([(T, Sample(3, 6, 5_000)), (T, Sample(4, 10, 9_000))], "a test")
    found = SampledPositions(PositionSamples(rows), NOW_MS).bounds(places((T, 6_000), (T, 5_500), (T, 9_000)))
    assert (found.log_start_offset.tolist(), found.log_end_offset.tolist()) == ([3, 3, 4], [7, 7, 10])
    assert (found.highest.tolist(), found.reasons) == ([10, 10, 10], {})


def test_a_log_end_that_samples_do_not_tell_has_a_reason() -> None:
    rows = rows_of([(T, Sample(3, 6, 5_000)), (T, Sample(4, 10, 9_000))], "a test")
    at = places((T, 4_999), (T, 9_001), (("never", 0), 6_000))
    found = SampledPositions(PositionSamples(rows), NOW_MS).bounds(at)
    assert found.reasons == {
        0: "the log end at 1970-01-01T00:00:04.999Z is not known: the first sample is later",
        1: "the log end at 1970-01-01T00:00:09.001Z is not known: no sample is as late",
        2: "no position of the partition is known",
    }
    unknown = [UNKNOWN_END] * 3
    assert [each.tolist() for each in found[:2]] == [unknown, unknown]
    without = SampledPositions(PositionSamples(rows.slice(0, 0)), NOW_MS)
    assert (without.until_ms, without.bounds(at).reasons) == (None, dict.fromkeys(range(3), found.reasons[2]))
    assert SampledPositions(PositionSamples(rows), 7_000).until_ms == 7_000
    assert SampledPositions(PositionSamples(rows), NOW_MS).until_ms == 9_000


def test_past_without_samples_has_no_log_start(asked: list[tuple[str, int]]) -> None:
    positions = source(70_000, is_past=True)
    assert bounds(positions, (T, 70_000)) == [(UNKNOWN_END, 71, None)]
    assert time_lags(positions, 70_000, 6) == [TimeLag(None, Method.NONE, "the partition was never sampled")]
    assert asked == [("offsets", 1)] * 2
