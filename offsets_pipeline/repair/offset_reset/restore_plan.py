"""Plans which offsets of the past to commit to a live cluster. Reads and writes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.errors import UnknownTopicOrPartition
from offsets_pipeline.semantics.group_description import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from offsets_pipeline.ingest.topic_positions.positions import Positions
    from offsets_pipeline.repair.offset_reset.plan import GroupOffsets
    from offsets_pipeline.semantics.partition_state import TopicPartition

    #: Returns the offset in the live cluster at which the records begin that follow a committed offset of the store.
    Finder = Callable[[TopicPartition, int], "FoundOffset"]


class FoundBy(StrEnum):
    """The way in which an offset was found."""

    COMMITTED = "committed"
    LOG_START = "log start"
    LOG_END = "log end"
    TIMESTAMP = "timestamp"
    SAMPLE = "sample"


class PastOffset(NamedTuple):
    """An offset that was committed at the time, and its metadata."""

    offset: int
    metadata: str = ""


class FoundOffset(NamedTuple):
    """The offset in the live cluster, None if there is none; ``detail`` says how it was found, or why not."""

    offset: int | None
    method: FoundBy | None
    detail: str


def same_offset(where: TopicPartition, offset: int) -> FoundOffset:
    """Find the same offset: the live cluster is that of the store."""
    del where
    return FoundOffset(offset, FoundBy.COMMITTED, "the committed offset")


class RestoredOffset(NamedTuple):
    """The offset of the past, the one to commit, which may be missing, and the current one."""

    group_id: str
    where: TopicPartition
    past: PastOffset
    new: FoundOffset
    current_offset: int | None


@dataclass
class RestorePlan:
    """Offsets in order; ``active`` has the states of groups with members, which are not restored.

    ``later`` counts by group the committed offsets of partitions without one at the time; they stay.
    """

    offsets: list[RestoredOffset] = field(default_factory=list)
    active: dict[str, str] = field(default_factory=dict)
    later: dict[str, int] = field(default_factory=dict)


def plan_restore(
    past: Mapping[str, Mapping[TopicPartition, PastOffset]],
    standings: Mapping[str, GroupOffsets],
    positions: Positions,
    find: Finder,
    recreated: Collection[str] = (),
) -> RestorePlan:
    """Return the offsets to commit.

    Args:
        past: by group, the committed offsets at the time.
        standings: by group, its state and its committed offsets in the live cluster.
        positions: log start and log end of the live cluster's partitions.
        find: finds the offset in the live cluster.
        recreated: topics that were created again since, so that offsets may stand for other records now.
    """
    plan = RestorePlan()
    for group_id, offsets in sorted(past.items()):
        standing = standings[group_id]
        if standing.state not in {None, EMPTY}:
            plan.active[group_id] = str(standing.state)
            continue
        later = len(standing.offsets.keys() - offsets.keys())
        if later:
            plan.later[group_id] = later
        for where, then in sorted(offsets.items()):
            found = _within(where, positions, find, then.offset)
            if where.topic in recreated and found.offset is not None:
                found = found._replace(detail=f"{found.detail}; the topic was created again since")
            plan.offsets.append(RestoredOffset(group_id, where, then, found, standing.offsets.get(where)))
    return plan


def _within(where: TopicPartition, positions: Positions, find: Finder, past_offset: int) -> FoundOffset:
    """Find an offset, limited to the log of its partition."""
    try:
        position = positions.of(where)
    except UnknownTopicOrPartition as missing:
        return FoundOffset(None, None, str(missing))
    found = find(where, past_offset)
    if found.offset is None:
        return found
    if found.offset < position.earliest:
        detail = f"{found.offset} is below the log start: its records were deleted"
        return FoundOffset(position.earliest, FoundBy.LOG_START, detail)
    if found.offset > position.latest:
        detail = f"{found.offset} is above the log end: the log lost records, or it is another log"
        return FoundOffset(position.latest, FoundBy.LOG_END, detail)
    return found
