"""Tombstones of offsets whose commits are no longer in the log.

A broker's compaction and a cleaning remove a commit, and keep its tombstone for some time. They leave gaps between
record offsets. So a tombstone that deletes nothing had a commit if records are missing before it, back to the last
record of the same offset.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

    from offsets_pipeline.semantics.partition_state import TopicPartition


class LostCommit(NamedTuple):
    """A tombstone without its commit; ``source`` is that of its row in the log."""

    group_id: str
    where: TopicPartition
    record_offset: int
    time_ms: int | None
    source: str


class LostCommits:
    """Follows one log partition: its gaps, and the last record of each offset."""

    def __init__(self) -> None:
        self._next = 0
        self._after_gaps: list[int] = []  # the first record offset after each gap
        self._last: dict[tuple[str, TopicPartition], int] = {}

    def look_for_gaps(self, rows: pa.Table) -> None:
        """Take the next rows of the log partition, of all groups, in record-offset order."""
        offset = rows["record_offset"].to_numpy()
        if len(offset):
            steps = np.diff(offset, prepend=self._next - 1)
            self._after_gaps += offset[steps > 1].tolist()
            self._next = int(offset[-1]) + 1

    def meet(self, group_id: str, where: TopicPartition, record_offset: int) -> bool:
        """Note a record of an offset; returns whether records are missing since the last one."""
        last = self._last.get((group_id, where), -1)
        self._last[group_id, where] = record_offset
        gaps = bisect_right(self._after_gaps, record_offset)
        return gaps > 0 and self._after_gaps[gaps - 1] > last
