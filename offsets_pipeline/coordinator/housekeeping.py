"""The housekeeping thread of a coordinator: work at intervals, until the coordinator closes."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from offsets_pipeline.clock import Clock

    Work = Callable[[int], None]

_LOG = logging.getLogger(__name__)
_TICK_SECONDS = 1.0


class Housekeeping:
    """Calls ``on_tick`` every second, and each of ``works`` at its interval in milliseconds, until ``closed`` is set.

    Each call gets the time in milliseconds since 1970. After an error a warning is logged, and the next round runs as
    usual.
    """

    def __init__(
        self,
        location: str,
        clock: Clock,
        closed: threading.Event,
        on_tick: Work,
        works: Sequence[tuple[int, Work]],
    ) -> None:
        self._location = location
        self._clock = clock
        self._closed = closed
        self._on_tick = on_tick
        self._works = works
        self._thread = threading.Thread(target=self._run, name="offsets-housekeeping", daemon=True)

    def start(self) -> None:
        """Start the thread; the first calls come after one interval each."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of the thread, if it was started."""
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        began_ms = [self._clock.now_ms()] * len(self._works)
        failed = ""
        while not self._closed.wait(_TICK_SECONDS):
            now_ms = self._clock.now_ms()
            try:
                self._on_tick(now_ms)
                for at, (interval_ms, work) in enumerate(self._works):
                    if now_ms - began_ms[at] >= interval_ms:
                        began_ms[at] = now_ms
                        work(now_ms)
                failed = ""
            except Exception as error:  # noqa: BLE001 - the next round may succeed
                if str(error) != failed:  # a repeated error is logged once
                    _LOG.warning("housekeeping of %s failed: %s; trying again", self._location, error)
                failed = str(error)
