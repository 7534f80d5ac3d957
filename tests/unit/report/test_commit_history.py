"""Commit rates, rewinds and lag over time, against values counted one by one."""

from __future__ import annotations

from math import floor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from offsets_pipeline.ingest.topic_positions.position_samples import PositionSamples, Sample, rows_of
from offsets_pipeline.questions.lag.commit_windows import WindowCommit
from offsets_pipeline.questions.lag.position_sources import SampledPositions
from offsets_pipeline.questions.report.commit_history import (
    charted_span,
    commit_rates,
    lag_over_time,
    read_commits,
    rewinds,
)
from offsets_pipeline.questions.report.model import Rewind
from tests.folded_stores import folded_capture
from tests.unit.report.reports import HOUR_MS, MINUTE_MS, NOW_MS

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping
    from pathlib import Path

    from offsets_pipeline.questions.lag.commit_windows import Identity

SPAN_MS = (NOW_MS - 24 * HOUR_MS, NOW_MS)
Samples = dict[tuple[str, int], list[Sample]]


@pytest.fixture
def windows(chance: random.Random) -> dict[Identity, list[WindowCommit]]:
    """Eight groups that commit at random times of two days, some offsets only of half a day, and sometimes go back."""
    found: dict[Identity, list[WindowCommit]] = {}
    for number in range(8):
        for partition in range(number % 3 + 1):
            offset, at_ms, commits = 0, NOW_MS - (12 if partition == number else 48) * HOUR_MS, []
            while at_ms < NOW_MS:
                offset = max(0, offset + (chance.randrange(100) if chance.random() < 0.9 else -chance.randrange(500)))
                commits.append(WindowCommit(offset, at_ms))
                at_ms += chance.randrange(1, (number + 1) * 20 * MINUTE_MS)
            found[f"group-{number}", "t", partition] = commits
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


def sampled(samples: Samples) -> SampledPositions:
    rows = rows_of([(place, each) for place, of_place in samples.items() for each in of_place], "a test")
    return SampledPositions(PositionSamples(rows), NOW_MS)


def test_a_commit_at_the_data_time_is_in_the_charts() -> None:
    """Hand-worked: the first chart begins with the minute before the only commit; without one it is the whole span."""
    end_ms = 100 * MINUTE_MS
    assert charted_span({("g", "t", 0): [WindowCommit(1, end_ms)]}, end_ms, 60 * MINUTE_MS) == (99 * MINUTE_MS, end_ms)
    assert charted_span({}, end_ms, 60 * MINUTE_MS) == (40 * MINUTE_MS, end_ms)
    after = {("g", "t", 0): [WindowCommit(1, end_ms + 1)]}
    assert charted_span(after, end_ms, 60 * MINUTE_MS) == (40 * MINUTE_MS, end_ms)


def test_history_ends_with_what_happened_at_its_last_moment(tmp_path: Path) -> None:
    """The script of this capture deletes the offset of `g-deleted`."""
    store = str(folded_capture(tmp_path / "store", "4.2.0-classic"))
    (deletion,) = read_commits(store, ["g-deleted"]).deletions
    assert deletion.at_ms is not None
    assert (deletion.topic, deletion.offset) == ("t1", 13)
    assert read_commits(store, ["g-deleted"], deletion.at_ms).deletions == [deletion]
    assert read_commits(store, ["g-deleted"], deletion.at_ms - 1).deletions == []


def test_rates_count_each_commit_of_the_span_once(windows: Mapping[Identity, list[WindowCommit]]) -> None:
    found = commit_rates(windows, SPAN_MS)
    counts = {
        f"group-{number}": sum(
            SPAN_MS[0] < commit.committed_ms <= NOW_MS
            for (group, _, _), commits in windows.items()
            for commit in commits
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
    found = commit_rates(
        {("g", "t", 0): [WindowCommit(1, NOW_MS - 30_000), WindowCommit(2, NOW_MS)]}, (NOW_MS - MINUTE_MS, NOW_MS)
    )
    (line,) = found.series
    assert [point.value for point in line.points] == [2]


def test_rewinds_are_those_of_the_span_the_latest_first() -> None:
    found = [Rewind(NOW_MS - hours * HOUR_MS, "g", "t", hours % 3, 9, 5, None) for hours in (23, 25, 1, -1, 24, 0)]
    shown = rewinds(found, SPAN_MS)
    assert [each.at_ms for each in shown.rows] == [NOW_MS - hours * HOUR_MS for hours in (0, 1, 23, 24)]
    assert (shown.total, shown.missing) == (4, None)


def test_lag_at_each_time_is_the_log_end_between_samples_minus_the_last_commit_before(
    windows: Mapping[Identity, list[WindowCommit]], samples: Samples
) -> None:
    found = lag_over_time(windows, sampled(samples), [f"group-{number}" for number in range(8)], SPAN_MS)
    assert [line.name for line in found.series] == [f"group-{number}" for number in range(8)]
    unknown = 0
    for line in found.series:
        assert [line.points[0].at_ms, line.points[-1].at_ms] == list(SPAN_MS)
        for at_ms, value in line.points:
            lags: list[int | None] = []
            for (group, topic, partition), commits in windows.items():
                committed = [commit.offset for commit in commits if commit.committed_ms <= at_ms]
                if group == line.name and committed:
                    times = [each.sampled_ms for each in samples[topic, partition]]
                    ends = [each.log_end_offset for each in samples[topic, partition]]
                    end = floor(np.interp(at_ms, times, ends) + 0.5)
                    lags.append(max(0, end - committed[-1]) if times[0] <= at_ms else None)
            unknown += None in lags
            assert value == (None if None in lags or not lags else sum(each or 0 for each in lags))
    assert unknown > 50  # before the first sample of the third partition


def test_without_positions_the_lag_is_not_known(windows: Mapping[Identity, list[WindowCommit]]) -> None:
    found = lag_over_time(windows, sampled({}), ["group-0"], SPAN_MS)
    assert (found.series, found.missing) == ([], "The lag in this time is not known: no positions of the topics are.")


@pytest.mark.parametrize(
    ("minutes_ago", "span_minutes"),
    [((5, 3, 1), (6, 0)), ((1_500, 90, 1), (91, 0)), ((3_000, 2_990), (3_001, 2_990)), ((), (1_440, 0))],
)
def test_charts_span_the_commits_of_at_most_a_day(minutes_ago: tuple[int, ...], span_minutes: tuple[int, int]) -> None:
    """``span_minutes``: begin and end, in minutes ago."""
    now_ms = NOW_MS // MINUTE_MS * MINUTE_MS
    windows = {("g", "t", at): [WindowCommit(at, now_ms - at * MINUTE_MS)] for at in minutes_ago}
    assert charted_span(windows, now_ms, 24 * HOUR_MS) == tuple(now_ms - at * MINUTE_MS for at in span_minutes)


def test_a_quiet_time_is_told_in_words() -> None:
    old = {("g", "t", 0): [WindowCommit(2, NOW_MS - 90 * HOUR_MS), WindowCommit(1, NOW_MS - 89 * HOUR_MS)]}
    assert commit_rates(old, SPAN_MS).missing == "No group committed in this time."
    assert rewinds([], SPAN_MS).missing == "No group went back in this time."
