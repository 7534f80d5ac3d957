"""Plans which offsets of the past to commit to a live cluster, and translates them if it is another one.

A mirrored topic has the same records with the same timestamps at other offsets. The offset in the live cluster is that
of the first record with the timestamp of the record at the committed offset, or a later one. So it may be before the
mirrored record, and a consumer reads some records again; it skips none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.common.foreign_errors import first_line
from offsets_pipeline.errors import OffsetsError, UnknownTopicOrPartition
from offsets_pipeline.kafka.broker.fetch import FirstRecord, first_records
from offsets_pipeline.kafka.broker.log_offsets import LATEST, list_offsets, rounds_of
from offsets_pipeline.semantics.group_description import EMPTY

if TYPE_CHECKING:
    from offsets_pipeline.ingest.topic_positions.position_samples import PositionSamples
    from offsets_pipeline.ingest.topic_positions.positions import Positions
    from offsets_pipeline.kafka.broker.cluster import Cluster, Place
    from offsets_pipeline.questions.query.describe import OffsetAnswer
    from offsets_pipeline.repair.offset_reset.plan import GroupOffsets
    from offsets_pipeline.semantics.partition_state import TopicPartition

    #: Returns the offset in the live cluster at which the records begin that follow a committed offset of the store.
    Finder = Callable[[TopicPartition, int], "FoundOffset"]
    #: A partition, and an offset or a time in it.
    Point = tuple[Place, int]
    #: Time from which on the live cluster's records count (ms), how it was found, and the words for it.
    Moment = tuple[int, "FoundBy", str]

_MAX_TIMESTAMP = -3  # of ListOffsets: the record with the highest timestamp


class FoundBy(StrEnum):
    """The way in which an offset was found."""

    COMMITTED = "committed"
    LOG_START = "log start"
    LOG_END = "log end"
    TIMESTAMP = "timestamp"
    SAMPLE = "sample"


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
    past: OffsetAnswer
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
    past: Mapping[str, Mapping[TopicPartition, OffsetAnswer]],
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


def translated(live: Cluster, moments: Mapping[Point, Moment | str]) -> Finder:
    """Return a function that finds the offset in the live cluster for a point of the store's cluster.

    ``moments``: the moment of each point, or the reason why it has none. Raises the errors of `Cluster`.
    """
    offsets: dict[Point, int | OffsetsError | None] = {}
    wanted = {(place, moment[0]) for (place, _), moment in moments.items() if not isinstance(moment, str)}
    for some in rounds_of(wanted):
        offsets |= {(place, some[place]): offset for place, offset in list_offsets(live, some).items()}
    ends = list_offsets(live, dict.fromkeys({place for place, _ in wanted}, LATEST))

    def find(where: TopicPartition, offset: int) -> FoundOffset:
        place = (where.topic, where.partition)
        moment = moments[place, offset]
        if isinstance(moment, str):
            return FoundOffset(None, None, moment)
        time_ms, method, detail = moment
        found = offsets[place, time_ms]
        if found is None:
            end = ends[place]
            if isinstance(end, int):
                return FoundOffset(end, FoundBy.LOG_END, f"{detail}; no record is that late")
            found = end
        if found is None or isinstance(found, OffsetsError):
            reason = "no answer" if found is None else first_line(found)
            return FoundOffset(None, None, f"cannot find the first record since {shown_time(time_ms)}: {reason}")
        return FoundOffset(found, method, detail)

    return find


def moments_by_records(source: Cluster, points: Collection[Point]) -> dict[Point, Moment | str]:
    """Return the timestamps of the records at these points, from the brokers of the store's cluster.

    A point at the end of its partition stands after the record with the highest timestamp. Raises the errors of
    `Cluster`.
    """
    moments: dict[Point, Moment | str] = {}
    at_end: list[Point] = []
    for some in rounds_of(points):
        for place, record in first_records(source, some).items():
            point = place, some[place]
            if record is None:
                at_end.append(point)
            elif isinstance(record, OffsetsError):
                moments[point] = f"cannot read the record in the store's cluster: {first_line(record)}"
            elif record.timestamp_ms is None:
                moments[point] = f"record {record.offset} has no timestamp"
            else:
                gone = "" if record.offset == some[place] else f" is gone; the next one, {record.offset},"
                detail = f"record {some[place]}{gone} has the timestamp {shown_time(record.timestamp_ms)}"
                moments[point] = record.timestamp_ms, FoundBy.TIMESTAMP, detail
    moments |= _after_last_records(source, at_end)
    return moments


def _after_last_records(source: Cluster, points: Collection[Point]) -> dict[Point, Moment | str]:
    places = {place for place, _ in points}
    youngest = list_offsets(source, dict.fromkeys(places, _MAX_TIMESTAMP))
    known = {place: offset for place, offset in youngest.items() if isinstance(offset, int)}
    records = first_records(source, known)
    moments: dict[Point, Moment | str] = {}
    for point in points:
        record = records.get(point[0])
        if isinstance(record, FirstRecord) and record.timestamp_ms is not None:
            detail = f"all records were consumed; the last one has the timestamp {shown_time(record.timestamp_ms)}"
            moments[point] = record.timestamp_ms + 1, FoundBy.TIMESTAMP, detail
        else:
            moments[point] = "the store's cluster has no record left that tells a timestamp"
    return moments


def moments_by_samples(samples: PositionSamples, points: Iterable[Point]) -> dict[Point, Moment | str]:
    """Return the last time at which the log ended at or before each point, by the store's samples of its cluster."""
    moments: dict[Point, Moment | str] = {}
    for place, offset in points:
        series = samples.series(place)
        before = np.flatnonzero(series.log_end_offset <= offset)
        if len(before):
            end, sampled_ms = int(series.log_end_offset[before[-1]]), int(series.sampled_ms[before[-1]])
            detail = f"the log ended at {end} at {shown_time(sampled_ms)}, so record {offset} is not older"
            moments[place, offset] = sampled_ms, FoundBy.SAMPLE, detail
        else:
            moments[place, offset] = (
                "the store has no sample from before the record; add --source-bootstrap-server, brokers of its cluster"
            )
    return moments
