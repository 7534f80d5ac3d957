"""`offsets groups` and `offsets top`. Neither imports Spark."""

from __future__ import annotations

import shutil
import sys
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from offsets_pipeline.cli.answer_times import answer_time_of, time_fields, write_listing
from offsets_pipeline.cli.live_cluster import LiveCluster
from offsets_pipeline.cli.opened import open_readers
from offsets_pipeline.cli.output import shown_age
from offsets_pipeline.cli.stopping import Stopping
from offsets_pipeline.common.clock import SystemClock, shown_time
from offsets_pipeline.common.periodic import Periodic
from offsets_pipeline.ingest.topic_positions.sample_table import table_of
from offsets_pipeline.questions.lag.lag_rows import group_lags
from offsets_pipeline.questions.query.describe import describe_groups
from offsets_pipeline.questions.query.group_listing import GroupFigures, list_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from offsets_pipeline.cli.section_questions import ListedGroups, ListGroups, Top
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.questions.query.answer_time import AnswerTime
    from offsets_pipeline.questions.query.state_reader import StateReader

_COLUMNS = ("group", "type", "state", "members", "topics", "offsets", "last_commit", "lag", "lag_as_of")
_CLEAR = "\x1b[H\x1b[2J"
_HEAD_LINES = 3  # of a refresh: time, header, and the line of the shell
#: The orders of groups, by the value of `--sort`.
_SORT_KEYS: Mapping[str, Callable[[GroupFigures], Any]] = {
    "group": lambda each: (each.group, each.cluster),
    "last-commit": lambda each: (each.last_commit or "", each.group),
    "lag": lambda each: (-1 if each.lag is None else -each.lag, each.group),
    "members": lambda each: (-each.members, each.group),
    "offsets": lambda each: (-each.offsets, each.group),
}


def groups(options: ListGroups, settings: Settings) -> None:
    """List groups."""
    with LiveCluster(options.live, settings) as live:
        listed, times = _listed(options, settings, live)
    write_listing("groups", _COLUMNS, list(map(vars, listed)), times, options.format_, absolute=options.absolute)


def top(options: Top, settings: Settings) -> int:
    """List the first groups again and again; returns the exit status."""
    stopped = threading.Event()
    stopping = Stopping(stopped.set)
    with LiveCluster(options.live, settings) as live:
        listings = Periodic(
            partial(_listed, options, settings, live),
            options.every_ms,
            SystemClock().now_ms,
            may_pass=lambda _: False,
            stopped=stopped,
        )
        for number, (listed, times) in enumerate(listings.results(), 1):
            size = shutil.get_terminal_size()
            is_terminal = sys.stdout.isatty()
            shown = listed[: options.limit or (max(1, size.lines - _HEAD_LINES) if is_terminal else None)]
            as_of = time_fields(times)["as_of"]
            age = "no time" if as_of is None else as_of if options.absolute else shown_age(as_of)
            sys.stdout.write(f"{_CLEAR if is_terminal else ''}{len(listed)} groups, as of {age}\n")
            write_listing("groups", _COLUMNS, list(map(vars, shown)), times, "table", absolute=options.absolute)
            sys.stdout.flush()
            if number == options.rounds:
                return 0
    return stopping.status(has_an_end=options.rounds is not None)


def _listed(
    options: ListedGroups, settings: Settings, live: LiveCluster
) -> tuple[list[GroupFigures], list[tuple[str, AnswerTime]]]:
    """The groups, and the time that they are as of for each cluster."""
    found: list[GroupFigures] = []
    times = []
    for store, reader in open_readers(options.stores, settings).items():
        time = answer_time_of(reader, store, settings)
        times.append((reader.cluster, time))
        idle_since = None if options.idle_ms is None else shown_time(reader.opened_ms - options.idle_ms)
        found += [
            each
            for each in _with_lag(reader, list_groups(reader, options.topics, options.patterns), time, live)
            if (not options.states or each.state in options.states)
            and (not options.types or each.type in options.types)
            and (idle_since is None or each.last_commit is None or each.last_commit < idle_since)
        ]
    return sorted(found, key=_SORT_KEYS[options.sort]), times


def _with_lag(
    reader: StateReader, listed: list[GroupFigures], time: AnswerTime, live: LiveCluster
) -> list[GroupFigures]:
    """The groups with their lag, if positions of their topics are known."""
    if not live.is_given and not table_of(reader.location).exists():
        return listed
    groups = describe_groups(reader)
    lags = {each.group: each for each in group_lags(groups, live.lag(reader, groups, time))}
    return [
        replace(each, lag=lags[each.group].lag, lag_as_of=lags[each.group].as_of)
        if each.group in lags and each.offsets
        else each
        for each in listed
    ]
