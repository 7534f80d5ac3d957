"""Ranges of record offsets in the log: the rows in them, and the files and row groups that may hold them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from offsets_pipeline.semantics.log_row import of_each_row
from offsets_pipeline.store.delta.schemas import LOG_INCARNATION

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import pyarrow as pa

    from offsets_pipeline.kafka.record.records import Bools
    from offsets_pipeline.store.delta.data_file import DataFile

#: The columns that tell whether a row is within a range.
PLACE = ("log_partition", "record_offset", "log_incarnation")
_END = 2**63 - 1


@dataclass(frozen=True)
class LogRange:
    """A range of record offsets in each log partition, in one incarnation of the log.

    ``starts``: first record offset; a reader skips log partitions without one. None: all log partitions, from their
    start. ``ends``: record offset after the last; without one the range has no end.
    """

    starts: Mapping[int, int] | None
    ends: Mapping[int, int] = field(default_factory=dict)
    log_incarnation: int = LOG_INCARNATION

    def may_hold(self, file: DataFile) -> bool:
        """Whether a file may hold records of the range, by its statistics."""
        return self.may_hold_between(file.lowest, file.highest)

    def may_hold_between(self, lowest: Mapping[str, Any], highest: Mapping[str, Any]) -> bool:
        """Whether rows with these bounds of columns may be in the range. A column without bounds excludes no row."""
        if (
            not lowest.get("log_incarnation", self.log_incarnation)
            <= self.log_incarnation
            <= highest.get("log_incarnation", self.log_incarnation)
        ):
            return False
        if self.starts is None:
            return True
        first, last = lowest.get("record_offset", 0), highest.get("record_offset", _END)
        return any(
            lowest.get("log_partition", at) <= at <= highest.get("log_partition", at)
            and start <= last
            and first < self.ends.get(at, _END)
            for at, start in self.starts.items()
        )

    def mask(self, rows: pa.Table) -> Bools:
        """A mask of the rows within the range; ``rows`` has the columns PLACE."""
        partition, offset = rows["log_partition"].to_numpy(), rows["record_offset"].to_numpy()
        wanted: Bools = rows["log_incarnation"].to_numpy() == self.log_incarnation
        if self.starts is not None:
            wanted &= of_each_row(self.starts, partition, missing=_END) <= offset
        if self.ends:
            wanted &= offset < of_each_row(self.ends, partition, missing=_END)
        return wanted
