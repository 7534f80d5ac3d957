"""Fills the report from a store: each section by a function of its own."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from offsets_pipeline.clock import MS_OF_HOUR
from offsets_pipeline.query.describe import describe_groups
from offsets_pipeline.query.retention_inputs import retention_inputs
from offsets_pipeline.report.model import (
    Expiring,
    ExpiringGroup,
    GroupRow,
    Groups,
    Point,
    Report,
    Series,
    StaleGroup,
    StaleGroups,
)
from offsets_pipeline.semantics.retention import MS_PER_MINUTE, Rule, forecast
from offsets_pipeline.state.merge_on_read import OFFSETS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from offsets_pipeline.query.describe import GroupAnswer
    from offsets_pipeline.query.state_reader import StateReader
    from offsets_pipeline.semantics.retention import Expiry

_COLUMNS = 24  # of the chart of expiries
_US_OF_MS = 1_000


@dataclass(frozen=True)
class ReportOptions:
    """What the report covers.

    ``rows`` limits each table. The charts cover ``hours`` before now. A group is stale after ``stale_hours`` without a
    commit. Offsets that expire within ``expiry_hours`` are shown, by a retention of ``retention_minutes``.
    """

    rows: int
    hours: int
    stale_hours: int
    expiry_hours: int
    retention_minutes: int


def collect_report(reader: StateReader, store: str, now_ms: int, options: ReportOptions) -> Report:
    """Return the report of a store of `__consumer_offsets`, as of now.

    ``store`` is the store's path as the user wrote it. Raises StoreMismatch for a store of Kafka Connect, and as
    `StateReader`.
    """
    described = describe_groups(reader)
    last_commits = last_commits_ms(reader)
    return Report(
        store=store,
        kind=reader.properties.kind,
        made_ms=now_ms,
        last_commit_ms=max((last_commits[name] for name in described if name in last_commits), default=None),
        from_ms=now_ms - options.hours * MS_OF_HOUR,
        until_ms=now_ms,
        states=dict(Counter(group.state for group in described.values()).most_common()),
        offsets=sum(len(group.offsets) for group in described.values()),
        warnings=warnings_of(reader, store),
        groups=groups_of(described, last_commits, options.rows),
        stale=stale_groups(described, last_commits, now_ms, options),
        expiring=expiring_offsets(reader, now_ms, options),
    )


def warnings_of(reader: StateReader, store: str) -> list[str]:
    """Return what the answers lack."""
    unfolded = sum(reader.current.unfolded.values())
    if not unfolded:
        return []
    return [f"The report lacks {unfolded:,} records of {store} that are not folded yet."]


def last_commits_ms(reader: StateReader) -> dict[str, int]:
    """Return the time of the last commit of each group that is still committed, by group id."""
    rows = reader.select(
        f"SELECT group_id, max(commit_timestamp) AS last FROM ({reader.newest(OFFSETS, reader.named())}) o "
        "WHERE committed_offset >= 0 AND NOT misplaced GROUP BY group_id",
        "committed_offsets",
    )
    last_us = rows["last"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
    return {name: at // _US_OF_MS for name, at in zip(rows["group_id"].to_pylist(), last_us, strict=True)}


def groups_of(described: Mapping[str, GroupAnswer], last_commits: Mapping[str, int], rows: int) -> Groups:
    """Return the groups by lag, then by the time of their last commit."""
    found = [
        GroupRow(
            group=name,
            state=group.state,
            type=group.type,
            members=len(group.members),
            offsets=len(group.offsets),
            last_commit_ms=last_commits.get(name) if group.offsets else None,
        )
        for name, group in described.items()
    ]
    found.sort(key=lambda row: (-(row.lag or 0), -(row.last_commit_ms or 0), row.group))
    missing = "The lag is not known: the store has no positions of the topics."
    return Groups(total=len(found), missing=missing, rows=found[:rows])


def stale_groups(
    described: Mapping[str, GroupAnswer], last_commits: Mapping[str, int], now_ms: int, options: ReportOptions
) -> StaleGroups:
    """Return the groups with offsets and without a recent commit."""
    after_ms = options.stale_hours * MS_OF_HOUR
    found = [
        StaleGroup(name, group.state, len(group.offsets), last_commits[name], now_ms - last_commits[name])
        for name, group in described.items()
        if group.offsets and name in last_commits and now_ms - last_commits[name] >= after_ms
    ]
    found.sort(key=lambda row: (row.last_commit_ms, row.group))
    return StaleGroups(total=len(found), after_ms=after_ms, rows=found[: options.rows])


def expiring_offsets(reader: StateReader, now_ms: int, options: ReportOptions) -> Expiring:
    """Return the offsets that expire soon if no record follows, by group and rule (R18-R20)."""
    within_ms = options.expiry_hours * MS_OF_HOUR
    retention_ms = options.retention_minutes * MS_PER_MINUTE
    semantics = reader.coordinator_semantics
    by_group: dict[tuple[str, Rule], list[Expiry]] = defaultdict(list)
    for held in retention_inputs(reader):
        for each in forecast(held, retention_ms, semantics).expiries:
            if each.is_over(now_ms + within_ms):
                by_group[each.group_id, each.rule].append(each)
    found = [_expiring(group, rule, expiries) for (group, rule), expiries in by_group.items()]
    found.sort(key=lambda row: (row.held, row.first_ms, row.group))
    times = [
        each.at_ms
        for (_, rule), expiries in by_group.items()
        for each in expiries
        if each.at_ms is not None and rule.lets_expire
    ]
    return Expiring(
        total=len(found),
        within_ms=within_ms,
        rows=found[: options.rows],
        by_time=_by_time(times, now_ms, within_ms),
    )


def _expiring(group: str, rule: Rule, expiries: Sequence[Expiry]) -> ExpiringGroup:
    times = [each.at_ms for each in expiries if each.at_ms is not None]
    number, _, reason = rule.value.partition(": ")
    return ExpiringGroup(group, len(times), min(times), max(times), number, reason, held=not rule.lets_expire)


def _by_time(times: Sequence[int], from_ms: int, span_ms: int) -> Series:
    """Count times in equal parts of a span; earlier ones count in the first part."""
    width_ms = max(1, span_ms // _COLUMNS)
    counts = Counter(min(_COLUMNS - 1, max(0, at - from_ms) // width_ms) for at in times)
    return Series("offsets that expire", [Point(from_ms + n * width_ms, counts[n]) for n in range(_COLUMNS)])
