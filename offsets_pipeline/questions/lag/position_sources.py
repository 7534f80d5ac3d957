"""Where lag gets positions from: samples alone (here), or a broker with samples behind it (broker_source.py).

Lag in seconds is now minus the timestamp of the first record at or after the committed offset; 0 if there is none.
"Now" is the time at which commit and log end are compared (R37). With a broker at hand the timestamp is the record's
own. Without one it is interpolated between two samples of the log end: the first sample above the committed offset and
the sample before it. The record came between them, so the result is at most one sampling interval off, however long
ago that was. It is never extrapolated: a commit below the first sample has no lag in seconds.

`interpolated_ends` is the same interpolation the other way around: the log end at a time between two samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from offsets_pipeline.common.clock import MS_OF_SECOND, shown_time
from offsets_pipeline.ingest.topic_positions.position_samples import first_above

if TYPE_CHECKING:
    from offsets_pipeline.ingest.topic_positions.position_samples import Float64s, Int64s, PositionSamples, Series
    from offsets_pipeline.kafka.record.records import Bools

    Place = tuple[str, int]

_NO_SAMPLE = "no position of the partition is known"
#: In place of a log start or log end that is not known.
UNKNOWN_END = -1
_HALF_A_RECORD = 0.5
#: The highest float that is an offset.
_HIGHEST = 2.0**63 - 1024


class Method(StrEnum):
    """How lag in seconds was found.

    By the record's timestamp, between two samples, as the time since a sample that saw the record, or not at all.
    """

    EXACT = "exact"
    INTERPOLATED = "interpolated"
    AT_LEAST = "at_least"
    NONE = "none"


class TimeLag(NamedTuple):
    """Lag in seconds; None, or a lower bound, with a reason."""

    seconds: float | None
    method: Method
    reason: str | None = None


_NEVER_SAMPLED = TimeLag(None, Method.NONE, "the partition was never sampled")


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

    ``highest`` is a log end of that time or of a later one. A commit up to it is not above the log end. A broker may
    know it where it does not know the log end of the time.
    """

    log_start_offset: Int64s
    log_end_offset: Int64s
    highest: Int64s
    reasons: dict[int, str]


class EndsBetween(NamedTuple):
    """Log ends at times. ``end`` is NaN where it is not known.

    ``before`` is the index of the last sample up to each time, ``after`` that of the first one after it; -1: none.
    ``is_over`` tells whether the partition was created again since.
    """

    end: Float64s
    before: Int64s
    after: Int64s
    is_over: Bools


class SampledPositions:
    """Positions of topics up to a time, from samples: interpolated between the samples before and after each time.

    Attributes:
        at_ms: The time of the question in ms.
        until_ms: Positions are known up to this time: that of the newest sample of all partitions, or of the question.
            None without samples.
        method_at_end: How this source knows that a consumer is at the end.
    """

    method_at_end = Method.INTERPOLATED

    def __init__(self, samples: PositionSamples, at_ms: int) -> None:
        self.at_ms = at_ms
        self.until_ms = None if samples.newest_ms is None else min(samples.newest_ms, at_ms)
        self._samples = samples

    def bounds(self, places: Places) -> BoundsAtTimes:
        """Log start and log end of each row: of the last sample, and between the samples around the time."""
        found = self.between(places)
        is_known = ~np.isnan(found.end)
        ends = self._samples.columns.log_end_offset
        # floats above 2^53 are rounded, up to 2^63, which is no offset; after the last sample nothing is spread
        between = np.minimum(np.floor(np.nan_to_num(found.end) + 0.5), _HIGHEST).astype(np.int64)
        last = ends[found.before] if len(ends) else between
        end = np.where(is_known, np.where(found.after < 0, last, between), UNKNOWN_END)
        highest = np.where(is_known & (found.after >= 0), ends[found.after], end) if len(ends) else end
        starts = self._samples.columns.log_start_offset
        start = np.where(is_known, starts[found.before], UNKNOWN_END) if len(starts) else end
        return BoundsAtTimes(start, end, highest, self._reasons(places, found))

    def time_lags(self, places: Places, offsets: Int64s) -> list[TimeLag]:
        """Lag in seconds of a consumer at each offset, at the time of its row."""
        first, end = (each[places.at] for each in self._samples.slices(places.names))
        return interpolated_lags(self._samples.columns, first, end, offsets, places.times_ms)

    def lags_at(self, places: Places, offsets: Int64s) -> Float64s:
        """Lag at many times, for windows and charts; NaN where not known. Between samples it is a fraction."""
        return np.maximum(self.between(places).end - offsets, 0)

    def between(self, places: Places) -> EndsBetween:
        """Log ends, and the samples around each time."""
        first, end = (each[places.at] for each in self._samples.slices(places.names))
        newest_ms = self._samples.newest_ms
        return interpolated_ends(self._samples.columns, first, end, places.times_ms, self.at_ms, newest_ms)

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


def interpolated_lags(samples: Series, first: Int64s, end: Int64s, offsets: Int64s, times_ms: Int64s) -> list[TimeLag]:
    """Lag of committed offsets, each at a time, by the samples before and after it.

    ``first`` and ``end`` say where in ``samples`` those of the offset's partition are.
    """
    first, until, end = incarnations_at(samples, first, end, times_ms)
    is_sampled = until > first
    if not len(samples.sampled_ms):
        return [_NEVER_SAMPLED] * len(offsets)
    ends, times, last = samples.log_end_offset, samples.sampled_ms, np.maximum(end - 1, 0)
    starts = samples.log_start_offset[np.maximum(until - 1, 0)]
    position = np.maximum(offsets, starts)  # the log has no record before its start
    above = first_above(ends, first, end, position)
    is_at_end = is_sampled & (position >= ends[last])
    is_between = is_sampled & ~is_at_end & (above > first)
    before, after = np.maximum(above - 1, 0), np.minimum(above, len(ends) - 1)
    grown = np.where(is_between, ends[after] - ends[before], 1)
    share = (position - ends[before] + _HALF_A_RECORD) / grown  # records are spread evenly between two samples
    appended_ms = times[before] + share * (times[after] - times[before])
    # the first sample saw the record, which may be much older
    appended_ms = np.where(is_between, appended_ms, times[np.minimum(first, len(times) - 1)])
    seconds = np.round(np.maximum(0.0, times_ms - appended_ms) / MS_OF_SECOND, 3)
    found = [TimeLag(each, Method.INTERPOLATED) for each in np.where(is_at_end, 0.0, seconds).tolist()]
    for row in np.flatnonzero(~is_at_end & ~is_between).tolist():
        if not is_sampled[row]:
            found[row] = _NEVER_SAMPLED
            continue
        since, at_least = shown_time(int(times[first[row]])), float(seconds[row])
        reason = f"record {int(position[row])} is older than the first sample, of {since}"
        found[row] = TimeLag(at_least or None, Method.AT_LEAST if at_least else Method.NONE, reason)
    return found


def interpolated_ends(
    samples: Series, first: Int64s, end: Int64s, times_ms: Int64s, at_ms: int, known_to_ms: int | None
) -> EndsBetween:
    """Log ends at times, in the incarnation of each partition at ``at_ms``.

    ``first`` and ``end`` are as of `interpolated_lags`. Between two samples records are spread evenly. After the last
    sample of a partition its log end stays as it is up to ``known_to_ms``: a sample without a row found no change.
    """
    last = end
    first, _, end = incarnations_at(samples, first, end, np.full(len(first), at_ms))
    after = first_above(samples.sampled_ms, first, end, times_ms)
    before = np.where(after > first, after - 1, -1)
    after = np.where(after < end, after, -1)
    if not len(samples.sampled_ms):
        return EndsBetween(np.full(len(first), np.nan), before, after, end < last)
    ends, times = samples.log_end_offset, samples.sampled_ms
    grown = ends[after] - ends[before]
    is_between = (before >= 0) & (after >= 0)
    share = (times_ms - times[before]) / np.where(is_between, times[after] - times[before], 1)
    # an incarnation that has ended may have ended at any time after its last sample
    is_still = (before >= 0) & (after < 0) & (times_ms <= np.where(end == last, known_to_ms or 0, times[before]))
    found = np.where(is_between, ends[before] + share * grown, np.where(is_still, ends[before], np.nan))
    return EndsBetween(found, before, after, end < last)


def incarnations_at(samples: Series, first: Int64s, end: Int64s, times_ms: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Cut each slice of samples to the incarnation of the topic at its time: a log end only grows.

    Returns where it begins, where its samples up to the time end, and where it ends.
    """
    until = first_above(samples.sampled_ms, first, end, times_ms)
    if not len(samples.log_end_offset):
        return first, until, end
    falls = np.flatnonzero(np.diff(samples.log_end_offset, prepend=samples.log_end_offset[:1]) < 0)
    number = np.searchsorted(falls, np.maximum(until - 1, first), side="right")
    created, next_created = np.append(0, falls)[number], np.append(falls, len(samples.log_end_offset))[number]
    return np.where(until > first, np.maximum(first, created), first), until, np.minimum(end, next_created)
