"""`offsets describe`, with the columns of kafka-consumer-groups. Imports no Spark."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from offsets_pipeline.cli.answer_times import answer_time_of, time_fields
from offsets_pipeline.cli.live_cluster import LiveCluster
from offsets_pipeline.cli.live_positions import position_source
from offsets_pipeline.cli.opened import open_readers
from offsets_pipeline.cli.output import write_documents, write_json, write_lines, write_rows
from offsets_pipeline.clock import SystemClock
from offsets_pipeline.errors import NoSuchGroup
from offsets_pipeline.lag.lag_of_groups import lag_of_groups
from offsets_pipeline.lag.lag_rows import topics_of
from offsets_pipeline.query.group_listing import consumed_partitions, describe_matching, list_groups, matching
from offsets_pipeline.semantics.group_types import SHARE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from offsets_pipeline.cli.section_questions import Describe
    from offsets_pipeline.config import Settings
    from offsets_pipeline.lag.lag_rows import LagRow
    from offsets_pipeline.query.answer_time import AnswerTime
    from offsets_pipeline.query.describe import GroupAnswer, MemberAnswer, OffsetAnswer
    from offsets_pipeline.query.state_reader import StateReader

    Row = list[Any]

_OFFSETS = (
    *("group", "topic", "partition", "current_offset", "log_end_offset", "lag"),
    *("consumer_id", "host", "client_id"),
)
_MEMBERS = ("group", "consumer_id", "host", "client_id", "#partitions")
_STATES = ("group", "coordinator (id)", "assignment_strategy", "state", "#members")


@dataclass
class StoreAnswer:
    """The groups of one store, and the time that they are as of.

    With a live cluster, it has the coordinators of log partitions, and the lag by group and partition.
    """

    store: str
    cluster: str
    groups: dict[str, GroupAnswer]
    time: AnswerTime
    coordinators: Mapping[int, str] = field(default_factory=dict)
    lags: Mapping[tuple[str, str, int], LagRow] = field(default_factory=dict)


def describe(options: Describe, settings: Settings) -> int:
    """Show groups; returns the exit status.

    Raises NoSuchGroup for named groups that do not exist, and for patterns that match none, after the others are shown.
    """
    readers = open_readers(options.stores, settings)
    if options.list_:
        return _list(readers, settings, options)
    missing = set(options.groups)
    answers = []
    with LiveCluster(options.live, settings) as live:
        for store, reader in readers.items():
            answer = _answer(store, reader, settings, options, live)
            missing -= {each for each in missing if matching(answer.groups, [each])}
            answers.append(answer)
    if any(each.groups for each in answers) or not missing:
        _show(answers, options)
    if missing:
        named = [each for each in dict.fromkeys(options.groups) if each in missing]
        raise NoSuchGroup.of(named, ", ".join(reader.location for reader in readers.values()))
    return 0


def _answer(store: str, reader: StateReader, settings: Settings, options: Describe, live: LiveCluster) -> StoreAnswer:
    targets = options.members and options.verbose
    groups = describe_matching(reader, None if options.all_groups else options.groups, targets=targets)
    time = answer_time_of(reader, store, settings)
    if not live.is_given:
        return StoreAnswer(store, reader.cluster, groups, time)
    source = position_source(reader, live, None, settings, topics_of(groups), time, SystemClock().now_ms())
    lags = {row[:3]: row for row in lag_of_groups(reader, groups, time, source)}
    groups = {name: _with_lag(name, group, lags) for name, group in groups.items()}
    return StoreAnswer(store, reader.cluster, groups, time, live.coordinators(reader.properties.topic_name), lags)


def _with_lag(name: str, group: GroupAnswer, lags: Mapping[tuple[str, str, int], LagRow]) -> GroupAnswer:
    """The group with log end and lag of each offset. A share group has none (R14)."""

    def of(offset: OffsetAnswer) -> OffsetAnswer:
        row = lags[name, offset.topic, offset.partition]
        return replace(offset, log_end_offset=row.log_end_offset, lag=row.lag)

    return group if group.type == SHARE else replace(group, offsets=[of(each) for each in group.offsets])


def _list(readers: Mapping[str, StateReader], settings: Settings, options: Describe) -> int:
    listed = []
    times = []
    for store, reader in readers.items():
        times.append((reader.cluster, answer_time_of(reader, store, settings)))
        found = list_groups(reader)
        chosen = set(matching((each.group for each in found), options.groups) if options.groups else ())
        listed += [each for each in found if each.group in chosen or not options.groups]
    if options.format_ == "json":
        shown = ("group", "type", "state", "cluster")
        groups = [{name: getattr(each, name) for name in shown} for each in listed]
        write_json({"groups": groups, **time_fields(times)})
    elif options.format_ == "table" and not (options.state or options.verbose):
        write_lines(each.group for each in listed)
    else:
        names = ["group", *(["type"] if options.verbose else []), "state", *(["cluster"] if len(readers) > 1 else [])]
        write_rows(names, [[getattr(each, name) for name in names] for each in listed], options.format_)
    return 0


def _show(answers: Sequence[StoreAnswer], options: Describe) -> None:
    if options.format_ == "json":
        write_documents(
            [
                {
                    "groups": each.groups,
                    "cluster": each.cluster,
                    "as_of": each.time.as_of,
                    "stale": each.time.stale,
                    **({"coordinators": each.coordinators} if each.coordinators else {}),
                }
                for each in answers
            ]
        )
        return
    show_groups(answers, options.format_, members=options.members, state=options.state, verbose=options.verbose)


def show_groups(
    answers: Sequence[StoreAnswer], format_: str, *, members: bool, state: bool = False, verbose: bool = False
) -> None:
    """Show offsets, members or states of groups of stores, as a table or as CSV."""
    is_csv = format_ == "csv"
    is_long = verbose or is_csv
    if members:
        columns, rows = _members(answers, is_csv=is_csv, is_long=is_long)
    else:
        columns, rows = (_states if state else _offsets)(answers, is_long=is_long)
    if len(answers) == 1:
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    write_rows(columns, rows, format_)


def _offsets(answers: Sequence[StoreAnswer], *, is_long: bool) -> tuple[list[str], list[Row]]:
    """A row for each partition that a group has an offset of or consumes; for a group without one row."""
    columns = [*_OFFSETS[:3], *(["leader_epoch"] if is_long else []), *_OFFSETS[3:]]
    columns += ["metadata", "pending", "type", "state", "members"] if is_long else []
    rows: list[Row] = []
    for answer in answers:
        for name, group in answer.groups.items():
            of_group = [group.type, group.state, len(group.members)]
            found = consumed_partitions(group)
            for topic, partition, offset, member in found:
                row: Row = [name, topic, partition]
                if is_long:
                    row.append(None if offset is None else offset.leader_epoch)
                lag = answer.lags.get((name, topic, partition))
                row += [None if offset is None else offset.offset]
                row += [None, None] if lag is None else [lag.log_end_offset, lag.lag]
                row += _consumer(member)
                if is_long:
                    row += [None] * 2 if offset is None else [offset.metadata, _yes(offset.pending)]
                    row += of_group
                rows.append([*row, answer.cluster])
            if not found:
                rows.append([name, *[None] * 8, *([None] * 3 + of_group if is_long else []), answer.cluster])
    return [*columns, "cluster"], rows


def _yes(value: bool) -> str | None:  # noqa: FBT001
    return "yes" if value else None


def _consumer(member: MemberAnswer | None) -> Row:
    return [None] * 3 if member is None else [member.member_id, member.host, member.client_id]


def _members(answers: Sequence[StoreAnswer], *, is_csv: bool, is_long: bool) -> tuple[list[str], list[Row]]:
    everyone = [
        (answer, name, group, member)
        for answer in answers
        for name, group in answer.groups.items()
        for member in group.members
    ]
    has_instances = is_csv or any(member.instance_id is not None for *_, member in everyone)
    columns = [*_MEMBERS[:2], *(["group_instance_id"] if has_instances else []), *_MEMBERS[2:]]
    columns += ["current_epoch", "current_assignment", "target_epoch", "target_assignment"] if is_long else []
    columns.append("subscribed_topics")
    rows: list[Row] = []
    for answer, name, group, member in everyone:
        row: Row = [name, member.member_id, *([member.instance_id] if has_instances else [])]
        row += [member.host, member.client_id, len(member.assignment)]
        if is_long:
            row += [member.member_epoch, _assignment(member.assignment), group.assignment_epoch]
            row += [None if member.target_assignment is None else _assignment(member.target_assignment)]
        rows.append([*row, " ".join(member.subscribed_topics or ()), answer.cluster])
    return [*columns, "cluster"], rows


def _assignment(places: Sequence[str]) -> str:
    """As Kafka's tool: orders:0,1;payments:3."""
    partitions: dict[str, list[int]] = defaultdict(list)
    for place in places:
        topic, _, partition = place.rpartition("-")
        partitions[topic].append(int(partition))
    return ";".join(f"{topic}:{','.join(map(str, sorted(each)))}" for topic, each in sorted(partitions.items()))


def _states(answers: Sequence[StoreAnswer], *, is_long: bool) -> tuple[list[str], list[Row]]:
    columns = [*_STATES[:4], *(["group_epoch", "target_assignment_epoch"] if is_long else []), _STATES[4], "cluster"]
    rows: list[Row] = []
    for answer in answers:
        for name, group in answer.groups.items():
            row: Row = [name, answer.coordinators.get(group.log_partition), group.assignor, group.state]
            row += [group.group_epoch, group.assignment_epoch] if is_long else []
            rows.append([*row, len(group.members), answer.cluster])
    return columns, rows
