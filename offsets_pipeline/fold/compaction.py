"""Key-based compaction of columns: the last record of each key (R10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.record.commit_columns import parse_commits

if TYPE_CHECKING:
    from collections.abc import Mapping

Int64s = npt.NDArray[np.int64]


def codes_of(keys: pa.Array | pa.ChunkedArray) -> Int64s:
    """A small integer for each key, the same for equal keys."""
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    encoded = keys.dictionary_encode()
    return np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)


def paired(code: Int64s, other: Int64s) -> Int64s:
    """One code for the pair of two; ``other`` may be any small integers, as log partitions are."""
    span = int(other.max(initial=0)) + 1
    pair = code * span + other
    if len(pair) and int(pair.max()) > 8 * len(pair):  # keep `last_of_each` small
        pair = np.asarray(np.unique(pair, return_inverse=True)[1], dtype=np.int64)
    return pair


def last_of_each(code: Int64s, record_offset: Int64s) -> Int64s:
    """The position of the row with the highest record offset of each code, ascending by record offset.

    A row that is there twice counts once.
    """
    if not len(code):
        return np.zeros(0, dtype=np.int64)
    order = np.arange(len(code))
    if np.any(np.diff(record_offset) < 0):
        order = np.argsort(record_offset, kind="stable")
        code = code[order]
    last = np.full(int(code.max()) + 1, -1, dtype=np.int64)
    last[code] = np.arange(len(code))  # of equal indices numpy keeps the last
    kept: npt.NDArray[np.int64] = order[np.sort(last[last >= 0])]
    return kept


def last_values_and_tombstones(table: pa.Table) -> Int64s:
    """The positions of the last value and the last tombstone of each raw key in each log partition.

    ``table`` has the columns log_partition, record_offset, key and value, and commits only. Both are kept, since a
    value that a later tombstone hides still made its group (R14), and a tombstone that a later value hides still
    emptied open transactions (R12).
    """
    code = codes_of(table["key"]) * 2 + table["value"].is_null().to_numpy(zero_copy_only=False)
    return last_of_each(paired(code, table["log_partition"].to_numpy()), table["record_offset"].to_numpy())


def are_commits(keys: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Which keys are of offset commits, by their first two bytes (R5)."""
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    prefix = pc.binary_slice(keys, 0, 2)
    found = pc.is_in(prefix, pa.array([bytes((0, 0)), bytes((0, 1))], prefix.type))
    return np.asarray(pc.fill_null(found, fill_value=False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def compact_early(table: pa.Table, folded_to: Mapping[int, int]) -> pa.Table:
    """Rows of the replay's INPUT_SCHEMA without those that others of them make superfluous.

    Of the plain commits that decode, the last value and the last tombstone of each key stay; a row that stays then
    stands for the records that went. All else stays as it is: transactions wait for their markers, a record that does
    not decode for its quarantine (R6), one that came late for being noticed. Rows behind the folded position go (R15).
    """
    partition = table["log_partition"].to_numpy()
    records = table["records"].to_numpy()
    late = table["backfill"].to_numpy(zero_copy_only=False).astype(np.bool_)
    start = np.zeros(int(partition.max(initial=0)) + 1, dtype=np.int64)
    for log_partition, offset in folded_to.items():
        if log_partition < len(start):
            start[log_partition] = offset
    known = (table["record_offset"].to_numpy() < start[partition]) & (records > 0) & ~late
    plain = are_commits(table["key"]) & ~known & ~late & (records > 0)
    plain &= table["control_type"].is_null().to_numpy(zero_copy_only=False)
    plain &= pc.or_(table["producer_id"].is_null(), table["value"].is_null()).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(plain)
    commits = table.take(pa.array(rows)).combine_chunks()
    if commits.num_rows:
        valid = parse_commits(commits["key"].combine_chunks(), commits["value"].combine_chunks()).valid
        plain[rows[~valid]] = False
        rows, commits = rows[valid], commits.filter(pa.array(valid)).combine_chunks()
    last = rows[last_values_and_tombstones(commits)] if commits.num_rows else rows
    stands_for = records.copy()
    gone = np.zeros(len(start), dtype=np.int64)
    np.add.at(gone, partition[rows], records[rows])
    np.subtract.at(gone, partition[last], records[last])
    _, first_of_partition = np.unique(partition[last], return_index=True)
    heirs = last[first_of_partition]
    stands_for[heirs] += gone[partition[heirs]]
    kept = np.flatnonzero(~known & ~plain)
    stays = np.sort(np.concatenate([kept, last]))
    place = table.schema.get_field_index("records")
    return table.set_column(place, table.schema.field("records"), pa.array(stands_for)).take(pa.array(stays))
