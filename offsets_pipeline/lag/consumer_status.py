"""Status of partitions and groups by the rules that Burrow publishes, from the last commits of a partition.

The window is a number of commits. Each has its lag at the time of the commit. In this order:

1. OK: the partition has no lag now.
2. STOP: more time passed since the last commit than between the first and the last commit of the window.
3. REWIND: the consumer went back, and has not reached its highest offset of the window again.
4. OK: some commit of the window had no lag.
5. STALL: all commits of the window have the same offset, and the lag did not fall.
6. WARN: the lag did not fall between any two commits: the consumer is slow.
7. OK.

A group is ERR if one of its partitions is STOP, REWIND or STALL; else WARN if one is WARN; else OK.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offsets_pipeline.record.records import Bools, Int64s

#: In place of a lag that is not known.
UNKNOWN_LAG = -1


class PartitionStatus(StrEnum):
    """Status of a group in one partition."""

    OK = "OK"
    STOP = "STOP"
    REWIND = "REWIND"
    STALL = "STALL"
    WARN = "WARN"


class GroupStatus(StrEnum):
    """Status of a group."""

    OK = "OK"
    WARN = "WARN"
    ERR = "ERR"


class CommitLags(NamedTuple):
    """The commits of many windows, window by window, and in each in the order of the log.

    ``first`` is the index of the first commit of each window, and after them the number of commits. ``lag`` is the lag
    at the time of the commit, UNKNOWN_LAG if the log end of that time is not known. Times are in ms.
    """

    first: Int64s
    offset: Int64s
    committed_ms: Int64s
    lag: Int64s


def partition_statuses(windows: CommitLags, lag: Int64s, at_ms: int) -> list[str | None]:
    """Return the status of each partition at a time; None if it depends on a lag that is not known.

    Args:
        windows: for each partition its last commits up to the time.
        lag: the lag of each partition at the time, UNKNOWN_LAG if it is not known.
        at_ms: the time.
    """
    sizes = np.diff(windows.first)
    has_commits = sizes > 0
    first = windows.first[:-1][has_commits]
    of_window = np.repeat(np.arange(len(first)), sizes[has_commits])
    last = first + sizes[has_commits] - 1
    offset, at, commit_lag = windows.offset, windows.committed_ms, windows.lag
    is_known = commit_lag != UNKNOWN_LAG

    def any_of(flags: Bools) -> Bools:
        return np.bitwise_or.reduceat(flags, first) if len(first) else np.zeros(0, dtype=np.bool_)

    known = np.flatnonzero(is_known)  # unknown lags between two known ones do not count
    falls = np.zeros(len(commit_lag), dtype=np.bool_)
    falls[known[1:]] = (np.diff(commit_lag[known]) < 0) & (np.diff(of_window[known]) == 0)
    highest = np.maximum.reduceat(offset, first) if len(first) else offset
    rules = (
        (at_ms - at[last] > at[last] - at[first], PartitionStatus.STOP),
        (offset[last] < highest, PartitionStatus.REWIND),
        (any_of(is_known & (commit_lag <= 0)) | any_of(falls), PartitionStatus.OK),
        (any_of(~is_known), None),
        (~any_of(offset != offset[first][of_window]), PartitionStatus.STALL),
    )
    of_windows = np.full(len(first), PartitionStatus.WARN.value, dtype=object)
    for applies, status in reversed(rules):
        of_windows[applies] = None if status is None else status.value
    found = np.full(len(lag), PartitionStatus.OK.value, dtype=object)
    found[has_commits] = of_windows
    found[(lag <= 0)] = PartitionStatus.OK.value
    found[lag == UNKNOWN_LAG] = None
    statuses: list[str | None] = found.tolist()
    return statuses


def group_status(partitions: Iterable[str | None]) -> GroupStatus | None:
    """Return the status of a group with partitions of these statuses; None if none of them is known."""
    found = set(partitions) - {None}
    if not found:
        return None
    if found & {PartitionStatus.STOP, PartitionStatus.REWIND, PartitionStatus.STALL}:
        return GroupStatus.ERR
    return GroupStatus.WARN if PartitionStatus.WARN in found else GroupStatus.OK
