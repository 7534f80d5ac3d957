"""The log of a store for questions about the past, and since when it is complete.

Answers about an earlier position may lack records that a later record of the same key superseded. Two programs remove
such records: this one cleans, and notes how far (`cleaned_to`). A broker compacts before it hands the log over, and
leaves gaps between record offsets. A compacted stretch holds each key once. So it ends at the latest at the first
record whose key the log partition held before.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.errors import NoSuchTable
from offsets_pipeline.semantics.partitioning import homes_of
from offsets_pipeline.semantics.retention import Retention
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.properties import OWNED
from offsets_pipeline.store.delta.schemas import LOG, RECORD_COLUMNS, TOPICS
from offsets_pipeline.store.store_snapshot import LogIncarnation, StoreSnapshot

if TYPE_CHECKING:
    from offsets_pipeline.kafka.record.records import Int64s

#: The columns of the log that history reads.
COLUMNS = (*RECORD_COLUMNS, "source")

_NO_TIME = -(2**63)


class LogHistory(StoreSnapshot):
    """A snapshot of a store, for questions about the past of its log.

    Raises StoreMismatch if the store has a topic of Kafka Connect, and as `StoreSnapshot`.
    """

    def __init__(self, store: str | StoreSnapshot) -> None:
        super().__init__(store)
        self.properties.require_topic_kind(self.location, TopicKind.CONSUMER_OFFSETS)
        self.log = self.table(LOG.name)
        self.semantics = self.coordinator_semantics

    @property
    def retention(self) -> Retention:
        """The brokers' settings of retention as `follow` read them; Kafka's defaults if it did not."""
        return self.properties.retention or Retention()

    def topic_names(self) -> dict[str, str]:
        """Names of topic ids that the sources had (R35)."""
        try:
            rows = self.table(TOPICS.name).rows(["topic_id", "topic"]).to_pylist()
        except NoSuchTable:
            return {}
        return {row["topic_id"]: row["topic"] for row in rows}

    def homes(
        self, group_ids: Collection[str] | None, incarnation: LogIncarnation, among: Collection[int] | None = None
    ) -> Collection[int] | None:
        """`homes_of` these groups, or of all groups (None), ``among`` these log partitions; None: all."""
        homes = None if group_ids is None else homes_of(group_ids, incarnation.offsets_partitions, self.semantics)
        if homes is None or among is None:
            return among if homes is None else homes
        return sorted(set(homes).intersection(among))

    def completeness(self, incarnation: LogIncarnation, partition: int) -> Completeness:
        """Follows the rows of one log partition, to tell from where on its history is complete."""
        cleaned_to, end = incarnation.cleaned_to.get(partition), incarnation.ends.get(partition, 0)
        return Completeness(cleaned_to, end, is_owned=self.properties.kind == OWNED)


class Completeness:
    """Follows the rows of one log partition, in record-offset order."""

    def __init__(self, cleaned_to: int | None, end: int, *, is_owned: bool) -> None:
        """``end`` is the noted log end offset. A broker never compacted an owned log."""
        self._cleaned_to = cleaned_to or 0
        self._end = end
        self._is_owned = is_owned
        self._seen: set[bytes] = set()
        self._next = 0
        self._after_gap: int | None = 0  # where the records after the last gap are complete; None: not known yet
        # highest timestamps in microseconds: so far, before `_cleaned_to`, and before `_after_gap`
        self._highest_us = self._highest_cleaned_us = self._highest_before_gap_us = _NO_TIME

    def add(self, rows: pa.Table) -> None:
        """Take the next rows; columns record_offset, record_timestamp, key and control_type."""
        offset = rows["record_offset"].to_numpy()
        if not len(offset):
            return
        at_us = pc.fill_null(rows["record_timestamp"].cast(pa.int64()), _NO_TIME).to_numpy()
        cleaned = at_us[offset < self._cleaned_to]
        self._highest_cleaned_us = max(self._highest_cleaned_us, int(cleaned.max(initial=_NO_TIME)))
        if not self._is_owned:
            self._find_gaps(offset, at_us, rows)
        self._highest_us = max(self._highest_us, int(at_us.max()))
        self._next = int(offset[-1]) + 1

    @property
    def end(self) -> int:
        """The end of the log partition, as far as its rows were added."""
        return max(self._next, self._end)

    def is_complete_at(self, end: int) -> bool:
        """Whether the rows so far are all rows before a record offset, or all that decide the state there.

        False also if only more rows can tell: a compaction may have removed the last rows before ``end``.
        """
        reaches = self._is_owned or self._next >= end
        return reaches and self._after_gap is not None and self.complete_from <= end

    @property
    def complete_from(self) -> int:
        """The first end from which on a replay of all records before it is exact."""
        if self._is_owned:
            return self._cleaned_to
        after_gap = self.end if self._after_gap is None else self._after_gap
        return max(self._cleaned_to, after_gap)

    @property
    def complete_since_ms(self) -> int | None:
        """The time from which on answers are exact, in ms since 1970; None if they are for every time."""
        before_gap = self._highest_us if self._after_gap is None else self._highest_before_gap_us
        highest = max(self._highest_cleaned_us, before_gap)
        return None if highest == _NO_TIME else -(-highest // 1000)

    def _find_gaps(self, offset: Int64s, at_us: Int64s, rows: pa.Table) -> None:
        """Look for gaps, and after the last one for a key that the log partition held before."""
        gaps = np.flatnonzero(np.diff(offset, prepend=self._next - 1) > 1)
        keys = rows["key"].combine_chunks()
        # control records share their keys
        keys = pc.if_else(rows["control_type"].combine_chunks().is_null(), keys, pa.scalar(None, keys.type))
        encoded = keys.dictionary_encode()
        distinct = encoded.dictionary.to_pylist()
        if len(gaps):
            self._after_gap = None
        if self._after_gap is None:
            code = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
            known = np.array([key in self._seen for key in distinct] + [False], dtype=np.bool_)
            first = np.zeros(len(code), dtype=np.bool_)
            first[np.unique(code, return_index=True)[1]] = True
            repeated = np.flatnonzero((code >= 0) & (known[code] | ~first))
            repeated = repeated[repeated >= (gaps[-1] if len(gaps) else 0)]
            if len(repeated):
                self._after_gap = int(offset[repeated[0]])
                before = int(at_us[: repeated[0]].max(initial=_NO_TIME))
                self._highest_before_gap_us = max(self._highest_us, before)
        self._seen.update(distinct)
