"""Key-based compaction of columns: the last record of each key (R10)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.kafka.record.commit_columns import CommitColumns, decodable_keys, decodable_values
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.semantics.log_row import as_bools, codes_of
from offsets_pipeline.semantics.transactions import ABORTED, COMMITTED, OPEN, classic_offsets, endings_within

if TYPE_CHECKING:
    from offsets_pipeline.kafka.record.records import Bools, Int64s

#: Rows that callers hand to `compact_early` at a time.
COMPACT_ROWS = 250_000
_NO_ROWS: Int64s = np.zeros(0, dtype=np.int64)
_GATHERED_BYTES = 256 * 1024 * 1024  # more than COMPACT_ROWS take, unless values have megabytes


def paired(code: Int64s, other: Int64s) -> Int64s:
    """One code for each pair of codes; ``other`` holds small integers, such as log partitions."""
    span = int(other.max(initial=0)) + 1
    pair = code * span + other
    if len(pair) and int(pair.max()) > 8 * len(pair):  # keep `last_of_each` small
        pair = np.asarray(np.unique(pair, return_inverse=True)[1], dtype=np.int64)
    return pair


def last_of_each(code: Int64s, record_offset: Int64s) -> Int64s:
    """The position of the row with the highest record offset of each code, ascending by record offset.

    Of duplicates of a row one is kept.
    """
    order = np.arange(len(code))
    if np.any(np.diff(record_offset) < 0):
        order = np.argsort(record_offset, kind="stable")
        code = code[order]
    last = np.full(int(code.max(initial=-1)) + 1, -1, dtype=np.int64)
    last[code] = np.arange(len(code))  # of equal indices numpy keeps the last
    kept: Int64s = order[np.sort(last[last >= 0])]
    return kept


def highest_of_each(identity: Int64s, position: Int64s, rank: Int64s) -> Int64s:
    """The row with the highest (position, rank) of each identity, ascending by these."""
    order = np.lexsort((rank, position))
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order))
    return last_of_each(identity, number)


def last_values_and_tombstones(table: pa.Table) -> Int64s:
    """The positions of the last value and the last tombstone of each raw key in each log partition.

    ``table`` has the columns log_partition, record_offset, key and value, and holds commits only. Both positions are
    needed: a value made its group even if a later tombstone hides it (R14), and a tombstone emptied open transactions
    even if a later value hides it (R12).
    """
    code = codes_of(table["key"]) * 2 + table["value"].is_null().to_numpy(zero_copy_only=False)
    return last_of_each(paired(code, table["log_partition"].to_numpy()), table["record_offset"].to_numpy())


def are_commits(keys: pa.Array | pa.ChunkedArray) -> Bools:
    """Whether each key is of an offset commit, by its first two bytes (R5)."""
    prefix = pc.binary_slice(keys, 0, 2)
    found = pc.is_in(prefix, pa.array([bytes((0, 0)), bytes((0, 1))], prefix.type))
    return np.asarray(pc.fill_null(found, fill_value=False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def gathered(
    tables: Iterable[pa.Table], rows: float = math.inf, size_bytes: int = _GATHERED_BYTES
) -> Iterator[pa.Table]:
    """The tables, concatenated to tables of at least this many rows, or of fewer rows if these have so many bytes."""
    waiting: list[pa.Table] = []
    held_rows = held_bytes = 0  # of `waiting`: to add them up for each table takes quadratic time
    for table in tables:
        waiting.append(table)
        held_rows += table.num_rows
        held_bytes += table.nbytes
        if held_rows >= rows or held_bytes >= size_bytes:
            yield pa.concat_tables(waiting)
            waiting, held_rows, held_bytes = [], 0, 0
    if waiting:
        yield pa.concat_tables(waiting)


def compact_early(
    table: pa.Table,
    folded_to: Mapping[int, int],
    semantics: CoordinatorSemantics = MODERN,
    *,
    keep_producers: bool = False,
) -> pa.Table:
    """Rows of the replay's INPUT_SCHEMA without those that other rows make superfluous.

    Of the commits that decode and are visible, the last value and the last tombstone of each key stay, and one
    value for each topic id that the last value lacks (R35). Commits are visible if they are plain, or if their COMMIT
    marker is surely among these rows (`endings_within`). A visible commit becomes plain: its producer id goes, unless
    ``keep_producers``. The rows that stay replace the rows that went.

    Under `modern` the last aborted commit of a key stays if no visible one follows it, because it made its group (R14).
    Under `classic` aborted commits go, and a transaction that may bring an offset back (R12) stays unchanged.

    All other rows stay unchanged: transactional records wait for their markers, records that do not decode for the
    quarantine (R6). Rows below the folded position go (R15).

    ``key`` may be dictionary-encoded; then each distinct key is parsed once.
    """
    if not table.num_rows:
        return table
    partition = table["log_partition"].to_numpy()
    if np.any(np.diff(partition) < 0):
        order = np.argsort(partition, kind="stable")
        table, partition = table.take(pa.array(order)), partition[order]
    keys, code = distinct(table["key"])
    decodes, legacy = (of_key[code] for of_key in decodable_keys(keys))
    bounds = [0, *(np.flatnonzero(np.diff(partition)) + 1).tolist(), len(partition)]
    parts = (
        _Rows(
            table.slice(start, end - start),
            code[start:end],
            decodes[start:end],
            legacy[start:end],
            folded_to.get(int(partition[start]), 0),
        )
        for start, end in pairwise(bounds)
    )
    decide = partial(_decided_classic, keys) if semantics.is_classic else _decided
    return pa.concat_tables(_compacted(part, decide, keep_producers=keep_producers) for part in parts)


class _Rows:
    """Rows of one log partition, and what they are."""

    def __init__(self, rows: pa.Table, code: Int64s, key_decodes: Bools, legacy_key: Bools, folded_to: int) -> None:
        self.rows = rows
        self.code = code  # of the key
        self.offset = rows["record_offset"].to_numpy()
        self.records = rows["records"].to_numpy()
        values = _one_chunk(rows["value"])
        self.tombstone = values.is_null().to_numpy(zero_copy_only=False)
        fresh = self.records > 0
        self.known = fresh & (self.offset < folded_to)
        decodes, self.topic_id = decodable_values(values, legacy_key)
        #: All commits and tombstones that decode, and those of them that a compaction may remove.
        self.of_offsets = key_decodes & decodes
        if rows["control_type"].null_count < len(rows):
            self.of_offsets &= as_bools(rows["control_type"].is_null())
        self.commits = self.of_offsets & fresh & ~self.known
        self.plain = as_bools(rows["producer_id"].is_null())


class _Decided(NamedTuple):
    """Of commits: which are visible, which of these were in a transaction, and which the compaction may remove.

    ``kept`` are positions of rows that stay all the same.
    """

    visible: Bools
    committed: Bools
    removable: Bools
    kept: Int64s


def _decided(part: _Rows) -> _Decided:
    if part.plain.all():
        return _Decided(part.commits, ~part.plain, part.commits, _NO_ROWS)
    plain = part.plain | part.tombstone  # R12: a tombstone applies at once
    outcome = endings_within(part.rows).outcome
    committed = part.commits & ~plain & (outcome == COMMITTED)
    aborted = part.commits & ~plain & (outcome == ABORTED)
    visible = part.commits & plain | committed
    return _Decided(visible, committed, visible | aborted, _last_aborted(part, visible, aborted))


def _last_aborted(part: _Rows, visible: Bools, aborted: Bools) -> Int64s:
    """The last aborted value of each key where no visible value is later (R14)."""
    if not aborted.any():
        return _NO_ROWS
    at = np.flatnonzero(visible & ~part.tombstone | aborted)
    newest = at[last_of_each(part.code[at], part.offset[at])]
    return newest[aborted[newest]]


def _decided_classic(keys: pa.Array, part: _Rows) -> _Decided:
    if part.plain.all():
        return _decided(part)
    rows = np.flatnonzero(part.of_offsets)
    ends = endings_within(part.rows).taken(rows)
    offset, tombstone, plain = part.offset[rows], part.tombstone[rows], part.plain[rows]
    producer = codes_of(part.rows["producer_id"].take(pa.array(rows)).fill_null(-1))
    found = classic_offsets(_identities(keys, part.code[rows]), offset, tombstone, ~plain, producer, ends)
    brought_back = found.visible & (found.position != offset)
    waits = ~plain & (brought_back | (ends.outcome == OPEN) | (tombstone & (ends.outcome == COMMITTED)))
    visible, removable = np.zeros((2, len(part.code)), dtype=np.bool_)
    visible[rows] = found.visible & ~brought_back
    removable[rows] = ~waits
    visible, removable = visible & part.commits, removable & part.commits
    return _Decided(visible, visible & ~part.plain, removable, _NO_ROWS)


def _identities(keys: pa.Array, code: Int64s) -> Int64s:
    """A number for the identity of each row (R9); ``code`` is the position of its key, which is one of a commit."""
    chosen, at = np.unique(code, return_inverse=True)
    commits = CommitColumns(keys.take(pa.array(chosen)), pa.nulls(len(chosen), pa.binary()))
    return codes_of(commits.identities())[at]


def _compacted(part: _Rows, decide: Callable[[_Rows], _Decided], *, keep_producers: bool) -> pa.Table:
    decided = decide(part)
    rows, records = part.rows, part.records
    visible = np.flatnonzero(decided.visible)
    last = visible[last_of_each(part.code[visible] * 2 + part.tombstone[visible], part.offset[visible])]
    last = np.concatenate([last, decided.kept])
    last_values = last[~part.tombstone[last]]
    last = np.unique(np.concatenate([last, _naming_more(part.code, part.topic_id, decided.removable, last_values)]))
    removed = decided.removable.copy()
    removed[last] = False
    stays = np.flatnonzero(~part.known & ~removed)
    stands_for = records.copy()
    counting = last if len(last) else stays[records[stays] > 0]
    if removed.any():
        stands_for[counting[0]] += records[removed].sum()
    left = replaced(rows, "records", pa.array(stands_for))
    if decided.committed.any() and not keep_producers:
        visible_producers = pc.if_else(pa.array(decided.committed), pa.scalar(None, pa.int64()), rows["producer_id"])
        left = replaced(left, "producer_id", visible_producers)
    left = left.take(pa.array(stays))
    position = rows.schema.get_field_index("key")
    return left.set_column(position, pa.field("key", pa.binary()), left["key"].cast(pa.binary()))


def replaced(rows: pa.Table, name: str, column: pa.Array) -> pa.Table:
    """The rows with another column in place of the one of this name."""
    return rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), column)


def _naming_more(code: Int64s, topic_id: tuple[Int64s, Int64s] | None, commits: Bools, last: Int64s) -> Int64s:
    """A row for each topic id that commits of a key name and the ``last`` of the key does not: few, or none (R35)."""
    if topic_id is None:
        return last[:0]
    differs = np.zeros(len(code), dtype=np.bool_)
    has_id = np.zeros(len(code), dtype=np.bool_)
    for word in topic_id:
        last_word = np.zeros(int(code.max(initial=0)) + 1, dtype=np.int64)
        last_word[code[last]] = word[last]
        differs |= word != last_word.take(code)
        has_id |= word != 0
    more = np.flatnonzero(differs & has_id & commits)
    if not len(more):
        return more
    triples = np.column_stack([code[more], *(word[more] for word in topic_id)])
    return more[np.unique(triples, axis=0, return_index=True)[1]]


def distinct(column: pa.ChunkedArray) -> tuple[pa.Array, Int64s]:
    """The distinct values of a column, null included, and the position of the value of each row among them."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    encoded = _one_chunk(column.unify_dictionaries())
    indices = encoded.indices
    if not indices.null_count:
        return encoded.dictionary, indices.to_numpy().astype(np.int64)
    values = pa.concat_arrays([encoded.dictionary, pa.nulls(1, encoded.dictionary.type)])
    return values, pc.fill_null(indices, len(values) - 1).to_numpy().astype(np.int64)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole
