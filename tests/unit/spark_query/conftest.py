"""An owned store for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.coordinator.owned_store import OwnedStore

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(place: Path) -> Path:
    """An empty owned store of one log partition."""
    OwnedStore.create(place / "owned", 1)
    return place / "owned"
