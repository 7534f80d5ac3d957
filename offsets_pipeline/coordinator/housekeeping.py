"""The housekeeping thread of a coordinator: work at intervals, until the coordinator closes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from offsets_pipeline.common.periodic import Periodic

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from offsets_pipeline.common.clock import Clock

    Work = Callable[[int], object]

_LOG = logging.getLogger(__name__)
_TICK_MS = 1_000


class Housekeeping:
    """Calls each of ``works`` at its interval in milliseconds, and at most every second, until ``closed`` is set.

    Each call gets the time in milliseconds since 1970. After an error a warning is logged, once until a round
    succeeds, and the next round runs as usual.
    """

    def __init__(self, location: str, clock: Clock, closed: threading.Event, works: Sequence[tuple[int, Work]]) -> None:
        self._clock = clock
        self._works = works
        self._began_ms: list[int] = []
        self._periodic = Periodic(
            self._run,
            _TICK_MS,
            at_once=False,
            rests=True,
            warn=_LOG.warning,
            describe=lambda error: f"housekeeping of {location} failed: {error}; trying again",
            stopped=closed,
        )

    def start(self) -> None:
        """Start the thread; the first calls come after one interval each."""
        self._began_ms = [self._clock.now_ms()] * len(self._works)
        self._periodic.start("offsets-housekeeping")

    def close(self) -> None:
        """Set ``closed``, and wait for the end of the thread, if it was started."""
        self._periodic.close()

    def _run(self) -> None:
        now_ms = self._clock.now_ms()
        for at, (interval_ms, work) in enumerate(self._works):
            if now_ms - self._began_ms[at] >= interval_ms:
                self._began_ms[at] = now_ms
                work(now_ms)
