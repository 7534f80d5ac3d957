"""Arrow arrays of Python's values without pandas: `pa.array` and `pa.scalar` import it, which takes 0.3 s."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence


def array_of(values: Sequence[int] | Sequence[str]) -> pa.Array:
    """Return an array of whole numbers, or of texts."""
    if not values or not isinstance(values[0], str):
        numbers = pa.py_buffer(np.array(values, dtype=np.int64))
        return pa.Array.from_buffers(pa.int64(), len(values), [None, numbers])
    texts = [str(each).encode() for each in values]
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))])


def repeated(text: str, times: int) -> pa.Array:
    """Return an array of one text."""
    return pa.repeat(array_of([text])[0], times)


def all_false(size: int) -> pa.Array:
    """Return an array of that many times false."""
    return pa.Array.from_buffers(pa.bool_(), size, [None, pa.py_buffer(bytes(size // 8 + 1))])
