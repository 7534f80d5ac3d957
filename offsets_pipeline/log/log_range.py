"""Ranges of record offsets in the log, and the files that may hold them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from offsets_pipeline.delta.schemas import LOG_INCARNATION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsets_pipeline.delta.data_file import DataFile

_END = 2**63 - 1


@dataclass(frozen=True)
class LogRange:
    """A range of record offsets in each log partition, in one incarnation of the log.

    ``starts``: first record offset; a reader skips log partitions without one. ``ends``: record offset after the last;
    without one the range has no end.
    """

    starts: Mapping[int, int]
    ends: Mapping[int, int] = field(default_factory=dict)
    log_incarnation: int = LOG_INCARNATION

    def may_hold(self, file: DataFile) -> bool:
        """Whether a file may hold records of the range, by its statistics."""
        lowest, highest = file.lowest, file.highest
        if (
            not lowest.get("log_incarnation", self.log_incarnation)
            <= self.log_incarnation
            <= highest.get("log_incarnation", self.log_incarnation)
        ):
            return False
        last = highest.get("record_offset", _END)
        return any(
            lowest.get("log_partition", at) <= at <= highest.get("log_partition", at) and start <= last
            for at, start in self.starts.items()
        )

    def select(self, rows: pa.Table) -> pa.Table:
        """The rows within the range; ``rows`` must have the column log_incarnation."""
        partition, offset = rows["log_partition"].to_numpy(), rows["record_offset"].to_numpy()
        wanted = rows["log_incarnation"].to_numpy() == self.log_incarnation
        size = max(int(partition.max(initial=-1)), *self.starts, -1) + 1
        starts, ends = np.full(size, _END, dtype=np.int64), np.full(size, _END, dtype=np.int64)
        starts[list(self.starts)] = list(self.starts.values())
        ends[[at for at in self.ends if at < size]] = [end for at, end in self.ends.items() if at < size]
        wanted &= (starts[partition] <= offset) & (offset < ends[partition])
        return rows if wanted.all() else rows.filter(pa.array(wanted))
