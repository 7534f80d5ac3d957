"""Replays as Spark jobs of one shuffle, and in the driver where the rows are few.

Tasks read and compact rows of the log, then tasks with all rows of some log partitions replay them. What these do with
the result is up to the caller: they write the files of the state, or compare it with the state. Only results come to
the driver.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from offsets_pipeline.connect.topic_replay import CONNECT_INPUT_SCHEMA, compact_topic, replay_topic
from offsets_pipeline.errors import working_on
from offsets_pipeline.log.log_reader import shared_out
from offsets_pipeline.semantics.columnar_replay import INPUT_SCHEMA, Replay
from offsets_pipeline.semantics.compaction import COMPACT_ROWS, compact_early, gathered
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.semantics.log_row import place_of
from offsets_pipeline.store import planned_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from offsets_pipeline.delta.reader import StoredFile
    from offsets_pipeline.log.log_reader import LogReader
    from offsets_pipeline.semantics.topic_kind import TopicKind

Result = TypeVar("Result")
Replayed_co = TypeVar("Replayed_co", covariant=True)
Replayed = TypeVar("Replayed")

_TASKS_PER_CORE = 2  # of a replay of the log: enough to even out their durations
_FEW_STORED_BYTES = 16 * 1024 * 1024  # of files that may be read in the driver
_FEW_BYTES = 32 * 1024 * 1024  # of rows in the driver
_ADD_ROWS = 250_000  # rows that the replay takes at once
_NO_PARTITION = -1
_TOO_MANY = {"log_partition": _NO_PARTITION, "record_offset": -1, "backfill": False, "records": 0}


class Start(Protocol[Replayed_co]):
    """How tasks replay: what becomes of rows of ``schema``, all unfolded ones of some log partitions."""

    @property
    def schema(self) -> pa.Schema:
        """INPUT_SCHEMA, maybe with more columns of the log at its end."""
        ...

    @property
    def pending(self) -> pa.Table:
        """Pending commits that the replay takes in as well."""
        ...

    def compact(self, table: pa.Table) -> pa.Table:
        """The rows without those that other rows make superfluous, and without folded ones."""
        ...

    def replay(self, tables: Iterable[pa.Table]) -> Iterator[Replayed_co]:
        """The result of the replay in batches."""
        ...


@dataclass(frozen=True)
class ReplayStart:
    """How a replay starts: R1's n, semantics, first unfolded record offsets, and pending commits as INPUT_SCHEMA."""

    offsets_partitions: int
    semantics: CoordinatorSemantics = MODERN
    folded_to: Mapping[int, int] = field(default_factory=dict)
    pending: pa.Table = field(default_factory=INPUT_SCHEMA.empty_table)
    schema = INPUT_SCHEMA

    def compact(self, table: pa.Table) -> pa.Table:
        """The rows that `compact_early` leaves."""
        return compact_early(table, self.folded_to, self.semantics)

    def replay(self, tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
        """The effects of rows of INPUT_SCHEMA; they hold all unfolded rows of their log partitions."""
        replay = Replay(self.offsets_partitions, self.folded_to, self.semantics)
        for table in gathered(tables, _ADD_ROWS):
            with working_on(partial(place_of, table)):
                replay.add(table)
        replay.add(self.pending)  # of log partitions without new rows nothing changes
        with working_on(lambda: f"the end of {replay.place()}"):
            yield from replay.effects()


@dataclass(frozen=True)
class TopicStart:
    """How the replay of a topic of Kafka Connect starts; ``folded_to`` and ``pending`` as in `ReplayStart`."""

    kind: TopicKind
    folded_to: Mapping[int, int] = field(default_factory=dict)
    pending: pa.Table = field(default_factory=CONNECT_INPUT_SCHEMA.empty_table)
    schema = CONNECT_INPUT_SCHEMA

    def compact(self, table: pa.Table) -> pa.Table:
        """The rows that `compact_topic` leaves."""
        return compact_topic(table, self.kind, self.folded_to)

    def replay(self, tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
        """The effects of rows of CONNECT_INPUT_SCHEMA; they hold all unfolded rows of their log partitions."""
        yield from replay_topic([*tables, self.pending], self.kind, self.folded_to)


def replay_batch(
    rows: DataFrame, start: Start[Replayed], at_most: int, finish: Callable[[Iterator[Replayed]], Result]
) -> list[Result]:
    """Replay rows of the table `log`; in the driver if no more than ``at_most`` of them count."""
    rows = rows.withColumn("records", F.lit(1).cast("bigint")).select(start.schema.names)
    few = _few_rows(rows, start, at_most - start.pending.num_rows)
    if few is not None:
        return [finish(start.replay([few]))]

    def compact(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in gathered(map(_as_table, batches), COMPACT_ROWS):
            yield from _compact(table, start).to_batches()

    compacted = rows.mapInArrow(compact, from_arrow_schema(start.schema))
    return _replay_in_tasks(compacted, start, finish)


def replay_log(
    spark: SparkSession,
    reader: LogReader,
    files: Sequence[StoredFile],
    start: Start[Replayed],
    at_most: int,
    finish: Callable[[Iterator[Replayed]], Result],
) -> list[Result]:
    """Replay files of the log; in the driver if these hold no more than ``at_most`` rows."""
    rows, size = sum(file.rows for file in files), sum(file.size for file in files)
    if rows + start.pending.num_rows <= at_most and size <= _FEW_STORED_BYTES:
        return [finish(start.replay(reader.read(files)))]
    cores = spark.sparkContext.defaultParallelism
    in_order = sorted(files, key=lambda file: (file.lowest.get("log_partition", 0), file.name))
    tasks = shared_out(in_order, _TASKS_PER_CORE * cores)
    shares = spark.sparkContext.parallelize([(pickle.dumps(share),) for share in tasks], max(1, len(tasks)))

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        shares = (pickle.loads(share) for batch in batches for share in batch["files"].to_pylist())  # noqa: S301 - ours
        for table in reader.read(file for share in shares for file in share):
            yield from table.to_batches()

    compacted = spark.createDataFrame(shares, "files binary").mapInArrow(read, from_arrow_schema(start.schema))
    return _replay_in_tasks(compacted, start, finish, _TASKS_PER_CORE * cores)


def _replay_in_tasks(
    compacted: DataFrame,
    start: Start[Replayed],
    finish: Callable[[Iterator[Replayed]], Result],
    tasks: int | None = None,
) -> list[Result]:
    def replay(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next(iter(batches), None)
        if first is not None:  # a task without rows has no result
            tables = map(_as_table, _chained(first, batches))
            yield pa.RecordBatch.from_pydict({"result": [pickle.dumps(finish(start.replay(tables)))]})

    of_partition = (
        compacted.repartition("log_partition") if tasks is None else compacted.repartition(tasks, "log_partition")
    )
    rows = of_partition.mapInArrow(replay, "result binary").collect()
    return [pickle.loads(row["result"]) for row in rows]  # noqa: S301 - the program's own


def _chained(first: pa.RecordBatch, rest: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _as_table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def _few_rows(rows: DataFrame, start: Start[Any], at_most: int) -> pa.Table | None:
    """Rows of the replay's schema that count; None if these are more than ``at_most``, or large."""
    if at_most <= 0 or planned_bytes(rows) > _FEW_STORED_BYTES:  # do not read a long log twice
        return None
    too_many_rows = pa.RecordBatch.from_pylist([_TOO_MANY], schema=start.schema)

    def compact(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        few: list[pa.Table] = []
        for table in gathered(map(_as_table, batches), COMPACT_ROWS):
            if _are_few(few, at_most):
                few.append(_compact(table, start))
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


def _compact(table: pa.Table, start: Start[Any]) -> pa.Table:
    with working_on(partial(place_of, table)):
        return start.compact(table)
