"""Folded stores for tests, made without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from offsets_pipeline.common.config import Settings
from offsets_pipeline.common.config.sections import FoldSettings
from offsets_pipeline.fold.state.fold import fold_log
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.delta.store_folder import create_tables
from offsets_pipeline.store.store import Store
from tests.logs import capture_partitions, capture_rows, capture_semantics
from tests.spark.stores import CLOCK, appended

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from offsets_pipeline.semantics.log_row import LogRow


_IN_DRIVER = Settings(fold=FoldSettings(driver_rows=2**31 - 1))


def new_store(folder: Path, log_partitions: int = 2, semantics: CoordinatorSemantics = MODERN) -> Store:
    """An empty store without a Spark session."""
    properties = StoreProperties(MIRRORED, log_partitions, coordinator_semantics=semantics)
    create_tables(str(folder), properties)
    return opened(folder)


def opened(folder: Path) -> Store:
    """A store, without a Spark session."""
    return Store.open(cast("SparkSession", None), str(folder))


def folded_store(folder: Path, properties: StoreProperties, rows: Iterable[LogRow]) -> Path:
    """A new store with these records, folded."""
    create_tables(str(folder), properties)
    appended(str(folder), list(rows))
    fold_log(opened(folder), _IN_DRIVER, CLOCK)
    return folder


def folded_capture(folder: Path, capture: str) -> Path:
    """A new store with a capture's log, folded."""
    properties = StoreProperties(
        MIRRORED, capture_partitions(capture), coordinator_semantics=capture_semantics(capture)
    )
    return folded_store(folder, properties, [row for rows in capture_rows(capture).values() for row in rows])
