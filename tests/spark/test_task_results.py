"""Rows come to the partition with their number, also on Spark 4.0, which partitions by hash alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from offsets_pipeline.store.log.task_results import by_hash, repartitioned

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame, SparkSession


@pytest.mark.parametrize("partition", [by_hash, repartitioned])
@pytest.mark.parametrize("count", [1, 7, 200])
def test_each_row_is_in_the_partition_with_its_number(
    spark: SparkSession, partition: Callable[[DataFrame, int, Column], DataFrame], count: int
) -> None:
    rows = spark.range(0, 1_000, 1, 3).withColumn("number", F.expr(f"int((id * 31) % {count})"))
    found = partition(rows, count, F.col("number"))
    assert found.rdd.getNumPartitions() == count
    placed = found.select("id", "number", F.spark_partition_id()).collect()
    assert sorted(each["id"] for each in placed) == list(range(1_000))
    assert all(number == at for _, number, at in placed)
