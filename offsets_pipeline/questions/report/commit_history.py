"""Commit rates, rewinds and lag over time, from the commits in the log."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from math import isnan
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.kafka.record.records import Int64s
from offsets_pipeline.questions.history.history_schemas import DELETED_OFFSETS, OFFSET_HISTORY
from offsets_pipeline.questions.history.history_tables import read_views
from offsets_pipeline.questions.history.observed_partition import UNKNOWN
from offsets_pipeline.questions.lag.position_sources import Places
from offsets_pipeline.questions.report.model import (
    Deletion,
    GroupLines,
    Point,
    Rewind,
    Rewinds,
    TimeSeries,
)
from offsets_pipeline.semantics.compaction import paired
from offsets_pipeline.semantics.effects import in_milliseconds
from offsets_pipeline.semantics.log_row import codes_of
from offsets_pipeline.semantics.retention import MS_PER_MINUTE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from offsets_pipeline.questions.lag.commit_windows import Identity
    from offsets_pipeline.questions.lag.position_sources import Place, SampledPositions
    from offsets_pipeline.store.store_snapshot import StoreSnapshot

    Windows = Mapping[Identity, "VisibleCommits"]

_IDENTITY = ("group_id", "topic", "partition")
_POINTS = 96
_NEVER_MS = -(2**63)
_NO_TIMES = np.zeros(0, dtype=np.int64)
_COLUMNS = 48


class VisibleCommits(NamedTuple):
    """The visible commits of an offset, in the order of the log: the offsets, and since when each is visible, in ms.

    That is the time of the commit, or of the marker that committed its transaction (R11).
    """

    offset: Int64s
    visible_ms: Int64s


def read_commits(
    store: str | StoreSnapshot, groups: Collection[str], until_ms: int | None = None
) -> tuple[Windows, list[Rewind], list[Deletion]]:
    """Return the visible commits of each offset of these groups, their rewinds, and deletions, latest first.

    ``until_ms``: up to this time. Raises as `LogHistory`.
    """
    found = read_views(store, [OFFSET_HISTORY.name, DELETED_OFFSETS.name], group_ids=groups)
    visible = pc.invert(pc.or_(found[OFFSET_HISTORY.name]["superseded"], found[OFFSET_HISTORY.name]["misplaced"]))
    rows = in_milliseconds(found[OFFSET_HISTORY.name].filter(visible))
    of_marker = pc.if_else(rows["producer_id"].is_valid(), rows["visible_timestamp"], pa.scalar(None, pa.int64()))
    rows = rows.append_column("visible_ms", pc.coalesce(of_marker, rows["commit_timestamp"]))
    if until_ms is not None:
        rows = rows.filter(pc.less_equal(rows["visible_ms"], until_ms))
    columns = ("commit_timestamp", *_IDENTITY, "previous_offset", "committed_offset", "committed_by")
    gone_back = [
        Rewind(at_ms, group, topic, partition, before, after, None if by == UNKNOWN else by)
        for at_ms, group, topic, partition, before, after, by in _tuples(rows.filter(rows["is_rewind"]), *columns)
    ]
    deleted = found[DELETED_OFFSETS.name].filter(pc.invert(found[DELETED_OFFSETS.name]["misplaced"]))
    latest = in_milliseconds(deleted.sort_by([("deleted_timestamp", "descending"), ("record_offset", "descending")]))
    deletions = [
        Deletion(*row)
        for row in _tuples(latest, "deleted_timestamp", *_IDENTITY, "committed_offset", "cause", "reason")
        if until_ms is None or (row[0] or 0) <= until_ms
    ]
    return _windows(rows), gone_back, deletions


def _windows(rows: pa.Table) -> dict[Identity, VisibleCommits]:
    """The commits of each identity, from rows of offset_history with the column visible_ms."""
    partition, offset, visible_ms = (rows[name].to_numpy() for name in ("partition", "committed_offset", "visible_ms"))
    code = paired(paired(codes_of(rows["group_id"]), codes_of(rows["topic"])), partition)
    order = np.argsort(code, kind="stable")
    first = np.flatnonzero(np.diff(code[order], prepend=-1))
    of_each = [order[start:end] for start, end in pairwise([*first, len(order)])]
    identities = _tuples(rows.take(order[first]), *_IDENTITY)
    return {
        identity: VisibleCommits(offset[of_one], visible_ms[of_one])
        for identity, of_one in zip(identities, of_each, strict=True)
    }


def _tuples(rows: pa.Table, *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(rows[name].to_pylist() for name in names), strict=True)


def charted_span(windows: Windows, until_ms: int, longest_ms: int) -> tuple[int, int]:
    """Return the span of charts: it ends at the data time, or at the last commit if no later time has one near.

    It begins before the first commit that is at most ``longest_ms`` before its end.
    """
    times = np.concatenate([_NO_TIMES, *(each.visible_ms for each in windows.values())])
    times = times[times <= until_ms]
    last_ms = int(times.max()) if len(times) else until_ms
    end_ms = until_ms if last_ms > until_ms - longest_ms else last_ms
    times = times[times > end_ms - longest_ms]
    first_ms = int(times.min()) if len(times) else end_ms - longest_ms
    return max(end_ms - longest_ms, (first_ms - 1) // MS_PER_MINUTE * MS_PER_MINUTE), end_ms


def commit_rates(windows: Windows, span_ms: tuple[int, int]) -> GroupLines:
    """Return committed offsets a minute over a span; the groups that commit most in it come first."""
    from_ms, until_ms = span_ms
    width_ms = max(MS_PER_MINUTE, -(-(until_ms - from_ms) // _COLUMNS))
    columns = -(-(until_ms - from_ms) // width_ms)
    counts = defaultdict[str, Int64s](lambda: np.zeros(columns, dtype=np.int64))
    for (group, _, _), commits in windows.items():
        times = commits.visible_ms[(from_ms < commits.visible_ms) & (commits.visible_ms <= until_ms)]
        if len(times):
            counts[group] += np.bincount((times - from_ms - 1) // width_ms, minlength=columns)
    most = sorted(counts, key=lambda group: (-counts[group].sum(), group))
    middles = range(from_ms + width_ms // 2, from_ms + columns * width_ms, width_ms)
    series = [
        TimeSeries(group, list(map(Point, middles, (counts[group] * MS_PER_MINUTE / width_ms).tolist())))
        for group in most
    ]
    return GroupLines(len(most), None if series else "No group committed in this time.", series)


def rewinds(found: Iterable[Rewind], span_ms: tuple[int, int]) -> Rewinds:
    """Return the rewinds of a span, the latest first."""
    rows = [each for each in found if span_ms[0] <= each.at_ms <= span_ms[1]]
    rows.sort(key=lambda each: (-each.at_ms, each.group, each.topic, each.partition))
    return Rewinds(len(rows), None if rows else "No group went back in this time.", rows)


def lag_over_time(
    windows: Windows,
    positions: SampledPositions,
    groups: Iterable[str],
    span_ms: tuple[int, int],
    deletions: Iterable[Deletion] = (),
) -> GroupLines:
    """Return the lag of these groups at even times of a span.

    The lag of a group at a time sums the lag of its partitions with a commit before that was not deleted. It is not
    known if the log end of one of them at that time is not. ``deletions`` without a time count nothing.
    """
    deleted: dict[Identity, list[int]] = defaultdict(list)
    for each in deletions:
        if each.at_ms is not None:
            deleted[each.group, each.topic, each.partition].append(each.at_ms)
    of_groups: dict[str, list[tuple[Place, VisibleCommits]]] = defaultdict(list)
    for (group, topic, partition), commits in windows.items():
        of_groups[group].append(((topic, partition), commits))
    chosen = list(groups)
    from_ms, until_ms = span_ms
    times = np.array([from_ms + (until_ms - from_ms) * number // _POINTS for number in range(_POINTS + 1)])
    places = sorted({place for group in chosen for place, _ in of_groups[group]})
    place_of = np.repeat(np.arange(len(places)), len(times))
    found = positions.ends_at(Places(places, place_of, np.tile(times, len(places))))
    ends = dict(zip(places, np.floor(found + 0.5).reshape(len(places), len(times)), strict=True))
    series = []
    for group in chosen:
        lags, committed = np.zeros(len(times)), np.zeros(len(times), dtype=np.bool_)
        for place, commits in of_groups[group]:
            visible_ms = np.maximum.accumulate(commits.visible_ms)
            before = np.searchsorted(visible_ms, times, side="right")
            deleted_ms = np.array([_NEVER_MS, *sorted(deleted[group, *place])])
            last_deleted_ms = deleted_ms[np.searchsorted(deleted_ms, times, side="right") - 1]
            is_held = (before > 0) & (visible_ms[before - 1] > last_deleted_ms)
            lags += np.where(is_held, np.maximum(ends[place] - commits.offset[before - 1], 0), 0)
            committed |= is_held
        values = np.where(committed, lags, np.nan).tolist()
        points = [Point(at, None if isnan(value) else value) for at, value in zip(times.tolist(), values, strict=True)]
        if any(point.value is not None for point in points):
            series.append(TimeSeries(group, points))
    return GroupLines(
        len(series), None if series else "The lag in this time is not known: no positions of the topics are.", series
    )
