"""The views of history in Spark give the rows that the same functions give without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.questions.history.history_schemas import HISTORY_VIEWS
from offsets_pipeline.questions.history.history_tables import read_views
from offsets_pipeline.questions.query.views import register_views
from offsets_pipeline.semantics.partitioning import partition_for
from tests.logs import capture_partitions
from tests.spark.frames import assert_same_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.usefixtures("code_generation")
def test_views_of_a_session_have_the_rows_of_the_tables(spark: SparkSession, folded: Callable[[str], Path]) -> None:
    """It needs Spark: its tasks replay the log partitions."""
    store = folded("4.2.0-txn-open")
    session = spark.newSession()
    register_views(session, str(store), query=" ".join(HISTORY_VIEWS))
    tables = read_views(str(store), HISTORY_VIEWS)
    assert tables.keys() == HISTORY_VIEWS.keys()
    for name, expected in tables.items():
        assert expected.num_rows
        assert_same_rows(session.table(name).drop("cluster"), session.createDataFrame(expected))


@pytest.mark.usefixtures("code_generation")
def test_conditions_of_a_query_limit_what_the_tasks_read(spark: SparkSession, folded: Callable[[str], Path]) -> None:
    """It needs Spark, as above. The views are looked at without the conditions: other groups are not there."""
    store, group = folded("4.2.0-txn-open"), "x-del"
    home = partition_for(group, capture_partitions("4.2.0-txn-open"))
    tables = read_views(str(store), HISTORY_VIEWS, group_ids=[group])
    session = spark.newSession()
    named = (
        f"SELECT * FROM deleted_offsets JOIN log_records USING (group_id) WHERE deleted_offsets.group_id = '{group}'"
    )
    register_views(session, str(store), query=f"{named} AND log_records.group_id IN ('{group}')")
    for name in ("deleted_offsets", "log_records"):
        expected = tables[name]
        assert expected.num_rows
        assert_same_rows(session.table(name).drop("cluster"), session.createDataFrame(expected))
        assert set(expected["log_partition"].to_pylist()) == {home}
