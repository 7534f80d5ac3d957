"""Progress of a reading, from the offsets of the query and of the topic. Free of Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsets_pipeline.ingest.topic.topic_admin import TopicBounds
    from offsets_pipeline.ingest.topic.topic_plan import CompleteReads, Reading


class TopicProgress:
    """Offsets read so far, and the time of the last complete read; decides whether the log incarnation counts.

    All are by log partition. ``read_to``: the first unread record offset. ``bounds``: the topic's offsets at the last
    look. ``open_since_ms``: since when a transaction holds back the stable offset.
    """

    def __init__(self, reading: Reading, bounds: Mapping[int, TopicBounds], now_ms: int, longest_gap_ms: int) -> None:
        self.reading = reading
        self.bounds = bounds
        self.read_to = dict(reading.starts)
        self.complete: CompleteReads = reading.complete
        self.open_since_ms: Mapping[int, int] = {}
        self._longest_gap_ms = longest_gap_ms
        # Stable offsets at an earlier look, and the time of that look; later looks check that the query has read them.
        self._asked_ms, self._asked = now_ms, _stable(bounds)
        self._still: dict[int, tuple[int, int]] = {}

    @property
    def counts(self) -> bool:
        """Whether this reading's log incarnation counts: a new one counts once its first reading is complete."""
        return self.reading.anew is None or self.complete.last_ms is not None

    def advance(self, ends: Mapping[int, int]) -> None:
        """Take the ends of the query's last batch."""
        for at, end in ends.items():
            self.read_to[at] = max(end, self.read_to.get(at, 0))

    def look(
        self, now_ms: int, bounds: Mapping[int, TopicBounds], transactions_ms: Mapping[int, int] | None = None
    ) -> bool:
        """Take the topic's offsets as of ``now_ms`` or later; False if tombstones may have come and gone unread.

        ``transactions_ms``: by log partition, the time of the last write of its open transaction. None if the cluster
        refuses this request: then the time since when the stable offset has not moved is a lower bound of the age.
        """
        if self.complete.gap_ms(now_ms) > self._longest_gap_ms:
            return False  # even if the query has caught up since: the process may have slept for longer than the gap
        self.bounds = bounds
        self._still = {
            at: self._still[at] if self._still.get(at, (None,))[0] == each.stable else (each.stable, now_ms)
            for at, each in bounds.items()
            if each.stable < each.end
        }
        self.open_since_ms = (
            {at: since for at, (_, since) in self._still.items()} if transactions_ms is None else transactions_ms
        )
        stable = _stable(bounds)
        if self._has_read(self._asked):
            self.complete = replace(self.complete, last_ms=self._asked_ms)
            self._asked_ms, self._asked = now_ms, stable
        if self._has_read(stable):
            self.complete = replace(self.complete, last_ms=now_ms)
        return True

    def _has_read(self, ends: Mapping[int, int]) -> bool:
        return all(self.read_to[at] >= end for at, end in ends.items())


def _stable(bounds: Mapping[int, TopicBounds]) -> dict[int, int]:
    return {at: each.stable for at, each in bounds.items()}
