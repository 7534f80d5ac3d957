"""Reads metrics in Prometheus' text format, and computes the expected ones."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from prometheus_client.exposition import generate_latest

from offsets_pipeline.service.metrics.exposition import registry_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsets_pipeline.service.metrics.exposition import ValueSource

Figures = dict[str, dict[str, float]]


def figures_of(text: str) -> Figures:
    """By name and label's value (none: the empty text; several: all labels); checks the shape of every line.

    A metric without a value has no series.
    """
    found: Figures = defaultdict(dict)
    for line in text.splitlines():
        if not line.startswith("#"):
            shown = re.fullmatch(r'(\w+)(?:\{((?:\w+="[^"]*",?)+)\})? (\S+)', line)
            assert shown is not None, line
            labels = shown[2] or ""
            only = re.fullmatch(r'\w+="([^"]*)"', labels)
            found[shown[1]][labels if only is None else only[1]] = float(shown[3])
    return found


def exposed(*sources: ValueSource) -> Figures:
    """`figures_of` the exposition of these sources."""
    return figures_of(generate_latest(registry_of(*sources)).decode())


def extents(places: Iterable[tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """The lowest record offset of each log partition, and the one behind the highest."""
    offsets_at: dict[int, list[int]] = {}
    for at, offset in places:
        offsets_at.setdefault(at, []).append(offset)
    return {at: (min(found), max(found) + 1) for at, found in offsets_at.items()}


def by_partition(values: Mapping[int, int]) -> dict[str, float]:
    """A figure of each of five log partitions, 0 where there is none."""
    return {str(at): values.get(at, 0) for at in range(5)}
