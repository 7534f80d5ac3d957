"""Objects on the way from Spark tasks to the driver, such as the files that tasks have written."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame

Result = TypeVar("Result")


def task_results(rows: DataFrame, task: Callable[[Iterable[pa.RecordBatch]], Iterable[Result]]) -> list[Result]:
    """Run a task on the batches of each partition of these rows; returns the results of all tasks, pickled between."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for result in task(batches):
            yield pa.RecordBatch.from_pydict({"result": [pickle.dumps(result)]})

    found = rows.mapInArrow(run, "result binary").collect()
    return [pickle.loads(row["result"]) for row in found]  # noqa: S301 - the program's own
