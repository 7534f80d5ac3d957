"""Parameters of tests."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _pytest.mark import ParameterSet


def crossed(*values: Sequence[object]) -> list[ParameterSet]:
    """All combinations of values. Every other one is for long runs; each value stands in half of the others."""
    return [
        pytest.param(
            *(each[place] for each, place in zip(values, places, strict=True)),
            marks=pytest.mark.long if sum(places) % 2 else (),
        )
        for places in product(*map(range, map(len, values)))
    ]
