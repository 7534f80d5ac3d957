"""Which tombstones a coordinator wrote together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.record.corrupt import CorruptRecord, UnknownRecordType
from offsets_pipeline.record.decode import decode_key
from offsets_pipeline.semantics.group_types import GROUP_REMOVING_TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping


class GroupWrites:
    """Numbers the writes of one log partition: consecutive tombstones with one timestamp are one write.

    A coordinator appends the records of a request, or of an expiry run, at one time. Any other record is a write of its
    own. ``keep_all``: keep the tombstones of all writes, not only of the last rows.
    """

    def __init__(self, *, keep_all: bool) -> None:
        self._keep_all = keep_all
        self._last = -1
        self._last_ms: int | None = None
        self._goes_on = False
        self._keys: dict[int, list[bytes]] = {}

    def numbered(self, rows: pa.Table) -> pa.Table:
        """The next rows of the log partition, in record-offset order, with the column write."""
        count = rows.num_rows
        tombstone = (
            _mask(rows["value"].is_null()) & _mask(rows["control_type"].is_null()) & _mask(rows["key"].is_valid())
        )
        at = pc.fill_null(rows["record_timestamp"].cast(pa.int64()), -1).to_numpy()
        same = np.zeros(count, dtype=np.bool_)
        same[1:] = tombstone[1:] & tombstone[:-1] & (at[1:] == at[:-1])
        if count:
            same[0] = self._goes_on and bool(tombstone[0]) and int(at[0]) == self._last_ms
        write = self._last + np.cumsum(~same)
        if not self._keep_all:
            self._keys = {number: keys for number, keys in self._keys.items() if number == self._last}
        places = np.flatnonzero(tombstone)
        keys = rows["key"].take(pa.array(places)).to_pylist()
        for number, key in zip(write[places].tolist(), keys, strict=True):
            self._keys.setdefault(number, []).append(key)
        if count:
            self._last, self._last_ms, self._goes_on = int(write[-1]), int(at[-1]), bool(tombstone[-1])
        return rows.append_column("write", pa.array(write, pa.int64()))

    def others(self, write: int, group_id: str) -> Mapping[str, bool]:
        """The other groups with tombstones in a write, and whether one of these removes the group (R14)."""
        found: dict[str, bool] = {}
        for key in self._keys.get(write, ()):
            try:
                decoded = decode_key(key)
            except (CorruptRecord, UnknownRecordType):
                continue
            if decoded.group_id != group_id:
                removes = decoded.record_type in GROUP_REMOVING_TYPES
                found[decoded.group_id] = found.get(decoded.group_id, False) or removes
        return found


def _mask(values: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.asarray(values.to_numpy(), dtype=np.bool_)
