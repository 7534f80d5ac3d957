"""Stores and state tables without a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from offsets_pipeline.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.delta.store_folder import create_tables
from offsets_pipeline.store import Store
from tests.unit.state.tables import state_tables

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from offsets_pipeline.delta.table_folder import TableFolder


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, TableFolder]:
    """The empty state tables."""
    return state_tables(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store of two log partitions. It has no Spark session."""
    properties = StoreProperties(MIRRORED, 2)
    create_tables(str(tmp_path), properties)
    return Store(cast("SparkSession", None), str(tmp_path), properties)
