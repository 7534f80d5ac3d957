"""DuckDB gives Spark's answers: of every view and table, and of every query in the documentation."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.questions.query.local_sql import LocalSql
from offsets_pipeline.questions.query.state_reader import StateReader
from tests.spark.both_engines import assert_as_spark, documented_queries

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

#: Queries in the SQL that both engines speak.
QUERIES = (
    (
        "SELECT group_type, count(*) AS n, count_if(state = 'Stable') AS stable, max_by(assignor, group_id) AS last "
        "FROM consumer_groups GROUP BY ALL ORDER BY ALL"
    ),
    (
        "WITH c AS (SELECT group_id, topic, max(committed_offset) AS m FROM current_offsets GROUP BY 1, 2) "
        "SELECT c.*, g.state FROM c LEFT JOIN consumer_groups g USING (group_id) ORDER BY ALL"
    ),
    (
        "SELECT topic, date_trunc('hour', commit_timestamp) AS h, count(DISTINCT group_id) AS g FROM current_offsets "
        "GROUP BY ALL ORDER BY ALL"
    ),
    (
        "SELECT split_part(group_id, '-', 1) AS start, sum(committed_offset) / 2 AS half FROM current_offsets "
        "GROUP BY ALL ORDER BY ALL"
    ),
    "SELECT log_partition, min(record_offset), max(record_offset), count(*) AS n FROM log GROUP BY log_partition",
    "SELECT group_id FROM current_offsets UNION SELECT group_id FROM unstable_offsets ORDER BY 1 LIMIT 3",
)


@pytest.mark.parametrize(
    "capture",
    [
        pytest.param("4.2.0-txn-open", marks=pytest.mark.slow),  # Spark plans every view
        *(pytest.param(each, marks=pytest.mark.long) for each in ("4.2.0-kip848", "4.2.0-share")),
    ],
)
def test_every_view_and_table_has_the_rows_that_spark_finds(
    spark: SparkSession, folded: Callable[[str], Path], capture: str
) -> None:
    store = str(folded(capture))
    with closing(LocalSql([StateReader(store)])) as local:
        names = list(local.kinds())
    assert {"current_offsets", "unstable_offsets", "consumer_groups", "group_members", "log"} <= set(names)
    assert assert_as_spark(spark, [store], [f"SELECT * FROM {name}" for name in names]) > 100


def test_documented_queries_answer_without_spark_what_they_answer_in_spark(
    spark: SparkSession, folded: Callable[[str], Path], root: Path
) -> None:
    documented = [query for query in documented_queries(root) if not re.search("connector|share_partitions", query)]
    assert len(documented) >= 9
    store = str(folded("4.2.0-kip848"))
    assert assert_as_spark(spark, [store], [*documented, *QUERIES], over_rows=True) > 100


def test_two_clusters_are_in_one_view_for_both_engines(spark: SparkSession, folded: Callable[[str], Path]) -> None:
    stores = [str(folded("4.2.0-kip848")), str(folded("4.2.0-txn-open"))]
    queries = [
        "SELECT cluster, count(*) AS n FROM current_offsets GROUP BY cluster ORDER BY cluster",
        "SELECT cluster, group_id, state FROM consumer_groups ORDER BY ALL",
        "SELECT cluster, log_partition, folded_to FROM fold_progress ORDER BY ALL",
    ]
    assert assert_as_spark(spark, stores, queries) > 10
