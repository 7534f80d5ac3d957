"""Which groups keep offsets of a topic: a group that still has one proves that the topic was not deleted."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offsets_pipeline.history.deletion_causes import GroupDeletion
    from offsets_pipeline.semantics.partition_state import TopicPartition

#: A coordinator deletes the offsets of a deleted topic group by group, within this time.
WITHIN_MS = 10_000


class TopicHolders:
    """Plain offsets of one log partition by topic, and the deletions that wait until their time is over.

    Only commits outside of transactions count: they are visible at once. Only records of a topic decide about it, so
    that the decision is the same if records of other topics are left out.
    """

    def __init__(self) -> None:
        self._held: dict[str, dict[tuple[str, int], int]] = defaultdict(dict)  # since which record offset
        self._waiting: dict[str, list[GroupDeletion]] = defaultdict(list)

    def hold(self, group_id: str, where: TopicPartition, record_offset: int, time_ms: int | None) -> None:
        """A group commits an offset."""
        self._advance(where.topic, time_ms)
        self._held[where.topic].setdefault((group_id, where.partition), record_offset)

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
        if any(group_id != deletion.group_id and since < deletion.record_offset for (group_id, _), since in holders):
            deletion.topics_kept.add(topic)
        deletion.undecided = (deletion.undecided or set()) - {topic}
