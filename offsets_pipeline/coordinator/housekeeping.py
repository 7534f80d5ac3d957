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


class Housekeeping(Periodic[None]):
    """Calls each of ``works`` at its interval in milliseconds, and at most every second, until ``closed`` is set.

    Each call gets the time in milliseconds since 1970. The first ones come after one interval each. After an error a
    warning is logged, once until a round succeeds, and the next round runs as usual.
    """

    def __init__(self, location: str, clock: Clock, closed: threading.Event, works: Sequence[tuple[int, Work]]) -> None:
        self._clock = clock
        self._works = works
        self._began_ms = [clock.now_ms()] * len(works)
        super().__init__(
            self._work,
            _TICK_MS,
            at_once=False,
            rests=True,
            warn=_LOG.warning,
            describe=lambda error: f"housekeeping of {location} failed: {error}; trying again",
            stopped=closed,
            name="offsets-housekeeping",
        )

    def _work(self) -> None:
        now_ms = self._clock.now_ms()
        for at, (interval_ms, work) in enumerate(self._works):
            if now_ms - self._began_ms[at] >= interval_ms:
                self._began_ms[at] = now_ms
                work(now_ms)
