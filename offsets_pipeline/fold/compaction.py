"""Key-based compaction of columns: the last record of each key (R10)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
