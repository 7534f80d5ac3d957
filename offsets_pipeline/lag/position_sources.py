"""Where lag gets positions from: samples alone (here), or a broker with samples behind it (broker_source.py)."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from offsets_pipeline.lag.time_lag import Method, TimeLag, interpolated_lags, newest_incarnations
from offsets_pipeline.topic_positions.position_samples import first_above

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from offsets_pipeline.topic_positions.position_samples import Int64s, PositionSamples

    Place = tuple[str, int]
    #: A partition, and an offset or a time in ms.
    Point = tuple[Place, int]

_NO_SAMPLE = "no position of the partition is known"
#: In place of a log end that is not known.
UNKNOWN_END = -1


class Bounds(NamedTuple):
    """Log start and log end of a partition; None with a reason if they are not known."""

    log_start_offset: int | None
    log_end_offset: int | None
    reason: str | None = None


class PositionSource(Protocol):
    """Positions at one time."""

    at_ms: int
    #: How this source knows that a consumer is at the end.
    method_at_end: Method

    def bounds(self, place: Place) -> Bounds:
        """Log start and log end of a partition at the time."""
        ...

    def time_lags(self, points: Collection[Point]) -> dict[Point, TimeLag]:
        """Lag in seconds of a consumer at each offset of a partition, at the time."""
        ...

    def ends_at(self, places: Sequence[Place], at: Int64s, times_ms: Int64s) -> Int64s:
        """Log ends at earlier times, UNKNOWN_END where not known; ``at`` is the index in ``places`` for each time."""
        ...


class SampledPositions:
    """Positions from samples: the last ones up to the time."""

    method_at_end = Method.INTERPOLATED

    def __init__(self, samples: PositionSamples, at_ms: int) -> None:
        self.at_ms = at_ms
        self._samples = samples

    def newest_ms(self) -> int | None:
        """Time of the newest sample of all partitions up to the time; None without samples."""
        return max((int(self._samples.columns.sampled_ms[last]) for last in self._last.values()), default=None)

    def bounds(self, place: Place) -> Bounds:
        """Log start and log end of the last sample."""
        last, columns = self._last.get(place), self._samples.columns
        if last is None:
            return Bounds(None, None, _NO_SAMPLE)
        return Bounds(int(columns.log_start_offset[last]), int(columns.log_end_offset[last]))

    def time_lags(self, points: Collection[Point]) -> dict[Point, TimeLag]:
        """Lag in seconds by interpolation."""
        first, end = self._samples.slices(place for place, _ in points)
        offsets = np.fromiter((offset for _, offset in points), np.int64, len(points))
        return dict(zip(points, interpolated_lags(self._samples.columns, first, end, offsets, self.at_ms), strict=True))

    def ends_at(self, places: Sequence[Place], at: Int64s, times_ms: Int64s) -> Int64s:
        """Log end of the last sample before or at each time."""
        columns = self._samples.columns
        first, end = (each[at] for each in newest_incarnations(columns, *self._samples.slices(places), self.at_ms))
        before = first_above(columns.sampled_ms, first, end, times_ms) - 1
        ends = columns.log_end_offset if len(columns.log_end_offset) else np.zeros(1, dtype=np.int64)
        return np.where(before >= first, ends[np.maximum(before, 0)], UNKNOWN_END)

    @cached_property
    def _last(self) -> dict[Place, int]:
        """The index of the last sample of each partition up to the time."""
        places = list(self._samples.places())
        first, end = self._samples.slices(places)
        end = first_above(self._samples.columns.sampled_ms, first, end, np.full(len(first), self.at_ms))
        return {
            place: last - 1
            for place, start, last in zip(places, first.tolist(), end.tolist(), strict=True)
            if last > start
        }


def by_place(points: Iterable[Point]) -> dict[Place, list[int]]:
    """The offsets or times of each partition, in the order given."""
    found: dict[Place, list[int]] = {}
    for place, number in points:
        found.setdefault(place, []).append(number)
    return found
