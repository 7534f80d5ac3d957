"""Work in Spark tasks: its items on the way to the tasks, and their results on the way back, such as written files.

It needs no more than DataFrames, so it runs on a Spark Connect server, too.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from pyspark.sql import functions as F

from offsets_pipeline.store.session import on_connect

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")

_MORE_THAN_CORES = 100_000
_HASHES = 40  # for each partition: that none of them falls to one of a thousand partitions has a chance of 1e-14


def parallelism(spark: SparkSession) -> int:
    """The number of tasks that Spark runs at once."""
    return _partitions_of_a_range(spark) if on_connect(spark) else spark.sparkContext.defaultParallelism


@cache
def _partitions_of_a_range(spark: SparkSession) -> int:
    return spark.range(_MORE_THAN_CORES).select(F.spark_partition_id()).distinct().count()


def numbers(spark: SparkSession, items: Sequence[object]) -> DataFrame:
    """A row with the number of each item, in a task of its own; `items_of` gives a task its item."""
    return spark.range(0, len(items), 1, max(1, len(items)))


def items_of(items: Sequence[Item], batches: Iterable[pa.RecordBatch]) -> Iterator[Item]:
    """The items with these numbers."""
    return (items[number] for batch in batches for number in batch["id"].to_pylist())


def repartitioned(rows: DataFrame, count: int, number: Column) -> DataFrame:
    """The rows in ``count`` partitions, each row in the partition with this number, an int below ``count``."""
    if hasattr(rows, "repartitionById"):
        return rows.repartitionById(count, number)
    return by_hash(rows, count, number)


def by_hash(rows: DataFrame, count: int, number: Column) -> DataFrame:
    """`repartitioned` for Spark 4.0, which partitions by hash alone: each number stands for one with its hash."""
    hashes = rows.sparkSession.range(_HASHES * count).select("id", F.expr(f"pmod(hash(int(id)), {count})")).collect()
    of_partition = {found: value for value, found in hashes}
    chosen = F.array(*(F.lit(of_partition[at]).cast("int") for at in range(count)))
    return rows.repartition(count, F.element_at(chosen, number + 1))


def task_results(rows: DataFrame, task: Callable[[Iterable[pa.RecordBatch]], Iterable[Result]]) -> list[Result]:
    """Run a task on the batches of each partition of these rows; returns the results of all tasks, pickled between."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for result in task(batches):
            yield pa.RecordBatch.from_pydict({"result": [pickle.dumps(result)]})

    found = rows.mapInArrow(run, "result binary").collect()
    return [pickle.loads(row["result"]) for row in found]  # noqa: S301 - the program's own


def results_in_tasks(spark: SparkSession, items: Sequence[Item], work: Callable[[Item], Result]) -> list[Result]:
    """The result of each item, in order; each item is a task."""
    return task_results(numbers(spark, items), lambda batches: map(work, items_of(items, batches)))
