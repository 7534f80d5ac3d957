"""The view `consumer_lag` gives the rows of `offsets lag`, with and without Spark."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from offsets_pipeline.clock import SystemClock
from offsets_pipeline.lag.lag_rows import lag_rows
from offsets_pipeline.lag.position_sources import SampledPositions
from offsets_pipeline.query.describe import describe_groups
from offsets_pipeline.query.local_sql import LocalSql
from offsets_pipeline.query.state_reader import StateReader
from offsets_pipeline.query.views import register_views
from offsets_pipeline.topic_positions.position_samples import Sample, rows_of
from offsets_pipeline.topic_positions.sample_table import SampleWriter, read_samples, table_of
from tests.spark.stores import copied

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

COLUMNS = "group_id, topic, partition, committed_offset, log_start_offset, log_end_offset, lag, lag_available, method"


def test_lag_is_that_of_the_command(spark: SparkSession, folded: Callable[[str], Path], tmp_path: Path) -> None:
    store = copied(folded("4.2.0-kip848"), tmp_path / "store")
    samples = [
        (("t1", 0), Sample(0, 0, 1_000)),
        (("t1", 0), Sample(0, 500, 2_000)),
        (("t1", 0), Sample(3, 500, 3_000)),
        (("t1", 1), Sample(0, 90, 1_000)),  # created again after this sample
        (("t1", 1), Sample(0, 5, 2_000)),
        (("t1", 1), Sample(0, 1_000, 3_000)),
        (("t1", 2), Sample(0, 10, 1_000)),
        (("t1", 3), Sample(40, 40, 1_000)),
        (("t2", 0), Sample(0, 700, 3_000)),
    ]
    SampleWriter(table_of(str(store)), "a test").append(rows_of(samples, "a test"))
    register_views(spark, str(store), query="consumer_lag, topic_offsets")
    now_ms = SystemClock().now_ms()
    reader = StateReader(str(store))
    expected = lag_rows(describe_groups(reader), SampledPositions(read_samples(table_of(str(store))), now_ms), None)
    query = f"SELECT {COLUMNS}, reason, lag_seconds FROM consumer_lag"
    found = spark.sql(query).collect()
    with closing(LocalSql([reader])) as local:
        names, rows = local.run(query)
        without_spark = list(rows)
    at = names.index("lag_seconds")
    assert sorted(str(row[:at]) for row in without_spark) == sorted(str(list(row)[:at]) for row in found)
    assert {row[at] is None for row in without_spark} == {True, False}
    later = {tuple(row[:3]): row[at] for row in without_spark}
    assert all((row.lag_seconds is None) == (later[tuple(row)[:3]] is None) for row in found)
    assert all(abs(row.lag_seconds - later[tuple(row)[:3]]) < 60 for row in found if row.lag_seconds is not None)
    samples_query = "SELECT topic, partition, log_end_offset, sampled_at FROM topic_offsets ORDER BY ALL"
    with closing(LocalSql([reader])) as local:
        assert list(map(tuple, local.run(samples_query)[1])) == list(map(tuple, spark.sql(samples_query).collect()))
    assert {tuple(row)[:-2] for row in found} == {
        (
            *(row.group, row.topic, row.partition, row.current_offset, row.log_start_offset, row.log_end_offset),
            *(row.lag, row.lag_available, row.method),
        )
        for row in expected
    }
    assert len(found) == len(expected)
    assert {row.reason for row in found} == {
        None,
        "the group has no committed offset",
        "no position of the partition is known",
        "the committed offset is older than the first sample",
        "the committed offset is above the log end",
    }
    seconds = {(row.group, row.topic, row.partition): row.lag_seconds for row in expected}
    assert {each.method for each in expected} == {"interpolated", "none"}
    for row in found:
        ours = seconds[row.group_id, row.topic, row.partition]
        assert (row.lag_seconds is None) == (ours is None), row
        # the view's present is later
        assert ours is None or ours == 0 or 0 <= float(row.lag_seconds) - ours < 60, row
