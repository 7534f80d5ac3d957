"""Digests of rows by log partition: equal rows have equal digests, whoever wrote them, in whichever batches."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from hashlib import _Hash

_HEX_DIGITS = 16


def digests(rows: pa.Table) -> dict[int, str]:
    """Return a digest for each log partition: 16 hex digits of the SHA-256 of its rows, in their order.

    Covers names, nulls and values of the columns, but not `log_partition`.
    """
    numbers = rows["log_partition"]
    columns = rows.drop_columns(["log_partition"])
    return {at: _digest(columns.filter(pc.equal(numbers, at))) for at in numbers.unique().to_pylist()}


def _digest(rows: pa.Table) -> str:
    found = hashlib.sha256(rows.num_rows.to_bytes(8, "little"))
    for name in sorted(rows.column_names):
        found.update(f"{name}\n".encode())
        _add(found, rows[name].combine_chunks())
    return found.hexdigest()[:_HEX_DIGITS]


def _add(found: _Hash, values: pa.Array) -> None:
    """Add the values of a column. What an array holds where it is null is left out."""
    found.update(values.is_valid().cast(pa.uint8()).to_numpy(zero_copy_only=False))
    values = values.drop_null()
    if pa.types.is_list(values.type):
        found.update(pc.list_value_length(values).to_numpy())
        _add(found, values.flatten())
    elif pa.types.is_struct(values.type):
        for name, each in zip((field.name for field in values.type), values.flatten(), strict=True):
            found.update(f"{name}\n".encode())
            _add(found, each)
    elif pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        found.update(pc.binary_length(values).to_numpy())
        found.update(b"".join(values.cast(pa.binary()).to_pylist()))
    elif pa.types.is_boolean(values.type):
        found.update(values.cast(pa.uint8()).to_numpy())
    else:
        numbers = values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values
        found.update(numbers.to_numpy().tobytes())
