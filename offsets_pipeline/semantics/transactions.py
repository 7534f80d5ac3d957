"""The outcome of transactional records, and which commits count under `classic` (R10c, R11, R12), for whole columns.

Row by row `PartitionState` decides it.

Under `classic` commits of one identity compare by (position, rank). The position is the record offset or, of a
transactional commit, the highest plain tombstone between record and marker, if there is one: such a tombstone does not
hide the commit. The rank is the record offset, and -1 for a tombstone. So the order needs no other commit, and facts of
overlapping batches merge in any order (docs/adr/0017).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.semantics.log_row import ABORT, COMMIT, as_bools, codes_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from offsets_pipeline.kafka.record.records import Bools, Int64s

COMMITTED = 1
ABORTED = 0
OPEN = -1

#: The marker's record offset of an open transaction: behind all records.
NO_MARKER = 2**63 - 1

TOMBSTONE_RANK = -1  # of a tombstone under `classic`

_SMALL_CODES = 1 << 16


class Endings(NamedTuple):
    """The outcome of each row, COMMITTED, ABORTED or OPEN, and the record offset of the marker or NO_MARKER."""

    outcome: npt.NDArray[np.int8]
    marker_offset: Int64s

    def taken(self, rows: Int64s) -> Endings:
        """Return the outcomes of some rows."""
        return Endings(self.outcome[rows], self.marker_offset[rows])


def endings(rows: pa.Table) -> Endings:
    """Return the outcome of each row: of the next marker of its producer in its log partition (R11).

    ``rows`` has the columns log_partition, record_offset, producer_id and control_type, in any order. Rows without a
    producer id, and markers themselves, are OPEN. The caller hands over all records between a record and its marker,
    or else all markers.
    """
    return _endings(rows, rows["log_partition"].to_numpy())


def endings_within(rows: pa.Table) -> Endings:
    """`endings` for some rows of the log: OPEN also for a record whose next marker may be missing from the rows.

    A record gets its outcome here only if the rows have every record offset from the record to a marker of its
    producer: then no other marker can lie between. Under `modern` a committed record then counts as a plain one. A
    tombstone between record and marker removed it from the transaction (R12), and hides the plain record, too (R10).
    """
    if rows["control_type"].null_count == rows.num_rows:
        return _open(rows)
    partition, offset = rows["log_partition"].to_numpy(), rows["record_offset"].to_numpy()
    order = np.arange(rows.num_rows)
    if np.any(np.diff(partition) < 0) or np.any((np.diff(offset) < 0) & (np.diff(partition) == 0)):
        order = np.lexsort((offset, partition))
    # R2: a gap is normal in a log, but these rows may also lack a marker there
    step = np.diff(offset[order])
    is_gap = (np.diff(partition[order]) != 0) | (step > 1)
    run = np.empty(rows.num_rows, dtype=np.int64)
    run[order] = np.concatenate([[0], np.cumsum(is_gap)])
    return _endings(rows, run)


def _next_markers(transaction_of: Int64s, record_offset: Int64s, is_marker: Bools) -> Int64s:
    """The position of the marker that ends the transaction of each row (R11); -1 for an open transaction.

    ``transaction_of`` numbers the producers of each log partition, from 0. A marker ends itself.
    """
    count = len(record_offset)
    order = np.arange(count)
    if np.any(np.diff(record_offset) < 0):
        order = np.argsort(record_offset, kind="stable")
    code = transaction_of[order]
    if code.max(initial=0) < _SMALL_CODES:
        code = code.astype(np.uint16)  # numpy sorts these by radix, in linear time
    order = order[np.argsort(code, kind="stable")]
    following = np.minimum.accumulate(np.where(is_marker[order], np.arange(count), count)[::-1])[::-1]
    found = following < count
    candidate = order[np.where(found, following, 0)] if count else order
    found &= transaction_of[candidate] == transaction_of[order]
    marker = np.empty(count, dtype=np.int64)
    marker[order] = np.where(found, candidate, -1)
    return marker


def _open(rows: pa.Table) -> Endings:
    return Endings(np.full(rows.num_rows, OPEN, dtype=np.int8), np.full(rows.num_rows, NO_MARKER, dtype=np.int64))


def _endings(rows: pa.Table, part: Int64s) -> Endings:
    """``part`` numbers the parts of the log whose markers end only transactions of the same part."""
    found = _open(rows)
    commits = as_bools(pc.equal(rows["control_type"], COMMIT).fill_null(fill_value=False))
    is_marker = as_bools(pc.is_in(rows["control_type"], pa.array([COMMIT, ABORT])))
    is_data = as_bools(rows["control_type"].is_null())
    in_transaction = np.flatnonzero((is_data | is_marker) & as_bools(rows["producer_id"].is_valid()))
    if not len(in_transaction):
        return found
    producers = rows["producer_id"].take(pa.array(in_transaction))
    codes = codes_of(producers) * (int(part.max()) + 1) + part[in_transaction]
    if int(codes.max()) >= max(_SMALL_CODES, 8 * len(codes)):
        codes = codes_of(pa.array(codes))
    offset = rows["record_offset"].to_numpy()[in_transaction]
    marker = _next_markers(codes, offset, is_marker[in_transaction])
    ended = (marker >= 0) & is_data[in_transaction]
    found.outcome[in_transaction[ended]] = np.where(commits[in_transaction[marker[ended]]], COMMITTED, ABORTED)
    found.marker_offset[in_transaction[ended]] = offset[marker[ended]]
    return found


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
