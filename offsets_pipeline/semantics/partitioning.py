"""The log partition of a group (R1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics

_MASK32 = 0xFFFFFFFF
_INT_MIN = -(2**31)


def java_hash(text: str) -> int:
    """``String.hashCode`` of Java: over UTF-16 code units, wrapping around at 32 bits (R1)."""
    units = np.frombuffer(text.encode("utf-16-le", "surrogatepass"), dtype="<u2")
    value = 0
    for unit in units.tolist():
        value = (31 * value + unit) & _MASK32
    return value - (1 << 32) if value & 0x80000000 else value


def partition_for(group_id: str, offsets_partitions: int) -> int:
    """The log partition of a group in a log of ``offsets_partitions`` partitions (R1)."""
    value = java_hash(group_id)
    return (0 if value == _INT_MIN else abs(value)) % offsets_partitions  # R1: abs(-2^31) is 0


def homes_of(group_ids: Iterable[str], offsets_partitions: int, semantics: CoordinatorSemantics) -> list[int] | None:
    """The log partitions that may hold records of groups (R1), in order; None: all.

    `modern` answers only from the log partition of R1. Under `classic` a group may be, or have been, anywhere.
    """
    if semantics.is_classic:
        return None
    return sorted({partition_for(group_id, offsets_partitions) for group_id in group_ids})


def is_misplaced(group_id: str, log_partition: int, offsets_partitions: int, semantics: CoordinatorSemantics) -> bool:
    """Whether a group answers nothing because its records lie in another log partition than `partition_for` says.

    Under `classic` every group answers (R1).
    """
    return not semantics.is_classic and partition_for(group_id, offsets_partitions) != log_partition


def are_misplaced(
    group_ids: pa.Array, log_partition: pa.ChunkedArray, offsets_partitions: int, semantics: CoordinatorSemantics
) -> pa.Array:
    """`is_misplaced` of a column of group ids."""
    if semantics.is_classic:
        return pa.repeat(pa.scalar(value=False), len(group_ids))
    encoded = group_ids.dictionary_encode()
    home = partitions_for(encoded.dictionary, offsets_partitions)
    return pa.array(home[encoded.indices.to_numpy(zero_copy_only=False)] != log_partition.to_numpy())


def partitions_for(group_ids: pa.Array, offsets_partitions: int) -> npt.NDArray[np.int32]:
    """`partition_for` of a column of distinct group ids (string, no nulls), as int32.

    ASCII names are hashed together, one position at a time; other names one by one.
    """
    raw = group_ids.cast(pa.large_binary())
    offsets = np.frombuffer(raw.buffers()[1], dtype=np.int64)[raw.offset : raw.offset + len(raw) + 1]
    data = np.frombuffer(raw.buffers()[2], dtype=np.uint8) if raw.buffers()[2] is not None else np.zeros(0, np.uint8)
    starts, lengths = offsets[:-1], np.diff(offsets)
    hashes = np.zeros(len(raw), dtype=np.uint32)
    order = np.argsort(-lengths, kind="stable")
    alive = np.searchsorted(-lengths[order], -np.arange(int(lengths.max(initial=0))), side="left")
    for position, count in enumerate(alive.tolist()):
        rows = order[:count]
        hashes[rows] = hashes[rows] * np.uint32(31) + data[starts[rows] + position]
    signed = hashes.view(np.int32).astype(np.int64)
    result = np.where(signed == _INT_MIN, 0, np.abs(signed)) % offsets_partitions
    ascii_only = pc.string_is_ascii(group_ids).to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(~ascii_only).tolist():
        result[row] = partition_for(group_ids[row].as_py(), offsets_partitions)
    return result.astype(np.int32)
