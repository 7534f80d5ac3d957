"""Spark, stores and readers for commands. Spark is imported on first use: most questions need none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.cli.output import show_status
from offsets_pipeline.delta.properties import SCHEMA_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from offsets_pipeline.config import Settings
    from offsets_pipeline.query.state_reader import StateReader
    from offsets_pipeline.store import Store


def start_spark(settings: Settings) -> SparkSession:
    """Start Spark. Raises JavaMissing."""
    from pyspark.logger import PySparkLogger

    from offsets_pipeline.session import build_session

    show_status("starting Spark ...")
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True  # they print errors that the command prints too
    return build_session("offsets", settings)


def open_store(location: str, settings: Settings) -> Store:
    """Open a store with Spark. Raises NoSuchStore, NotAStore, JavaMissing."""
    from offsets_pipeline.store import Store

    return Store.open(start_spark(settings), location)


def open_reader(location: str, settings: Settings) -> StateReader:
    """Open a store for reading, without Spark unless a catalog has to be asked. Raises NoSuchStore, NotAStore."""
    from offsets_pipeline.query.state_reader import StateReader

    return StateReader(open_folder(location, settings))


def open_folder(location: str, settings: Settings) -> str:
    """The folder of a store: asks the catalog for that of a schema, with Spark. Raises NoSuchStore, NotAStore."""
    if location.startswith(SCHEMA_PREFIX):  # only the catalog knows the folder of its tables
        return open_store(location, settings).folder()
    return location
