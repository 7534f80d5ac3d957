"""Commit rates, rewinds and lag over time, from the commits in the log."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from itertools import accumulate, pairwise
from math import floor, isnan
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.questions.history.history_schemas import OFFSET_HISTORY
from offsets_pipeline.questions.history.history_tables import read_views
from offsets_pipeline.questions.history.partition_owners import UNKNOWN
from offsets_pipeline.questions.lag.commit_windows import WindowCommit
from offsets_pipeline.questions.lag.position_sources import Places
from offsets_pipeline.questions.report.charts import MAX_SERIES
from offsets_pipeline.questions.report.model import CommitRates, LagOverTime, Point, Rewind, Rewinds, TimeSeries

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from offsets_pipeline.questions.lag.commit_windows import Identity
    from offsets_pipeline.questions.lag.position_sources import PositionSource

    Windows = Mapping[Identity, Sequence[WindowCommit]]
    #: The member that made a commit.
    Makers = Mapping[tuple[Identity, WindowCommit], str]

_NO_MAKERS: Makers = MappingProxyType({})
_US_PER_MS = 1_000
#: Commits of an offset that are read, at most: the newest.
MAX_COMMITS = 5_000
_POINTS = 96
_COLUMNS = 48
_MS_PER_MINUTE = 60_000
_HALF = 0.5


def read_commits(location: str, groups: Collection[str], until_ms: int | None = None) -> tuple[Windows, Makers]:
    """Return the newest visible commits of these groups, and the members that made their rewinds, where known.

    ``until_ms``: up to this time. Raises as `LogHistory`.
    """
    rows = read_views(location, [OFFSET_HISTORY.name], group_ids=groups)[OFFSET_HISTORY.name]
    rows = rows.filter(pc.invert(pc.or_(rows["superseded"], rows["misplaced"])))
    committed_ms = pc.divide(rows["commit_timestamp"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()), _US_PER_MS)
    if until_ms is not None:
        is_before = pc.less_equal(committed_ms, until_ms)
        rows, committed_ms = rows.filter(is_before), committed_ms.filter(is_before)
    windows: dict[Identity, deque[WindowCommit]] = {}
    makers: dict[tuple[Identity, WindowCommit], str] = {}
    names = ("group_id", "topic", "partition", "committed_offset", "is_rewind", "committed_by")
    columns = (*(rows[name].to_pylist() for name in names), committed_ms.to_pylist())
    for group, topic, partition, offset, is_rewind, member, at_ms in zip(*columns, strict=True):
        identity, commit = (group, topic, partition), WindowCommit(offset, at_ms)
        windows.setdefault(identity, deque(maxlen=MAX_COMMITS)).append(commit)
        if is_rewind and member != UNKNOWN:
            makers[identity, commit] = member
    return {identity: list(commits) for identity, commits in windows.items()}, makers


def commit_rates(windows: Windows, span_ms: tuple[int, int]) -> CommitRates:
    """Return committed offsets a minute over a span, of the groups that commit most in it."""
    from_ms, until_ms = span_ms
    width_ms = max(_MS_PER_MINUTE, -(-(until_ms - from_ms) // _COLUMNS))
    columns = max(1, -(-(until_ms - from_ms) // width_ms))
    counts: dict[str, Counter[int]] = {}
    for (group, _, _), commits in windows.items():
        for commit in commits:
            if from_ms < commit.committed_ms <= until_ms:
                column = (commit.committed_ms - from_ms - 1) // width_ms
                counts.setdefault(group, Counter())[column] += 1
    most = sorted(counts, key=lambda group: (-counts[group].total(), group))
    series = [
        TimeSeries(
            group,
            [
                Point(from_ms + column * width_ms + width_ms // 2, counts[group][column] * _MS_PER_MINUTE / width_ms)
                for column in range(columns)
            ],
        )
        for group in most[:MAX_SERIES]
    ]
    return CommitRates(len(most), None if series else "No group committed in this time.", series)


def rewinds(windows: Windows, span_ms: tuple[int, int], rows: int, makers: Makers = _NO_MAKERS) -> Rewinds:
    """Return the commits of a span that are lower than the commit before, the latest first."""
    found = [
        Rewind(after.committed_ms, *identity, before.offset, after.offset, makers.get((identity, after)))
        for identity, commits in windows.items()
        for before, after in pairwise(commits)
        if after.offset < before.offset and span_ms[0] <= after.committed_ms <= span_ms[1]
    ]
    found.sort(key=lambda each: (-each.at_ms, each.group, each.topic, each.partition))
    return Rewinds(len(found), None if found else "No group went back in this time.", found[:rows])


def lag_over_time(
    windows: Windows, positions: PositionSource, groups: Iterable[str], span_ms: tuple[int, int]
) -> LagOverTime:
    """Return the lag of these groups at even times of a span.

    The lag of a group at a time sums the lag of its partitions with a commit before. It is not known if the log end of
    one of them at that time is not.
    """
    chosen = list(groups)[:MAX_SERIES]
    from_ms, until_ms = span_ms
    times = [from_ms + (until_ms - from_ms) * number // _POINTS for number in range(_POINTS + 1)]
    places = sorted({(topic, partition) for group, topic, partition in windows if group in chosen})
    place_of = np.repeat(np.arange(len(places)), len(times))
    found = positions.ends_at(Places(places, place_of, np.tile(np.array(times, dtype=np.int64), len(places))))
    ends = {place: row.tolist() for place, row in zip(places, found.reshape(len(places), len(times)), strict=True)}
    series = []
    for group in chosen:
        lags: list[float | None] = [0.0] * len(times)
        committed = [False] * len(times)
        for (of, topic, partition), commits in windows.items():
            if of != group:
                continue
            commit_times = list(accumulate((commit.committed_ms for commit in commits), max))
            for number, at in enumerate(times):
                before = bisect_right(commit_times, at)
                if not before:
                    continue
                committed[number] = True
                end, lag = ends[topic, partition][number], lags[number]
                known = not isnan(end) and lag is not None
                lags[number] = lag + max(0, floor(end + _HALF) - commits[before - 1].offset) if known else None
        points = [
            Point(at, lag if has_commit else None) for at, lag, has_commit in zip(times, lags, committed, strict=True)
        ]
        if any(point.value is not None for point in points):
            series.append(TimeSeries(group, points))
    return LagOverTime(
        len(series), None if series else "The lag in this time is not known: no positions of the topics are.", series
    )
