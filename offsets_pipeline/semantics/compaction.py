"""Key-based compaction of columns: the last record of each key (R10)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.record.commit_columns import decodable_keys, decodable_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: Rows that are compacted at once, by `compact_early`.
COMPACT_ROWS = 500_000
_GATHERED_BYTES = 256 * 1024 * 1024  # far more than so many rows take, but for values of megabytes


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


def are_commits(keys: pa.Array | pa.ChunkedArray) -> Bools:
    """Which keys are of offset commits, by their first two bytes (R5)."""
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    prefix = pc.binary_slice(keys, 0, 2)
    found = pc.is_in(prefix, pa.array([bytes((0, 0)), bytes((0, 1))], prefix.type))
    return np.asarray(pc.fill_null(found, fill_value=False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def gathered(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """The tables, put together to such of so many rows or a little more; fewer where these are large."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(each.num_rows for each in waiting) >= rows or sum(each.nbytes for each in waiting) >= _GATHERED_BYTES:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def compact_early(table: pa.Table, folded_to: Mapping[int, int]) -> pa.Table:
    """Rows of the replay's INPUT_SCHEMA without those that others of them make superfluous.

    Of the plain commits that decode, the last value and the last tombstone of each key stay, and for each topic id that
    the last value does not tell one that does (R35). A row that stays then stands for the records that went. All else
    stays as it is: transactions wait for their markers, a record that does not decode for its quarantine (R6), one that
    came late for being noticed. Rows behind the folded position go (R15).

    ``key`` may be dictionary-encoded, as it comes from a file; then each key is looked at once.
    """
    if not table.num_rows:
        return table
    partition = table["log_partition"].to_numpy()
    if np.any(np.diff(partition) < 0):
        order = np.argsort(partition, kind="stable")
        table, partition = table.take(pa.array(order)), partition[order]
    keys, code = _distinct(table["key"])
    decodes, legacy = (of_key[code] for of_key in decodable_keys(keys))
    bounds = [0, *(np.flatnonzero(np.diff(partition)) + 1).tolist(), len(partition)]
    return pa.concat_tables(
        _compact_log_partition(
            table.slice(start, end - start),
            code[start:end],
            decodes[start:end],
            legacy[start:end],
            folded_to.get(int(partition[start]), 0),
        )
        for start, end in pairwise(bounds)
    )


def _compact_log_partition(
    rows: pa.Table, code: Int64s, key_decodes: Bools, legacy_key: Bools, folded_to: int
) -> pa.Table:
    offset = rows["record_offset"].to_numpy()
    records = rows["records"].to_numpy()
    values = _one_chunk(rows["value"])
    tombstone = values.is_null().to_numpy(zero_copy_only=False)
    fresh = (records > 0) & ~_bools(rows["backfill"])
    known = fresh & (offset < folded_to)
    plain = fresh & ~known & key_decodes
    if rows["control_type"].null_count < len(rows):
        plain &= _bools(rows["control_type"].is_null())
    if rows["producer_id"].null_count < len(rows):  # R12: a tombstone applies at once, also one with a producer id
        plain &= _bools(rows["producer_id"].is_null()) | tombstone
    decodes, topic_id = decodable_values(values, legacy_key)
    plain &= decodes
    commits = np.flatnonzero(plain)
    last = commits[last_of_each(code[commits] * 2 + tombstone[commits], offset[commits])]
    last = np.concatenate([last, _telling_more(code, topic_id, plain, last[~tombstone[last]])])
    stands_for = records.copy()
    if len(last):
        stands_for[last[0]] += records[commits].sum() - records[last].sum()
    stays = np.sort(np.concatenate([np.flatnonzero(~known & ~plain), last]))
    place = rows.schema.get_field_index("records")
    left = rows.set_column(place, rows.schema.field("records"), pa.array(stands_for)).take(pa.array(stays))
    place = rows.schema.get_field_index("key")
    return left.set_column(place, pa.field("key", pa.binary()), left["key"].cast(pa.binary()))


def _telling_more(code: Int64s, topic_id: tuple[Int64s, Int64s] | None, plain: Bools, last: Int64s) -> Int64s:
    """A row for each topic id that plain commits of a key tell and the ``last`` of the key does not: few, or none."""
    if topic_id is None:
        return last[:0]
    differs = np.zeros(len(code), dtype=np.bool_)
    tells = np.zeros(len(code), dtype=np.bool_)
    for word in topic_id:
        told = np.zeros(int(code.max(initial=0)) + 1, dtype=np.int64)
        told[code[last]] = word[last]
        differs |= word != told.take(code)
        tells |= word != 0
    more = np.flatnonzero(differs & tells & plain)
    if not len(more):
        return more
    triples = np.column_stack([code[more], *(word[more] for word in topic_id)])
    return more[np.unique(triples, axis=0, return_index=True)[1]]


def _distinct(keys: pa.ChunkedArray) -> tuple[pa.Array, Int64s]:
    """The distinct keys, a null one too, and of each row which it has."""
    if not pa.types.is_dictionary(keys.type):
        keys = keys.dictionary_encode()
    encoded = _one_chunk(keys.unify_dictionaries())
    indices = encoded.indices
    if not indices.null_count:
        return encoded.dictionary, indices.to_numpy().astype(np.int64)
    distinct = pa.concat_arrays([encoded.dictionary, pa.nulls(1, encoded.dictionary.type)])
    return distinct, pc.fill_null(indices, len(distinct) - 1).to_numpy().astype(np.int64)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole


def _bools(column: pa.ChunkedArray) -> Bools:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.bool_)
