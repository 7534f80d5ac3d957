"""The clock is an argument: whoever needs "now" takes a Clock, so that a test can say what time it is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

MS_OF_HOUR = 3_600_000


class Clock(Protocol):
    """Tells the time."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01T00:00:00Z, as Kafka writes them into its records."""
        ...


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The machine's own wall clock."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01T00:00:00Z."""
        return time.time_ns() // 1_000_000


@dataclass(slots=True)
class FixedClock:
    """A clock that stands still until it is told to move. For tests and for asking "what if it were …"."""

    at_ms: int

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01T00:00:00Z, as last set."""
        return self.at_ms

    def advance_ms(self, by_ms: int) -> None:
        """Move the clock by `by_ms` milliseconds (backwards when negative)."""
        self.at_ms += by_ms
