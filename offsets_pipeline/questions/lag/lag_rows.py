"""Lag of groups: one row for each committed offset, and for each assigned partition without one.

Commit and log end of a row are those of one time (R37): the data time of the group's log partition, or the time up to
which positions are known if that is earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from offsets_pipeline.common.clock import MS_OF_SECOND, shown_time
from offsets_pipeline.questions.lag.commit_windows import RECENT_MS, CommitsOfGroups, Identity, WindowColumns
from offsets_pipeline.questions.lag.consumer_status import (
    LATE_SECONDS,
    UNKNOWN_LAG,
    PartitionStatus,
    group_status,
    partition_statuses,
)
from offsets_pipeline.questions.lag.position_sources import UNKNOWN_END, Method, Places, TimeLag
from offsets_pipeline.questions.query.describe import GroupAnswer, OffsetAnswer, StartOffset
from offsets_pipeline.questions.query.share_partitions import share_groups_until
from offsets_pipeline.semantics.group_types import SHARE
from offsets_pipeline.semantics.topic_kind import TopicKind

if TYPE_CHECKING:
    from offsets_pipeline.kafka.record.records import Int64s
    from offsets_pipeline.questions.lag.position_sources import Place, SampledPositions
    from offsets_pipeline.questions.query.answer_time import AnswerTime
    from offsets_pipeline.questions.query.state_reader import StateReader

    #: Reads the last commits of groups up to a time in ms, or up to the end of the log (None).
    LastCommits = Callable[[Collection[str], int | None], WindowColumns]

_NO_OFFSET = -1
_NO_COMMIT = "the group has no committed offset"
_NO_START = "no start offset of the share partition is known"
_NO_COUNT = "the broker wrote no count of complete deliveries"
_ABOVE_END = "the committed offset is above the log end"
_NO_LAG_AT_COMMIT = "no status: the commits of the window, or the log end at the time of one, are not known"


class LagRow(NamedTuple):
    """Lag of a group in a partition as of a time. A value that is not known is None, and ``reason`` says why.

    It also says why ``lag_seconds`` is only a lower bound (``method`` at_least).

    ``lag`` is the log end minus the committed offset, as kafka-consumer-groups prints it, but never negative. Of a
    share group the start offset takes the place of the committed one, and records whose delivery is complete do not
    count, as kafka-share-groups prints it; there is no status.
    ``lag_available`` counts from the log start if the committed offset lies before it: the records that are left.
    ``status`` is Burrow's, `method` says how ``lag_seconds`` was found. ``as_of`` is the time of commit and log end. It
    is the earlier of ``data_time`` of the log partition and ``sampled_at``, up to which positions are known.
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
    as_of: str
    data_time: str
    sampled_at: str | None


class GroupLag(NamedTuple):
    """Lag of a group: sum and maximum over its partitions, as of a time, as in `TotalLag`.

    State and members are None for a share group: the log of its share partitions does not tell them.
    """

    group: str
    state: str | None
    members: int | None
    status: str | None
    partitions: int
    lag: int | None
    max_lag: int | None
    max_lag_seconds: float | None
    method: str
    as_of: str


class TotalLag(NamedTuple):
    """Sum and maxima of the lag of several partitions; None if no partition has one.

    ``max_lag_seconds`` is None, too, if that of a partition which is behind is unknown, and no other one is late.
    ``method`` says how it was found: at_least if that of a partition which is behind is unknown, or a lower bound.
    """

    lag: int | None
    max_lag: int | None
    max_lag_seconds: float | None
    method: str


class StoreGroups(NamedTuple):
    """Groups of a store, and their data time. ``at_ms`` is the time of a question about the past; None: now."""

    reader: StateReader
    groups: Mapping[str, GroupAnswer]
    time: AnswerTime
    at_ms: int | None = None


def topics_of(groups: Mapping[str, GroupAnswer]) -> set[str]:
    """The topics that the groups have committed offsets of, or are assigned."""
    return {place[0] for group in groups.values() for place in offsets_of(group)}


def lag_of_groups(
    of: StoreGroups,
    positions: SampledPositions,
    window_commits: int | None = None,
    rates: dict[Identity, float] | None = None,
) -> list[LagRow]:
    """Return the lag of groups by the positions of their topics: the same rows for every command, metric and report.

    ``window_commits``: evaluates statuses from so many commits of each offset; None: rows have no status. Share groups
    have none. ``rates`` as of `lag_rows`.
    """
    reader, groups = of.reader, of.groups

    def commits(group_ids: Collection[str], until_ms: int | None) -> WindowColumns:
        cut_ms = of.at_ms if until_ms is None else until_ms
        log = CommitsOfGroups(reader, group_ids, cut_ms)
        if window_commits is not None:
            return log.last(window_commits)
        newer = {
            (name, each.topic, each.partition)
            for name in group_ids
            for each in groups[name].offsets
            if cut_ms is not None and each.committed_ms is not None and each.committed_ms > cut_ms
        }
        return log.recent(newer)

    if reader.properties.topic_kind is TopicKind.SHARE_STATE:
        if (until_ms := positions.until_ms) is not None:
            since_ms = until_ms - RECENT_MS if window_commits is None else 0
            groups = share_groups_until(reader, groups, until_ms, since_ms)
        window_commits = None
    return lag_rows(groups, positions, of.time.data_ms, commits, with_status=window_commits is not None, rates=rates)


def lag_rows(
    groups: Mapping[str, GroupAnswer],
    positions: SampledPositions,
    data_ms: Mapping[int, int],
    last_commits: LastCommits,
    *,
    with_status: bool = True,
    rates: dict[Identity, float] | None = None,
) -> list[LagRow]:
    """Return the lag of these groups, by group, topic and partition.

    Args:
        groups: the groups.
        positions: positions of their topics.
        data_ms: data time by log partition (R36); the time of the question where none is given.
        last_commits: reads the log; called for groups that lag, and for those that committed after the newest sample.
        with_status: whether rows have a status.
        rates: gets the records a second by which the lag of a row has grown since the first commit of its window; no
            entry for a row without lag, without status, or if the log end at that commit is not known.
    """
    entries = _Entries(groups, data_ms, positions)
    offset, bounds = entries.offset, positions.bounds(entries.places)
    # groups have committed since: the log has the commits of that time
    windows = _read(last_commits, {entries.groups[row] for row in entries.newer}, entries.cut_ms)
    if entries.newer:
        last = dict(zip(windows.identities, windows.offset[windows.first[1:] - 1].tolist(), strict=True))
        offset[entries.newer] = [last.get(entries.identity(row), _NO_OFFSET) for row in entries.newer]
    start = bounds.log_start_offset
    # a commit at a later log end proves that the log had grown to it
    is_proven = (bounds.log_end_offset == UNKNOWN_END) & (offset == bounds.highest) & (offset != _NO_OFFSET)
    end = np.where(is_proven, offset, bounds.log_end_offset)
    has_both, has_count = (offset != _NO_OFFSET) & (end != UNKNOWN_END), entries.complete != _NO_OFFSET
    # a commit proves that the records before it were there
    end = np.where(has_both, np.maximum(end, np.minimum(offset, bounds.highest)), end)
    lag = np.where(has_both & has_count, np.maximum(end - offset - entries.complete, 0), UNKNOWN_LAG)
    behind = np.flatnonzero(lag > 0)
    at_end, no_time = TimeLag(0.0, positions.method_at_end), TimeLag(None, Method.NONE)
    time_lags = [no_time if each == UNKNOWN_LAG else at_end for each in lag.tolist()]
    for row, time_lag in zip(
        behind.tolist(),
        positions.time_lags(entries.places.take(behind), offset[behind]) if len(behind) else (),
        strict=True,
    ):
        time_lags[row] = time_lag
    statuses: list[str | None] = [None] * len(lag)
    if with_status:
        others = {entries.groups[row] for row in behind.tolist()} - {each[0] for each in windows.identities}
        windows = WindowColumns.together([windows, _read(last_commits, others, entries.cut_ms)])
        statuses = _statuses(entries, lag, behind, positions, windows, rates)
    is_above = has_both & (offset > end)
    # most rows have no reason
    reasons: list[str | None] = [each.reason for each in time_lags]
    has_no_status = {row for row in behind.tolist() if statuses[row] == PartitionStatus.UNKNOWN}
    newer = set(entries.newer)
    for row in {*np.flatnonzero(~(has_both & has_count) | is_above).tolist(), *has_no_status}:
        no_offset = _NO_START if groups[entries.groups[row]].type == SHARE else _NO_COMMIT
        if row in newer:
            no_offset = f"the commit at {entries.shown(row)} is not known: the group has committed since"
        found = (
            no_offset if offset[row] == _NO_OFFSET else None,
            None if has_count[row] or offset[row] == _NO_OFFSET else _NO_COUNT,
            bounds.reasons.get(row),
            _ABOVE_END if is_above[row] else None,
            reasons[row],
            _NO_LAG_AT_COMMIT if row in has_no_status else None,
        )
        reasons[row] = "; ".join(dict.fromkeys(filter(None, found))) or None
    return list(
        map(
            LagRow,
            entries.groups,
            *zip(*entries.places.named(), strict=True) if entries.groups else ((), ()),
            _with_none(offset, _NO_OFFSET),
            _with_none(start, UNKNOWN_END),
            _with_none(end, UNKNOWN_END),
            _with_none(lag, UNKNOWN_LAG),
            [each.seconds for each in time_lags],
            [each.method.value for each in time_lags],
            statuses,
            reasons,
            _with_none(np.where(lag == UNKNOWN_LAG, lag, np.minimum(lag, np.maximum(end - start, 0))), UNKNOWN_LAG),
            map(entries.shown, range(len(entries.groups))),
            map(cache(shown_time), entries.data_ms.tolist()),
            [shown_time(positions.until_ms)] * len(entries.groups),
        )
    )


def group_lags(groups: Mapping[str, GroupAnswer], rows: Iterable[LagRow]) -> list[GroupLag]:
    """Return the lag of each group with rows, by group."""
    by_group: dict[str, list[LagRow]] = {}
    for row in rows:
        by_group.setdefault(row.group, []).append(row)
    found = []
    for name, of_group in by_group.items():
        statuses = [row.status for row in of_group if row.status is not None]
        is_share = groups[name].type == SHARE
        found.append(
            GroupLag(
                name,
                None if is_share else groups[name].state,
                None if is_share else len(groups[name].members),
                str(group_status(statuses)) if statuses else None,
                len(of_group),
                *total_lag(of_group),
                min(row.as_of for row in of_group),
            )
        )
    return found


def total_lag(rows: Iterable[LagRow]) -> TotalLag:
    """Return the lag of these rows together."""
    lags: list[int] = []
    longest, method = None, Method.NONE.value
    is_known = True
    for row in rows:
        if row.lag is not None:
            lags.append(row.lag)
        if row.lag_seconds is not None and (longest is None or row.lag_seconds > longest):
            longest, method = row.lag_seconds, row.method
        is_known = is_known and (not row.lag or has_age(row))
    if not is_known and longest is not None:  # the partition without an age may be the worst
        longest, method = (longest, Method.AT_LEAST.value) if longest > LATE_SECONDS else (None, Method.NONE.value)
    return TotalLag(sum(lags) if lags else None, max(lags, default=None), longest, method)


def has_age(row: LagRow) -> bool:
    """Whether the lag in seconds of a row is known, and not only as a lower bound."""
    return row.lag_seconds is not None and row.method != Method.AT_LEAST


class _Entries:
    """The rows to compute, as columns: committed offsets, and assigned partitions without one.

    ``complete`` is the number of records from the offset on whose delivery is complete, in a share group alone.
    ``places`` has their partitions, each at the time of commit and log end. ``newer`` are the rows whose group has
    committed after that time. ``status_ms`` are the times at which statuses are evaluated. ``cut_ms`` is the time up to
    which commits count; None: up to the end of the log.
    """

    def __init__(
        self, groups: Mapping[str, GroupAnswer], data_ms: Mapping[int, int], positions: SampledPositions
    ) -> None:
        held = [(name, group, sorted(offsets_of(group).items())) for name, group in sorted(groups.items())]
        self.groups = [name for name, _, offsets in held for _ in offsets]
        rows = [each for *_, offsets in held for each in offsets]
        index: dict[Place, int] = {}
        at = [index.setdefault(place, len(index)) for place, _ in rows]
        times = [min(positions.at_ms, data_ms.get(group.log_partition, positions.at_ms)) for _, group, _ in held]
        self.data_ms = np.repeat(np.array(times, dtype=np.int64), [len(offsets) for *_, offsets in held])
        self.complete = np.zeros(len(rows), dtype=np.int64)
        for row, (_, start) in enumerate(rows):
            if isinstance(start, StartOffset):  # a group may have them in several log partitions
                self.data_ms[row] = min(positions.at_ms, data_ms.get(start.log_partition, positions.at_ms))
                count = start.delivery_complete_count
                self.complete[row] = _NO_OFFSET if count is None else count
        until_ms = positions.until_ms
        at_ms = self.data_ms if until_ms is None else np.minimum(self.data_ms, until_ms)
        self.places = Places(list(index), np.array(at, dtype=np.int64), at_ms)
        self.offset = np.array([_NO_OFFSET if commit is None else commit.offset for _, commit in rows], dtype=np.int64)
        committed = np.array(
            [-1 if commit is None or commit.committed_ms is None else commit.committed_ms for _, commit in rows],
            dtype=np.int64,
        )
        is_newer = (committed > at_ms) & (at_ms < self.data_ms)
        self.newer = np.flatnonzero(is_newer).tolist()
        # without a commit since, a lag of that time is a lag at the data time, too: a log end only grows
        self.status_ms = np.where(is_newer, at_ms, self.data_ms)
        self.cut_ms = until_ms if (at_ms < self.data_ms).any() else None
        self._shown = cache(shown_time)

    def identity(self, row: int) -> tuple[str, str, int]:
        """Group, topic and partition of a row."""
        return (self.groups[row], *self.places.names[self.places.at[row]])

    def shown(self, row: int) -> str:
        """The time of a row in ISO 8601."""
        return self._shown(int(self.places.times_ms[row]))


def offsets_of(group: GroupAnswer) -> dict[Place, OffsetAnswer | None]:
    """Committed offsets, or start offsets, by partition; None for one that is assigned without a commit.

    A group that answers no committed offsets has no assigned partitions here.
    """
    held: dict[Place, OffsetAnswer | None] = {(each.topic, each.partition): each for each in group.offsets}
    for place in group.assigned if group.answers_offsets else ():
        held.setdefault(place, None)
    return held


def _read(last_commits: LastCommits, groups: Collection[str], until_ms: int | None) -> WindowColumns:
    return last_commits(groups, until_ms) if groups else WindowColumns.together([])


def _statuses(
    entries: _Entries,
    lag: Int64s,
    behind: Int64s,
    positions: SampledPositions,
    windows: WindowColumns,
    rates: dict[Identity, float] | None,
) -> list[str | None]:
    """Status of each row, by the windows of those that lag. ``rates`` as of `lag_rows`."""
    unknown = PartitionStatus.UNKNOWN.value
    statuses: list[str | None] = [PartitionStatus.OK.value if each == 0 else unknown for each in lag.tolist()]
    rows = behind.tolist()
    identities = list(map(entries.identity, rows))
    window_of = {identity: number for number, identity in enumerate(windows.identities)}
    chosen = np.array([window_of.get(each, -1) for each in identities], dtype=np.int64)
    sizes = np.where(chosen < 0, 0, np.diff(windows.first, append=0)[chosen])
    first = np.append(0, np.cumsum(sizes))
    # the index in `windows` of each commit of the chosen windows
    commit = np.repeat(windows.first[chosen] - first[:-1], sizes) + np.arange(first[-1])
    of_rows = WindowColumns(identities, first, windows.offset[commit], windows.committed_ms[commit])
    at = np.repeat(entries.places.at[behind], sizes)
    at_commits = Places(entries.places.names, at, of_rows.committed_ms)
    lags = positions.lags_at(at_commits, np.maximum(of_rows.offset, 0))
    of_behind = partition_statuses(of_rows, lags, lag[behind], entries.status_ms[behind])
    for row, status in zip(rows, of_behind, strict=True):
        statuses[row] = status
    if rates is not None:
        for row, identity, start, size in zip(rows, identities, first.tolist(), sizes.tolist(), strict=False):
            seconds = (entries.status_ms[row] - of_rows.committed_ms[start]) / MS_OF_SECOND if size else 0
            if seconds > 0 and not np.isnan(lags[start]):
                rates[identity] = float((lag[row] - lags[start]) / seconds)
    return statuses


def _with_none(values: Int64s, unknown: int) -> list[int | None]:
    return [None if each == unknown else each for each in values.tolist()]
