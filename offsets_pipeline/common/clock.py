"""Clocks, points in time and durations. Code that needs the current time takes a Clock, so that tests can set it."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol, overload

from offsets_pipeline.common.input_text import shown, whole_number
from offsets_pipeline.errors import InvalidTime

MS_OF_SECOND, MS_OF_HOUR = 1_000, 3_600_000
_MINUTE_MS, _DAY_MS = 60_000, 24 * MS_OF_HOUR
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NS_OF_MS = 1_000_000
_MILLISECONDS = re.compile(r"-?[0-9]+")
_SECONDS = re.compile(r"[1-9][0-9]{9}")
_SIGNED = r"([-+]?[0-9]{1,18})"
# as java.time.Duration: days have 24 hours, each part may have a sign, only seconds may have a fraction
_DURATION = re.compile(
    rf"([-+]?)P(?:{_SIGNED}D)?(T(?:{_SIGNED}H)?(?:{_SIGNED}M)?(?:{_SIGNED}(?:[.,]([0-9]{{0,9}}))?S)?)?", re.IGNORECASE
)


class Clock(Protocol):
    """Source of the current time."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01T00:00:00Z, as Kafka writes them into its records."""
        ...


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The wall clock of the machine."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01T00:00:00Z."""
        return time.time_ns() // 1_000_000


@dataclass(slots=True)
class FixedClock:
    """A clock that moves only by `advance_ms`. For simulations and tests."""

    at_ms: int

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01T00:00:00Z, as last set."""
        return self.at_ms

    def advance_ms(self, by_ms: int) -> None:
        """Move the clock by `by_ms` milliseconds (backwards when negative)."""
        self.at_ms += by_ms


def ms_of(time_: datetime) -> int:
    """Milliseconds since 1970-01-01T00:00:00Z of a time with a zone, rounded down."""
    return (time_ - EPOCH) // timedelta(milliseconds=1)


def parse_time_ms(text: str) -> int:
    """Return a point in time in milliseconds since 1970-01-01T00:00:00Z, rounded down.

    ``text`` is ISO 8601, in UTC if it has no zone, or a number of milliseconds since 1970, of the years 1 to 9999. A
    number of ten digits is refused: it would be in 1970, and as seconds it is in this century.

    Raises InvalidTime for any other text.
    """
    if _MILLISECONDS.fullmatch(text) is not None:
        try:
            time_ms = whole_number(text.removeprefix("-")) * (-1 if text.startswith("-") else 1)
            EPOCH + timedelta(milliseconds=time_ms)
        except (ValueError, OverflowError):
            raise InvalidTime(
                f"{shown(text)} is not a time in milliseconds since 1970: its year is not from 1 to 9999"
            ) from None
        if _SECONDS.fullmatch(text) is not None:
            raise InvalidTime(f"{shown(text)} looks like seconds; times are in milliseconds since 1970: {text}000")
        return time_ms
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidTime(
            f"{shown(text)} is not a time: write it like 2026-03-01T12:00:00Z, or in milliseconds since 1970"
        ) from None
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - EPOCH) // timedelta(milliseconds=1)


def time_before_ms(now_ms: int, duration: str) -> int:
    """Return the point in time one duration before now, in milliseconds since 1970, rounded down.

    ``duration`` is ISO 8601 as in Kafka's programs: PnDTnHnMnS. Raises InvalidTime for any other text.
    """
    return (now_ms * _NS_OF_MS - _duration_ns(duration)) // _NS_OF_MS


def duration_ms(text: str) -> int:
    """Return the milliseconds of a duration in ISO 8601, PnDTnHnMnS, rounded down. Raises InvalidTime."""
    return _duration_ns(text) // _NS_OF_MS


def _duration_ns(duration: str) -> int:
    found = _DURATION.fullmatch(duration)
    if found is None or duration[-1] in "PpTt":
        raise InvalidTime(f"{shown(duration)} is not a duration: write it like P1DT12H30M or PT90S")
    sign, days, _, hours, minutes, seconds, fraction = (part or "" for part in found.groups())
    fraction_ns = int(f"{fraction:0<9}") * (-1 if seconds.startswith("-") else 1)
    whole = ((int(days or 0) * 24 + int(hours or 0)) * 60 + int(minutes or 0)) * 60 + int(seconds or 0)
    duration_ns = whole * 1_000_000_000 + fraction_ns
    return -duration_ns if sign == "-" else duration_ns


@overload
def shown_time(time_ms: int) -> str: ...
@overload
def shown_time(time_ms: None) -> None: ...
def shown_time(time_ms: int | None) -> str | None:
    """Format milliseconds since 1970, if they are known, as ISO 8601 in UTC; as a number outside of years 1 to 9999."""
    if time_ms is None:
        return None
    try:
        at = EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return f"{time_ms} ms"
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shown_duration(duration_ms: float) -> str:
    """Format a duration by its two largest units: 3 d 4 h, 5 min 3 s, 0.2 s."""
    if duration_ms < _MINUTE_MS:
        return f"{duration_ms / MS_OF_SECOND:.3g} s"
    for unit_ms, unit, part_ms, part in (
        (_DAY_MS, "d", MS_OF_HOUR, "h"),
        (MS_OF_HOUR, "h", _MINUTE_MS, "min"),
        (_MINUTE_MS, "min", MS_OF_SECOND, "s"),
    ):
        if duration_ms >= unit_ms:
            whole, rest = divmod(int(duration_ms), unit_ms)
            return f"{whole} {unit}" + (f" {rest // part_ms} {part}" if rest >= part_ms else "")
    raise AssertionError
