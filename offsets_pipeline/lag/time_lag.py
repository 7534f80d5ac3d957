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
from offsets_pipeline.errors import OffsetsError, first_line

if TYPE_CHECKING:
    from offsets_pipeline.broker.first_records import FoundRecord
    from offsets_pipeline.topic_positions.position_samples import Series

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


def exact_lag(found: FoundRecord, at_ms: int) -> TimeLag:
    """Lag by the first record at or after the committed offset, as a broker returned it."""
    if found is None:
        return TimeLag(0.0, Method.EXACT)
    if isinstance(found, OffsetsError):
        return TimeLag(None, Method.NONE, first_line(found))
    if found.timestamp_ms is None:
        return TimeLag(None, Method.NONE, f"the record at offset {found.offset} has no timestamp")
    return TimeLag(_seconds(at_ms, found.timestamp_ms), Method.EXACT)


def interpolated_lag(series: Series, offset: int, at_ms: int) -> TimeLag:
    """Lag by the samples up to ``at_ms`` of the partition of a committed offset."""
    series = of_newest_incarnation(series.until(at_ms))
    last = series.last()
    if last is None:
        return TimeLag(None, Method.NONE, "the partition was never sampled")
    position = max(offset, last.log_start_offset)  # the log has no record before its start
    if position >= last.log_end_offset:
        return TimeLag(0.0, Method.INTERPOLATED)
    ends, times = series.log_end_offset, series.sampled_ms
    above = int(np.searchsorted(ends, position, side="right"))
    if above == 0:
        return TimeLag(
            None,
            Method.NONE,
            f"record {position} is older than the first sample, of {shown_time(int(times[0]))}",
        )
    low, high = int(ends[above - 1]), int(ends[above])
    share = (position - low + _HALF_A_RECORD) / (high - low)  # records are spread evenly between two samples
    appended_ms = int(times[above - 1]) + share * int(times[above] - times[above - 1])
    return TimeLag(_seconds(at_ms, appended_ms), Method.INTERPOLATED)


def of_newest_incarnation(series: Series) -> Series:
    """The samples since the topic was last created: a log end only grows."""
    falls = np.flatnonzero(np.diff(series.log_end_offset) < 0)
    if not len(falls):
        return series
    first = int(falls[-1]) + 1
    return type(series)(*(column[first:] for column in series))


def _seconds(at_ms: int, appended_ms: float) -> float:
    return round(max(0.0, at_ms - appended_ms) / _MS_OF_SECOND, 3)
