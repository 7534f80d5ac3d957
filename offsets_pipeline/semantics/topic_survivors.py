"""The records of one log partition of a topic of Kafka Connect that a cleaning keeps (R23, R30).

A replay of the kept records gives the same state, whatever records follow. Kept are:

- the last visible record of each raw key, also an old tombstone: it may hide another raw key of its identity, even in
  another log partition;
- of each raw key whose record does not decode or has an unknown type, the last record (R6);
- every record of an open transaction, the markers of records that are kept, and the last record of each producer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from offsets_pipeline.semantics.compaction import last_of_each
from offsets_pipeline.semantics.survivors import SCHEMA, Cleaning
from offsets_pipeline.semantics.topic_replay import ParsedRows

if TYPE_CHECKING:
    import pyarrow as pa

    from offsets_pipeline.semantics.topic_kind import TopicKind


def topic_survivors(rows: pa.Table, kind: TopicKind) -> npt.NDArray[np.bool_]:
    """Whether each row stays; ``rows`` as those of `survivors`, without an early compaction."""
    return _TopicCleaning(rows.select(SCHEMA.names).combine_chunks(), kind).kept()


class _TopicCleaning(Cleaning):
    def __init__(self, rows: pa.Table, kind: TopicKind) -> None:
        super().__init__(rows)
        self._parsed = ParsedRows(rows, kind)

    def kept(self) -> npt.NDArray[np.bool_]:
        keep = self._keep
        known = self._data & self._parsed.known
        visible = np.flatnonzero(known & ~self._open & ~self._aborted)
        keep[visible[last_of_each(self._parsed.key_code[visible], visible)]] = True  # R10
        keep[self._last_of_unread(np.flatnonzero(self._data & ~known))] = True
        self._keep_producers(keep)
        self._keep_markers(keep)
        return keep
