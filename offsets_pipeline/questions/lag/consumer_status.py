"""Status of partitions and groups by the rules that Burrow publishes, from the last commits of a partition.

The window is a number of commits. Each has its lag at the time of the commit. In this order:

1. OK: the partition has no lag now.
2. STOP: more time passed since the last commit than between the first and the last commit of the window.
3. REWIND: the consumer went back, and has not reached its highest offset of the window again.
4. OK: some commit of the window had no lag.
5. STALL: all commits of the window have the same offset, and the lag did not fall.
6. WARN: the lag did not fall between any two commits: the consumer is slow.
7. OK.

A partition is UNKNOWN if these rules depend on a lag that is not known, or on commits and none is known. The log end at
a commit lies between two samples, so the lag of a commit is a fraction. No lag is less than one record; a lag falls by
one record or more.

A group is ERR if one of its partitions is STOP, REWIND or STALL; else WARN if one is WARN; else OK.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from offsets_pipeline.ingest.topic_positions.position_samples import Float64s
    from offsets_pipeline.kafka.record.records import Bools, Int64s
    from offsets_pipeline.questions.lag.commit_windows import WindowColumns

#: In place of a lag of now that is not known.
UNKNOWN_LAG = -1
#: Consumers at work are behind for less: no alert has a status of a group before.
LATE_SECONDS = 60
_ONE_RECORD = 1


class PartitionStatus(StrEnum):
    """Status of a group in one partition."""

    OK = "OK"
    STOP = "STOP"
    REWIND = "REWIND"
    STALL = "STALL"
    WARN = "WARN"
    UNKNOWN = "UNKNOWN"


class GroupStatus(StrEnum):
    """Status of a group."""

    OK = "OK"
    WARN = "WARN"
    ERR = "ERR"
    UNKNOWN = "UNKNOWN"


def partition_statuses(windows: WindowColumns, commit_lag: Float64s, lag: Int64s, times_ms: Int64s) -> list[str]:
    """Return the status of each partition at its time.

    Args:
        windows: for each partition its last commits up to the time.
        commit_lag: the lag at the time of each commit, NaN if the log end of that time is not known.
        lag: the lag of each partition at the time, UNKNOWN_LAG if it is not known.
        times_ms: the times in ms.
    """
    sizes = np.diff(windows.first)
    has_commits = sizes > 0
    first = windows.first[:-1][has_commits]
    of_window = np.repeat(np.arange(len(first)), sizes[has_commits])
    last = first + sizes[has_commits] - 1
    offset, at = windows.offset, windows.committed_ms
    is_known = ~np.isnan(commit_lag)

    def any_of(flags: Bools) -> Bools:
        return np.bitwise_or.reduceat(flags, first) if len(first) else np.zeros(0, dtype=np.bool_)

    known = np.flatnonzero(is_known)  # unknown lags between two known ones do not count
    falls = np.zeros(len(commit_lag), dtype=np.bool_)
    falls[known[1:]] = (np.diff(commit_lag[known]) <= -_ONE_RECORD) & (np.diff(of_window[known]) == 0)
    highest = np.maximum.reduceat(offset, first) if len(first) else offset
    rules = (
        (times_ms[has_commits] - at[last] > at[last] - at[first], PartitionStatus.STOP),
        (offset[last] < highest, PartitionStatus.REWIND),
        (any_of(is_known & (commit_lag < _ONE_RECORD)) | any_of(falls), PartitionStatus.OK),
        (any_of(~is_known), PartitionStatus.UNKNOWN),
        (~any_of(offset != offset[first][of_window]), PartitionStatus.STALL),
    )
    of_windows = np.full(len(first), PartitionStatus.WARN.value, dtype=object)
    for applies, status in reversed(rules):
        of_windows[applies] = status.value
    found = np.full(len(lag), PartitionStatus.UNKNOWN.value, dtype=object)  # without a commit of that time
    found[has_commits] = of_windows
    found[(lag <= 0)] = PartitionStatus.OK.value
    found[lag == UNKNOWN_LAG] = PartitionStatus.UNKNOWN.value
    statuses: list[str] = found.tolist()
    return statuses


def group_status(partitions: Iterable[str]) -> GroupStatus:
    """Return the status of a group with partitions of these statuses: that of the partitions whose status is known."""
    found = set(partitions) - {PartitionStatus.UNKNOWN}
    if not found:
        return GroupStatus.UNKNOWN
    if found & {PartitionStatus.STOP, PartitionStatus.REWIND, PartitionStatus.STALL}:
        return GroupStatus.ERR
    return GroupStatus.WARN if PartitionStatus.WARN in found else GroupStatus.OK
