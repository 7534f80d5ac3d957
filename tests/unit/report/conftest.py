"""Stores for reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.folded_stores import folded_capture

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="session")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folded store of a capture; read it only."""
    made: dict[str, Path] = {}

    def store(name: str) -> Path:
        if name not in made:
            made[name] = folded_capture(tmp_path_factory.mktemp("report") / "store", name)
        return made[name]

    return store


@pytest.fixture
def report_store(capture: Callable[[str], Path]) -> Path:
    """A folded store; read it only."""
    return capture("4.2.0-kip848")
