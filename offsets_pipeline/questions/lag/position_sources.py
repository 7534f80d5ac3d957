"""Where lag gets positions from: samples alone (here), or a broker with samples behind it (broker_source.py)."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.questions.lag.time_lag import EndsBetween, Method, TimeLag, interpolated_ends, interpolated_lags

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offsets_pipeline.ingest.topic_positions.position_samples import Float64s, Int64s, PositionSamples

    Place = tuple[str, int]

_NO_SAMPLE = "no position of the partition is known"
#: In place of a log start or log end that is not known.
UNKNOWN_END = -1


class Places(NamedTuple):
    """Partitions, each at a time in ms: row ``n`` is about partition ``names[at[n]]`` at ``times_ms[n]``."""

    names: Sequence[Place]
    at: Int64s
    times_ms: Int64s

    def named(self) -> list[Place]:
        """The partition of each row."""
        return [self.names[each] for each in self.at.tolist()]

    def take(self, rows: Int64s) -> Places:
        """Some rows."""
        return Places(self.names, self.at[rows], self.times_ms[rows])


class BoundsAtTimes(NamedTuple):
    """Log starts and log ends of partitions at times; UNKNOWN_END with a reason where they are not known.

    ``highest`` is a log end of that time or of a later one. A commit up to it is not above the log end.
    """

    log_start_offset: Int64s
    log_end_offset: Int64s
    highest: Int64s
    reasons: dict[int, str]


class SampledPositions:
    """Positions of topics up to a time, from samples: interpolated between the samples before and after each time.

    Attributes:
        at_ms: The time of the question in ms.
        method_at_end: How this source knows that a consumer is at the end.
    """

    method_at_end = Method.INTERPOLATED

    def __init__(self, samples: PositionSamples, at_ms: int) -> None:
        self.at_ms = at_ms
        self._samples = samples

    @cached_property
    def until_ms(self) -> int | None:
        """Positions are known up to this time: that of the newest sample of all partitions, or of the question.

        None without samples.
        """
        newest_ms = self._samples.newest_ms
        return None if newest_ms is None else min(newest_ms, self.at_ms)

    def bounds(self, places: Places) -> BoundsAtTimes:
        """Log start and log end of each row: of the last sample, and between the samples around the time."""
        found = self.between(places)
        is_known = ~np.isnan(found.end)
        end = np.where(is_known, np.floor(np.nan_to_num(found.end) + 0.5), UNKNOWN_END).astype(np.int64)
        ends = self._samples.columns.log_end_offset
        highest = np.where(found.after >= 0, ends[found.after], end) if len(ends) else end
        return BoundsAtTimes(
            np.where(is_known, self.starts(found), UNKNOWN_END), end, highest, self._reasons(places, found)
        )

    def time_lags(self, places: Places, offsets: Int64s) -> list[TimeLag]:
        """Lag in seconds of a consumer at each offset, at the time of its row."""
        first, end = (each[places.at] for each in self._samples.slices(places.names))
        return interpolated_lags(self._samples.columns, first, end, offsets, places.times_ms)

    def ends_at(self, places: Places) -> Float64s:
        """Log ends of many times, for windows and charts; NaN where not known. Between samples they are fractions."""
        return self.between(places).end

    def between(self, places: Places) -> EndsBetween:
        """Log ends, and the samples around each time."""
        first, end = (each[places.at] for each in self._samples.slices(places.names))
        newest_ms = self._samples.newest_ms
        return interpolated_ends(self._samples.columns, first, end, places.times_ms, self.at_ms, newest_ms)

    def starts(self, found: EndsBetween) -> Int64s:
        """Log start of the last sample before each time; UNKNOWN_END without one."""
        starts = self._samples.columns.log_start_offset
        return np.where(found.before >= 0, starts[found.before], UNKNOWN_END) if len(starts) else found.before

    def _reasons(self, places: Places, found: EndsBetween) -> dict[int, str]:
        """Why the log end of a row is not known."""
        reasons = {}
        is_sampled = np.not_equal(*self._samples.slices(places.names))[places.at]
        for row in np.flatnonzero(np.isnan(found.end)).tolist():
            at = shown_time(int(places.times_ms[row]))
            if not is_sampled[row]:
                reasons[row] = _NO_SAMPLE
            elif found.before[row] < 0:
                reasons[row] = f"the log end at {at} is not known: the first sample is later"
            else:
                reasons[row] = f"the log end at {at} is not known: no sample is as late"
        return reasons
