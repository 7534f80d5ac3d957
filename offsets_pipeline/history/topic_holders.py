"""Which groups keep offsets of a topic: a group that still has one proves that the topic was not deleted."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offsets_pipeline.history.deletion_causes import GroupDeletion
    from offsets_pipeline.semantics.partition_state import TopicPartition

#: A coordinator deletes the offsets of a deleted topic group by group, within this time.
WITHIN_MS = 10_000


class TopicHolders:
    """Plain offsets of one log partition by topic, and the deletions that wait until their time is over.

    Only commits outside of transactions count: they are visible at once.
    """

    def __init__(self) -> None:
        self._held: dict[str, dict[tuple[str, int], int]] = defaultdict(dict)  # since which record offset
        self._waiting: deque[GroupDeletion] = deque()

    def hold(self, group_id: str, where: TopicPartition, record_offset: int) -> None:
        """A group commits an offset."""
        self._held[where.topic].setdefault((group_id, where.partition), record_offset)

    def release(self, group_id: str, where: TopicPartition, time_ms: int | None) -> None:
        """A tombstone deletes an offset."""
        self.advance(time_ms)
        self._held[where.topic].pop((group_id, where.partition), None)

    def wait_for(self, deletion: GroupDeletion) -> None:
        """Decide later what other groups kept."""
        self._waiting.append(deletion)

    def advance(self, time_ms: int | None) -> None:
        """Decide about deletions whose time is over."""
        while self._waiting and time_ms is not None and time_ms > (self._waiting[0].time_ms or 0) + WITHIN_MS:
            self._decide(self._waiting.popleft())

    def finish(self) -> None:
        """Decide about all deletions: no record is left."""
        while self._waiting:
            self._decide(self._waiting.popleft())

    def _decide(self, deletion: GroupDeletion) -> None:
        deletion.topics_kept = {
            topic
            for topic in deletion.topics
            if any(
                group_id != deletion.group_id and since < deletion.record_offset
                for (group_id, _), since in self._held[topic].items()
            )
        }
