"""`offsets describe`, with the columns of kafka-consumer-groups, `groups` and `top`. None imports Spark."""

from __future__ import annotations

import shutil
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from offsets_pipeline.cli.answer_times import answer_time_of, time_fields, write_listing
from offsets_pipeline.cli.live_cluster import LiveCluster
from offsets_pipeline.cli.opened import open_readers
from offsets_pipeline.cli.output import shown_age, write_documents, write_lines, write_rows
from offsets_pipeline.cli.stopping import Stopping
from offsets_pipeline.common.clock import SystemClock, shown_time
from offsets_pipeline.common.input_text import counted
from offsets_pipeline.common.periodic import Periodic
from offsets_pipeline.errors import NoSuchGroup
from offsets_pipeline.ingest.topic_positions.sample_table import table_of
from offsets_pipeline.questions.lag.lag_rows import LagRow, StoreGroups, group_lags
from offsets_pipeline.questions.query.describe import describe_groups, place_of
from offsets_pipeline.questions.query.group_listing import GroupFigures, describe_matching, list_groups, without_match
from offsets_pipeline.semantics.group_types import SHARE

if TYPE_CHECKING:
    from offsets_pipeline.cli.section_questions import Describe, ListedGroups, ListGroups, Top
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.questions.query.answer_time import AnswerTime
    from offsets_pipeline.questions.query.describe import GroupAnswer, OffsetAnswer, StreamsMember
    from offsets_pipeline.questions.query.state_reader import StateReader

    Row = tuple[Any, ...]
    _Listing = tuple[list[GroupFigures], list[tuple[str, AnswerTime]]]

#: Columns of each table. Those of the sets are in tables with --verbose alone, and in CSV.
_OFFSETS = (
    *("group", "topic", "partition", "leader_epoch", "current_offset", "log_end_offset", "lag"),
    *("consumer_id", "host", "client_id", "metadata", "pending", "type", "state", "members", "cluster"),
)
_OFFSETS_VERBOSE = {"leader_epoch", "metadata", "pending", "type", "state", "members"}
_MEMBERS = (
    *("group", "consumer_id", "group_instance_id", "host", "client_id", "#partitions"),
    *("current_epoch", "current_assignment", "target_epoch", "target_assignment", "subscribed_topics"),
    *("topology_epoch", "process", "tasks", "target_tasks", "cluster"),
)
_MEMBERS_OF_STREAMS = {"topology_epoch", "process", "tasks", "target_tasks"}
_MEMBERS_VERBOSE = {
    *("current_epoch", "current_assignment", "target_epoch", "target_assignment"),
    *_MEMBERS_OF_STREAMS,
}
_STATES = (
    *("group", "coordinator (id)", "assignment_strategy", "state"),
    *("group_epoch", "target_assignment_epoch", "#members", "cluster"),
)
_STATES_VERBOSE = {"group_epoch", "target_assignment_epoch"}
_FIGURES = ("group", "type", "state", "members", "topics", "offsets", "last_commit", "lag", "lag_as_of")
_CLEAR = "\x1b[H\x1b[2J"
_HEAD_LINES = 3  # of a refresh: time, header, and the line of the shell
#: The orders of groups, by the value of `--sort`.
_SORT_KEYS: Mapping[str, Callable[[GroupFigures], Any]] = {
    "group": lambda each: (each.group, each.cluster),
    "last-commit": lambda each: (each.last_commit or "", each.group),
    "lag": lambda each: (-0.5 if each.lag is None else -each.lag, each.group),
    "members": lambda each: (-each.members, each.group),
    "offsets": lambda each: (-each.offsets, each.group),
}


@dataclass
class StoreAnswer:
    """The groups of one store, and the time that they are as of.

    With a live cluster, it has the coordinators of log partitions, and the lag by group and partition. ``more`` are
    further fields of its JSON document.
    """

    cluster: str
    groups: dict[str, GroupAnswer]
    time: AnswerTime
    coordinators: Mapping[int, str] = field(default_factory=dict)
    lags: Mapping[tuple[str, str, int], LagRow] = field(default_factory=dict)
    more: Mapping[str, object] = field(default_factory=dict)


def describe(options: Describe, settings: Settings) -> None:
    """Show groups.

    Raises NoSuchGroup for named groups that do not exist, and for patterns that match none, after the others are shown.
    """
    readers = open_readers(options.stores, settings)
    if options.list_:
        _list(readers, settings, options)
        return
    with LiveCluster(options.live, settings) as live:
        answers = [_answer(store, reader, settings, options, live) for store, reader in readers.items()]
    missing = without_match(options.groups, {name for each in answers for name in each.groups})
    if any(each.groups for each in answers) or not missing:
        show_groups(answers, options.format_, members=options.members, state=options.state, verbose=options.verbose)
    if missing:
        raise NoSuchGroup.of(missing, ", ".join(reader.location for reader in readers.values()))


def _answer(store: str, reader: StateReader, settings: Settings, options: Describe, live: LiveCluster) -> StoreAnswer:
    targets = options.members and options.verbose
    groups = describe_matching(reader, None if options.all_groups else options.groups, targets=targets)
    time = answer_time_of(reader, store, settings)
    if not live.is_given:
        return StoreAnswer(reader.cluster, groups, time)
    lags = {row[:3]: row for row in live.lag(StoreGroups(reader, groups, time))}
    groups = {name: _with_lag(name, group, lags) for name, group in groups.items()}
    coordinators = live.coordinators(reader.properties.topic_name)
    more = {"coordinators": coordinators} if coordinators else {}
    return StoreAnswer(reader.cluster, groups, time, coordinators, lags, more)


def _with_lag(name: str, group: GroupAnswer, lags: Mapping[tuple[str, str, int], LagRow]) -> GroupAnswer:
    """The group with log end and lag of each offset. A share group has none (R14)."""

    def of(offset: OffsetAnswer) -> OffsetAnswer:
        row = lags[name, offset.topic, offset.partition]
        return replace(offset, log_end_offset=row.log_end_offset, lag=row.lag)

    return group if group.type == SHARE else replace(group, offsets=[of(each) for each in group.offsets])


def _list(readers: Mapping[str, StateReader], settings: Settings, options: Describe) -> None:
    times = [(reader.cluster, answer_time_of(reader, store, settings)) for store, reader in readers.items()]
    listed = [each for reader in readers.values() for each in list_groups(reader, patterns=options.groups)]
    if options.format_ == "table" and len(readers) == 1 and not (options.state or options.verbose):
        write_lines(each.group for each in listed)
    else:
        columns = ["group", *(["type"] if options.verbose else []), "state"]
        rows = [{name: getattr(each, name) for name in ("group", "type", "state", "cluster")} for each in listed]
        write_listing("groups", columns, rows, times, options.format_)
    if missing := without_match(options.groups, {each.group for each in listed}):
        raise NoSuchGroup.of(missing, ", ".join(reader.location for reader in readers.values()))


def show_groups(
    answers: Sequence[StoreAnswer], format_: str, *, members: bool, state: bool = False, verbose: bool = False
) -> None:
    """Show offsets, members or states of groups of stores as a table or as CSV; JSON has all of them."""
    if format_ == "json":
        documents = [
            {"groups": each.groups, "cluster": each.cluster, **time_fields([(each.cluster, each.time)]), **each.more}
            for each in answers
        ]
        write_documents(documents)
        return
    columns: tuple[str, ...]
    if members:
        columns, of_verbose, rows = _MEMBERS, _MEMBERS_VERBOSE, list(_members(answers))
    elif state:
        columns, of_verbose, rows = _STATES, _STATES_VERBOSE, list(_states(answers))
    else:
        columns, of_verbose, rows = _OFFSETS, _OFFSETS_VERBOSE, list(_offsets(answers))
    hidden = {"cluster"} if len(answers) == 1 else set()
    if format_ == "table" and not verbose:
        hidden |= of_verbose
    if format_ == "table" and members:
        # Kafka's tool leaves an instance id out, with --verbose, too
        empty = {name for name, *values in zip(columns, *rows, strict=True) if all(each is None for each in values)}
        hidden |= empty & {"group_instance_id", *_MEMBERS_OF_STREAMS}
    shown = itemgetter(*(number for number, name in enumerate(columns) if name not in hidden))
    write_rows(shown(columns), map(shown, rows), format_, all_columns=verbose)


def _offsets(answers: Sequence[StoreAnswer]) -> Iterator[Row]:
    """A row for each partition that a group has an offset of or consumes; for a group without one row."""
    for answer in answers:
        for name, group in answer.groups.items():
            of_group = group.type, group.state, len(group.members), answer.cluster
            offsets, members = {(each.topic, each.partition): each for each in group.offsets}, group.assigned
            places = sorted({*offsets, *members})
            for place in places:
                offset, member, lag = offsets.get(place), members.get(place), answer.lags.get((name, *place))
                yield (
                    *(name, *place),
                    *((None, None) if offset is None else (offset.leader_epoch, offset.offset)),
                    *((None, None) if lag is None else (lag.log_end_offset, lag.lag)),
                    *((None,) * 3 if member is None else (member.member_id, member.host, member.client_id)),
                    *((None, None) if offset is None else (offset.metadata, "yes" if offset.pending else None)),
                    *of_group,
                )
            if not places:
                yield (name, *(None,) * 11, *of_group)


def _members(answers: Sequence[StoreAnswer]) -> Iterator[Row]:
    for answer in answers:
        for name, group in answer.groups.items():
            for member in group.members:
                yield (
                    *(name, member.member_id, member.instance_id, member.host, member.client_id),
                    *(len(member.assignment), member.member_epoch, _assignment(member.assignment)),
                    *(group.assignment_epoch, _assignment(member.target_assignment)),
                    " ".join(member.subscribed_topics or ()),
                    *_of_streams(member.streams),
                    answer.cluster,
                )


def _of_streams(member: StreamsMember | None) -> Row:
    if member is None:
        return (None,) * 4
    return member.topology_epoch, member.process_id, _task_list(member.tasks), _task_list(member.target_tasks)


def _task_list(tasks: Mapping[str, Mapping[str, Sequence[int]]]) -> str:
    """As Kafka's tool: ACTIVE: 0:[0,1]; 1:[0]; STANDBY: 1:[1]."""
    return "; ".join(
        f"{kind.removesuffix('_tasks').upper()}: "
        + "; ".join(f"{subtopology}:[{','.join(map(str, each))}]" for subtopology, each in partitions.items())
        for kind, partitions in tasks.items()
        if partitions
    )


def _assignment(places: Sequence[str] | None) -> str | None:
    """As Kafka's tool: orders:0,1;payments:3."""
    if places is None:
        return None
    partitions: dict[str, list[int]] = defaultdict(list)
    for topic, partition in map(place_of, places):
        partitions[topic].append(partition)
    return ";".join(f"{topic}:{','.join(map(str, sorted(each)))}" for topic, each in sorted(partitions.items()))


def _states(answers: Sequence[StoreAnswer]) -> Iterator[Row]:
    for answer in answers:
        for name, group in answer.groups.items():
            yield (
                *(name, answer.coordinators.get(group.log_partition), group.assignor, group.state),
                *(group.group_epoch, group.assignment_epoch, len(group.members), answer.cluster),
            )


def groups(options: ListGroups, settings: Settings) -> None:
    """List groups.

    Raises NoSuchGroup as `describe`, but for named groups that other options leave out.
    """
    readers = open_readers(options.stores, settings)
    with LiveCluster(options.live, settings) as live:
        listed, times = _listed(options, readers, settings, live)
    missing = without_match(options.patterns, {each.group for each in listed})
    if missing:  # other options may have left them out
        missing = without_match(missing, {each.group for reader in readers.values() for each in list_groups(reader)})
    if listed or not missing:
        write_listing("groups", _FIGURES, list(map(vars, listed)), times, options.format_, absolute=options.absolute)
    if missing:
        raise NoSuchGroup.of(missing, ", ".join(reader.location for reader in readers.values()))


def top(options: Top, settings: Settings) -> int:
    """List the first groups again and again; returns the exit status."""
    stopped = threading.Event()
    stopping = Stopping(stopped.set)
    with LiveCluster(options.live, settings) as live:
        listings = Periodic(
            partial(_read_again, options, settings, live),
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
            sys.stdout.write(f"{_CLEAR if is_terminal else ''}{counted(len(listed), 'group')}, as of {age}\n")
            write_listing("groups", _FIGURES, list(map(vars, shown)), times, "table", absolute=options.absolute)
            sys.stdout.flush()
            if number == options.rounds:
                return 0
    return stopping.status(has_an_end=options.rounds is not None)


def _read_again(options: Top, settings: Settings, live: LiveCluster) -> _Listing:
    return _listed(options, open_readers(options.stores, settings), settings, live)


def _listed(
    options: ListedGroups, readers: Mapping[str, StateReader], settings: Settings, live: LiveCluster
) -> _Listing:
    """The groups, and the time that they are as of for each cluster."""
    found: list[GroupFigures] = []
    times = []
    for store, reader in readers.items():
        time = answer_time_of(reader, store, settings)
        times.append((reader.cluster, time))
        idle_since = None if options.idle_ms is None else shown_time(reader.opened_ms - options.idle_ms)
        found += [
            each
            for each in _figures_with_lag(reader, list_groups(reader, options.topics, options.patterns), time, live)
            if (not options.states or each.state in options.states)
            and (not options.types or each.type in options.types)
            and (idle_since is None or each.last_commit is None or each.last_commit < idle_since)
        ]
    return sorted(found, key=_SORT_KEYS[options.sort]), times


def _figures_with_lag(
    reader: StateReader, listed: list[GroupFigures], time: AnswerTime, live: LiveCluster
) -> list[GroupFigures]:
    """The groups with their lag, if positions of their topics are known."""
    if not live.is_given and not table_of(reader.location).exists():
        return listed
    groups = describe_groups(reader)
    lags = {each.group: each for each in group_lags(groups, live.lag(StoreGroups(reader, groups, time)))}
    return [
        replace(each, lag=lags[each.group].lag, lag_as_of=lags[each.group].as_of)
        if each.group in lags and each.offsets
        else each
        for each in listed
    ]
