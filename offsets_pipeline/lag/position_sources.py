"""Where lag gets positions from: samples alone (here), or a broker with samples behind it (broker_source.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from offsets_pipeline.lag.time_lag import Method, TimeLag, interpolated_lag, of_newest_incarnation

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from offsets_pipeline.topic_positions.position_samples import PositionSamples

    Place = tuple[str, int]
    #: A partition, and an offset or a time in ms.
    Point = tuple[Place, int]

_NO_SAMPLE = "no position of the partition is known"


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

    def ends_at(self, points: Collection[Point]) -> dict[Point, int]:
        """Log end of partitions at earlier times; leaves out those that are not known."""
        ...


class SampledPositions:
    """Positions from samples: the last ones up to the time."""

    method_at_end = Method.INTERPOLATED

    def __init__(self, samples: PositionSamples, at_ms: int) -> None:
        self.at_ms = at_ms
        self._samples = samples

    def newest_ms(self) -> int | None:
        """Time of the newest sample of all partitions up to the time; None without samples."""
        last = (self._samples.series(place).until(self.at_ms).last() for place in self._samples.places())
        return max((each.sampled_ms for each in last if each is not None), default=None)

    def bounds(self, place: Place) -> Bounds:
        """Log start and log end of the last sample."""
        last = self._samples.series(place).until(self.at_ms).last()
        return Bounds(None, None, _NO_SAMPLE) if last is None else Bounds(last.log_start_offset, last.log_end_offset)

    def time_lags(self, points: Collection[Point]) -> dict[Point, TimeLag]:
        """Lag in seconds by interpolation."""
        return {
            (place, offset): interpolated_lag(self._samples.series(place), offset, self.at_ms)
            for place, offset in points
        }

    def ends_at(self, points: Collection[Point]) -> dict[Point, int]:
        """Log end of the last sample before or at each time."""
        found = {}
        for place, times in by_place(points).items():
            series = of_newest_incarnation(self._samples.series(place).until(self.at_ms))
            before = np.searchsorted(series.sampled_ms, np.array(times, dtype=np.int64), side="right") - 1
            for time_ms, index in zip(times, before.tolist(), strict=True):
                if index >= 0:
                    found[place, time_ms] = int(series.log_end_offset[index])
        return found


def by_place(points: Iterable[Point]) -> dict[Place, list[int]]:
    """The offsets or times of each partition, in the order given."""
    found: dict[Place, list[int]] = {}
    for place, number in points:
        found.setdefault(place, []).append(number)
    return found
