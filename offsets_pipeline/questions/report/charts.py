"""Charts as inline SVG. Each has a title and a description for screen readers; colours come from the page's style."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from offsets_pipeline.common.input_text import printable
from offsets_pipeline.semantics.effects import LATEST_MS

if TYPE_CHECKING:
    from offsets_pipeline.questions.report.model import Point, TimeSeries

#: Lines of a chart: as many as a reader can tell apart. The style has a colour and a dash pattern for each.
MAX_SERIES = 6
#: Stands for an empty name: Kafka allows an empty group id.
NO_NAME = '""'

_WIDTH, _HEIGHT = 760.0, 240.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 20.0, 14.0, 28.0
_FONT = 12.0
_ROW = 26.0
_LABELS = 230.0
_VALUES = 140.0
_GAP = 12.0
_X_TICKS, _Y_TICKS = 6, 5  # about so many
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


class Bar(NamedTuple):
    """A bar with its label and the text of its value."""

    label: str
    value: float
    shown: str


def bar_chart(name: str, title: str, description: str, bars: Sequence[Bar]) -> str:
    """Return horizontal bars, the first one on top; ``name`` is an id of the page."""
    height = _ROW * len(bars) + 8
    longest = max((bar.value for bar in bars), default=0) or 1
    space = _WIDTH - _LABELS - _VALUES
    parts = []
    for row, bar in enumerate(bars):
        middle, width = _ROW * row + _ROW / 2 + 4, max(1.0, space * bar.value / longest)
        label = printable(bar.label or NO_NAME)
        left = _LABELS + width + 6
        parts.append(
            f"<g><title>{escape(label)}: {escape(bar.shown)}</title>"
            f'<text x="{_LABELS - 8}" y="{middle + 4}" class="end">'
            f"{escape(cut(label, _LABELS - 16, _FONT))}</text>"
            f'<rect x="{_LABELS}" y="{middle - 8}" width="{width:.1f}" height="16" rx="2" class="bar"/>'
            f'<text x="{left:.1f}" y="{middle + 4}">{escape(cut(bar.shown, _WIDTH - left, _FONT))}</text></g>'
        )
    return _svg(name, title, description, height, parts)


def line_chart(
    name: str,
    title: str,
    description: str,
    series: Sequence[TimeSeries],
    span_ms: tuple[int, int],
    styles: Sequence[int],
    marks: Sequence[Point] = (),
) -> str:
    """Return lines over a span of time, and ``marks`` on them; series after MAX_SERIES are left out.

    ``styles`` has the number of each line's style, 0 to MAX_SERIES - 1.
    """
    series = series[:MAX_SERIES]
    highest = max((each.value for line in series for each in line.points if each.value is not None), default=0)
    axes = _Axes(span_ms, highest)
    parts = list(axes.drawn())
    for style, line in zip(styles, series, strict=True):
        parts += [
            f'<g class="s{style}"><title>{escape(printable(line.name or NO_NAME))}</title>',
            *axes.line(line.points),
            "</g>",
        ]
    for mark in marks:
        if mark.value is not None:
            x, y = axes.x(mark.at_ms), axes.y(mark.value)
            parts.append(f'<path d="M{x:.1f} {y - 2:.1f}l-5 -9h10z" class="mark"/>')
    return _svg(name, title, description, _HEIGHT, parts)


def column_chart(name: str, title: str, description: str, columns: TimeSeries, span_ms: tuple[int, int]) -> str:
    """Return a column for each point, which counts from its time to the next one's."""
    points = [(at_ms, value) for at_ms, value in columns.points if value is not None]
    axes = _Axes(span_ms, max((value for _, value in points), default=0))
    parts = list(axes.drawn())
    width = (_WIDTH - _LEFT - _RIGHT) / max(1, len(points))
    for at_ms, value in points:
        x, y = axes.x(at_ms), axes.y(value)
        if value:
            parts.append(
                f'<rect x="{x + 1:.1f}" y="{y:.1f}" width="{max(1.0, width - 2):.1f}" '
                f'height="{_HEIGHT - _BOTTOM - y:.1f}" class="bar"><title>{shown_number(value)}</title></rect>'
            )
    return _svg(name, title, description, _HEIGHT, parts)


class _Axes:
    """Scales of a chart with time as its x axis."""

    def __init__(self, span_ms: tuple[int, int], highest: float) -> None:
        self._from_ms, self._until_ms = span_ms[0], max(span_ms[1], span_ms[0] + 1)
        self._y_ticks = number_ticks(highest)
        self._top = self._y_ticks[-1].value

    def x(self, at_ms: float) -> float:
        share = (at_ms - self._from_ms) / (self._until_ms - self._from_ms)
        return _LEFT + min(1.0, max(0.0, share)) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - value / self._top * (_HEIGHT - _TOP - _BOTTOM)

    def drawn(self) -> Iterator[str]:
        """Yield grid lines with their labels."""
        for tick in self._y_ticks:
            y = self.y(tick.value)
            yield f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" class="grid"/>'
            yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" class="end">{tick.label}</text>'
        for tick in _spread(time_ticks(self._from_ms, self._until_ms), self):
            x = self.x(tick.value)
            yield f'<path d="M{x:.1f} {_HEIGHT - _BOTTOM}v4" class="axis"/>'
            yield f'<text x="{x:.1f}" y="{_HEIGHT - 8}" class="middle">{tick.label}</text>'
        yield f'<path d="M{_LEFT} {_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}" class="axis"/>'

    def line(self, points: Sequence[Point]) -> Iterator[str]:
        """Yield a path for each run of known values; a single value is a dot."""
        run: list[str] = []
        for point in [*points, None]:
            if point is not None and point.value is not None:
                run.append(f"{self.x(point.at_ms):.1f} {self.y(point.value):.1f}")
                continue
            if len(run) == 1:
                x, y = run[0].split()
                yield f'<circle cx="{x}" cy="{y}" r="3" class="dot"/>'
            elif run:
                yield f'<path d="M{"L".join(run)}" class="line"/>'
            run = []


def _spread(ticks: list[Tick], axes: _Axes) -> Iterator[Tick]:
    """Yield the ticks whose labels fit within the chart and do not overlap."""
    end = 0.0
    for tick in ticks:
        half, x = text_width(tick.label, _FONT) / 2, axes.x(tick.value)
        if x - half >= end and x + half <= _WIDTH:
            end = x + half + _GAP
            yield tick


def _svg(name: str, title: str, description: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH:.0f} {height:.0f}" role="img" aria-labelledby="{name}-title {name}-text">'
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-text">{escape(printable(description))}</desc>'
        f"{''.join(parts)}</svg>"
    )


def number_ticks(highest: float) -> list[Tick]:
    """Return about five round ticks from 0 to ``highest`` or the next round number above."""
    if highest <= 0:
        return [Tick(0, "0"), Tick(1, "1")]
    rough = highest / _Y_TICKS
    power = 10 ** math.floor(math.log10(rough))
    step = max(1e-9, next(power * each for each in (1, 2, 5, 10) if power * each >= rough))
    return [Tick(step * n, shown_number(step * n)) for n in range(math.ceil(highest / step - 1e-9) + 1)]


def time_ticks(from_ms: int, until_ms: int) -> list[Tick]:
    """Return at most about six round times within a span; labels are in UTC."""
    span = until_ms - from_ms
    step = next((each for each in _TIME_STEPS if span / each <= _X_TICKS), _TIME_STEPS[-1])
    if step < _MINUTE:
        form = "%H:%M:%S"
    elif step < _DAY:
        form = "%H:%M" if span < _DAY else "%d %b %H:%M"
    else:
        form = "%d %b %Y"
    first, end = -(-from_ms // step) * step, min(until_ms, LATEST_MS) + 1
    return [Tick(at, datetime.fromtimestamp(at / 1000, UTC).strftime(form)) for at in range(first, end, step)]


def shown_number(value: float) -> str:
    """Format a number for an axis: 1500 as 1.5k."""
    for size, unit in _UNITS:
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


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
