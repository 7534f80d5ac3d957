"""Plans a reset of offsets by the rules of kafka-consumer-groups, and the CSV that it writes and reads of a plan.

The CSV (`--export`, `--from-file`) has no header:

    topic,partition,offset          for the one group that the command line names
    group,topic,partition,offset    for several
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.coordinator.requests import validated_group_id, validated_partition
from offsets_pipeline.errors import InvalidReset, MalformedFile, NoSuchGroup
from offsets_pipeline.ingest.topic_positions.csv_file import read_rows
from offsets_pipeline.semantics.group_description import EMPTY

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.ingest.topic_positions.positions import Position, Positions
    from offsets_pipeline.semantics.partition_state import TopicPartition

    #: Topics, each with some partitions, or None for all.
    Topics = Sequence[tuple[str, Sequence[int] | None]]

MAX_OFFSET = 2**63 - 1
_ASK = "add --bootstrap-server or --positions, which give the first and last offsets of partitions"
_WITHOUT_GROUP = 3
#: The forms of a line, by its number of fields.
_FORMS = {_WITHOUT_GROUP: "topic,partition,offset", 4: "group,topic,partition,offset"}
# Kafka writes with Jackson, which quotes longer texts, and texts with a \ or a character below the hyphen.
_UNQUOTED_UNITS, _FIRST_UNQUOTED = 24, "-"


class Plain(Enum):
    """A scenario without a value. TO_CURRENT: to the committed offset, or to the end of the partition without one."""

    TO_EARLIEST = "to earliest"
    TO_LATEST = "to latest"
    TO_CURRENT = "to current"


class ToOffset(NamedTuple):
    """To one offset, limited to the start and end of the partition."""

    offset: int


class ShiftBy(NamedTuple):
    """Forward from the committed offset, or back if negative, limited to the start and end of the partition."""

    by: int


class ToTime(NamedTuple):
    """To the first record at or after a time (ms since 1970), or to the end if no record is that late."""

    time_ms: int


class FromFile(NamedTuple):
    """To the offsets of a file, by group and partition, limited to the start and end of the partition."""

    offsets: Mapping[str, Mapping[TopicPartition, int]]


Scenario = Plain | ToOffset | ShiftBy | ToTime | FromFile


class GroupOffsets(NamedTuple):
    """State of a group, None if it does not exist, and its committed offsets."""

    state: str | None
    offsets: Mapping[TopicPartition, int]


class PlannedOffset(NamedTuple):
    """An offset to commit, and the committed one."""

    group_id: str
    where: TopicPartition
    new_offset: int
    current_offset: int | None


@dataclass
class ResetPlan:
    """Offsets to commit, in order; ``active`` has the states of groups with members, which are not reset."""

    offsets: list[PlannedOffset] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    active: dict[str, str] = field(default_factory=dict)


def plan_reset(
    standings: Mapping[str, GroupOffsets],
    scenario: Scenario,
    topics: Topics | None,
    positions: Positions | None,
) -> ResetPlan:
    """Return the offsets to commit for these groups.

    ``topics`` names the partitions; None: all partitions that a group has committed. `FromFile` has partitions of its
    own. Without ``positions`` a partition may have any offset from 0 to 2^63-1.

    Raises:
        NoSuchGroup: a group does not exist, and ``topics`` is None.
        UnknownTopicOrPartition: ``positions`` have no such topic or partition.
        InvalidReset: a new offset cannot be determined.
    """
    plan = ResetPlan()
    for group_id, standing in sorted(standings.items()):
        validated_group_id(group_id)
        if standing.state not in {None, EMPTY}:
            plan.active[group_id] = str(standing.state)
            continue
        chosen = _chosen(group_id, standing, scenario, topics, positions)
        if not chosen and topics is None:
            plan.warnings.append(f"group {group_id!r} has no committed offset: nothing to reset")
        for where in sorted(chosen):
            current = standing.offsets.get(where)
            new, warning = _new_offset(scenario, group_id, where, current, positions)
            plan.offsets.append(PlannedOffset(group_id, where, new, current))
            if warning is not None:
                plan.warnings.append(warning)
    plan.warnings = list(dict.fromkeys(plan.warnings))  # each group repeats those of a partition
    if len(plan.active) < len(standings):
        _refuse_topics_without_partitions(plan, standings, scenario, topics)
    if plan.offsets and positions is None and isinstance(scenario, ToOffset | ShiftBy | FromFile):
        plan.warnings.append(f"the new offsets are not checked against the offsets of the partitions; {_ASK}")
    return plan


def _chosen(
    group_id: str,
    standing: GroupOffsets,
    scenario: Scenario,
    topics: Topics | None,
    positions: Positions | None,
) -> set[TopicPartition]:
    if isinstance(scenario, FromFile):
        return set(scenario.offsets[group_id])
    if topics is None:
        if standing.state is None:
            raise NoSuchGroup(f"no group {group_id!r}; check the name, or name topics to create the group")
        return set(standing.offsets)
    chosen: set[TopicPartition] = set()
    for topic, partitions in topics:
        if partitions is not None:
            chosen.update(validated_partition((topic, partition)) for partition in partitions)
        elif positions is not None:
            chosen.update(positions.partitions_of(topic))
        else:
            chosen.update(where for where in standing.offsets if where.topic == topic)
    return chosen


def _refuse_topics_without_partitions(
    plan: ResetPlan, standings: Mapping[str, GroupOffsets], scenario: Scenario, topics: Topics | None
) -> None:
    """Raise InvalidReset for a topic without partitions: no group committed any, and no positions name any."""
    planned = {each.where.topic for each in plan.offsets}
    for topic, _ in () if topics is None or isinstance(scenario, FromFile) else topics:
        if topic not in planned:
            unknown = [group_id for group_id, standing in standings.items() if standing.state is None]
            no_group = f"no group {unknown[0]!r}, and " if unknown else ""
            raise InvalidReset(
                f"{no_group}no offset is committed for topic {topic!r}; name its partitions, such as {topic}:0,1, or "
                f"{_ASK}"
            )


def _new_offset(
    scenario: Scenario, group_id: str, where: TopicPartition, current: int | None, positions: Positions | None
) -> tuple[int, str | None]:
    """Return the offset to commit, and a warning or None."""
    position = None if positions is None else positions.of(where)
    match scenario:
        case ToOffset(offset):
            return _within(where, offset, position)
        case ShiftBy(by):
            if current is None:
                raise InvalidReset(
                    f"cannot shift {where}: group {group_id!r} has no committed offset for it; choose another scenario"
                )
            return _within(where, current + by, position)
        case FromFile(offsets):
            return _within(where, offsets[group_id][where], position)
        case Plain.TO_CURRENT if current is not None:
            return current, None
    if position is None or positions is None:
        raise InvalidReset(
            f"cannot reset {where} of group {group_id!r}: the scenario needs offsets of the partition; {_ASK}"
        )
    if isinstance(scenario, ToTime):
        return _at(where, scenario.time_ms, position, positions.source)
    return position.earliest if scenario is Plain.TO_EARLIEST else position.latest, None


def _within(where: TopicPartition, offset: int, position: Position | None) -> tuple[int, str | None]:
    earliest, latest = (0, MAX_OFFSET) if position is None else (position.earliest, position.latest)
    if offset > latest:
        return latest, f"{where}: {offset} is higher than the latest offset; using {latest}"
    if offset < earliest:
        return earliest, f"{where}: {offset} is lower than the earliest offset; using {earliest}"
    return offset, None


def _at(where: TopicPartition, time_ms: int, position: Position, source: str) -> tuple[int, str | None]:
    """Return the offset of the first record at or after a time, and a warning or None.

    Between two times of a file, takes the offset of the earlier one: it skips no record after the time.
    """
    before = [each for each in position.times if each.time_ms <= time_ms]
    if not before:
        raise InvalidReset(f"{source} has no offset of {where} for {shown_time(time_ms)} or an earlier time; add one")
    found = before[-1]
    if found.offset is None:
        return position.latest, (
            f"{where} has no record at or after {shown_time(time_ms)}; using the latest offset, {position.latest}"
        )
    after = position.times[len(before)].offset if len(before) < len(position.times) else None
    if found.time_ms == time_ms or after == found.offset:
        return found.offset, None
    return found.offset, (
        f"{where}: {source} has no offset for {shown_time(time_ms)}; using {found.offset}, the offset for "
        f"{shown_time(found.time_ms)}"
    )


def read_plan(path: Path, group_ids: Sequence[str]) -> dict[str, dict[TopicPartition, int]]:
    """Return the offsets of a plan by group and partition, of these groups or, if empty, of all in the file.

    Raises:
        NoSuchPath: the file does not exist.
        MalformedFile: a line is wrong; the message has its number.
        InvalidReset: the file has no groups and ``group_ids`` not exactly one, or the file lacks one of them.
    """
    plan: dict[str, dict[TopicPartition, int]] = {}
    width = None
    for row in read_rows(path):
        width = width or len(row.fields)
        if len(row.fields) != width or width not in _FORMS:
            expected = f"{_FORMS[width]}, like the lines before" if width in _FORMS else " or ".join(_FORMS.values())
            raise row.malformed(f"{len(row.fields)} fields: it takes {expected}")
        if width == _WITHOUT_GROUP and len(group_ids) != 1:
            raise InvalidReset(f"{path} does not name groups; name the group of its offsets with --group")
        group_id = group_ids[0] if width == _WITHOUT_GROUP else row.fields[0]
        topic, partition, text = row.fields[-_WITHOUT_GROUP:]
        with row.checked():
            validated_group_id(group_id)
            where = validated_partition((topic, row.number("partition", partition)))
        offset = row.number("offset", text)
        offsets = plan.setdefault(group_id, {})
        if where in offsets:
            raise row.malformed(f"{where} of group {group_id!r} has a line already")
        offsets[where] = offset
    if not plan:
        raise MalformedFile(f"{path} has no offsets: add a line for each")
    for group_id in group_ids:
        if group_id not in plan:
            raise InvalidReset(f"{path} has no line for group {group_id!r}")
    return {group_id: offsets for group_id, offsets in plan.items() if not group_ids or group_id in group_ids}


def plan_csv(offsets: Iterable[PlannedOffset], *, with_groups: bool) -> str:
    """Return the plan as CSV with the same bytes as kafka-consumer-groups writes."""
    lines = []
    for each in offsets:
        group = f"{_quoted(each.group_id)}," if with_groups else ""
        lines.append(f"{group}{_quoted(each.where.topic)},{each.where.partition},{each.new_offset}\n")
    return "".join(lines)


def _quoted(text: str) -> str:
    units = len(text.encode("utf-16-le", "surrogatepass")) // 2
    if units <= _UNQUOTED_UNITS and all(each >= _FIRST_UNQUOTED and each != "\\" for each in text):
        return text
    return '"' + text.replace('"', '""') + '"'
