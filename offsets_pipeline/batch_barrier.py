"""Ending a Structured Streaming query between two of its batches.

`StreamingQuery.stop` interrupts the batch that goes on. What Python's function then raises holds a stack of the JVM's,
and Spark looks for the interruption in that text, by an expression that takes more of its own stack than there is: the
stream's thread dies with a thousand lines on stderr. So a query is stopped when no batch goes on any more.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class BarrierClosedError(Exception):
    """A batch came behind the last one; nothing of it was done."""


class BatchBarrier:
    """Lets one batch in at a time, and none any more once it is closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def batch(self) -> Iterator[None]:
        """The time of a batch. Raises BarrierClosedError: the query then fails, and does not count the batch."""
        with self._lock:
            if self._closed:
                raise BarrierClosedError
            yield

    def close(self, timeout_seconds: float = -1) -> None:
        """Let in no other batch, and wait for the one that goes on; a negative timeout is none."""
        self._closed = True
        if self._lock.acquire(timeout=timeout_seconds):
            self._lock.release()

    @property
    def closed(self) -> bool:
        """Whether a query that fails now was to end anyway."""
        return self._closed
