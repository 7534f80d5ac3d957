"""What the log shows around a deletion of offsets, beside the group itself (deletion_causes.py draws the conclusions).

- The tombstones that a coordinator wrote together.
- The groups that keep offsets of a topic: a group that still has one proves that the topic was not deleted. An offset
  with the id of another topic of the same name proves nothing: Kafka 4.4 keeps it.
- Tombstones of offsets whose commits are no longer in the log. A broker's compaction and a cleaning remove a commit
  earlier than its tombstone, and leave gaps between record offsets. So a tombstone that deletes nothing had a commit if
  records are missing between it and the last record of the same offset.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.kafka.record.corrupt import CorruptRecord, UnknownRecordType
from offsets_pipeline.kafka.record.decode import decode_key
from offsets_pipeline.semantics.group_types import GROUP_REMOVING_TYPES

if TYPE_CHECKING:
    from offsets_pipeline.semantics.partition_state import CommittedOffset, Group, TopicPartition

#: A coordinator deletes the offsets of a deleted topic group by group, within this time.
WITHIN_MS = 10_000


@dataclass
class GroupDeletion:
    """Tombstones of one group that were written together, and the group before them.

    ``deleted`` has the record offset of each identity's tombstone, ``sources`` the column `source` of these records.
    ``removed_at`` is the record offset of the group's own tombstone, which may hide offsets that it leaves behind
    (R14). ``others`` are the other groups with tombstones in the same write, and whether one of these removes them.
    ``changed_ms`` is when the group last changed, or a transaction with its commits ended; None: never.
    ``topics_kept`` are topics of ``deleted``; another group kept an offset of each. ``undecided`` are the topics about
    which `TopicHolders` needs more records.
    """

    group_id: str
    time_ms: int | None
    record_offset: int
    write: int
    group: Group
    offsets: Mapping[TopicPartition, CommittedOffset]
    pending: Collection[TopicPartition]
    deleted: dict[TopicPartition, int] = field(default_factory=dict)
    sources: dict[TopicPartition, str] = field(default_factory=dict)
    changed_ms: int | None = None
    removed_at: int | None = None
    hides_offsets: bool = False
    others: Mapping[str, bool] = field(default_factory=dict)
    topics_kept: set[str] = field(default_factory=set)
    undecided: set[str] = field(default_factory=set)

    @property
    def topics(self) -> set[str]:
        """The topics of the deleted offsets."""
        return {where.topic for where in self.deleted}

    def may_keep(self, topic: str, topic_id: str | None) -> bool:
        """Whether an offset with this topic id may stay if the topic of these tombstones was deleted."""
        deleted = {
            self.offsets[where].topic_id for where in self.deleted if where.topic == topic and where in self.offsets
        }
        return topic_id is not None and topic_id not in deleted


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
        is_data = pc.and_(rows["control_type"].is_null(), rows["key"].is_valid())
        tombstone = pc.and_(rows["value"].is_null(), is_data).to_numpy()
        at = pc.fill_null(rows["record_timestamp"].cast(pa.int64()), -1).to_numpy()
        same = np.zeros(count, dtype=np.bool_)
        same[1:] = tombstone[1:] & tombstone[:-1] & (at[1:] == at[:-1])
        if count:
            same[0] = self._goes_on and bool(tombstone[0]) and int(at[0]) == self._last_ms
        write = self._last + np.cumsum(~same)
        if not self._keep_all:
            self._keys = {number: keys for number, keys in self._keys.items() if number == self._last}
        keys = rows["key"].filter(pa.array(tombstone)).to_pylist()
        for number, key in zip(write[tombstone].tolist(), keys, strict=True):
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


class TopicHolders:
    """Plain offsets of one log partition by topic, and the deletions that wait until their time is over.

    Only commits outside of transactions count: they are visible at once. Only records of a topic decide about it, so
    that the decision is the same if records of other topics are left out.
    """

    def __init__(self) -> None:
        # since which record offset, and the topic id
        self._held: dict[str, dict[tuple[str, int], tuple[int, str | None]]] = defaultdict(dict)
        self._waiting: dict[str, list[GroupDeletion]] = defaultdict(list)

    def hold(
        self, group_id: str, where: TopicPartition, record_offset: int, time_ms: int | None, topic_id: str | None
    ) -> None:
        """A group commits an offset."""
        self._advance(where.topic, time_ms)
        of_topic, holder = self._held[where.topic], (group_id, where.partition)
        if holder not in of_topic or of_topic[holder][1] != topic_id:
            of_topic[holder] = record_offset, topic_id

    def release(self, group_id: str, where: TopicPartition, time_ms: int | None) -> None:
        """A tombstone deletes an offset."""
        self._advance(where.topic, time_ms)
        self._held[where.topic].pop((group_id, where.partition), None)

    def wait_for(self, deletion: GroupDeletion) -> None:
        """Decide what other groups kept: at once for a deletion without a time, else when its time is over."""
        deletion.undecided = deletion.topics
        for topic in deletion.topics:
            if deletion.time_ms is None:
                self._decide(topic, deletion)
            else:
                self._waiting[topic].append(deletion)

    def finish(self) -> None:
        """Decide about all deletions, after the last record."""
        for topic, waiting in self._waiting.items():
            for deletion in waiting:
                self._decide(topic, deletion)
        self._waiting.clear()

    def _advance(self, topic: str, time_ms: int | None) -> None:
        waiting = self._waiting.get(topic)
        if not waiting or time_ms is None:
            return
        over = [deletion for deletion in waiting if time_ms > (deletion.time_ms or 0) + WITHIN_MS]
        for deletion in over:
            self._decide(topic, deletion)
            waiting.remove(deletion)

    def _decide(self, topic: str, deletion: GroupDeletion) -> None:
        holders = self._held[topic].items()
        if any(
            group_id != deletion.group_id and since < deletion.record_offset and not deletion.may_keep(topic, topic_id)
            for (group_id, _), (since, topic_id) in holders
        ):
            deletion.topics_kept.add(topic)
        deletion.undecided.discard(topic)


class LostTombstone(NamedTuple):
    """A tombstone whose commit is no longer in the log; ``source`` is that of its row in the log."""

    group_id: str
    where: TopicPartition
    record_offset: int
    time_ms: int | None
    source: str


class LostCommits:
    """Follows one log partition: its gaps, and the last record of each offset."""

    def __init__(self) -> None:
        self._next = 0
        self._after_gaps: list[int] = []  # the first record offset after each gap
        self._last: dict[tuple[str, TopicPartition], int] = {}

    def look_for_gaps(self, rows: pa.Table) -> None:
        """Take the next rows of the log partition, of all groups, in record-offset order."""
        offset = rows["record_offset"].to_numpy()
        if len(offset):
            steps = np.diff(offset, prepend=self._next - 1)
            self._after_gaps += offset[steps > 1].tolist()
            self._next = int(offset[-1]) + 1

    def note_record(self, group_id: str, where: TopicPartition, record_offset: int) -> bool:
        """Note a record of an offset; returns whether records are missing since the last one."""
        last = self._last.get((group_id, where), -1)
        self._last[group_id, where] = record_offset
        gaps = bisect_right(self._after_gaps, record_offset)
        return gaps > 0 and self._after_gaps[gaps - 1] > last
