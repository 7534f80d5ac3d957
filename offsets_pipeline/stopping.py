"""Ending a command that runs on when it is told to: by SIGTERM, or by Ctrl-C."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_ENDED_BY_SIGNAL = 128  # to which a shell adds the signal's number


class Stopping:
    """From here on SIGTERM and SIGINT call ``stop``, in a thread of its own.

    A handler runs in the main thread, in the middle of whatever that does. It may be a call to the JVM, beside which
    the thread cannot make another one, or the wait for the very event that is to be set, whose lock it then holds.
    """

    def __init__(self, stop: Callable[[], object]) -> None:
        self._stop = stop
        self._number: int | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told)

    def _told(self, number: int, _: object) -> None:
        self._number = number
        threading.Thread(target=self._stop, name="stop").start()

    def status(self, *, has_an_end: bool) -> int:
        """The command's exit status: not 0 where it ``has_an_end`` of its own, and was told to stop before that."""
        return _ENDED_BY_SIGNAL + self._number if has_an_end and self._number is not None else 0
