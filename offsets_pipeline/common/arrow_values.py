"""Arrow arrays of Python's values without pandas: `pa.array` and `pa.scalar` import it, which takes 0.3 s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa


def array_of(values: Sequence[int] | Sequence[str]) -> pa.Array:
    """Return an array of whole numbers, or of texts."""
    if not values or not isinstance(values[0], str):
        numbers = pa.py_buffer(np.array(values, dtype=np.int64))
        return pa.Array.from_buffers(pa.int64(), len(values), [None, numbers])
    texts = [str(each).encode() for each in values]
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))])


def all_false(size: int) -> pa.Array:
    """Return an array of that many times false."""
    return pa.Array.from_buffers(pa.bool_(), size, [None, pa.py_buffer(bytes(size // 8 + 1))])


def conformed(rows: pa.Table, schema: pa.Schema, constants: Mapping[str, Any] = MappingProxyType({})) -> pa.Table:
    """Return the rows with the columns of a schema. One that is missing has its constant in each row, or is null."""
    columns = []
    for each in schema:
        if each.name in rows.column_names:
            columns.append(rows[each.name].cast(each.type))
        elif each.name in constants:
            columns.append(pa.repeat(array_of([constants[each.name]]).cast(each.type)[0], rows.num_rows))
        else:
            columns.append(pa.nulls(rows.num_rows, each.type))
    return pa.Table.from_arrays(columns, schema=schema)
