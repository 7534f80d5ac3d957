"""The views of history in Spark give the rows that the same functions give without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.history.history_schemas import HISTORY_VIEWS
from offsets_pipeline.history.history_tables import history_tables
from offsets_pipeline.query.views import register_views

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_views_of_a_session_have_the_rows_of_the_tables(spark: SparkSession, folded: Callable[[str], Path]) -> None:
    """It needs Spark: its tasks replay the log partitions."""
    store = folded("4.2.0-txn-open")
    session = spark.newSession()
    register_views(session, str(store), query=" ".join(HISTORY_VIEWS))
    tables = history_tables(str(store))
    assert tables.keys() == HISTORY_VIEWS.keys()
    for name, table in tables.items():
        expected = table.read()
        assert expected.num_rows
        found = session.table(name).drop("cluster").toArrow().cast(expected.schema)
        assert _sorted(found.to_pylist()) == _sorted(expected.to_pylist()), name


def _sorted(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(rows, key=str)
