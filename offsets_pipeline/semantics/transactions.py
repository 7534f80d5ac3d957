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
    marker = next_markers(
        log_partition,
        producer_id,
        record_offset,
        marker_log_partition,
        marker_producer_id,
        marker_record_offset,
    )
    outcome = np.full(len(record_offset), OPEN, dtype=np.int8)
    ended = marker >= 0
    outcome[ended] = np.where(marker_commits[marker[ended]], COMMITTED, ABORTED)
    return outcome


def next_markers(
    log_partition: Int64s,
    producer_id: Int64s,
    record_offset: Int64s,
    marker_log_partition: Int64s,
    marker_producer_id: Int64s,
    marker_record_offset: Int64s,
) -> Int64s:
    """Which of the markers ends the transaction of each record (R11); -1 for an open one. As `outcomes`."""
    records, markers = len(record_offset), len(marker_record_offset)
    partitions = np.concatenate([log_partition, marker_log_partition])
    producers = np.concatenate([producer_id, marker_producer_id])
    offsets = np.concatenate([record_offset, marker_record_offset])
    beyond = records + markers
    position = np.arange(beyond)
    order = np.lexsort((offsets, producers, partitions))
    following = np.minimum.accumulate(np.where((position >= records)[order], position, beyond)[::-1])[::-1]
    found = following < beyond
    candidate = order[np.where(found, following, 0)] if beyond else order
    found &= (partitions[candidate] == partitions[order]) & (producers[candidate] == producers[order])
    marker = np.empty(beyond, dtype=np.int64)
    marker[order] = np.where(found, candidate - records, -1)
    return marker[:records]
