"""The view `consumer_lag` gives the rows of `offsets lag`, with and without Spark."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from offsets_pipeline.common.clock import parse_time_ms
from offsets_pipeline.ingest.topic_positions.position_samples import Sample, rows_of
from offsets_pipeline.ingest.topic_positions.sample_table import SampleWriter, read_samples, table_of
from offsets_pipeline.questions.lag.lag_rows import StoreGroups, lag_of_groups
from offsets_pipeline.questions.lag.position_sources import SampledPositions
from offsets_pipeline.questions.query.answer_time import answer_time
from offsets_pipeline.questions.query.describe import describe_groups
from offsets_pipeline.questions.query.local_sql import LocalSql
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.questions.query.views import register_views
from tests.places import copied
from tests.spark.stores import CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

COLUMNS = (
    "group_id, topic, partition, committed_offset, log_start_offset, log_end_offset, lag, lag_available, method, "
    "{millis}(as_of) AS as_of, {millis}(data_time) AS data_time, {millis}(sampled_at) AS sampled_at"
)


def test_lag_is_that_of_the_command(spark: SparkSession, folded: Callable[[str], Path], tmp_path: Path) -> None:
    store = copied(folded("4.2.0-kip848"), tmp_path / "store")
    now_ms = CLOCK.now_ms()  # the files were read now
    samples = [
        (("t1", 0), Sample(0, 0, now_ms - 3_000_000)),
        (("t1", 0), Sample(0, 500, now_ms - 2_000_000)),
        (("t1", 0), Sample(3, 500, now_ms - 1_000_000)),
        (("t1", 1), Sample(0, 90, now_ms - 3_000_000)),  # created again after this sample
        (("t1", 1), Sample(0, 5, now_ms - 2_000_000)),
        (("t1", 1), Sample(0, 1_000, now_ms + 1_000_000)),  # the log end of now is less
        (("t1", 2), Sample(0, 10, now_ms - 3_000_000)),
        (("t1", 3), Sample(40, 40, now_ms - 3_000_000)),
        (("t2", 0), Sample(0, 700, now_ms)),
    ]
    SampleWriter(table_of(str(store)), "a test").append(rows_of(samples, "a test"))
    register_views(spark, str(store), query="consumer_lag, topic_offsets")
    reader = StateReader(str(store))
    positions = SampledPositions(read_samples(table_of(str(store))), now_ms + 2_000_000)
    expected = lag_of_groups(StoreGroups(reader, describe_groups(reader), answer_time(reader, 0)), positions)
    query = f"SELECT {COLUMNS}, reason, lag_seconds FROM consumer_lag"
    found = spark.sql(query.format(millis="unix_millis")).collect()
    with closing(LocalSql([reader])) as local:
        names, rows = local.run(query.format(millis="epoch_ms"))
        without_spark = list(rows)
    at = names.index("lag_seconds")
    assert sorted(map(str, without_spark)) == sorted(str(list(row)) for row in found)
    assert {row[at] is None for row in without_spark} == {True, False}
    samples_query = "SELECT topic, partition, log_end_offset, sampled_at FROM topic_offsets ORDER BY ALL"
    with closing(LocalSql([reader])) as local:
        assert list(map(tuple, local.run(samples_query)[1])) == list(map(tuple, spark.sql(samples_query).collect()))
    assert {(*tuple(row)[:-2], row.lag_seconds) for row in found} == {
        (
            *(row.group, row.topic, row.partition, row.current_offset, row.log_start_offset, row.log_end_offset),
            *(row.lag, row.lag_available, row.method),
            *(parse_time_ms(str(time)) for time in (row.as_of, row.data_time, row.sampled_at)),
            row.lag_seconds,
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
    assert {each.method for each in expected} == {"interpolated", "at_least", "none"}
    assert {row.as_of for row in found} == {now_ms}


def test_commit_after_the_newest_sample_has_no_lag_in_sql(
    spark: SparkSession, folded: Callable[[str], Path], tmp_path: Path
) -> None:
    """R37: only the log tells which commit counted at the time of the sample."""
    store = copied(folded("4.2.0-kip848"), tmp_path / "store")
    SampleWriter(table_of(str(store)), "a test").append(rows_of([(("t1", 0), Sample(0, 1, 1_000))], "a test"))
    register_views(spark, str(store), query="consumer_lag")
    query = "SELECT DISTINCT lag, reason FROM consumer_lag WHERE topic = 't1' AND partition = 0"
    expected = [(None, "the group has committed since the newest sample")]
    assert list(map(tuple, spark.sql(query).collect())) == expected
    with closing(LocalSql([StateReader(str(store))])) as local:
        assert list(map(tuple, local.run(query)[1])) == expected
