"""The table that a benchmark prints, and the times in it."""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True)
class Line:
    """A line of the table: ``seconds`` of each repetition, or none if the figure is not a time."""

    what: str
    data: str
    seconds: tuple[float, ...]
    figure: str


class Table:
    """Collects the lines, and writes the steps of the run to stderr."""

    def __init__(self) -> None:
        self._lines: list[Line] = []
        self._began = time.perf_counter()

    def doing(self, what: str) -> None:
        """Write the step that begins to stderr."""
        print(f"bench: {time.perf_counter() - self._began:6.1f} s: {what}", file=sys.stderr, flush=True)

    def add_speed(self, what: str, data: str, records: int, seconds: list[float]) -> None:
        """A line in records a second."""
        self._lines.append(Line(what, data, tuple(seconds), f"{records / statistics.median(seconds):,.0f} records/s"))

    def add_times(self, what: str, data: str, seconds: list[float]) -> None:
        """A line in seconds, the median."""
        self._lines.append(Line(what, data, tuple(seconds), f"{statistics.median(seconds):.2f} s"))

    def add_mean(self, what: str, data: str, seconds: list[float]) -> None:
        """A line in seconds, the mean."""
        self._lines.append(Line(what, data, tuple(seconds), f"{statistics.mean(seconds):.2f} s"))

    def add_compared(self, what: str, data: str, seconds: list[float], figure: str) -> None:
        """A line in seconds, beside something else."""
        self._lines.append(Line(what, data, tuple(seconds), figure))

    def add_size(self, what: str, data: str, figure: str) -> None:
        """A line of bytes."""
        self._lines.append(Line(what, data, (), figure))

    def render(self) -> str:
        """As Markdown, aligned."""
        rows = [["what", "data", "seconds", "figure"]]
        for line in self._lines:
            seconds = ""
            if line.seconds:
                spread = f" ({min(line.seconds):.2f} to {max(line.seconds):.2f})" if len(line.seconds) > 1 else ""
                seconds = f"{statistics.median(line.seconds):.2f}{spread}"
            rows.append([line.what, line.data, seconds, line.figure])
        return markdown(rows)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a Markdown table with aligned columns. The first row is the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [rows[0], ["-" * width for width in widths], *rows[1:]]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def timed(repeats: int, run: Callable[[], object]) -> list[float]:
    """Return the seconds of each of so many runs."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return seconds
