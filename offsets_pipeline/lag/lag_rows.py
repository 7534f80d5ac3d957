"""Lag of groups: one row for each committed offset, and for each assigned partition without one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from offsets_pipeline.lag.consumer_status import (
    UNKNOWN_LAG,
    CommitLags,
    PartitionStatus,
    group_status,
    partition_statuses,
)
from offsets_pipeline.lag.position_sources import UNKNOWN_END
from offsets_pipeline.lag.time_lag import Method, TimeLag
from offsets_pipeline.semantics.group_types import SHARE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from offsets_pipeline.lag.commit_windows import WindowColumns
    from offsets_pipeline.lag.position_sources import PositionSource
    from offsets_pipeline.query.describe import GroupAnswer
    from offsets_pipeline.record.records import Int64s

    Place = tuple[str, int]

_NO_OFFSET = -1
_NO_COMMIT = "the group has no committed offset"
_ABOVE_END = "the committed offset is above the log end"
_NO_LAG_AT_COMMIT = "no status: the log end at the time of a commit of the window is not known"


class LagRow(NamedTuple):
    """Lag of a group in a partition. A value that is not known is None, and ``reason`` says why.

    ``lag`` is the log end minus the committed offset, as kafka-consumer-groups prints it, but never negative.
    ``lag_available`` counts from the log start if the committed offset lies before it: the records that are left.
    ``status`` is Burrow's, `method` says how ``lag_seconds`` was found.
    """

    group: str
    topic: str
    partition: int
    current_offset: int | None
    log_start_offset: int | None
    log_end_offset: int | None
    lag: int | None
    lag_seconds: float | None
    method: str
    status: str | None
    reason: str | None
    lag_available: int | None


class GroupLag(NamedTuple):
    """Lag of a group: sum and maximum over its partitions; None if no partition has one."""

    group: str
    state: str
    members: int
    status: str | None
    partitions: int
    lag: int | None
    max_lag: int | None
    max_lag_seconds: float | None


def topics_of(groups: Mapping[str, GroupAnswer]) -> set[str]:
    """The topics that the groups have committed offsets of, or are assigned."""
    return {place[0] for group in groups.values() for place in offsets_of(group)}


def lag_rows(
    groups: Mapping[str, GroupAnswer],
    positions: PositionSource,
    last_commits: Callable[[Collection[str]], WindowColumns] | None,
) -> list[LagRow]:
    """Return the lag of these groups, by group, topic and partition. Share groups have none.

    ``last_commits`` is asked for the groups that lag; without it no row has a status.
    """
    entries = _Entries(groups)
    bounds = [positions.bounds(place) for place in entries.places]
    start, end = (
        np.array([UNKNOWN_END if each[column] is None else each[column] for each in bounds], dtype=np.int64)[entries.at]
        for column in (0, 1)
    )
    offset = entries.offset
    is_known = (offset != _NO_OFFSET) & (end != UNKNOWN_END)
    lag = np.where(is_known, np.maximum(end - offset, 0), UNKNOWN_LAG)
    behind = np.flatnonzero(lag > 0)
    points = list(
        zip(map(entries.places.__getitem__, entries.at[behind].tolist()), offset[behind].tolist(), strict=True)
    )
    times = positions.time_lags(dict.fromkeys(points).keys())
    at_end, no_time = TimeLag(0.0, positions.method_at_end), TimeLag(None, Method.NONE)
    time_lags = [no_time if each == UNKNOWN_LAG else at_end for each in lag.tolist()]
    for row, point in zip(behind.tolist(), points, strict=True):
        time_lags[row] = times[point]
    statuses = _statuses(entries, lag, behind, positions, last_commits)
    has_no_status = {row for row in behind.tolist() if statuses[row] is None} if last_commits is not None else set()
    is_above = is_known & (offset > end)
    # most rows have no reason
    reasons: list[str | None] = [each.reason for each in time_lags]
    for row in {*np.flatnonzero(~is_known | is_above).tolist(), *has_no_status}:
        found = (
            _NO_COMMIT if offset[row] == _NO_OFFSET else None,
            bounds[entries.at[row]].reason,
            _ABOVE_END if is_above[row] else None,
            reasons[row],
            _NO_LAG_AT_COMMIT if row in has_no_status else None,
        )
        reasons[row] = "; ".join(dict.fromkeys(filter(None, found))) or None
    return list(
        map(
            LagRow,
            entries.groups,
            *_unzipped(entries.places, entries.at),
            _with_none(offset, _NO_OFFSET),
            _with_none(start, UNKNOWN_END),
            _with_none(end, UNKNOWN_END),
            _with_none(lag, UNKNOWN_LAG),
            [each.seconds for each in time_lags],
            [each.method.value for each in time_lags],
            statuses,
            reasons,
            _with_none(np.where(is_known, np.maximum(end - np.maximum(offset, start), 0), UNKNOWN_LAG), UNKNOWN_LAG),
        )
    )


def group_lags(groups: Mapping[str, GroupAnswer], rows: Iterable[LagRow]) -> list[GroupLag]:
    """Return the lag of each group with rows, by group."""
    by_group: dict[str, list[LagRow]] = {}
    for row in rows:
        by_group.setdefault(row.group, []).append(row)
    found = []
    for name, of_group in by_group.items():
        lags = [row.lag for row in of_group if row.lag is not None]
        seconds = [row.lag_seconds for row in of_group if row.lag_seconds is not None]
        status = group_status(row.status for row in of_group)
        found.append(
            GroupLag(
                name,
                groups[name].state,
                len(groups[name].members),
                None if status is None else str(status),
                len(of_group),
                sum(lags) if lags else None,
                max(lags, default=None),
                max(seconds, default=None),
            )
        )
    return found


class _Entries:
    """The rows to compute, as columns: committed offsets, and assigned partitions without one.

    ``places`` are their different partitions, ``at`` the index of each row's partition there.
    """

    def __init__(self, groups: Mapping[str, GroupAnswer]) -> None:
        held = [(name, sorted(offsets_of(group).items())) for name, group in sorted(groups.items())]
        self.groups = [name for name, offsets in held for _ in offsets]
        rows = [each for _, offsets in held for each in offsets]
        index: dict[Place, int] = {}
        at = [index.setdefault(place, len(index)) for place, _ in rows]
        self.places = list(index)
        self.at = np.array(at, dtype=np.int64)
        self.offset = np.array([_NO_OFFSET if offset is None else offset for _, offset in rows], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.groups)


def offsets_of(group: GroupAnswer) -> dict[Place, int | None]:
    """Committed offsets by partition; None for a partition that is assigned without one. A share group has neither."""
    if group.type == SHARE:
        return {}
    held: dict[Place, int | None] = {(each.topic, each.partition): each.offset for each in group.offsets}
    for member in group.members:
        for text in member.assignment:
            topic, _, partition = text.rpartition("-")
            held.setdefault((topic, int(partition)), None)
    return held


def _statuses(
    entries: _Entries,
    lag: Int64s,
    behind: Int64s,
    positions: PositionSource,
    last_commits: Callable[[Collection[str]], WindowColumns] | None,
) -> list[str | None]:
    """Status of each row; the log is asked for those that lag."""
    if last_commits is None:
        return [None] * len(entries)
    statuses = [PartitionStatus.OK.value if each == 0 else None for each in lag.tolist()]
    rows = behind.tolist()
    if not rows:
        return statuses
    windows = last_commits({entries.groups[row] for row in rows})
    window_of = {identity: number for number, identity in enumerate(windows.identities)}
    places = [entries.places[at] for at in entries.at[behind].tolist()]
    found = [window_of.get((entries.groups[row], *place), -1) for row, place in zip(rows, places, strict=True)]
    chosen = np.array(found, dtype=np.int64)
    sizes = np.where(chosen < 0, 0, np.diff(windows.first, append=0)[chosen])
    first = np.append(0, np.cumsum(sizes))
    # the index in `windows` of each commit of the chosen windows
    commit = np.repeat(windows.first[chosen] - first[:-1], sizes) + np.arange(first[-1])
    offset, committed_ms = windows.offset[commit], windows.committed_ms[commit]
    ends = positions.ends_at(entries.places, np.repeat(entries.at[behind], sizes), committed_ms)
    lags = np.where(ends == UNKNOWN_END, UNKNOWN_LAG, np.maximum(ends - np.maximum(offset, 0), 0))
    of_behind = partition_statuses(CommitLags(first, offset, committed_ms, lags), lag[behind], positions.at_ms)
    for row, status in zip(rows, of_behind, strict=True):
        statuses[row] = status
    return statuses


def _with_none(values: Int64s, unknown: int) -> list[int | None]:
    listed: list[int | None] = values.tolist()
    for row in np.flatnonzero(values == unknown).tolist():
        listed[row] = None
    return listed


def _unzipped(places: list[Place], at: Int64s) -> tuple[list[str], list[int]]:
    """The topic and the partition of each row."""
    rows = at.tolist()
    return [places[each][0] for each in rows], [places[each][1] for each in rows]
