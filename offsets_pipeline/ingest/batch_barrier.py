"""A barrier that lets a caller stop a Structured Streaming query between two batches.

`StreamingQuery.stop` interrupts a running batch. The exception of the batch's Python function then contains a stack
trace of the JVM. Spark searches this text for the interruption with a regular expression, which overflows the stack:
the stream's thread dies with a thousand lines on stderr. So callers close the barrier before they stop a query.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class BarrierClosedError(Exception):
    """A batch started after the barrier was closed; the batch did nothing."""


class BatchBarrier:
    """Admits one batch at a time, and none after `close`; once `closed` is true, a failure of the query is expected."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.closed = False

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Context manager: run one batch of the query in it.

        Raises BarrierClosedError after `close`: the query then fails, and commits no batch.
        """
        with self._lock:
            if self.closed:
                raise BarrierClosedError
            yield

    def close(self, timeout_seconds: float = -1) -> None:
        """Admit no further batch, and wait for the running one; a negative timeout waits without limit."""
        self.closed = True
        if self._lock.acquire(timeout=timeout_seconds):
            self._lock.release()
