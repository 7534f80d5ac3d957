"""Lag of groups: one row for each committed offset, and for each assigned partition without one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.lag.consumer_status import WindowCommit, group_status, partition_status
from offsets_pipeline.lag.time_lag import Method, TimeLag
from offsets_pipeline.semantics.group_types import SHARE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from offsets_pipeline.lag.commit_windows import Commit, Identity
    from offsets_pipeline.lag.position_sources import Bounds, PositionSource
    from offsets_pipeline.query.describe import GroupAnswer

    Place = tuple[str, int]

_NO_COMMIT = "the group has no committed offset"
_ABOVE_END = "the committed offset is above the log end"
_NO_LAG_AT_COMMIT = "no status: the log end at the time of a commit of the window is not known"


@dataclass(frozen=True, slots=True)
class LagRow:
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


@dataclass(frozen=True, slots=True)
class GroupLag:
    """Lag of a group: sum and maximum over its partitions; None if no partition has one."""

    group: str
    state: str
    members: int
    status: str | None
    partitions: int
    lag: int | None
    max_lag: int | None
    max_lag_seconds: float | None


class _Entry(NamedTuple):
    """A row to compute."""

    group: str
    place: Place
    offset: int | None


def topics_of(groups: Mapping[str, GroupAnswer]) -> set[str]:
    """The topics that the groups have committed offsets of, or are assigned."""
    return {entry.place[0] for entry in _entries(groups)}


def lag_rows(
    groups: Mapping[str, GroupAnswer],
    positions: PositionSource,
    last_commits: Callable[[Collection[str]], Mapping[Identity, Sequence[Commit]]] | None,
) -> list[LagRow]:
    """Return the lag of these groups, by group, topic and partition. Share groups have none.

    ``last_commits`` is asked for the groups that lag; without it no row has a status.
    """
    entries = list(_entries(groups))
    bounds = {place: positions.bounds(place) for place in {entry.place for entry in entries}}
    behind = [entry for entry in entries if _lag(entry.offset, bounds[entry.place])]
    times = positions.time_lags({(entry.place, entry.offset) for entry in behind if entry.offset is not None})
    statuses = _statuses(behind, bounds, positions, last_commits)
    rows = []
    for entry in entries:
        known = bounds[entry.place]
        lag = _lag(entry.offset, known)
        time = _time_lag(entry, lag, positions, times)
        status, no_status = statuses.get(entry, ("OK" if lag == 0 and last_commits is not None else None, None))
        available = None
        if lag is not None and entry.offset is not None and known.log_end_offset is not None:
            available = max(0, known.log_end_offset - max(entry.offset, known.log_start_offset or 0))
        above = entry.offset is not None and known.log_end_offset is not None and entry.offset > known.log_end_offset
        reasons = (
            _NO_COMMIT if entry.offset is None else None,
            known.reason,
            _ABOVE_END if above else None,
            time.reason,
            no_status,
        )
        rows.append(
            LagRow(
                entry.group,
                *entry.place,
                entry.offset,
                known.log_start_offset,
                known.log_end_offset,
                lag,
                time.seconds,
                str(time.method),
                None if status is None else str(status),
                "; ".join(dict.fromkeys(filter(None, reasons))) or None,
                available,
            )
        )
    return rows


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


def _entries(groups: Mapping[str, GroupAnswer]) -> Iterator[_Entry]:
    for name, group in sorted(groups.items()):
        for place, offset in sorted(offsets_of(group).items()):
            yield _Entry(name, place, offset)


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


def _lag(offset: int | None, known: Bounds) -> int | None:
    if offset is None or known.log_end_offset is None:
        return None
    return max(0, known.log_end_offset - offset)


def _time_lag(
    entry: _Entry, lag: int | None, positions: PositionSource, times: Mapping[tuple[Place, int], TimeLag]
) -> TimeLag:
    if lag is None or entry.offset is None:
        return TimeLag(None, Method.NONE)
    return times[entry.place, entry.offset] if lag else TimeLag(0.0, positions.method_at_end)


def _statuses(
    behind: Sequence[_Entry],
    bounds: Mapping[Place, Bounds],
    positions: PositionSource,
    last_commits: Callable[[Collection[str]], Mapping[Identity, Sequence[Commit]]] | None,
) -> dict[_Entry, tuple[str | None, str | None]]:
    """Status of each entry that lags, or None and why not."""
    if last_commits is None or not behind:
        return {}
    windows = last_commits({entry.group for entry in behind})
    ends = positions.ends_at({
        (entry.place, commit.committed_ms)
        for entry in behind
        for commit in windows.get((entry.group, *entry.place), ())
    })  # fmt: skip
    found: dict[_Entry, tuple[str | None, str | None]] = {}
    for entry in behind:
        window = [
            WindowCommit(
                commit.offset,
                commit.committed_ms,
                max(0, ends[entry.place, commit.committed_ms] - commit.offset)
                if (entry.place, commit.committed_ms) in ends
                else None,
            )
            for commit in windows.get((entry.group, *entry.place), ())
        ]
        status = partition_status(window, _lag(entry.offset, bounds[entry.place]), positions.at_ms)
        found[entry] = (status, _NO_LAG_AT_COMMIT if status is None else None)
    return found
