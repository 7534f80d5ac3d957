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
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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


class WindowCommit(NamedTuple):
    """A commit: offset, time in ms, and the lag at that time; None if the log end of that time is not known."""

    offset: int
    committed_ms: int
    lag: int | None


def partition_status(window: Sequence[WindowCommit], lag: int | None, at_ms: int) -> PartitionStatus | None:
    """Return the status at a time; None if it depends on a lag that is not known.

    Args:
        window: the last commits up to the time, in the order of the log.
        lag: the lag at the time.
        at_ms: the time.
    """
    if lag is None:
        return None
    if lag <= 0 or not window:
        return PartitionStatus.OK
    first, last = window[0], window[-1]
    if at_ms - last.committed_ms > last.committed_ms - first.committed_ms:
        return PartitionStatus.STOP
    if last.offset < max(each.offset for each in window):
        return PartitionStatus.REWIND
    if any(each.lag is not None and each.lag <= 0 for each in window):
        return PartitionStatus.OK
    known = [each.lag for each in window if each.lag is not None]
    if any(after < before for before, after in pairwise(known)):
        return PartitionStatus.OK
    if len(known) < len(window):
        return None
    is_still = all(each.offset == first.offset for each in window)
    return PartitionStatus.STALL if is_still else PartitionStatus.WARN


def group_status(partitions: Iterable[str | None]) -> GroupStatus | None:
    """Return the status of a group with partitions of these statuses; None if none of them is known."""
    found = set(partitions) - {None}
    if not found:
        return None
    if found & {PartitionStatus.STOP, PartitionStatus.REWIND, PartitionStatus.STALL}:
        return GroupStatus.ERR
    return GroupStatus.WARN if PartitionStatus.WARN in found else GroupStatus.OK
