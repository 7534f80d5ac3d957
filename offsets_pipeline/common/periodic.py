"""Work that runs at intervals, in a thread of its own or in the caller's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from offsets_pipeline.common.foreign_errors import in_one_line
from offsets_pipeline.common.warnings import Warnings, warn

_LOOK_SECONDS = 1.0  # between two looks at the clock, which others may set

_Result = TypeVar("_Result")
_Returned = TypeVar("_Returned")


def monotonic_ms() -> int:
    """Milliseconds since some time in the past, by a clock that no one sets."""
    return time.monotonic_ns() // 1_000_000


class Periodic(Generic[_Result]):
    """Runs some work at intervals: after `start` in a daemon thread, or with `results` in the caller's.

    An error is a warning, and the next run tries again. The same warning is not repeated until a run succeeds. An error
    that does not pass ends the work: `results` raises it, and after `start` so does `check`.

    Args:
        run: The work.
        interval_ms: Milliseconds from the start of one run to the start of the next one. A run that takes longer is
            followed at once. Or a function that returns the milliseconds until the next run, zero or less if it is due.
        now_ms: The clock of the interval. If it is set back before the interval's start, the next run is due.
        at_once: Whether the first run comes now, not after one interval.
        rests: Whether the interval begins at the end of a run.
        warn: Called with each warning.
        describe: Returns the warning about an error, in one line.
        may_pass: Whether the next run may succeed after this error.
        at_end: Called after the last run in the same thread. Its error is a warning.
        stopped: Set by `stop`. Another owner may set it, too.
        name: The name of the thread.
        wrapped: Returns the thread's target for this one, as Spark needs it.
        close_seconds: How long `close` waits for the end of the thread; None: without limit.
    """

    def __init__(
        self,
        run: Callable[[], _Result],
        interval_ms: int | Callable[[], float],
        now_ms: Callable[[], int] = monotonic_ms,
        *,
        at_once: bool = True,
        rests: bool = False,
        warn: Callable[[str], object] = warn,
        describe: Callable[[Exception], str] = in_one_line,
        may_pass: Callable[[Exception], bool] = lambda _: True,
        at_end: Callable[[], object] | None = None,
        stopped: threading.Event | None = None,
        name: str = "periodic",
        wrapped: Callable[[Callable[[], None]], Callable[[], None]] = lambda target: target,
        close_seconds: float | None = None,
    ) -> None:
        self._run = run
        self._interval_ms = interval_ms
        self._now_ms = now_ms
        self._at_once = at_once
        self._rests = rests
        self._warnings = Warnings(warn)
        self._describe = describe
        self._may_pass = may_pass
        self._at_end = at_end
        self._stopped = stopped or threading.Event()
        self._since_ms: int | None = None  # the start of the interval; None: the first run is due
        self._error: Exception | None = None
        self._name = name
        self._wrapped = wrapped
        self._close_seconds = close_seconds
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Run in the thread, until `close`."""
        self._thread = threading.Thread(target=self._wrapped(self._run_to_end), name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Start no further run. Does not wait for the present one, and may be called by it."""
        self._stopped.set()

    def is_stopped(self) -> bool:
        """Whether no further run starts."""
        return self._stopped.is_set()

    def close(self) -> None:
        """Stop, and wait for the end of the run in progress, but not longer than ``close_seconds``. Idempotent."""
        self.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._close_seconds)

    def check(self) -> None:
        """Raise the error that ended the thread, if one did."""
        if self._error is not None:
            raise self._error

    def run_once(self) -> None:
        """Run once now in this thread, with the work at the end. Raises an error that does not pass."""
        try:
            self._try(self._run)
        finally:
            self._end()

    def results(self) -> Iterator[_Result]:
        """Run at intervals in this thread, and yield the result of each run that succeeds, until `stop`.

        Raises an error that does not pass.
        """
        self._since_ms = None if self._at_once else self._now_ms()
        while self._wait():
            self._since_ms = self._now_ms()
            results = self._try(self._run)
            if self._rests:
                self._since_ms = self._now_ms()
            yield from results

    def _run_to_end(self) -> None:
        try:
            for _ in self.results():
                pass
        except Exception as error:  # noqa: BLE001 - `check` raises it
            self._error = error
        finally:
            self._end()

    def _wait(self) -> bool:
        """Wait until the next run is due; returns False if it must not start."""
        while not self._stopped.is_set():
            left_ms = self._left_ms()
            if left_ms <= 0:
                return True
            self._stopped.wait(min(left_ms / 1000, _LOOK_SECONDS))
        return False

    def _left_ms(self) -> float:
        if callable(self._interval_ms):
            return self._interval_ms()
        if self._since_ms is None:
            return 0
        passed_ms = self._now_ms() - self._since_ms
        return self._interval_ms - passed_ms if passed_ms >= 0 else 0

    def _try(self, work: Callable[[], _Returned]) -> list[_Returned]:
        """Return the result of ``work``; warn and return none if it fails. Raises an error that does not pass."""
        try:
            result = work()
        except Exception as error:
            if not self._may_pass(error):
                raise
            self._warnings.warn(self._describe(error))
            return []
        self._warnings.recovered()
        return [result]

    def _end(self) -> None:
        if self._at_end is not None:
            self._try(self._at_end)
