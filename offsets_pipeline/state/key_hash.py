"""A hash of 128 bits of the key of a state row: by it Spark joins the base of a state table with its delta.

Two keys of one hash would hide one of them in the views. Between ten million keys this has a probability of 1e-25.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from offsets_pipeline.delta.schemas import KEY_HASH

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Hashes = npt.NDArray[np.uint64]

#: The two halves differ in where they begin, so equal integers take them to different places.
_STARTS = (np.uint64(0x243F6A8885A308D3), np.uint64(0x13198A2E03707344))


def with_key_hash(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The rows with the columns of KEY_HASH: the hash of the columns ``key``, of integers and strings without nulls.

    Equal keys have equal hashes in every process and version: files hold them.
    """
    halves = [np.full(rows.num_rows, start) for start in _STARTS]
    for name in key:
        values = _values(rows[name].combine_chunks())
        halves = [_mixed(half + each) for half, each in zip(halves, values, strict=True)]
    for column, half in zip(KEY_HASH, halves, strict=True):
        field = pa.field(column.name, column.type, column.nullable)
        rows = rows.append_column(field, pa.array(half.view(np.int64)))
    return rows


def _values(column: pa.Array) -> tuple[Hashes, Hashes]:
    """Two numbers of each value: the halves of a string's digest; an integer twice."""
    if pa.types.is_integer(column.type):
        number = column.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)
        return number, number
    encoded = column.dictionary_encode()
    digests = b"".join(
        hashlib.blake2b(each.encode(), digest_size=16).digest() for each in encoded.dictionary.to_pylist()
    )
    of_each = np.frombuffer(digests, dtype="<u8").reshape(-1, 2)[encoded.indices.to_numpy()]
    return of_each[:, 0], of_each[:, 1]


def _mixed(number: Hashes) -> Hashes:
    """The finalizer of SplitMix64, a bijection in which each bit of the input changes half of the output's."""
    number = number + np.uint64(0x9E3779B97F4A7C15)
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))
