"""The visible and pending offset commits under `classic` (R10c, R12), for whole columns.

Commits of one identity compare by (position, rank). The position is the record offset or, of a transactional commit,
the highest plain tombstone between record and marker, if there is one: such a tombstone does not hide the commit. The
rank is the record offset, and -1 for a tombstone. So the order needs no other commit, and facts of overlapping batches
merge in any order (docs/adr/0017). Row by row `PartitionState` decides it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from offsets_pipeline.semantics.transactions import COMMITTED, OPEN

if TYPE_CHECKING:
    from offsets_pipeline.kafka.record.records import Bools, Int64s
    from offsets_pipeline.semantics.transactions import Endings

TOMBSTONE_RANK = -1


class ClassicOffsets(NamedTuple):
    """The position of each commit, and whether the commit is visible or pending.

    A commit is neither if a later tombstone of its own transaction took it back.
    """

    position: Int64s
    visible: Bools
    pending: Bools


def classic_offsets(
    identity: Int64s, record_offset: Int64s, tombstone: Bools, in_transaction: Bools, producer: Int64s, ends: Endings
) -> ClassicOffsets:
    """What becomes of commits and tombstones (R10c, R11, R12).

    ``identity`` numbers the identities of each log partition, ``producer`` the producers. A tombstone in a transaction
    takes back the earlier commit of its own transaction, and hides nothing else.
    """
    counts = ~in_transaction
    counts[_last_of_transactions(identity, record_offset, in_transaction, producer, ends.marker_offset)] = True
    counts &= ~(tombstone & in_transaction)
    pending = counts & in_transaction & (ends.outcome == OPEN)
    visible = counts & (~in_transaction | (ends.outcome == COMMITTED))
    position = record_offset.copy()
    plain = np.flatnonzero(tombstone & ~in_transaction)
    later = np.flatnonzero(in_transaction & (visible | pending))
    if len(plain) and len(later):
        last = _last_before(identity[plain], record_offset[plain], identity[later], ends.marker_offset[later])
        position[later] = np.maximum(position[later], last)
    return ClassicOffsets(position, visible, pending)


def _last_of_transactions(
    identity: Int64s, record_offset: Int64s, in_transaction: Bools, producer: Int64s, marker_offset: Int64s
) -> Int64s:
    """The last record of each identity in each transaction."""
    rows = np.flatnonzero(in_transaction)
    keys = np.stack([producer, marker_offset, identity])[:, rows]
    order = np.lexsort((record_offset[rows], *keys))
    is_last = np.ones(len(rows), dtype=np.bool_)
    is_last[:-1] = (np.diff(keys[:, order]) != 0).any(axis=0)
    return np.asarray(rows[order[is_last]], dtype=np.int64)


def _last_before(tombstone_of: Int64s, tombstone_offset: Int64s, identity: Int64s, end: Int64s) -> Int64s:
    """The record offset of the last tombstone of each identity before its end; -1 if there is none."""
    count = len(tombstone_of)
    of, at = np.concatenate([tombstone_of, identity]), np.concatenate([tombstone_offset, end])
    order = np.lexsort((at, of))
    before = np.maximum.accumulate(np.where(order < count, np.arange(len(order)), -1))
    found = order[np.maximum(before, 0)]
    last = np.where((before >= 0) & (of[found] == of[order]), at[found], -1)
    result = np.empty(len(order), dtype=np.int64)
    result[order] = last
    return np.asarray(result[count:], dtype=np.int64)
