"""State tables for the tests of the state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.state.tables import state_tables

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.delta.table_folder import TableFolder


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, TableFolder]:
    """The empty state tables."""
    return state_tables(tmp_path)
