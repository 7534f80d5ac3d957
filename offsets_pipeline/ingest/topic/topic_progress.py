"""How a reading of a topic goes on, by what the query has read and what the cluster says. Free of Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsets_pipeline.ingest.topic.topic_admin import TopicBounds
    from offsets_pipeline.ingest.topic.topic_plan import CompleteReads, Reading


class TopicProgress:
    """How far each log partition was read, when the topic was last read to its end, and so whether the epoch counts.

    ``read_to`` is by log partition the first record offset that was not read yet, ``bounds`` is how the topic stood at
    the last look, ``open_since_ms`` since when a transaction holds a log partition's stable offset back.
    """

    def __init__(self, reading: Reading, bounds: Mapping[int, TopicBounds], now_ms: int, longest_gap_ms: int) -> None:
        self.reading = reading
        self.bounds = bounds
        self.read_to = dict(reading.starts)
        self.complete: CompleteReads = reading.complete
        self.open_since_ms: Mapping[int, int] = {}
        self._longest_gap_ms = longest_gap_ms
        self._asked_ms, self._asked = now_ms, _stable(bounds)  # what was stable then; not read yet at the last look
        self._still: dict[int, tuple[int, int]] = {}

    @property
    def counts(self) -> bool:
        """Whether what is read belongs to the epoch that counts: one that is read anew does when it was read whole."""
        return self.reading.anew is None or self.complete.last_ms is not None

    def advance(self, ends: Mapping[int, int]) -> None:
        """The query has read so far."""
        for at, end in ends.items():
            self.read_to[at] = max(end, self.read_to.get(at, 0))

    def look(
        self, now_ms: int, bounds: Mapping[int, TopicBounds], transactions_ms: Mapping[int, int] | None = None
    ) -> bool:
        """The topic stood so, not before ``now_ms``; False: too late, tombstones may have come and gone unread.

        ``transactions_ms`` is by log partition when its open transaction was last written to; None where the cluster
        does not tell: then a stable offset that stands still before the end tells at least since when.
        """
        if self.complete.gap_ms(now_ms) > self._longest_gap_ms:
            return False  # also where this process slept meanwhile, and has read it all since
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
