"""Fills the report from a store: each section by a function of its own, the charts from the commits in the log."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.common.clock import MS_OF_HOUR, parse_time_ms
from offsets_pipeline.kafka.record.records import Int64s
from offsets_pipeline.questions.history.history_schemas import DELETED_OFFSETS, OFFSET_HISTORY
from offsets_pipeline.questions.history.history_tables import read_views
from offsets_pipeline.questions.history.log_history import LogHistory
from offsets_pipeline.questions.history.observed_partition import UNKNOWN
from offsets_pipeline.questions.lag.lag_rows import LagRow, StoreGroups, group_lags, lag_of_groups
from offsets_pipeline.questions.lag.position_sources import Places
from offsets_pipeline.questions.query.answer_time import answer_time, log_answer_time
from offsets_pipeline.questions.query.as_of import state_as_of
from offsets_pipeline.questions.query.describe import GroupAnswer, describe_groups, group_answers
from offsets_pipeline.questions.query.group_listing import matching
from offsets_pipeline.questions.query.retention_forecast import inputs_of, retention_inputs
from offsets_pipeline.questions.report.model import (
    Deletion,
    Expiring,
    ExpiringGroup,
    GroupLines,
    GroupPart,
    GroupRow,
    Point,
    Report,
    ReportedGroups,
    Rewind,
    Rewinds,
    StaleGroup,
    StaleGroups,
    TimeSeries,
)
from offsets_pipeline.semantics.effects import in_milliseconds
from offsets_pipeline.semantics.retention import MS_PER_MINUTE, RetentionInputs, Rule, forecast

if TYPE_CHECKING:
    from offsets_pipeline.questions.lag.commit_windows import Identity
    from offsets_pipeline.questions.lag.position_sources import Place, SampledPositions
    from offsets_pipeline.questions.query.state_reader import StateReader
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
    from offsets_pipeline.semantics.retention import Retention
    from offsets_pipeline.store.store_snapshot import LogIncarnation, StoreSnapshot

    Windows = Mapping[Identity, "VisibleCommits"]

_IDENTITY = ["group_id", "topic", "partition"]
_EXPIRY_COLUMNS = 24
_RATE_COLUMNS = 48
_LAG_POINTS = 96
_NEVER_MS = -(2**63)
_NO_TIMES = np.zeros(0, dtype=np.int64)
_ROWS_OF_PART = 10
_WORST = ("ERR", "WARN")
_NO_POSITIONS = "The lag is not known: no positions of the topics are."


@dataclass(frozen=True)
class ReportOptions:
    """What the report covers.

    ``rows`` limits each table but that of groups, and the number of groups with a part. The charts cover at most
    ``hours``. A group is stale after ``stale_hours`` without a commit. Offsets that expire within ``expiry_hours`` are
    shown, by ``retention``, which also decides causes of deletions. The status of a partition is evaluated from its
    last ``window_commits`` commits. ``groups`` are names and patterns of groups that come before the others.
    """

    rows: int
    hours: int
    stale_hours: int
    expiry_hours: int
    retention: Retention
    window_commits: int = 10
    groups: Sequence[str] = ()


def reported_state(
    reader: StateReader, mirror_interval_ms: int, until_ms: int | None = None
) -> tuple[StoreGroups, Iterable[RetentionInputs]]:
    """Return all groups and their retention inputs, as of the end of the log or of a past time.

    ``mirror_interval_ms`` is that of `answer_time`. Raises as `StateReader` and `LogHistory`.
    """
    if until_ms is None:
        of = StoreGroups(reader, describe_groups(reader), answer_time(reader, mirror_interval_ms))
        return of, retention_inputs(reader)
    history = LogHistory(reader)
    state = state_as_of(history, time_ms=until_ms)
    groups = group_answers(state, state.topic_names, are_named=False)
    time = log_answer_time(history, mirror_interval_ms, until_ms)
    return StoreGroups(reader, groups, time, until_ms), inputs_of(state)


def collect_report(
    of: StoreGroups,
    inputs: Iterable[RetentionInputs],
    store: str,
    options: ReportOptions,
    positions: SampledPositions,
    warnings: Sequence[str] = (),
) -> Report:
    """Return the report of a store of `__consumer_offsets`, as of the data time of its state (R36).

    ``of`` and ``inputs`` are those of `reported_state`. ``store`` is the store's path as the user wrote it. The charts
    are of the groups that have a part. ``warnings`` are shown on the page. Raises as `StateReader`.
    """
    reader, groups, time, until_ms = of
    now_ms = positions.at_ms if time.as_of is None else min(parse_time_ms(time.as_of), positions.at_ms)
    rows = group_rows(groups, lag_of_groups(of, positions, options.window_commits))
    last_commits = {name: at_ms for name, group in groups.items() if (at_ms := group.last_commit_ms) is not None}
    chosen = set(matching(groups, options.groups))
    rows.sort(key=lambda row: row.group not in chosen)
    shown = [row.group for row in rows[: options.rows]]
    windows, went_back, deletions = read_commits(reader, shown, until_ms, options.retention)
    span_ms = charted_span(windows, now_ms, options.hours * MS_OF_HOUR)
    with_offsets = (name for name in shown if groups[name].offsets)
    gone = [*deletions, *_lost(windows, groups, deletions, reader.current_log)]
    lags = lag_over_time(windows, positions, with_offsets, span_ms, gone)
    rates = commit_rates(windows, span_ms)
    gone_back = rewinds(went_back, span_ms)
    expiring = expiring_offsets(inputs, reader.coordinator_semantics, positions.at_ms, options)

    def part(group: str) -> GroupPart:
        return GroupPart(
            group,
            groups[group].members,
            next((line for line in lags.series if line.name == group), None),
            next((line for line in rates.series if line.name == group), None),
            [each for each in gone_back.rows if each.group == group][:_ROWS_OF_PART],
            [each for each in deletions if each.group == group][:_ROWS_OF_PART],
            [each for each in expiring.rows if each.group == group],
        )

    return Report(
        store=store,
        kind=reader.properties.kind,
        made_ms=positions.at_ms,
        sampled_ms=positions.until_ms,
        last_commit_ms=max(last_commits.values(), default=None),
        from_ms=span_ms[0],
        until_ms=span_ms[1],
        as_of_ms=now_ms,
        states=dict(Counter(group.state for group in groups.values()).most_common()),
        offsets=sum(len(group.offsets) for group in groups.values()),
        warnings=list(warnings),
        groups=ReportedGroups(
            total=len(groups),
            missing=None if any(row.lag is not None for row in rows) else _NO_POSITIONS,
            rows=rows,
            parts=list(map(part, shown)),
        ),
        lag_over_time=lags,
        commit_rates=rates,
        rewinds=replace(gone_back, rows=gone_back.rows[: options.rows]),
        stale=stale_groups(groups, last_commits, now_ms, options),
        expiring=replace(expiring, rows=expiring.rows[: options.rows]),
    )


def _lost(
    windows: Windows, groups: Mapping[str, GroupAnswer], deletions: Iterable[Deletion], log: LogIncarnation
) -> Iterator[Deletion]:
    """Yield an end of each offset that the groups do not have although nothing deleted it: an incarnation has lost it.

    That is when the first reading of this incarnation of the log began, or the last commit if that is not known.
    """
    held = {(name, each.topic, each.partition) for name, group in groups.items() for each in group.offsets}
    deleted_ms = {(each.group, each.topic, each.partition): each.at_ms or 0 for each in reversed([*deletions])}
    since_ms = min(log.complete_since_us.values(), default=0) // 1_000
    for identity in windows.keys() - held:
        last_ms = int(windows[identity].visible_ms.max())
        if deleted_ms.get(identity, 0) < last_ms:
            yield Deletion(max(since_ms, last_ms), *identity, int(windows[identity].offset[-1]), "", "")


def group_rows(groups: Mapping[str, GroupAnswer], rows: Sequence[LagRow]) -> list[GroupRow]:
    """Return a row for each group, the worst first. ``rows`` have the lag of the groups."""
    lags = {each.group: each for each in group_lags(groups, rows)}
    committed = {(name, each.topic, each.partition) for name, group in groups.items() for each in group.offsets}
    unknown: dict[str, list[LagRow]] = defaultdict(list)
    for row in rows:
        if row.lag is None and (row.group, row.topic, row.partition) in committed:
            unknown[row.group].append(row)
    found = [
        GroupRow(
            group=name,
            state=group.state,
            type=group.type,
            members=len(group.members),
            offsets=len(group.offsets),
            last_commit_ms=group.last_commit_ms,
            lag=lags[name].lag if name in lags else None,
            lag_seconds=lags[name].max_lag_seconds if name in lags else None,
            status=lags[name].status if name in lags else None,
            lag_as_of=lags[name].as_of if name in lags else None,
            lag_method=lags[name].method if name in lags else None,
            lag_unknown=len(unknown[name]),
            lag_reason=next((row.reason for row in unknown[name]), None),
        )
        for name, group in groups.items()
    ]
    return sorted(found, key=_urgency)


def _urgency(row: GroupRow) -> tuple[object, ...]:
    rank = _WORST.index(row.status) if row.status in _WORST else len(_WORST)
    return rank, -(row.lag_seconds or 0), -(row.lag or 0), -(row.last_commit_ms or 0), row.group


def stale_groups(
    groups: Mapping[str, GroupAnswer], last_commits: Mapping[str, int], now_ms: int, options: ReportOptions
) -> StaleGroups:
    """Return the groups with offsets and without a recent commit."""
    after_ms = options.stale_hours * MS_OF_HOUR
    found = [
        StaleGroup(name, group.state, len(group.offsets), last_commits[name], now_ms - last_commits[name])
        for name, group in groups.items()
        if name in last_commits and now_ms - last_commits[name] >= after_ms
    ]
    found.sort(key=lambda row: (row.last_commit_ms, row.group))
    return StaleGroups(total=len(found), after_ms=after_ms, rows=found[: options.rows])


def expiring_offsets(
    inputs: Iterable[RetentionInputs], semantics: CoordinatorSemantics, now_ms: int, options: ReportOptions
) -> Expiring:
    """Return the offsets that expire soon if no record follows, by group and rule (R18-R20)."""
    within_ms = options.expiry_hours * MS_OF_HOUR
    by_group: dict[tuple[str, Rule], list[int]] = defaultdict(list)
    for held in inputs:
        for each in forecast(held, options.retention.retention_ms, semantics).expiries:
            if each.at_ms is not None and each.is_over(now_ms + within_ms):
                by_group[each.group_id, each.rule].append(each.at_ms)
    found = [_expiring(group, rule, times) for (group, rule), times in by_group.items()]
    found.sort(key=lambda row: (row.held, row.first_ms, row.group))
    times = [at_ms for (_, rule), times in by_group.items() for at_ms in times if rule.lets_expire]
    return Expiring(
        total=len(found),
        within_ms=within_ms,
        rows=found,
        by_time=_by_time(times, now_ms, within_ms),
    )


def _expiring(group: str, rule: Rule, times: Sequence[int]) -> ExpiringGroup:
    number, _, reason = rule.value.partition(": ")
    return ExpiringGroup(group, len(times), min(times), max(times), number, reason, held=not rule.lets_expire)


def _by_time(times: Sequence[int], from_ms: int, span_ms: int) -> TimeSeries:
    """Count times in equal parts of a span; earlier ones count in the first part."""
    width_ms = max(1, span_ms // _EXPIRY_COLUMNS)
    counts = Counter(min(_EXPIRY_COLUMNS - 1, max(0, at - from_ms) // width_ms) for at in times)
    return TimeSeries("offsets that expire", [Point(from_ms + n * width_ms, counts[n]) for n in range(_EXPIRY_COLUMNS)])


# --- commits in the log: rates, rewinds, lag over time


class VisibleCommits(NamedTuple):
    """The visible commits of an offset, in the order of the log: the offsets, and since when each is visible, in ms.

    That is the time of the commit, or of the marker that committed its transaction (R11).
    """

    offset: Int64s
    visible_ms: Int64s


def read_commits(
    store: str | StoreSnapshot,
    groups: Collection[str],
    until_ms: int | None = None,
    retention: Retention | None = None,
) -> tuple[Windows, list[Rewind], list[Deletion]]:
    """Return the visible commits of each offset of these groups, their rewinds, and deletions, latest first.

    ``until_ms``: up to this time. ``retention``: as of `read_views`. Raises as `LogHistory`.
    """
    found = read_views(store, [OFFSET_HISTORY.name, DELETED_OFFSETS.name], retention=retention, group_ids=groups)
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
    lists = [("committed_offset", "list"), ("visible_ms", "list")]
    found = rows.group_by(_IDENTITY, use_threads=False).aggregate(lists)
    commits = (map(_numbers, found[f"{name}_list"]) for name, _ in lists)
    return dict(zip(_tuples(found, *_IDENTITY), map(VisibleCommits, *commits), strict=True))


def _numbers(values: pa.ListScalar) -> Int64s:
    return np.asarray(values.values.to_numpy(), dtype=np.int64)


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
    width_ms = max(MS_PER_MINUTE, -(-(until_ms - from_ms) // _RATE_COLUMNS))
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
    times = np.array([from_ms + (until_ms - from_ms) * number // _LAG_POINTS for number in range(_LAG_POINTS + 1)])
    held = [(group, place, commits) for group in chosen for place, commits in of_groups[group]]
    offsets = np.zeros((len(held), len(times)), dtype=np.int64)
    is_held = np.zeros(offsets.shape, dtype=np.bool_)
    for row, (group, place, commits) in enumerate(held):
        visible_ms = np.maximum.accumulate(commits.visible_ms)
        before = np.searchsorted(visible_ms, times, side="right")
        deleted_ms = np.array([_NEVER_MS, *sorted(deleted[group, *place])])
        last_deleted_ms = deleted_ms[np.searchsorted(deleted_ms, times, side="right") - 1]
        is_held[row] = (before > 0) & (visible_ms[before - 1] > last_deleted_ms)
        offsets[row] = commits.offset[before - 1]
    rows, columns = np.nonzero(is_held)
    lags = np.zeros(offsets.shape)
    places = Places([place for _, place, _ in held], rows, times[columns])
    lags[is_held] = np.floor(positions.lags_at(places, offsets[is_held]) + 0.5)
    series = []
    for group in chosen:
        of_group = [row for row, each in enumerate(held) if each[0] == group]
        values = np.where(is_held[of_group].any(axis=0), lags[of_group].sum(axis=0), np.nan).tolist()
        points = [Point(at, None if isnan(value) else value) for at, value in zip(times.tolist(), values, strict=True)]
        if any(point.value is not None for point in points):
            series.append(TimeSeries(group, points))
    return GroupLines(
        len(series), None if series else "The lag in this time is not known: no positions of the topics are.", series
    )
