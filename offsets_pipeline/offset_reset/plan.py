"""Planning a reset of offsets, by the rules of kafka-consumer-groups: what is read goes in, a plan comes out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from offsets_pipeline.clock import shown_time
from offsets_pipeline.coordinator.requests import validated_group_id, validated_partition
from offsets_pipeline.errors import InvalidReset, NoSuchGroup
from offsets_pipeline.semantics.group_description import EMPTY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from offsets_pipeline.offset_reset.positions import Position, Positions
    from offsets_pipeline.semantics.partition_state import TopicPartition

    #: Topics, each with the partitions that are meant, or None for all of them.
    Topics = Sequence[tuple[str, Sequence[int] | None]]

MAX_OFFSET = 2**63 - 1
_ASK = "--bootstrap-server or --positions tells where partitions begin and end"


@dataclass(frozen=True, slots=True)
class ToEarliest:
    """To where each partition begins."""


@dataclass(frozen=True, slots=True)
class ToLatest:
    """To where each partition ends."""


@dataclass(frozen=True, slots=True)
class ToCurrent:
    """To what is committed; where nothing is, to where the partition ends."""


@dataclass(frozen=True, slots=True)
class ToOffset:
    """To one offset, as far as the partition has it."""

    offset: int


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """So many on from what is committed, or back (negative), as far as the partition has it."""

    by: int


@dataclass(frozen=True, slots=True)
class ToTime:
    """To the first record at or after a time (ms since 1970); to the end where no record is that young."""

    time_ms: int


@dataclass(frozen=True, slots=True)
class FromFile:
    """To what a file says, by group and partition, as far as the partition has it."""

    offsets: Mapping[str, Mapping[TopicPartition, int]]


Scenario = ToEarliest | ToLatest | ToCurrent | ToOffset | ShiftBy | ToTime | FromFile


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a group stands: its state, None if it does not exist, and what it has committed."""

    state: str | None
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class PlannedOffset:
    """An offset that is to be committed, and the one that is."""

    group_id: str
    where: TopicPartition
    new_offset: int
    current_offset: int | None


@dataclass
class ResetPlan:
    """What is to be committed, in order; ``active`` are the groups that have members, with their states."""

    offsets: list[PlannedOffset] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    active: dict[str, str] = field(default_factory=dict)


def plan_reset(
    standings: Mapping[str, Standing],
    scenario: Scenario,
    topics: Topics | None,
    positions: Positions | None,
) -> ResetPlan:
    """What to commit for these groups.

    ``topics`` says which partitions; None is all that a group has committed, and a file says that by itself. Without
    positions all that is known of a partition is that its offsets are from 0 to 2^63-1.

    Raises NoSuchGroup for a group of which all topics are meant, and that has none; UnknownTopicOrPartition for what
    the positions do not know; InvalidReset where an offset cannot be told.
    """
    plan = ResetPlan()
    for group_id, standing in sorted(standings.items()):
        validated_group_id(group_id)
        if standing.state not in {None, EMPTY}:
            plan.active[group_id] = str(standing.state)
            continue
        chosen = _chosen(group_id, standing, scenario, topics, positions)
        if not chosen and topics is None:
            plan.warnings.append(f"group {group_id!r} has no committed offset: there is nothing to reset")
        for where in sorted(chosen):
            current = standing.offsets.get(where)
            new, warning = _new_offset(scenario, group_id, where, current, positions)
            plan.offsets.append(PlannedOffset(group_id, where, new, current))
            if warning is not None:
                plan.warnings.append(warning)
    plan.warnings = list(dict.fromkeys(plan.warnings))  # what is so of a partition is so for each group
    if len(plan.active) < len(standings):
        _refuse_topics_of_nobody(plan, scenario, topics)
    if plan.offsets and positions is None and isinstance(scenario, ToOffset | ShiftBy | FromFile):
        plan.warnings.append(f"the new offsets are not compared with what the partitions hold ({_ASK})")
    return plan


def _chosen(
    group_id: str,
    standing: Standing,
    scenario: Scenario,
    topics: Topics | None,
    positions: Positions | None,
) -> set[TopicPartition]:
    if isinstance(scenario, FromFile):
        return set(scenario.offsets[group_id])
    if topics is None:
        if standing.state is None:
            raise NoSuchGroup(f"no group {group_id!r}: name topics to make it, or check the name")
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


def _refuse_topics_of_nobody(plan: ResetPlan, scenario: Scenario, topics: Topics | None) -> None:
    """Raises InvalidReset for a topic of which no partition is known, from nobody's commits."""
    planned = {each.where.topic for each in plan.offsets}
    for topic, _ in () if topics is None or isinstance(scenario, FromFile) else topics:
        if topic not in planned:
            raise InvalidReset(
                f"nothing is committed for topic {topic!r}: name its partitions, as {topic}:0,1; or {_ASK}"
            )


def _new_offset(
    scenario: Scenario, group_id: str, where: TopicPartition, current: int | None, positions: Positions | None
) -> tuple[int, str | None]:
    """The offset to commit, and what is to be said of it."""
    position = None if positions is None else positions.of(where)
    match scenario:
        case ToOffset(offset):
            return _within(where, offset, position)
        case ShiftBy(by):
            if current is None:
                raise InvalidReset(
                    f"{_named(where)} cannot be shifted: group {group_id!r} has no offset committed for it"
                )
            return _within(where, current + by, position)
        case FromFile(offsets):
            return _within(where, offsets[group_id][where], position)
        case ToCurrent() if current is not None:
            return current, None
    if position is None or positions is None:
        raise InvalidReset(f"it is not known to which offset {_named(where)} of group {group_id!r} goes: {_ASK}")
    if isinstance(scenario, ToTime):
        return _at(where, scenario.time_ms, position, positions.source)
    return position.earliest if isinstance(scenario, ToEarliest) else position.latest, None


def _within(where: TopicPartition, offset: int, position: Position | None) -> tuple[int, str | None]:
    earliest, latest = (0, MAX_OFFSET) if position is None else (position.earliest, position.latest)
    if offset > latest:
        return latest, f"{_named(where)}: {offset} is higher than the latest offset, {latest}, which is taken"
    if offset < earliest:
        return earliest, f"{_named(where)}: {offset} is lower than the earliest offset, {earliest}, which is taken"
    return offset, None


def _at(where: TopicPartition, time_ms: int, position: Position, source: str) -> tuple[int, str | None]:
    """The first record at or after a time.

    Between two times of a file, the offset of the earlier one is taken: nothing that is asked for lies before it.
    """
    before = [each for each in position.times if each.time_ms <= time_ms]
    if not before:
        raise InvalidReset(
            f"{source} tells no offset of {_named(where)} for {shown_time(time_ms)}, nor for a time before it"
        )
    found = before[-1]
    if found.offset is None:
        return position.latest, (
            f"{_named(where)} has no record at or after {shown_time(time_ms)}: the latest offset, {position.latest}, "
            "is taken"
        )
    after = position.times[len(before)].offset if len(before) < len(position.times) else None
    if found.time_ms == time_ms or after == found.offset:
        return found.offset, None
    return found.offset, (
        f"{_named(where)}: {found.offset} is the offset for {shown_time(found.time_ms)}, the last time up to "
        f"{shown_time(time_ms)} of which {source} tells"
    )


def _named(where: TopicPartition) -> str:
    return f"{where.topic}-{where.partition}"
