"""`offsets status` and `check`, and the page of `report` and `serve`: what is wrong with groups. None imports Spark."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from offsets_pipeline.cli.answer_times import mirror_interval_ms, not_read, warnings_of, write_listing
from offsets_pipeline.cli.live_cluster import LiveCluster
from offsets_pipeline.cli.opened import open_reader, open_readers, retention_of
from offsets_pipeline.cli.options import LiveBrokers, ReportCoverage
from offsets_pipeline.cli.output import show_status
from offsets_pipeline.common.clock import MS_OF_HOUR, SystemClock, shown_time
from offsets_pipeline.common.foreign_errors import first_line
from offsets_pipeline.common.input_text import counted, printable
from offsets_pipeline.errors import BrokerUnreachable, NoSuchGroup, OffsetsError, TargetNotWritable
from offsets_pipeline.questions.lag.consumer_status import GroupStatus
from offsets_pipeline.questions.lag.lag_rows import StoreGroups
from offsets_pipeline.questions.query.answer_time import HELD_BACK, MIRROR_BEHIND, NOT_FOLDED, AnswerTime, answer_time
from offsets_pipeline.questions.query.group_listing import groups_with_lag, without_match
from offsets_pipeline.questions.status import OPEN_TRANSACTION, Problem, StatusLimits, problems_of, worst_first

if TYPE_CHECKING:
    from offsets_pipeline.cli.section_questions import Check, Problems, Status, WriteReport
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.questions.report.model import Report

#: The exit status of `check`, and the word before its line.
_EXIT_STATUSES = {GroupStatus.OK: 0, GroupStatus.WARN: 1, GroupStatus.ERR: 2}
#: The status of what the answers of a store lack, by reason.
_OF_DATA = {MIRROR_BEHIND: GroupStatus.ERR, NOT_FOLDED: GroupStatus.WARN, HELD_BACK: GroupStatus.WARN}
_SHOWN = 3  # problems in the line of `check`


def status(options: Status, settings: Settings) -> None:
    """Show the problems, the worst first. A table without problems is empty."""
    found, times = _found(options, settings)
    rows = [{**vars(each), "cluster": cluster} for each, cluster in found]
    if rows or options.format_ != "table":
        write_listing(
            "problems", [*Problem.__dataclass_fields__], rows, times, options.format_, absolute=options.absolute
        )


def check(options: Check, settings: Settings) -> int:
    """Show one line with the worst problems; returns 0, 1 for warnings, or 2 for errors, which include unread data."""
    try:
        found, times = _found(options, settings)
    except OffsetsError as error:
        worst, text = GroupStatus.ERR, first_line(error)
    else:
        worst = found[0][0].status if found else GroupStatus.OK
        counts = Counter(each.status for each, _ in found)
        named = [f"{_name(each, cluster)} {each.problem}: {each.detail}" for each, cluster in found[:_SHOWN]]
        as_of = min((each.as_of for _, each in times if each.as_of is not None), default="-")
        numbers = f"{counted(counts[GroupStatus.ERR], 'error')}, {counted(counts[GroupStatus.WARN], 'warning')}"
        text = "; ".join([f"{numbers}, as of {as_of}", *named])
    sys.stdout.write(f"{worst}: {printable(text)}\n")
    return _EXIT_STATUSES[worst]


def _name(problem: Problem, cluster: str) -> str:
    """The group, or the cluster of a problem of all groups; a group id may be empty."""
    return cluster if problem.group is None else problem.group or "''"


def _found(options: Problems, settings: Settings) -> tuple[list[tuple[Problem, str]], list[tuple[str, AnswerTime]]]:
    """The problems, the worst first, each with its cluster, and the data time of each cluster."""
    found: list[tuple[Problem, str]] = []
    times, known = [], set[str]()
    readers = open_readers(options.stores, settings)
    for store, reader in readers.items():
        time = answer_time(reader, mirror_interval_ms(settings))
        if time.as_of is not None:
            show_status(f"{store} as of {time.as_of}")
        with LiveCluster(options.live, settings) as live:
            try:
                groups = live.groups(reader, options.groups or None)
            except BrokerUnreachable:  # a problem of `_of_groups`; topics of share groups have no names
                groups = groups_with_lag(reader, options.groups or None)
            of_groups = [*_of_groups(StoreGroups(reader, groups, time), options, settings, live)]
        if (text := not_read(reader, store, time)) is not None:
            of_groups.append(Problem(GroupStatus.ERR, MIRROR_BEHIND, since=time.as_of, detail=text))
        found += [(each, reader.cluster) for each in (*_of_data(time, store, settings, of_groups), *of_groups)]
        times.append((reader.cluster, time))
        known |= groups.keys()
    for name in without_match(options.groups, known):
        error = NoSuchGroup.of([name], ", ".join(readers))
        found.append((Problem(GroupStatus.ERR, "missing", name, detail=str(error)), ""))
    return sorted(found, key=lambda each: worst_first(each[0])), times


def _of_groups(of: StoreGroups, options: Problems, settings: Settings, live: LiveCluster) -> Iterator[Problem]:
    """The problems of groups; by the samples of the store if no broker answers, which is a problem, too."""
    limits = StatusLimits(
        options.behind_ms,
        options.recent_ms,
        options.within_hours * MS_OF_HOUR,
        settings.topic.open_transaction_warning_ms,
        retention_of(of.reader, settings, options.retention_minutes),
        settings.lag.window_commits,
    )
    warnings = list[str]()
    try:
        positions = live.positions(of, warnings.append)
    except BrokerUnreachable as error:
        yield Problem(GroupStatus.ERR, "broker away", detail=first_line(error))
        sampled = LiveCluster(LiveBrokers(bootstrap_server=None), settings)
        positions = sampled.positions(of, warnings.append)
    yield from (Problem(GroupStatus.WARN, "old positions", detail=text) for text in warnings)
    yield from problems_of(of, positions, limits, options.groups)


def _of_data(time: AnswerTime, store: str, settings: Settings, of_groups: Collection[Problem]) -> Iterator[Problem]:
    """What the answers of a store lack, but for transactions that are problems of groups.

    A mirror at work is always some seconds behind, and has open transactions.
    """
    ages_ms = {MIRROR_BEHIND: mirror_interval_ms(settings), HELD_BACK: settings.topic.open_transaction_warning_ms}
    is_of_group = any(each.problem == OPEN_TRANSACTION for each in of_groups)
    for reason, status in _OF_DATA.items():
        if reason == HELD_BACK and is_of_group:
            continue
        old = shown_time(SystemClock().now_ms() - ages_ms.get(reason, 0))
        stale = [each for each in time.stale if each.reason == reason and (each.since is None or each.since <= old)]
        since = min((each.since for each in stale if each.since is not None), default=None)
        for text in warnings_of(AnswerTime(time.as_of, stale), store):
            yield Problem(status, OPEN_TRANSACTION if reason == HELD_BACK else reason, since=since, detail=text)


def collected(store: str, settings: Settings, coverage: ReportCoverage, at_ms: int | None = None) -> Report:
    """Return the report of a store, read anew, as of now or of a past time (``at_ms``)."""
    # it imports the replay, which `status` and `check` do without
    from offsets_pipeline.questions.report.collect import ReportOptions, collect_report, reported_state

    reader = open_reader(store, settings)
    of, inputs = reported_state(reader, mirror_interval_ms(settings), at_ms)
    warnings = warnings_of(of.time, store)
    if (text := not_read(reader, store, of.time, at_ms)) is not None:
        warnings.append(text)
    covered = ReportOptions(
        *(coverage.rows, coverage.hours, coverage.stale_hours, coverage.within_hours),
        retention_of(reader, settings, coverage.retention_minutes),
        settings.lag.window_commits,
        coverage.groups,
    )
    warnings += [f"no group {each!r} in {store}" for each in without_match(coverage.groups, of.groups)]
    with LiveCluster(coverage.positions_from, settings) as live:
        positions = live.positions(of, warnings.append)
        return collect_report(of, inputs, store, covered, positions, warnings)


def write_report(options: WriteReport, settings: Settings) -> None:
    """Replace a file with the page, atomically; - is stdout.

    Raises TargetNotWritable, NoSuchGroup for named groups that do not exist, after the page is written, and as
    `collect_report`.
    """
    from offsets_pipeline.questions.report.page import page

    report = collected(options.store, settings, options.coverage, options.at_ms)
    path, text = options.html, page(report)
    if path == Path("-"):
        sys.stdout.write(text)
    else:
        half = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            half.write_text(text, encoding="utf-8")
            half.replace(path)
        except OSError as error:
            half.unlink(missing_ok=True)
            raise TargetNotWritable(
                f"cannot write the report to {path}: {error.strerror}; name another file"
            ) from error
        sys.stdout.write(f"report of {options.store} written to {path}\n")
    if missing := without_match(options.coverage.groups, {row.group for row in report.groups.rows}):
        raise NoSuchGroup.of(missing, options.store)
