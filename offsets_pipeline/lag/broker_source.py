"""Positions as a cluster's brokers know them, with samples where a broker does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from offsets_pipeline.broker.first_records import first_records
from offsets_pipeline.broker.topics_offsets import LogBounds, bounds_of_topics, offsets_of_topics
from offsets_pipeline.errors import OffsetsError
from offsets_pipeline.foreign_errors import first_line
from offsets_pipeline.lag.position_sources import UNKNOWN_END, Bounds, by_place
from offsets_pipeline.lag.time_lag import Method, TimeLag, exact_lag

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from offsets_pipeline.broker.cluster import Cluster
    from offsets_pipeline.lag.position_sources import Place, Point, SampledPositions
    from offsets_pipeline.topic_positions.position_samples import Int64s


class BrokerPositions:
    """Positions as a cluster's brokers know them; samples where a broker does not.

    At a past time the log end is the offset of the first record after that time, by the records' timestamps.
    """

    method_at_end = Method.EXACT

    def __init__(self, cluster: Cluster, topics: Collection[str], samples: SampledPositions, *, is_past: bool) -> None:
        """Ask for the bounds of these topics. Raises the errors of `Cluster`."""
        self.at_ms = samples.at_ms
        self._cluster = cluster
        self._samples = samples
        self._is_past = is_past
        self._bounds: Mapping[Place, LogBounds | OffsetsError] = bounds_of_topics(cluster, topics)
        self._ends: dict[Place, int] = {}
        if is_past:
            after = self._offsets_since((place, self.at_ms + 1) for place in self._bounds)
            self._ends = {place: offset for (place, _), offset in after.items()}

    def bounds(self, place: Place) -> Bounds:
        """Log start and log end. The log start of the past is that of the last sample, if there was one."""
        found = self._bounds.get(place)
        if found is None:
            return Bounds(None, None, f"{self._cluster.settings.at} has no such partition")
        if isinstance(found, OffsetsError):
            return Bounds(None, None, first_line(found))
        if not self._is_past:
            return Bounds(found.start, found.end)
        sampled = self._samples.bounds(place)
        if place not in self._ends:
            return sampled
        start = sampled.log_start_offset
        return Bounds(None if start is None else min(start, self._ends[place]), self._ends[place])

    def time_lags(self, points: Collection[Point]) -> dict[Point, TimeLag]:
        """Lag in seconds by the record's own timestamp; by samples if the log no longer has the record."""
        found: dict[Point, TimeLag] = {}
        gone = [point for point in points if self._is_gone(point)]
        found.update(self._samples.time_lags(gone))
        for some in _rounds(set(points) - set(gone)):
            for place, record in first_records(self._cluster, dict(some)).items():
                # a record after the past time is not older than that, so the lag is 0
                found[place, some[place]] = exact_lag(record, self.at_ms)
        return found

    def _is_gone(self, point: Point) -> bool:
        """Whether the log no longer has a record that it had at the past time."""
        place, offset = point
        known = self._bounds.get(place)
        return self._is_past and not (known is None or isinstance(known, OffsetsError)) and offset < known.start

    def ends_at(self, places: Sequence[Place], at: Int64s, times_ms: Int64s) -> Int64s:
        """Log end by samples; where no sample is old enough, by the records' timestamps."""
        found = self._samples.ends_at(places, at, times_ms)
        unknown = np.flatnonzero(found == UNKNOWN_END)
        named = map(places.__getitem__, at[unknown].tolist())
        points = list(zip(named, times_ms[unknown].tolist(), strict=True))
        asked = self._offsets_since(points)
        found[unknown] = [asked.get(point, UNKNOWN_END) for point in points]
        return found

    def _offsets_since(self, points: Iterable[Point]) -> dict[Point, int]:
        """Offset of the first record at or after each time; of a time after the last record, the log end."""
        found: dict[Point, int] = {}
        for some in _rounds(points):
            for place, offset in offsets_of_topics(self._cluster, some).items():
                bounds = self._bounds.get(place)
                if isinstance(offset, OffsetsError) or bounds is None or isinstance(bounds, OffsetsError):
                    continue
                found[place, some[place]] = bounds.end if offset is None else offset
        return found


def _rounds(points: Iterable[Point]) -> Sequence[dict[Place, int]]:
    """The points in as few parts as possible, each with one point of a partition: a request names it once."""
    rounds: list[dict[Place, int]] = []
    for place, numbers in by_place(dict.fromkeys(points)).items():
        for index, number in enumerate(numbers):
            if index == len(rounds):
                rounds.append({})
            rounds[index][place] = number
    return rounds
