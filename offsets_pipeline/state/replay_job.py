"""Replays as Spark jobs of one shuffle, and in the driver where the rows are few.

Tasks read and compact rows of the log, then tasks with all rows of some log partitions replay them. What these do with
the result is up to the caller: they write the files of the state, or compare it with the state. Only results come to
the driver.
"""

from __future__ import annotations

import pickle
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from offsets_pipeline.log.log_reader import compacted, shared_out
from offsets_pipeline.semantics.compaction import COMPACT_ROWS, gathered
from offsets_pipeline.store import planned_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from offsets_pipeline.delta.data_file import DataFile
    from offsets_pipeline.log.log_reader import LogReader
    from offsets_pipeline.state.replay_start import ReplayStart, TopicStart

Result = TypeVar("Result")

_TASKS_PER_CORE = 2  # of a replay of the log: enough to even out their durations
_FEW_STORED_BYTES = 16 * 1024 * 1024  # of files that may be read in the driver
_FEW_BYTES = 32 * 1024 * 1024  # of rows in the driver
_NO_PARTITION = -1
_TOO_MANY = {"log_partition": _NO_PARTITION, "record_offset": -1, "backfill": False, "records": 0}


def replay_batch(
    rows: DataFrame, start: ReplayStart | TopicStart, at_most: int, replay: Callable[[Iterable[pa.Table]], Result]
) -> list[Result]:
    """Replay rows of the table `log`, compacted; in the driver if no more than ``at_most`` of them count."""
    rows = rows.withColumn("records", F.lit(1).cast("bigint")).select(start.schema.names)
    few = _few_rows(rows, start, at_most - start.pending.num_rows)
    if few is not None:
        return [replay([few])]

    def compact(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in gathered(map(_as_table, batches), COMPACT_ROWS):
            yield from compacted(start.compact, table).to_batches()

    rows = rows.mapInArrow(compact, from_arrow_schema(start.schema))
    return _replay_in_tasks(rows.repartition("log_partition"), replay)


def replay_log(
    spark: SparkSession,
    reader: LogReader,
    files: Sequence[DataFile],
    at_most: int,
    replay: Callable[[Iterable[pa.Table]], Result],
) -> list[Result]:
    """Replay files of the log; in the driver if these hold no more than ``at_most`` rows."""
    rows, size = sum(file.rows for file in files), sum(file.size for file in files)
    if rows <= at_most and size <= _FEW_STORED_BYTES:
        return [replay(reader.read(files))]
    cores = spark.sparkContext.defaultParallelism
    in_order = sorted(files, key=lambda file: (file.lowest.get("log_partition", 0), file.name))
    tasks = shared_out(in_order, _TASKS_PER_CORE * cores)
    shares = spark.sparkContext.parallelize([(pickle.dumps(share),) for share in tasks], max(1, len(tasks)))

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        shares = (pickle.loads(share) for batch in batches for share in batch["files"].to_pylist())  # noqa: S301 - ours
        for table in reader.read(file for share in shares for file in share):
            yield from table.to_batches()

    found = spark.createDataFrame(shares, "files binary").mapInArrow(read, from_arrow_schema(reader.schema))
    return _replay_in_tasks(_in_ranges(found, reader.range.starts, _TASKS_PER_CORE * cores), replay)


def _in_ranges(rows: DataFrame, partitions: Collection[int], tasks: int) -> DataFrame:
    """The rows with neighbouring log partitions in one task: so the files of published rows are of disjoint ranges."""
    first, last = min(partitions, default=0), max(partitions, default=0)
    return rows.repartitionById(tasks, F.expr(f"int((log_partition - {first}) * {tasks} div {last - first + 1})"))


def _replay_in_tasks(of_partitions: DataFrame, replay: Callable[[Iterable[pa.Table]], Result]) -> list[Result]:
    """Replay rows, those of each log partition in one task."""

    def replayed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next(iter(batches), None)
        if first is not None:  # a task without rows has no result
            tables = map(_as_table, chain([first], batches))
            yield pa.RecordBatch.from_pydict({"result": [pickle.dumps(replay(tables))]})

    rows = of_partitions.mapInArrow(replayed, "result binary").collect()
    return [pickle.loads(row["result"]) for row in rows]  # noqa: S301 - the program's own


def _as_table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def _few_rows(rows: DataFrame, start: ReplayStart | TopicStart, at_most: int) -> pa.Table | None:
    """Rows of the replay's schema that count; None if these are more than ``at_most``, or large."""
    if at_most <= 0 or planned_bytes(rows) > _FEW_STORED_BYTES:  # do not read a long log twice
        return None
    too_many_rows = pa.RecordBatch.from_pylist([_TOO_MANY], schema=start.schema)

    def compact(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        few: list[pa.Table] = []
        for table in gathered(map(_as_table, batches), COMPACT_ROWS):
            if _are_few(few, at_most):
                few.append(compacted(start.compact, table))
        if not _are_few(few, at_most):
            yield too_many_rows
        elif few:
            yield from pa.concat_tables(few).to_batches()

    found = rows.mapInArrow(compact, from_arrow_schema(start.schema)).toArrow().cast(start.schema)
    too_many = pc.any(pc.equal(found["log_partition"], _NO_PARTITION)).as_py()
    return None if too_many or not _are_few([found], at_most) else found


def _are_few(tables: list[pa.Table], at_most: int) -> bool:
    rows, size = sum(each.num_rows for each in tables), sum(each.nbytes for each in tables)
    return bool(rows <= at_most and size <= _FEW_BYTES)
