"""Fills the report from a store: each section by a function of its own."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from offsets_pipeline.common.clock import MS_OF_HOUR, parse_time_ms
from offsets_pipeline.questions.history.log_history import LogHistory
from offsets_pipeline.questions.lag.lag_rows import LagRow, StoreGroups, group_lags, lag_of_groups
from offsets_pipeline.questions.query.answer_time import answer_time, log_answer_time
from offsets_pipeline.questions.query.as_of import state_as_of
from offsets_pipeline.questions.query.describe import GroupAnswer, describe_groups, group_answers
from offsets_pipeline.questions.query.group_listing import matching
from offsets_pipeline.questions.query.retention_forecast import inputs_of, retention_inputs
from offsets_pipeline.questions.report.commit_history import (
    charted_span,
    commit_rates,
    lag_over_time,
    read_commits,
    rewinds,
)
from offsets_pipeline.questions.report.model import (
    Deletion,
    Expiring,
    ExpiringGroup,
    GroupPart,
    GroupRow,
    Point,
    Report,
    ReportedGroups,
    StaleGroup,
    StaleGroups,
    TimeSeries,
)
from offsets_pipeline.semantics.retention import MS_PER_MINUTE, RetentionInputs, Rule, forecast

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from offsets_pipeline.questions.lag.position_sources import SampledPositions
    from offsets_pipeline.questions.query.state_reader import StateReader
    from offsets_pipeline.questions.report.commit_history import Windows
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
    from offsets_pipeline.store.store_snapshot import LogIncarnation

_COLUMNS = 24  # of the chart of expiries
_ROWS_OF_PART = 10
_WORST = ("ERR", "WARN")
_NO_POSITIONS = "The lag is not known: no positions of the topics are."


@dataclass(frozen=True)
class ReportOptions:
    """What the report covers.

    ``rows`` limits each table but that of groups, and the number of groups with a part. The charts cover at most
    ``hours``. A group is stale after ``stale_hours`` without a commit. Offsets that expire within ``expiry_hours`` are
    shown, by a retention of ``retention_minutes``. The status of a partition is evaluated from its last
    ``window_commits`` commits. ``groups`` are names and patterns of groups that come before the others.
    """

    rows: int
    hours: int
    stale_hours: int
    expiry_hours: int
    retention_minutes: int
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
    windows, went_back, deletions = read_commits(reader, shown, until_ms)
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
    retention_ms = options.retention_minutes * MS_PER_MINUTE
    by_group: dict[tuple[str, Rule], list[int]] = defaultdict(list)
    for held in inputs:
        for each in forecast(held, retention_ms, semantics).expiries:
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
    width_ms = max(1, span_ms // _COLUMNS)
    counts = Counter(min(_COLUMNS - 1, max(0, at - from_ms) // width_ms) for at in times)
    return TimeSeries("offsets that expire", [Point(from_ms + n * width_ms, counts[n]) for n in range(_COLUMNS)])
