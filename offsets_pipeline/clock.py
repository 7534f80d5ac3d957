"""The clock is an argument: whoever needs "now" takes a Clock, so that a test can say what time it is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from offsets_pipeline.errors import InvalidTime

MS_OF_HOUR = 3_600_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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


def parse_time_ms(text: str) -> int:
    """A point in time in milliseconds since 1970-01-01T00:00:00Z; parts of a millisecond are left out.

    ``text`` is in ISO 8601, in UTC where it names no zone, or such a number of milliseconds: what has digits alone.

    Raises InvalidTime for anything else.
    """
    if text.isascii() and text.removeprefix("-").isdigit():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidTime(
            f"{text!r} is no time: write it as 2026-03-01T12:00:00Z, or in milliseconds since 1970"
        ) from None
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)


def shown_time(time_ms: int) -> str:
    """Milliseconds since 1970 in ISO 8601, in UTC; as the number where no calendar reaches."""
    try:
        at = _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return f"{time_ms} ms"
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
