"""Stores and state tables without a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.folded_stores import new_store
from tests.unit.state.tables import state_tables

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.store.delta.table_folder import TableFolder
    from offsets_pipeline.store.store import Store


@pytest.fixture
def tables(place: Path) -> dict[str, TableFolder]:
    """The empty state tables."""
    return state_tables(place)


@pytest.fixture
def store(place: Path) -> Store:
    """An empty store of two log partitions. It has no Spark session."""
    return new_store(place)
