"""Filters log rows to those of some groups before they are decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.record.corrupt import CorruptRecord, UnknownRecordType
from offsets_pipeline.record.decode import VERSION_BYTES, decode_key
from offsets_pipeline.record.wire import encode_utf8

if TYPE_CHECKING:
    from collections.abc import Collection

#: Malformed UTF-8 in a key decodes to this character: several keys then name one group.
_REPLACEMENT = "\ufffd"
_LENGTH_BYTES = 2


def of_groups(rows: pa.Table, group_ids: Collection[str]) -> pa.Table:
    """The records of these groups, and all control records; rows have the columns key and control_type."""
    mask = _names(rows["key"].combine_chunks(), group_ids) | ~_mask(rows["control_type"].is_null())
    return rows if mask.all() else rows.filter(pa.array(mask))


def _names(keys: pa.Array, group_ids: Collection[str]) -> npt.NDArray[np.bool_]:
    """Whether each key is of one of the groups. A key of any type starts with the type and the group (R5)."""
    found = np.zeros(len(keys), dtype=np.bool_)
    for group_id in group_ids:
        if _REPLACEMENT in group_id:
            return _decoded_names(keys, group_ids)
        raw = encode_utf8(group_id)
        start = len(raw).to_bytes(_LENGTH_BYTES, "big") + raw
        prefix = pc.binary_slice(keys, VERSION_BYTES, VERSION_BYTES + len(start))
        found |= _mask(pc.fill_null(pc.equal(prefix, pa.scalar(start, prefix.type)), fill_value=False))
    return found


def _decoded_names(keys: pa.Array, group_ids: Collection[str]) -> npt.NDArray[np.bool_]:
    encoded = keys.dictionary_encode()
    named = np.array([_group_of(key) in group_ids for key in encoded.dictionary.to_pylist()] + [False], dtype=np.bool_)
    found: npt.NDArray[np.bool_] = named[pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)]
    return found


def _group_of(key: bytes) -> str | None:
    try:
        return decode_key(key).group_id
    except (CorruptRecord, UnknownRecordType):
        return None


def _mask(values: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.bool_)
