"""Replays as Spark jobs of one shuffle, and in the driver where the rows are few.

Tasks read and compact rows of the log, then tasks with all rows of some log partitions replay them. What these do with
the result is up to the caller: they write the files of the state, or compare it with the state. Only results come to
the driver.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from offsets_pipeline.store.log.log_reader import LogReader, shared_out
from offsets_pipeline.store.log.task_results import items_of, numbers, parallelism, repartitioned, task_results

if TYPE_CHECKING:
    from offsets_pipeline.store.delta.data_file import DataFile
    from offsets_pipeline.store.store import Store

Result = TypeVar("Result")

_TASKS_PER_CORE = 2  # of a replay of the log, at least: enough to even out their durations
_TASK_ROWS = 5_000_000  # of the log, at most if they are of several log partitions: a task holds their state in memory
_FEW_STORED_BYTES = 16 * 1024 * 1024  # of files that may be read in the driver


def replay_log(
    store: Store,
    reader: LogReader,
    files: Sequence[DataFile],
    at_most: int,
    replay: Callable[[Iterable[pa.Table]], Result],
) -> list[Result]:
    """Replay files of the log; in the driver, and without Spark, if these hold no more than ``at_most`` rows."""
    rows, size = sum(file.rows for file in files), sum(file.size for file in files)
    if rows <= at_most and size <= _FEW_STORED_BYTES:
        return [replay(reader.read(files))]
    spark = store.spark
    most_tasks = max(_TASKS_PER_CORE * parallelism(spark), math.ceil(rows / _TASK_ROWS))
    shares = shared_out(files, most_tasks)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in reader.read(file for share in items_of(shares, batches) for file in share):
            yield from table.to_batches()

    def replayed(batches: Iterable[pa.RecordBatch]) -> Iterator[Result]:
        first = next(iter(batches), None)
        if first is not None:  # a task without rows has no result
            yield replay(pa.Table.from_batches([each]) for each in chain([first], batches))

    found = numbers(spark, shares).mapInArrow(read, from_arrow_schema(reader.schema))
    # neighbouring log partitions in one task: so the files of published rows are of disjoint ranges
    partitions = reader.range.starts or ()
    first, last = min(partitions, default=0), max(partitions, default=0)
    number = F.expr(f"int((log_partition - {first}) * {most_tasks} div {last - first + 1})")
    return task_results(repartitioned(found, most_tasks, number), replayed)
