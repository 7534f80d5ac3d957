"""Commit rates, rewinds and lag over time, from the commits in the log."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict, deque
from itertools import accumulate, pairwise
from math import floor, isnan
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.questions.history.history_schemas import DELETED_OFFSETS, OFFSET_HISTORY
from offsets_pipeline.questions.history.history_tables import read_views
from offsets_pipeline.questions.history.partition_owners import UNKNOWN
from offsets_pipeline.questions.lag.commit_windows import WindowCommit
from offsets_pipeline.questions.lag.position_sources import Places
from offsets_pipeline.questions.report.model import (
    Deletion,
    GroupLines,
    Point,
    Rewind,
    Rewinds,
    TimeSeries,
)
from offsets_pipeline.semantics.effects import in_milliseconds

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from offsets_pipeline.questions.lag.commit_windows import Identity
    from offsets_pipeline.questions.lag.position_sources import Place, PositionSource

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


class CommitHistory(NamedTuple):
    """The newest visible commits, the members that made rewinds, where known, and the deletions, the latest first."""

    windows: Windows
    makers: Makers
    deletions: list[Deletion]


def read_commits(location: str, groups: Collection[str], until_ms: int | None = None) -> CommitHistory:
    """Return the history of these groups, up to a time (``until_ms``). Raises as `LogHistory`."""
    found = read_views(location, [OFFSET_HISTORY.name, DELETED_OFFSETS.name], group_ids=groups)
    rows = found[OFFSET_HISTORY.name]
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
    held = {identity: list(commits) for identity, commits in windows.items()}
    return CommitHistory(held, makers, list(_deletions(found[DELETED_OFFSETS.name], until_ms)))


def _deletions(rows: pa.Table, until_ms: int | None) -> Iterator[Deletion]:
    names = ("deleted_timestamp", "group_id", "topic", "partition", "committed_offset", "cause", "reason")
    latest = rows.sort_by([("deleted_timestamp", "descending"), ("record_offset", "descending")])
    for row in in_milliseconds(latest.filter(pc.invert(latest["misplaced"])).select(names)).to_pylist():
        if until_ms is None or (row["deleted_timestamp"] or 0) <= until_ms:
            yield Deletion(*row.values())


def charted_span(windows: Windows, until_ms: int, longest_ms: int) -> tuple[int, int]:
    """Return the span of charts: it ends at the data time, or at the last commit if no later time has one near.

    It begins before the first commit that is at most ``longest_ms`` before its end.
    """
    times = [each.committed_ms for commits in windows.values() for each in commits if each.committed_ms <= until_ms]
    last_ms = max(times, default=until_ms)
    end_ms = until_ms if last_ms > until_ms - longest_ms else last_ms
    first_ms = min((at_ms for at_ms in times if at_ms > end_ms - longest_ms), default=end_ms - longest_ms)
    return max(end_ms - longest_ms, (first_ms - 1) // _MS_PER_MINUTE * _MS_PER_MINUTE), end_ms


def commit_rates(windows: Windows, span_ms: tuple[int, int]) -> GroupLines:
    """Return committed offsets a minute over a span; the groups that commit most in it come first."""
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
        for group in most
    ]
    return GroupLines(len(most), None if series else "No group committed in this time.", series)


def rewinds(windows: Windows, span_ms: tuple[int, int], makers: Makers = _NO_MAKERS) -> Rewinds:
    """Return the commits of a span that are lower than the commit before, the latest first."""
    found = [
        Rewind(after.committed_ms, *identity, before.offset, after.offset, makers.get((identity, after)))
        for identity, commits in windows.items()
        for before, after in pairwise(commits)
        if after.offset < before.offset and span_ms[0] <= after.committed_ms <= span_ms[1]
    ]
    found.sort(key=lambda each: (-each.at_ms, each.group, each.topic, each.partition))
    return Rewinds(len(found), None if found else "No group went back in this time.", found)


def lag_over_time(
    windows: Windows, positions: PositionSource, groups: Iterable[str], span_ms: tuple[int, int]
) -> GroupLines:
    """Return the lag of these groups at even times of a span.

    The lag of a group at a time sums the lag of its partitions with a commit before. It is not known if the log end of
    one of them at that time is not.
    """
    of_groups: dict[str, list[tuple[Place, Sequence[WindowCommit]]]] = defaultdict(list)
    for (group, topic, partition), commits in windows.items():
        of_groups[group].append(((topic, partition), commits))
    chosen = list(groups)
    from_ms, until_ms = span_ms
    times = [from_ms + (until_ms - from_ms) * number // _POINTS for number in range(_POINTS + 1)]
    places = sorted({place for group in chosen for place, _ in of_groups[group]})
    place_of = np.repeat(np.arange(len(places)), len(times))
    found = positions.ends_at(Places(places, place_of, np.tile(np.array(times, dtype=np.int64), len(places))))
    ends = {place: row.tolist() for place, row in zip(places, found.reshape(len(places), len(times)), strict=True)}
    series = []
    for group in chosen:
        lags: list[float | None] = [0.0] * len(times)
        committed = [False] * len(times)
        for place, commits in of_groups[group]:
            commit_times = list(accumulate((commit.committed_ms for commit in commits), max))
            for number, at in enumerate(times):
                before = bisect_right(commit_times, at)
                if not before:
                    continue
                committed[number] = True
                end, lag = ends[place][number], lags[number]
                known = not isnan(end) and lag is not None
                lags[number] = lag + max(0, floor(end + _HALF) - commits[before - 1].offset) if known else None
        points = [
            Point(at, lag if has_commit else None) for at, lag, has_commit in zip(times, lags, committed, strict=True)
        ]
        if any(point.value is not None for point in points):
            series.append(TimeSeries(group, points))
    return GroupLines(
        len(series), None if series else "The lag in this time is not known: no positions of the topics are.", series
    )
