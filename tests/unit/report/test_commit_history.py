"""Commit rates, rewinds and lag over time, against values counted one by one."""

from __future__ import annotations

from math import floor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from offsets_pipeline.ingest.topic_positions.position_samples import PositionSamples, Sample, rows_of
from offsets_pipeline.questions.lag.position_sources import SampledPositions
from offsets_pipeline.questions.report.collect import (
    VisibleCommits,
    charted_span,
    commit_rates,
    lag_over_time,
    read_commits,
    rewinds,
)
from offsets_pipeline.questions.report.model import Deletion, Point, Rewind
from offsets_pipeline.semantics.partitioning import partition_for
from tests.folded_stores import folded_capture
from tests.logs import LogPartition
from tests.unit.history.history_stores import START_MS, random_store
from tests.unit.report.reports import HOUR_MS, MINUTE_MS, NOW_MS

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping
    from pathlib import Path

    from offsets_pipeline.questions.lag.commit_windows import Identity

SPAN_MS = (NOW_MS - 24 * HOUR_MS, NOW_MS)
Samples = dict[tuple[str, int], list[Sample]]
#: By identity, the offset and the time of each commit.
Commits = dict[tuple[str, str, int], list[tuple[int, int]]]


@pytest.fixture
def commits(chance: random.Random) -> Commits:
    """Eight groups that commit at random times of two days, some offsets only of half a day, and sometimes go back."""
    found: Commits = {}
    for number in range(8):
        for partition in range(number % 3 + 1):
            offset, at_ms, of_one = 0, NOW_MS - (12 if partition == number else 48) * HOUR_MS, []
            while at_ms < NOW_MS:
                offset = max(0, offset + (chance.randrange(100) if chance.random() < 0.9 else -chance.randrange(500)))
                of_one.append((offset, at_ms))
                at_ms += chance.randrange(1, (number + 1) * 20 * MINUTE_MS)
            found[f"group-{number}", "t", partition] = of_one
    return found


@pytest.fixture
def samples(chance: random.Random) -> Samples:
    """Samples of three partitions, each quarter of an hour of the last 30 hours; the third begins 10 hours ago."""
    found: Samples = {}
    for partition in range(3):
        end, hours = 1_000, 10 if partition == 2 else 30
        for at_ms in range(NOW_MS - hours * HOUR_MS, NOW_MS + 1, 15 * MINUTE_MS):
            end += chance.randrange(400)
            found.setdefault(("t", partition), []).append(Sample(0, end, at_ms))
    return found


def visible(commits: Commits) -> dict[Identity, VisibleCommits]:
    return {identity: VisibleCommits(*np.array(of_one).T) for identity, of_one in commits.items()}


def listed(windows: Mapping[Identity, VisibleCommits]) -> Commits:
    return {identity: list(zip(*map(np.ndarray.tolist, each), strict=True)) for identity, each in windows.items()}


def sampled(samples: Samples) -> SampledPositions:
    rows = rows_of([(place, each) for place, of_place in samples.items() for each in of_place], "a test")
    return SampledPositions(PositionSamples(rows), NOW_MS)


def test_a_commit_at_the_data_time_is_in_the_charts() -> None:
    """Hand-worked: the first chart begins with the minute before the only commit; without one it is the whole span."""
    end_ms = 100 * MINUTE_MS
    assert charted_span(visible({("g", "t", 0): [(1, end_ms)]}), end_ms, 60 * MINUTE_MS) == (99 * MINUTE_MS, end_ms)
    assert charted_span({}, end_ms, 60 * MINUTE_MS) == (40 * MINUTE_MS, end_ms)
    after = visible({("g", "t", 0): [(1, end_ms + 1)]})
    assert charted_span(after, end_ms, 60 * MINUTE_MS) == (40 * MINUTE_MS, end_ms)


@pytest.mark.parametrize(
    ("seconds", "end", "expected"),
    [
        ([40 * 60], 100 * 60, (39 * 60, 40 * 60)),  # an hour ago: of another hour
        ([40 * 60, 70 * 60], 100 * 60, (69 * 60, 100 * 60)),
        ([40 * 60 + 45], 100 * 60 + 30, (40 * 60 + 30, 100 * 60 + 30)),  # not more than an hour
        ([70 * 60 + 1], 100 * 60, (70 * 60, 100 * 60)),
    ],
)
def test_a_chart_of_an_hour_has_no_commit_of_an_hour_ago(
    seconds: list[int], end: int, expected: tuple[int, int]
) -> None:
    windows = visible({("g", "t", 0): [(1, each * 1_000) for each in seconds]})
    assert charted_span(windows, end * 1_000, 60 * MINUTE_MS) == tuple(each * 1_000 for each in expected)


def test_commits_count_in_the_column_that_ends_with_them() -> None:
    """Hand-worked: of 100 minutes each of the 48 columns has 125 seconds, so a commit is 0.48 a minute."""
    times = {("a", 0): [0, 1, 125_000, 125_001, 6_000_000, 6_000_001], ("c", 0): [7], ("b", 0): [7], ("c", 1): [9]}
    commits = {(group, "t", at): [(1, each) for each in found] for (group, at), found in times.items()}
    found = commit_rates(visible(commits), (0, 6_000_000))
    assert (found.total, found.missing, [line.name for line in found.series]) == (3, None, ["a", "c", "b"])
    counts = [{0: 2, 1: 1, 47: 1}, {0: 2}, {0: 1}]
    for line, count in zip(found.series, counts, strict=True):
        assert line.points == [Point(125_000 * at + 62_500, count.get(at, 0) * 0.48) for at in range(48)]
    (line,) = commit_rates(visible({("g", "t", 0): [(1, 1)]}), (0, 30 * MINUTE_MS + 1)).series
    assert line.points == [Point(MINUTE_MS * at + 30_000, int(at == 0)) for at in range(31)]


def test_visible_commits_up_to_a_time_are_the_history(tmp_path: Path) -> None:
    """R1, R11, R12: a misplaced commit counts nothing, nor one that becomes visible after a newer one."""
    home = partition_for("g", 2)
    log, astray = LogPartition(home), LogPartition(1 - home)
    for at_ms, partition, offset in ((1, 0, 5), (2, 0, 9), (3, 0, 3), (3, 1, 6), (4, 1, 4), (5, 0, 2)):
        log.commit(("g", "t", partition), offset, 7 if at_ms == 4 else None, commit_timestamp=START_MS + at_ms)
    log.end_commit(7)
    log.commit(("g", "t", 1), 8, 8, commit_timestamp=START_MS + 6)
    log.commit(("g", "t", 1), 7, commit_timestamp=START_MS + 7)
    log.end_commit(8)
    log.delete(("g", "t", 0))
    log.delete(("g", "t", 1))
    astray.commit(("g", "t", 0), 1, commit_timestamp=START_MS)
    astray.delete(("g", "t", 0))
    rows = {home: log.rows, 1 - home: astray.rows}
    times = {(at, row.record_offset): START_MS + row.record_offset for at, of_one in rows.items() for row in of_one}
    store = random_store(tmp_path / "store", rows, times, 2)
    first = [(offset, START_MS + at_ms) for offset, at_ms in ((5, 1), (9, 2), (3, 3), (2, 5))]
    second = [(offset, START_MS + at_ms) for offset, at_ms in ((6, 3), (4, 6), (7, 7))]
    rewind = Rewind(START_MS + 3, "g", "t", 0, 9, 3, None)
    found, gone_back, deletions = read_commits(store, ["g"])
    assert listed(found) == {("g", "t", 0): first, ("g", "t", 1): second}
    assert gone_back == [
        rewind,
        Rewind(START_MS + 4, "g", "t", 1, 6, 4, None),
        Rewind(START_MS + 5, "g", "t", 0, 3, 2, None),
    ]
    assert [(each.at_ms, each.partition, each.offset) for each in deletions] == [
        *((START_MS + 11, 1, 7), (START_MS + 10, 0, 2))
    ]
    found, *others = read_commits(store, ["g"], START_MS + 3)
    assert (listed(found), others) == ({("g", "t", 0): first[:3], ("g", "t", 1): second[:1]}, [[rewind], []])
    found, *_ = read_commits(store, ["g"], START_MS + 5)  # before the marker
    assert listed(found) == {("g", "t", 0): first, ("g", "t", 1): second[:1]}
    assert read_commits(store, ["other"]) == ({}, [], [])


def test_history_ends_with_what_happened_at_its_last_moment(tmp_path: Path) -> None:
    """The script of this capture deletes the offset of `g-deleted`."""
    store = str(folded_capture(tmp_path / "store", "4.2.0-classic"))
    *_, (deletion,) = read_commits(store, ["g-deleted"])
    assert deletion.at_ms is not None
    assert (deletion.topic, deletion.offset) == ("t1", 13)
    assert read_commits(store, ["g-deleted"], deletion.at_ms)[2] == [deletion]
    assert read_commits(store, ["g-deleted"], deletion.at_ms - 1)[2] == []


def test_rates_count_each_commit_of_the_span_once(commits: Commits) -> None:
    found = commit_rates(visible(commits), SPAN_MS)
    counts = {
        f"group-{number}": sum(
            SPAN_MS[0] < at_ms <= NOW_MS
            for (group, _, _), of_one in commits.items()
            for _, at_ms in of_one
            if group == f"group-{number}"
        )
        for number in range(8)
    }
    most = sorted(counts, key=lambda group: (-counts[group], group))
    assert [line.name for line in found.series] == most
    assert found.total == 8
    for line in found.series:
        width_minutes = (line.points[1].at_ms - line.points[0].at_ms) / MINUTE_MS
        assert width_minutes == 30
        assert sum(point.value or 0 for point in line.points) * width_minutes == pytest.approx(counts[line.name])


def test_rates_of_a_short_span_are_of_whole_minutes() -> None:
    found = commit_rates(visible({("g", "t", 0): [(1, NOW_MS - 30_000), (2, NOW_MS)]}), (NOW_MS - MINUTE_MS, NOW_MS))
    (line,) = found.series
    assert [point.value for point in line.points] == [2]


def test_rewinds_are_those_of_the_span_the_latest_first() -> None:
    found = [Rewind(NOW_MS - hours * HOUR_MS, "g", "t", hours % 3, 9, 5, None) for hours in (23, 25, 1, -1, 24, 0)]
    shown = rewinds(found, SPAN_MS)
    assert [each.at_ms for each in shown.rows] == [NOW_MS - hours * HOUR_MS for hours in (0, 1, 23, 24)]
    at_once = [Rewind(NOW_MS, *where, 9, 5) for where in (("g", "s", 1), ("g", "t", 0), ("g", "t", 2), ("h", "a", 0))]
    assert rewinds(reversed(at_once), SPAN_MS).rows == at_once
    assert (shown.total, shown.missing) == (4, None)


def test_lag_at_each_time_is_the_log_end_between_samples_minus_the_last_commit_before(
    commits: Commits, samples: Samples
) -> None:
    found = lag_over_time(visible(commits), sampled(samples), [f"group-{number}" for number in range(8)], SPAN_MS)
    assert [line.name for line in found.series] == [f"group-{number}" for number in range(8)]
    unknown = 0
    for line in found.series:
        assert [line.points[0].at_ms, line.points[-1].at_ms] == list(SPAN_MS)
        for at_ms, value in line.points:
            lags: list[int | None] = []
            for (group, topic, partition), of_one in commits.items():
                committed = [offset for offset, committed_ms in of_one if committed_ms <= at_ms]
                if group == line.name and committed:
                    times = [each.sampled_ms for each in samples[topic, partition]]
                    ends = [each.log_end_offset for each in samples[topic, partition]]
                    end = floor(np.interp(at_ms, times, ends) + 0.5)
                    lags.append(max(0, end - committed[-1]) if times[0] <= at_ms else None)
            unknown += None in lags
            assert value == (None if None in lags or not lags else sum(each or 0 for each in lags))
    assert unknown > 50  # before the first sample of the third partition


def test_a_deleted_offset_has_no_lag_until_it_is_committed_again() -> None:
    begin, end = SPAN_MS
    step = (end - begin) // 96
    commits = {
        ("g", "t", 0): [(10, begin), (40, begin + 60 * step)],
        ("g", "t", 1): [(95, begin)],
    }
    samples = {("t", at): [Sample(0, 100, begin), Sample(0, 100, end)] for at in (0, 1)}
    deletions = [Deletion(begin + 30 * step, "g", "t", 0, 10, "deleted", ""), Deletion(None, "g", "t", 1, 95, "", "")]
    (line,) = lag_over_time(visible(commits), sampled(samples), ["g"], SPAN_MS, deletions).series
    assert [point.value for point in line.points] == [95] * 30 + [5] * 30 + [65] * 37


def test_without_positions_the_lag_is_not_known(commits: Commits) -> None:
    found = lag_over_time(visible(commits), sampled({}), ["group-0"], SPAN_MS)
    assert (found.series, found.missing) == ([], "The lag in this time is not known: no positions of the topics are.")


@pytest.mark.parametrize(
    ("minutes_ago", "span_minutes"),
    [((5, 3, 1), (6, 0)), ((1_500, 90, 1), (91, 0)), ((3_000, 2_990), (3_001, 2_990)), ((), (1_440, 0))],
)
def test_charts_span_the_commits_of_at_most_a_day(minutes_ago: tuple[int, ...], span_minutes: tuple[int, int]) -> None:
    """``span_minutes``: begin and end, in minutes ago."""
    now_ms = NOW_MS // MINUTE_MS * MINUTE_MS
    windows = visible({("g", "t", at): [(at, now_ms - at * MINUTE_MS)] for at in minutes_ago})
    assert charted_span(windows, now_ms, 24 * HOUR_MS) == tuple(now_ms - at * MINUTE_MS for at in span_minutes)


def test_a_quiet_time_is_told_in_words() -> None:
    old = visible({("g", "t", 0): [(2, NOW_MS - 90 * HOUR_MS), (1, NOW_MS - 89 * HOUR_MS)]})
    assert commit_rates(old, SPAN_MS).missing == "No group committed in this time."
    assert rewinds([], SPAN_MS).missing == "No group went back in this time."
