"""Stores for reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.store import Store
from tests.folded_stores import folded_capture
from tests.logs import capture_rows
from tests.unit.lag.stores import note_files_read_now

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folded store of a capture; read it only."""
    made: dict[str, Path] = {}

    def store(name: str) -> Path:
        if name not in made:
            made[name] = folded_capture(tmp_path_factory.mktemp("report") / "store", name)
            opened = Store(cast("SparkSession", None), str(made[name]), StoreProperties(MIRRORED, 1))
            note_files_read_now(opened, (row for rows in capture_rows(name).values() for row in rows))
        return made[name]

    return store


@pytest.fixture
def report_store(capture: Callable[[str], Path]) -> Path:
    """A folded store; read it only."""
    return capture("4.2.0-kip848")
