"""How far a columnar replay has come: which rows are new, and which records do not decode (R6, R15)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from offsets_pipeline.semantics.effects import ReplayedPartition
from offsets_pipeline.semantics.log_row import of_each_row

if TYPE_CHECKING:
    from collections.abc import Mapping


class ReplayProgress:
    """Ends and record counts of the log partitions of a replay.

    ``folded_to`` has the first record offset of each log partition that is not folded yet; 0 if it is missing.
    """

    def __init__(self, folded_to: Mapping[int, int] | None = None) -> None:
        self.folded_to = dict(folded_to or {})
        self.end: dict[int, int] = {}
        self.records: dict[int, int] = {}
        self._unknown: set[tuple[int, int]] = set()
        self._quarantine: dict[tuple[int, int], dict[str, Any]] = {}

    def unfolded(self, table: pa.Table) -> pa.Table:
        """The rows of INPUT_SCHEMA that are not folded yet, and those that an earlier fold carries over."""
        partition, offset, records = (table[name].to_numpy() for name in ("log_partition", "record_offset", "records"))
        carried = records == 0
        behind = (offset < of_each_row(self.folded_to, partition)) & ~carried  # R15: folded before
        fresh = ~behind & ~carried
        for log_partition in np.unique(partition[fresh]).tolist():
            here = fresh & (partition == log_partition)
            self.end[log_partition] = max(self.end.get(log_partition, 0), int(offset[here].max()) + 1)
            self.records[log_partition] = self.records.get(log_partition, 0) + int(records[here].sum())
        return table.filter(pa.array(~behind)) if behind.any() else table

    def note_unread(
        self, log_partition: int, record_offset: int, key: bytes | None, value: bytes | None, reason: str | None = None
    ) -> None:
        """Put a record into quarantine. One without a reason has an unknown type, and is only counted (R6)."""
        if reason is None:
            self._unknown.add((log_partition, record_offset))
        else:
            place = {"log_partition": log_partition, "record_offset": record_offset}
            self._quarantine[log_partition, record_offset] = {**place, "reason": reason, "key": key, "value": value}

    def place(self) -> str:
        """The log partitions and record offsets so far, for an error message."""
        return "log partitions " + ", ".join(f"{at} up to record offset {end}" for at, end in sorted(self.end.items()))

    def quarantine(self) -> list[dict[str, Any]]:
        """The records that do not decode, for `Effects`."""
        return [row for _, row in sorted(self._quarantine.items())]

    def progress(self) -> dict[int, ReplayedPartition]:
        """Ends and record counts of the log partitions, without pending commits."""
        unknown = Counter(at for at, _ in self._unknown)
        return {at: ReplayedPartition(self.end[at], self.records[at], unknown[at]) for at in sorted(self.records)}
