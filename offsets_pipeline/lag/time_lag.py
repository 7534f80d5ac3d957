"""Lag in seconds: now minus the timestamp of the first record at or after the committed offset; 0 if there is none.

With a broker at hand the timestamp is the record's own. Without one it is interpolated between two samples of the log
end: the first sample above the committed offset and the sample before it. The record came between them, so the result
is at most one sampling interval off, however long ago that was. It is never extrapolated: a commit below the first
sample has no lag in seconds.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from offsets_pipeline.clock import shown_time
from offsets_pipeline.errors import OffsetsError
from offsets_pipeline.foreign_errors import first_line
from offsets_pipeline.topic_positions.position_samples import first_above

if TYPE_CHECKING:
    from offsets_pipeline.broker.first_records import FoundRecord
    from offsets_pipeline.topic_positions.position_samples import Int64s, Series

_MS_OF_SECOND = 1000
_HALF_A_RECORD = 0.5


class Method(StrEnum):
    """How lag in seconds was found: by the record's timestamp, between two samples, or not at all."""

    EXACT = "exact"
    INTERPOLATED = "interpolated"
    NONE = "none"


class TimeLag(NamedTuple):
    """Lag in seconds; None with a reason."""

    seconds: float | None
    method: Method
    reason: str | None = None


_NEVER_SAMPLED = TimeLag(None, Method.NONE, "the partition was never sampled")


def exact_lag(found: FoundRecord, at_ms: int) -> TimeLag:
    """Lag by the first record at or after the committed offset, as a broker returned it."""
    if found is None:
        return TimeLag(0.0, Method.EXACT)
    if isinstance(found, OffsetsError):
        return TimeLag(None, Method.NONE, first_line(found))
    if found.timestamp_ms is None:
        return TimeLag(None, Method.NONE, f"the record at offset {found.offset} has no timestamp")
    return TimeLag(_seconds(at_ms, found.timestamp_ms), Method.EXACT)


def interpolated_lags(samples: Series, first: Int64s, end: Int64s, offsets: Int64s, at_ms: int) -> list[TimeLag]:
    """Lag of committed offsets by the samples up to ``at_ms``.

    ``first`` and ``end`` say where in ``samples`` those of the offset's partition are.
    """
    first, end = newest_incarnations(samples, first, end, at_ms)
    is_sampled = end > first
    if not len(samples.sampled_ms):
        return [_NEVER_SAMPLED] * len(offsets)
    ends, times, last = samples.log_end_offset, samples.sampled_ms, np.maximum(end - 1, 0)
    position = np.maximum(offsets, samples.log_start_offset[last])  # the log has no record before its start
    above = first_above(ends, first, end, position)
    is_at_end = is_sampled & (position >= ends[last])
    is_between = is_sampled & ~is_at_end & (above > first)
    before, after = np.maximum(above - 1, 0), np.minimum(above, len(ends) - 1)
    grown = np.where(is_between, ends[after] - ends[before], 1)
    share = (position - ends[before] + _HALF_A_RECORD) / grown  # records are spread evenly between two samples
    appended_ms = times[before] + share * (times[after] - times[before])
    seconds = np.round(np.maximum(0.0, at_ms - appended_ms) / _MS_OF_SECOND, 3)
    found = [TimeLag(each, Method.INTERPOLATED) for each in np.where(is_at_end, 0.0, seconds).tolist()]
    for place in np.flatnonzero(~is_at_end & ~is_between).tolist():
        since = shown_time(int(times[first[place]])) if is_sampled[place] else ""
        older = TimeLag(None, Method.NONE, f"record {int(position[place])} is older than the first sample, of {since}")
        found[place] = older if is_sampled[place] else _NEVER_SAMPLED
    return found


def newest_incarnations(samples: Series, first: Int64s, end: Int64s, at_ms: int) -> tuple[Int64s, Int64s]:
    """Cut slices of samples off after ``at_ms``, and before each topic was last created: a log end only grows."""
    end = first_above(samples.sampled_ms, first, end, np.full(len(first), at_ms))
    if not len(samples.log_end_offset):
        return first, end
    falls = np.diff(samples.log_end_offset, prepend=samples.log_end_offset[:1]) < 0
    created = np.maximum.accumulate(np.where(falls, np.arange(len(falls)), 0))
    return np.where(end > first, np.maximum(first, created[np.maximum(end - 1, 0)]), first), end


def _seconds(at_ms: int, appended_ms: float) -> float:
    return round(max(0.0, at_ms - appended_ms) / _MS_OF_SECOND, 3)
