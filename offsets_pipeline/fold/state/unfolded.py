"""Records of the log that are not folded: their files, and their number by log partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from offsets_pipeline.store.delta.data_file import FOLDED, LATE, DataFile, late_in
from offsets_pipeline.store.log.log_scan import LogRange, LogScan

if TYPE_CHECKING:
    from offsets_pipeline.fold.state.fold_progress import PartitionProgress
    from offsets_pipeline.store.delta.snapshot import Snapshot

_LOG_PARTITION = pa.schema([pa.field("log_partition", pa.int32())])


def files_after(version: int, log: Snapshot) -> list[DataFile]:
    """Return the files of the log that may have records which an older version of it lacks.

    Returns all files if a commit since then is no longer kept: a replay selects records by their offset.
    """
    added = log.added_after(version)
    return log.files() if added is None else added


def with_late_records(log: Snapshot, partitions: Collection[int], folded: int) -> set[int]:
    """The log partitions with late records after version ``folded`` of LATE; all if the append did not name them."""
    if log.transaction(LATE) <= folded:
        return set()
    return {at for at in partitions if log.transaction(late_in(at)) > folded} or set(partitions)


def unfolded_records(
    log: Snapshot, log_incarnation: int, start: Mapping[int, PartitionProgress], progress: Snapshot | None
) -> tuple[Mapping[int, int], set[int], list[DataFile]]:
    """Return what to fold of the log from these starts, which ``progress`` has; None for the start of the log.

    That is the number of records by log partition, the log partitions to fold from their start, since late records
    precede folded ones, and the files that may hold all these records.
    """
    if progress is None:
        behind, files = set[int](), log.files()
    else:
        behind = with_late_records(log, start, progress.transaction(LATE))
        files = log.files() if behind else files_after(progress.transaction(FOLDED), log)
    starts = {at: 0 if at in behind else each.folded_to for at, each in start.items()}
    scan = LogScan(log.table_folder, _LOG_PARTITION, LogRange(starts, log_incarnation=log_incarnation))
    records: Counter[int] = Counter()
    for rows in scan.rows(files):
        partitions, counts = np.unique(rows["log_partition"].to_numpy(), return_counts=True)
        records.update(dict(zip(partitions.tolist(), counts.tolist(), strict=True)))
    return records, behind, files
