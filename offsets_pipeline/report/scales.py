"""Scales of charts: round ticks of numbers and times, and their labels."""

from __future__ import annotations

import math
import unicodedata
from datetime import UTC, datetime
from typing import NamedTuple

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_TIME_STEPS = (
    *(n * _SECOND for n in (1, 2, 5, 10, 15, 30)),
    *(n * _MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * _HOUR for n in (1, 2, 3, 6, 12)),
    *(n * _DAY for n in (1, 2, 7, 14, 28, 91, 182, 364, 1820)),
)
_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


class Tick(NamedTuple):
    """A mark of an axis."""

    value: float
    label: str


def number_ticks(highest: float, count: int = 5) -> list[Tick]:
    """Return about ``count`` round ticks from 0 to ``highest`` or the next round number above."""
    if highest <= 0:
        return [Tick(0, "0"), Tick(1, "1")]
    rough = highest / count
    power = 10 ** math.floor(math.log10(rough))
    step = max(1e-9, next(power * each for each in (1, 2, 5, 10) if power * each >= rough))
    return [Tick(step * n, shown_number(step * n)) for n in range(math.ceil(highest / step - 1e-9) + 1)]


def time_ticks(from_ms: int, until_ms: int, count: int = 6) -> list[Tick]:
    """Return at most about ``count`` round times within a span; labels are in UTC."""
    span = max(1, until_ms - from_ms)
    step = next((each for each in _TIME_STEPS if span / each <= count), _TIME_STEPS[-1])
    if step < _MINUTE:
        form = "%H:%M:%S"
    elif step < _DAY:
        form = "%H:%M" if span < _DAY else "%d %b %H:%M"
    else:
        form = "%d %b %Y"
    first = -(-from_ms // step) * step
    return [Tick(at, datetime.fromtimestamp(at / 1000, UTC).strftime(form)) for at in range(first, until_ms + 1, step)]


def shown_number(value: float) -> str:
    """Format a number for an axis: 1500 as 1.5k."""
    for size, unit in _UNITS:
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def shown_duration(duration_ms: float) -> str:
    """Format a duration by its two largest units: 3 d 4 h, 5 min 3 s, 0.2 s."""
    if duration_ms < _MINUTE:
        return f"{duration_ms / _SECOND:.3g} s"
    for unit_ms, unit, part_ms, part in (
        (_DAY, "d", _HOUR, "h"),
        (_HOUR, "h", _MINUTE, "min"),
        (_MINUTE, "min", _SECOND, "s"),
    ):
        if duration_ms >= unit_ms:
            whole, rest = divmod(int(duration_ms), unit_ms)
            return f"{whole} {unit}" + (f" {rest // part_ms} {part}" if rest >= part_ms else "")
    raise AssertionError


def text_width(text: str, size: float) -> float:
    """Return an upper estimate of the width of a text in a sans-serif font of this size, in pixels."""
    return sum(size if unicodedata.east_asian_width(each) in "WF" else 0.62 * size for each in text)


def cut(text: str, width: float, size: float) -> str:
    """Return the text, cut in the middle to fit a width in pixels: group ids differ at both ends."""
    if text_width(text, size) <= width:
        return text
    head, tail = text[: len(text) // 2], text[len(text) // 2 :]
    while text_width(head + "…" + tail, size) > width and (head or tail):
        head, tail = (head[:-1], tail) if len(head) >= len(tail) else (head, tail[1:])
    return head + "…" + tail
