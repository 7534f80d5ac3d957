"""Which transactional records a marker has decided, for whole columns of them (R11)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

COMMITTED = 1
ABORTED = 0
OPEN = -1


def outcomes(
    log_partition: Int64s,
    producer_id: Int64s,
    record_offset: Int64s,
    marker_log_partition: Int64s,
    marker_producer_id: Int64s,
    marker_record_offset: Int64s,
    marker_commits: npt.NDArray[np.bool_],
) -> npt.NDArray[np.int8]:
    """COMMITTED, ABORTED or OPEN for each record, by the next marker of its producer in its log partition (R11).

    Markers match by producer id alone: an epoch says nothing here. Records and markers come in any order.
    """
    records, markers = len(record_offset), len(marker_record_offset)
    partitions = np.concatenate([log_partition, marker_log_partition])
    producers = np.concatenate([producer_id, marker_producer_id])
    offsets = np.concatenate([record_offset, marker_record_offset])
    commits = np.concatenate([np.zeros(records, dtype=np.bool_), marker_commits])
    is_marker = np.arange(records + markers) >= records
    order = np.lexsort((offsets, producers, partitions))
    position = np.arange(records + markers)
    beyond = records + markers
    next_marker = np.minimum.accumulate(np.where(is_marker[order], position, beyond)[::-1])[::-1]
    found = next_marker < beyond
    candidate = order[np.where(found, next_marker, 0)] if beyond else order
    found &= (partitions[candidate] == partitions[order]) & (producers[candidate] == producers[order])
    outcome = np.empty(beyond, dtype=np.int8)
    outcome[order] = np.where(found, np.where(commits[candidate], COMMITTED, ABORTED), OPEN)
    return outcome[:records]
