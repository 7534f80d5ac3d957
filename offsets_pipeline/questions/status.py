"""What is wrong with the groups of a store, the worst first. A group that is well has no problem.

The answers are those of `lag`, `history`, `why` and `expire-offsets --dry-run`. History is read for those groups alone
that lost an offset, or changed their members, in the recent part of the log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from offsets_pipeline.common.clock import MS_OF_SECOND, ms_of, parse_time_ms, shown_time
from offsets_pipeline.common.input_text import counted, first_ones
from offsets_pipeline.kafka.record.corrupt import CorruptRecord, UnknownRecordType
from offsets_pipeline.kafka.record.decode import decode_key
from offsets_pipeline.questions.history.history_schemas import DELETED_OFFSETS, GROUP_HISTORY
from offsets_pipeline.questions.lag.consumer_status import LATE_SECONDS, GroupStatus, PartitionStatus
from offsets_pipeline.questions.lag.lag_rows import LagRow, StoreGroups, group_lags, has_age, lag_of_groups
from offsets_pipeline.questions.lag.position_sources import Method
from offsets_pipeline.questions.query.group_listing import matching
from offsets_pipeline.questions.query.retention_forecast import next_expiries
from offsets_pipeline.semantics.effects import in_milliseconds
from offsets_pipeline.semantics.retention import MS_PER_MINUTE, Retention

if TYPE_CHECKING:
    from offsets_pipeline.questions.lag.commit_windows import Identity
    from offsets_pipeline.questions.lag.position_sources import SampledPositions
    from offsets_pipeline.questions.query.describe import GroupAnswer
    from offsets_pipeline.questions.query.state_reader import StateReader

#: Statuses of partitions from the worst on, with the problem of a group that has such a partition.
_OF_STATUS = {
    PartitionStatus.STOP: "stopped",
    PartitionStatus.STALL: "stalled",
    PartitionStatus.REWIND: "rewound",
    PartitionStatus.WARN: "slow",
}
OPEN_TRANSACTION = "open transaction"
_SHRINKING, _GROWING = "shrinking", "growing"
_STEADY = 1 / 60  # records a second: slower changes are neither growing nor shrinking
_LOOP_MS, _LOOP_REBALANCES = 600_000, 10
_SHOWN = 3  # names in a detail


@dataclass(frozen=True)
class Problem:
    """A problem of a group, or of all groups (None).

    ``status`` is ERR or WARN. ``since`` is the time at which it began, ``until`` that at which the group will have
    caught up at the present rate, or at which the first offset expires. Times are in ISO 8601. ``trend`` is growing,
    shrinking or steady.
    """

    status: GroupStatus
    problem: str
    group: str | None = None
    since: str | None = None
    until: str | None = None
    lag: int | None = None
    lag_seconds: float | None = None
    trend: str | None = None
    detail: str = ""


@dataclass(frozen=True)
class StatusLimits:
    """What counts as a problem: times in milliseconds.

    A group is behind if its first unread record is older than ``behind_ms``. Its status counts after LATE_SECONDS, or
    after ``behind_ms`` if that is shorter. Deletions, and members that left, count for ``recent_ms``, expiries
    ``expiry_ms`` before. A transaction is a problem if it is open for ``transaction_ms``.
    """

    behind_ms: int
    recent_ms: int
    expiry_ms: int
    transaction_ms: int
    retention: Retention
    window_commits: int


def problems_of(
    of: StoreGroups, positions: SampledPositions, limits: StatusLimits, patterns: Sequence[str] = ()
) -> list[Problem]:
    """Return the problems of groups of a store, in no order. Raises as `StateReader` and `LogHistory`.

    ``patterns`` are names of groups: those that are gone are looked up by them; none: all.
    """
    reader, groups, time, _ = of
    rates: dict[Identity, float] = {}
    rows = lag_of_groups(of, positions, limits.window_commits, rates=rates)
    behind = _behind(groups, rows, rates, limits.behind_ms)
    if not reader.properties.topic_kind.has_groups:  # share groups: the log tells nothing else about them
        return [*behind]
    data_ms = positions.at_ms if time.as_of is None else parse_time_ms(time.as_of)
    return [
        *behind,
        *_events(reader, groups, data_ms, limits, patterns),
        *_expiring(reader, groups, positions.at_ms + limits.expiry_ms, limits.retention),
        *_open_transactions(reader, groups, positions.at_ms - limits.transaction_ms),
    ]


def worst_first(problem: Problem) -> tuple[object, ...]:
    """Sort key: errors first, of these those of the data that all answers come from.

    Then the longest lag, then the oldest problem.
    """
    return (
        problem.status != GroupStatus.ERR,
        problem.group is not None,
        -(problem.lag_seconds or 0),
        -(problem.lag or 0),
        problem.since or problem.until or "",
        problem.group or "",
    )


def _behind(
    groups: Mapping[str, GroupAnswer], rows: Iterable[LagRow], rates: Mapping[Identity, float], behind_ms: int
) -> Iterator[Problem]:
    for name, each in groupby(rows, key=attrgetter("group")):
        late = [row for row in each if row.lag]
        for found in group_lags(groups, late):
            as_of_ms = parse_time_ms(found.as_of)
            statuses = {row.status for row in late}
            worst = next((status for status in _OF_STATUS if status in statuses), None)
            limit_ms = behind_ms if worst is None else min(behind_ms, LATE_SECONDS * MS_OF_SECOND)
            seconds = max((row.lag_seconds for row in late if row.lag_seconds is not None), default=None)
            # a partition that is only a little late does not excuse one with such a status and an unknown age
            is_known = all(has_age(row) for row in late if row.status in _OF_STATUS)
            since_ms, until_ms = groups[name].last_commit_ms, None
            if (seconds or 0) * MS_OF_SECOND <= limit_ms:
                if is_known:
                    continue
                if statuses == {PartitionStatus.STOP} and since_ms is not None and as_of_ms - since_ms <= limit_ms:
                    continue  # it may be less than that behind, and has committed within that time
            if not is_known:
                seconds = found.max_lag_seconds
            places = [f"{row.topic}-{row.partition}" for row in late if worst in (None, row.status)]
            known = [rates[row[:3]] for row in late if row[:3] in rates]
            rate = sum(known) if len(known) == len(late) else None
            trend = None if rate is None else _trend(rate)
            if trend == _SHRINKING and PartitionStatus.STOP in statuses:
                trend = None  # it shrank before the last commit
            if seconds is not None:
                since_ms = as_of_ms - round(seconds * MS_OF_SECOND)
            trends = [_trend(each) for each in known]
            if trend == _SHRINKING and PartitionStatus.STALL not in statuses and _GROWING not in trends:
                # a steady partition has what is on its way
                shrinking = [row for row, each in zip(late, trends, strict=True) if each == _SHRINKING]
                seconds_left = max((-(row.lag or 0) / rates[row[:3]] for row in shrinking), default=0)
                until_ms = as_of_ms + int(seconds_left * MS_OF_SECOND)
            members = "" if found.members is None else f"; {_members(found.members)}"
            is_bound = any(row.method == Method.AT_LEAST for row in late)
            bound = "; maybe for longer: the samples begin later" if is_bound else ""
            yield Problem(
                GroupStatus.ERR if found.status == GroupStatus.ERR else GroupStatus.WARN,
                "behind" if worst is None else _OF_STATUS[worst],
                name,
                shown_time(since_ms),
                shown_time(until_ms),
                found.lag,
                seconds,
                trend,
                f"{first_ones(places, _SHOWN)}{members}{bound}",
            )


def _trend(rate: float) -> str:
    return _SHRINKING if rate < -_STEADY else _GROWING if rate > _STEADY else "steady"


def _events(
    reader: StateReader, groups: Mapping[str, GroupAnswer], data_ms: int, limits: StatusLimits, patterns: Sequence[str]
) -> Iterator[Problem]:
    """Deletions, members that left, and rebalance loops, by the history of the groups that changed."""
    since_ms = data_ms - limits.recent_ms
    changed = _changed(reader, min(since_ms, data_ms - _LOOP_MS))
    names = matching(changed, patterns) if patterns else sorted(changed)
    if not names:
        return
    from offsets_pipeline.questions.history.history_tables import read_views  # noqa: PLC0415 - it imports pandas

    views = [DELETED_OFFSETS.name, GROUP_HISTORY.name]
    found = read_views(reader, views, retention=limits.retention, group_ids=names)
    deleted, changes = (in_milliseconds(found[view]).to_pylist() for view in views)
    deletions = defaultdict(list)
    held = {(name, each.topic, each.partition) for name, group in groups.items() for each in group.offsets}
    for row in deleted:
        is_back = (row["group_id"], row["topic"], row["partition"]) in held  # restored, or committed again
        if (row["deleted_timestamp"] or 0) >= since_ms and not row["misplaced"] and not is_back:
            deletions[row["group_id"], row["cause"]].append(row)
    for (name, cause), rows in deletions.items():
        places = [f"{row['topic']}-{row['partition']}" for row in rows]
        detail = f"{first_ones(places, _SHOWN)}: {cause}: {rows[-1]['reason']}"
        since = shown_time(rows[-1]["deleted_timestamp"])
        yield Problem(GroupStatus.WARN, "deleted", name, since, detail=detail)
    of_groups = defaultdict(list)
    for row in changes:
        if row["record_timestamp"] is not None and not row["misplaced"]:
            of_groups[row["group_id"]].append(row)
    for name, rows in of_groups.items():
        members = {each.member_id for each in groups[name].members} if name in groups else set()
        yield from _left(name, [row for row in rows if row["record_timestamp"] >= since_ms], members)
        yield from _rebalance_loop(name, rows, data_ms - _LOOP_MS)


def _changed(reader: StateReader, since_ms: int) -> set[str]:
    """The groups with a tombstone or a record of the group in the log since a time."""
    keys = reader.relations.select(
        f"SELECT DISTINCT key FROM {reader.relations.log(since_ms)} WHERE control_type IS NULL "
        f"AND epoch_us(record_timestamp) >= {since_ms * 1000} AND (value IS NULL OR key >= unhex('0002'))"  # R5
    )
    found = set()
    for key in keys["key"].to_pylist():
        with suppress(CorruptRecord, UnknownRecordType):
            found.add(decode_key(key).group_id)
    return found


def _members(number: int) -> str:
    return counted(number, "member") if number else "no members"


def _left(name: str, changes: Sequence[Mapping[str, Any]], members: Collection[str]) -> Iterator[Problem]:
    """Members that left, if the group has none now, or fewer members than before these changes."""
    left = [(row["record_timestamp"], member) for row in changes for member in row["left"] if member not in members]
    if left and (
        not members or len(members) < changes[0]["member_count"] + len(changes[0]["left"]) - len(changes[0]["joined"])
    ):
        detail = f"{first_ones([member for _, member in left], _SHOWN)} left; {_members(len(members))}"
        yield Problem(GroupStatus.WARN, "left", name, shown_time(max(left)[0]), detail=detail)


def _rebalance_loop(name: str, rows: Sequence[Mapping[str, Any]], since_ms: int) -> Iterator[Problem]:
    with_epoch = [(row, epoch) for row in rows if (epoch := row["generation"] or row["group_epoch"])]
    changes = [row for row, _ in with_epoch if row["record_timestamp"] >= since_ms]
    earlier = [epoch for row, epoch in with_epoch if row["record_timestamp"] < since_ms]
    epochs = [epoch for row, epoch in with_epoch if row["record_timestamp"] >= since_ms]
    # a group that was removed counts from 1 again
    before = earlier[-1:] if changes and changes[0]["event"] != "created" else []
    rebalances = sum(one != other for one, other in pairwise([*(before or [None]), *epochs]))
    if rebalances >= _LOOP_REBALANCES:
        detail = f"{rebalances} rebalances in {_LOOP_MS // MS_PER_MINUTE} minutes"
        yield Problem(
            GroupStatus.ERR, "rebalance loop", name, shown_time(changes[0]["record_timestamp"]), detail=detail
        )


def _expiring(
    reader: StateReader, groups: Mapping[str, GroupAnswer], until_ms: int, retention: Retention
) -> Iterator[Problem]:
    for name, each in next_expiries(reader, retention.retention_ms).items():
        if name in groups and each.at_ms is not None and each.at_ms <= until_ms:
            detail = f"{each.where.topic}-{each.where.partition} first: {each.rule.value.partition(': ')[2]}"
            yield Problem(GroupStatus.WARN, "expires", name, until=shown_time(each.at_ms), detail=detail)


def _open_transactions(reader: StateReader, groups: Mapping[str, GroupAnswer], since_ms: int) -> Iterator[Problem]:
    """Groups with commits in transactions that are open since before a time."""
    pending = defaultdict(list)
    for progress in reader.current.progress.values():
        for each in progress.pending:
            at_ms = ms_of(each["commit_timestamp"])
            if each["group_id"] in groups and not each["misplaced"] and at_ms <= since_ms:
                pending[each["group_id"], each["producer_id"]].append((at_ms, f"{each['topic']}-{each['partition']}"))
    for (name, producer_id), commits in pending.items():
        at_ms, _ = min(commits)
        places = first_ones([place for _, place in commits], _SHOWN)
        detail = f"commits of producer {producer_id} have no marker: {places}"
        yield Problem(GroupStatus.WARN, OPEN_TRANSACTION, name, shown_time(at_ms), detail=detail)
