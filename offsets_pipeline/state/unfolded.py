"""Records of the log that are not folded: their number by log partition, and the files that may hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from offsets_pipeline.delta.table_folder import TableFolder
from offsets_pipeline.log.log_range import LogRange
from offsets_pipeline.log.log_scan import LogScan
from offsets_pipeline.store_snapshot import log_incarnations

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from offsets_pipeline.delta.data_file import DataFile
    from offsets_pipeline.delta.properties import StoreProperties
    from offsets_pipeline.delta.snapshot import Snapshot
    from offsets_pipeline.state.fold_progress import PartitionProgress

_LOG_PARTITION = pa.schema([pa.field("log_partition", pa.int32())])


class UnfoldedLog:
    """The incarnation of the log that counts, in one version of the table `log`."""

    def __init__(self, log: Snapshot, log_partitions: Snapshot, properties: StoreProperties) -> None:
        current = log_incarnations(log_partitions.rows(), properties)[-1]
        self.incarnation, self.offsets_partitions = current.number, current.offsets_partitions
        self._is_cleaned = bool(current.cleaned_to)
        self.folder = TableFolder(log.folder, log.table)
        self._files = log.files()

    def range(self, start: Mapping[int, PartitionProgress]) -> LogRange:
        """The records that are not folded, of these log partitions."""
        return LogRange({at: each.folded_to for at, each in start.items()}, log_incarnation=self.incarnation)

    def files(self, start: Mapping[int, PartitionProgress]) -> list[DataFile]:
        """The files that may hold such records."""
        wanted = self.range(start)
        return [file for file in self._files if wanted.may_hold(file)]

    def unfolded(self, start: Mapping[int, PartitionProgress]) -> tuple[dict[int, int], set[int]]:
        """The number of records to fold, by log partition, and the log partitions to fold from their start.

        Those are log partitions in which records were appended behind folded ones. The number of their records tells
        it. A cleaning removes records, so that the number tells nothing then.
        """
        folded = sum(each.records for each in start.values())
        if not self._is_cleaned and sum(file.rows for file in self._files) <= folded:
            return {}, set()  # the row counts of the files suffice: no file is read
        wanted = self.range(start)
        missing = self._count(self._files, wanted)
        if self._is_cleaned or self._rows() <= folded + sum(missing.values()):
            return missing, set()
        every = self._count(self._files, LogRange(dict.fromkeys(start, 0), log_incarnation=self.incarnation))
        behind = {at for at, each in start.items() if every.get(at, 0) > each.records + missing.get(at, 0)}
        return missing | {at: every[at] for at in behind}, behind

    def _rows(self) -> int:
        """Number of rows of the incarnation."""
        certain = 0
        others: list[DataFile] = []
        for file in self._files:
            bounds = file.lowest.get("log_incarnation"), file.highest.get("log_incarnation")
            if file.rows and bounds == (self.incarnation, self.incarnation):
                certain += file.rows
            else:
                others.append(file)
        every = LogRange(None, log_incarnation=self.incarnation)
        return certain + sum(int(rows.num_rows) for rows in self._partitions_of(others, every))

    def _count(self, files: Iterable[DataFile], wanted: LogRange) -> dict[int, int]:
        """Number of records of a range, by log partition."""
        found: dict[int, int] = {}
        for rows in self._partitions_of(files, wanted):
            partitions, counts = np.unique(rows["log_partition"].to_numpy(), return_counts=True)
            for at, count in zip(partitions.tolist(), counts.tolist(), strict=True):
                found[at] = found.get(at, 0) + count
        return found

    def _partitions_of(self, files: Iterable[DataFile], wanted: LogRange) -> Iterator[pa.Table]:
        return LogScan(self.folder, _LOG_PARTITION, wanted).rows(files)
