"""The fold as DataFrame to DataFrame: rows of the log in, effects out. Stream, reload and verify all call this."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from offsets_pipeline.delta.schemas import FOLD_PROGRESS, LOG
from offsets_pipeline.errors import working_on
from offsets_pipeline.layers import DESCRIBED
from offsets_pipeline.log.files import log_files, read_log_file, shared_out
from offsets_pipeline.semantics.columnar_replay import INPUT_SCHEMA, Replay
from offsets_pipeline.semantics.compaction import COMPACT_ROWS, compact_early, gathered
from offsets_pipeline.semantics.effects import EFFECT_SCHEMA
from offsets_pipeline.semantics.group_rows import described
from offsets_pipeline.semantics.log_row import place_of
from offsets_pipeline.store import planned_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame

    from offsets_pipeline.store import Store

    Effects = Iterator[pa.RecordBatch]

_INPUT_COLUMNS = [field.name for field in INPUT_SCHEMA]
_TASKS_PER_CORE = 2  # of a replay of the whole log: enough to even out what they take
_FEW_STORED_BYTES = 4 * 1024 * 1024  # of a batch that may be looked at in the driver
_FEW_BYTES = 32 * 1024 * 1024  # of its rows
_NOWHERE = -1  # a log partition that there is not
_TOO_MANY = pa.RecordBatch.from_pylist(
    [{"log_partition": _NOWHERE, "record_offset": -1, "backfill": False, "records": 0}], schema=INPUT_SCHEMA
)
_ADD_ROWS = 250_000  # rows that are handed to the replay at once


def log_rows(log: DataFrame) -> DataFrame:
    """Rows of the table `log` as the fold takes them."""
    return log.withColumn("records", F.lit(1).cast("bigint")).select(_INPUT_COLUMNS)


def carried_rows(progress: DataFrame) -> DataFrame:
    """The pending commits in `fold_progress`, as rows that the fold takes in again (R11)."""
    return (
        progress.select("log_partition", F.explode("pending").alias("pending"))
        .select(
            "log_partition",
            "pending.record_offset",
            "pending.key",
            "pending.value",
            "pending.producer_id",
            F.lit(None).cast("string").alias("control_type"),
            F.lit(False).alias("backfill"),
            F.lit(0).cast("bigint").alias("records"),
        )
        .select(_INPUT_COLUMNS)
    )


def fold(rows: DataFrame, offsets_partitions: int, folded_to: Mapping[int, int]) -> DataFrame:
    """Fold rows of INPUT_SCHEMA; the result has EFFECT_SCHEMA.

    A log partition is replayed within one task. What other tasks read of it they compact first, so that little of a
    long log goes through the shuffle.
    """
    start = dict(folded_to)
    return _replay(_compacted(rows, start), offsets_partitions, start)


def few_rows(rows: DataFrame, folded_to: Mapping[int, int], at_most: int) -> pa.Table | None:
    """Rows of INPUT_SCHEMA, those that count: None where these are more than ``at_most``, or large."""
    if planned_bytes(rows) > _FEW_STORED_BYTES:  # so a long log is not read twice
        return None
    start = dict(folded_to)

    def compact(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        few: list[pa.Table] = []
        for table in gathered((pa.Table.from_batches([batch]) for batch in batches), COMPACT_ROWS):
            if _are_few(few, at_most):  # else they are read to the end, and let go of
                few.append(_compact(table, start))
        if not _are_few(few, at_most):
            yield _TOO_MANY
        elif few:
            yield from pa.concat_tables(few).to_batches()

    found = rows.mapInArrow(compact, from_arrow_schema(INPUT_SCHEMA)).toArrow().cast(INPUT_SCHEMA)
    too_many = pc.any(pc.equal(found["log_partition"], _NOWHERE)).as_py()
    return None if too_many or not _are_few([found], at_most) else found


def _compact(table: pa.Table, folded_to: Mapping[int, int]) -> pa.Table:
    with working_on(partial(place_of, table)):
        return compact_early(table, folded_to)


def _located(path: str, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The tables of a file of the log; an error that is not one of this program's own names the file and how far."""
    last = "its start"
    with working_on(lambda: f"the file {path} behind {last}"):
        for table in tables:
            yield table
            last = place_of(table)


def _are_few(tables: list[pa.Table], at_most: int) -> bool:
    rows, size = sum(each.num_rows for each in tables), sum(each.nbytes for each in tables)
    return bool(rows <= at_most and size <= _FEW_BYTES)


def _compacted(rows: DataFrame, start: Mapping[int, int]) -> DataFrame:
    def compact(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in gathered((pa.Table.from_batches([batch]) for batch in batches), COMPACT_ROWS):
            yield from _compact(table, start).to_batches()

    return rows.mapInArrow(compact, from_arrow_schema(INPUT_SCHEMA))


def fold_log(
    store: Store,
    partitions: Collection[int] | None,
    log_epoch: int,
    write_state: Callable[[Effects], Effects] | None = None,
) -> DataFrame:
    """Fold all of these log partitions (None: of all) of an epoch as the log is now, from their start; EFFECT_SCHEMA.

    ``write_state`` sees the effects in the task that brings them forth, those of whole log partitions, and says what
    becomes of them.
    """
    count = store.properties.offsets_partitions
    files = log_files(store, partitions, log_epoch)
    if files is None:
        rows = store.snapshot(LOG.name).where(F.col("log_epoch") == log_epoch)
        if partitions is not None:
            rows = rows.where(F.col("log_partition").isin(list(partitions)))
        return _replay(_compacted(log_rows(rows), {}), count, {}, write_state)
    wanted = None if partitions is None else frozenset(partitions)

    def read_and_compact(paths: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = (path for batch in paths for path in batch["path"].to_pylist())
        rows = (rows for path in names for rows in _located(path, read_log_file(path, wanted, log_epoch)))
        compacted = [_compact(_single_records(table), {}) for table in gathered(rows, COMPACT_ROWS)]
        if compacted:
            yield from _compact(pa.concat_tables(compacted), {}).to_batches()

    context = store.spark.sparkContext
    tasks = shared_out(files, _TASKS_PER_CORE * context.defaultParallelism)
    paths = context.parallelize(tasks, max(1, len(tasks))).flatMap(lambda task: [(file.path,) for file in task])
    compacted = store.spark.createDataFrame(paths, "path string").mapInArrow(
        read_and_compact, from_arrow_schema(INPUT_SCHEMA)
    )
    return _replay(compacted, count, {}, write_state, _TASKS_PER_CORE * context.defaultParallelism)


def _replay(
    compacted: DataFrame,
    offsets_partitions: int,
    folded_to: Mapping[int, int],
    write_state: Callable[[Effects], Effects] | None = None,
    tasks: int | None = None,
) -> DataFrame:
    def replay(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        replay = Replay(offsets_partitions, folded_to)
        for table in gathered((pa.Table.from_batches([batch]) for batch in batches), _ADD_ROWS):
            with working_on(partial(place_of, table)):
                replay.add(table)
        with working_on(lambda: f"the end of {replay.place()}"):
            yield from replay.effects() if write_state is None else write_state(replay.effects())

    shared = compacted.repartition("log_partition") if tasks is None else compacted.repartition(tasks, "log_partition")
    return shared.mapInArrow(replay, from_arrow_schema(EFFECT_SCHEMA))


def _single_records(rows: pa.Table) -> pa.Table:
    """Rows of the log as the fold takes them, but for the key, which may be dictionary-encoded."""
    ones = pa.array(np.ones(rows.num_rows, dtype=np.int64))
    return rows.append_column(INPUT_SCHEMA.field("records"), ones).select(_INPUT_COLUMNS)


def pending_arrays(pending: DataFrame) -> DataFrame:
    """Effects of the kind PENDING as the array of each log partition that `fold_progress` holds."""
    element = FOLD_PROGRESS.schema()["pending"].dataType.elementType  # type: ignore[attr-defined]
    return (
        pending.groupBy("log_partition")
        .agg(
            F.sort_array(
                F.collect_list(F.struct("record_offset", *[name for name in element.names if name != "record_offset"]))
            ).alias("sorted")
        )
        .select(
            "log_partition",
            F.transform("sorted", lambda row: F.struct(*[row[name].alias(name) for name in element.names])).alias(
                "pending"
            ),
        )
    )


def described_groups(group_records: DataFrame, offsets_partitions: int) -> DataFrame:
    """One row of the table `groups` for each group in ``group_records``, which holds all records of each.

    A group that was removed comes out as Dead.
    """
    return (
        group_records.repartition("log_partition", "group_id")
        .sortWithinPartitions("log_partition", "group_id", "log_epoch")
        .mapInArrow(partial(described, offsets_partitions=offsets_partitions), DESCRIBED.schema())
    )
