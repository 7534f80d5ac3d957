"""Writing effects into the state tables.

Several tables cannot commit together, so a batch is written in an order in which it may die anywhere and simply
run again: first facts, each of which may be written twice (R15), last and in one commit the progress with the open
transactions. A fold that did not move its progress did not happen.

1. side by side:
   quarantine, topics     rows that are not there yet
   committed_offsets      of each identity the highest (R10)
   group_records          of each key the last value and the last tombstone
   groups                 described anew from these, where they changed
2. fold_progress          only if nobody else moved it since it was read

A fold that goes on appends on top of what is settled (fold_writer.py, layers.py); a replay puts what is right in place
of what is there (replay_writer.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import inheritable_thread_target
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from offsets_pipeline.config import Settings
from offsets_pipeline.delta.data_file import written_file
from offsets_pipeline.delta.reader import UNREADABLE, StoredFile, stored_files, table_as_of, whole
from offsets_pipeline.delta.schemas import (
    FOLD_PROGRESS,
    LOG_EPOCH,
    QUARANTINE,
    TOPICS,
)
from offsets_pipeline.fold.dataframes import pending_arrays
from offsets_pipeline.fold.summary import Progress
from offsets_pipeline.guarded import GuardedWriter
from offsets_pipeline.layers import LAYERED, RECORDS
from offsets_pipeline.log.notes import note_topics
from offsets_pipeline.retry import with_retries
from offsets_pipeline.semantics.effects import PENDING, TOPIC
from offsets_pipeline.semantics.effects import QUARANTINE as QUARANTINE_KIND
from offsets_pipeline.store import timestamp_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from delta.tables import DeltaMergeBuilder
    from pyspark.sql import Column, DataFrame

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config import FoldSettings
    from offsets_pipeline.file_commit import FileCommit
    from offsets_pipeline.fold.summary import Summary
    from offsets_pipeline.store import Store

_PROGRESS_SCHEMA = to_arrow_schema(FOLD_PROGRESS.schema(), timezone="UTC")
_PENDING_ARRAY = FOLD_PROGRESS.schema()["pending"].dataType


class FoldedTo:
    """How far each log partition is folded, and who may move that.

    ``files`` are those of `fold_progress`, where they are in the driver's reach. ``pending`` are the
    open transactional commits, its columns log_partition and pending; None where they are too many to be looked at in
    the driver, or out of its reach. ``log_epoch`` is the epoch of the log that was folded.
    """

    def __init__(self, store: Store) -> None:
        self.progress = GuardedWriter(store, FOLD_PROGRESS)
        self.rows = store.read(FOLD_PROGRESS.name)
        self.files, found = _files_and_rows(self.progress)
        if found is not None and not found.num_columns:  # a table without files
            found = _PROGRESS_SCHEMA.empty_table()
        self.pending = None if found is None else found.select(["log_partition", "pending"])
        if found is None:
            found = self.rows.select(
                *Progress._fields, "log_epoch", "folded_at", F.size("pending").alias("pending")
            ).toArrow()
            self.has_pending = any(count > 0 for count in found["pending"].to_pylist())
        else:
            self.has_pending = bool(pc.sum(pc.list_value_length(found["pending"])).as_py())
        told = found.select(Progress._fields).to_pylist()
        self.of_partition = {row["log_partition"]: Progress(**row) for row in told}
        epochs = found["log_epoch"].to_pylist()
        self.log_epoch: int = max(epochs, default=LOG_EPOCH)
        times = found["folded_at"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
        self.folded_at_us = dict(zip(found["log_partition"].to_pylist(), times, strict=True))

    def forget_progress(self) -> None:
        """Let what is written next be all that there is."""
        self.of_partition, self.folded_at_us = {}, {}

    @property
    def folded_to(self) -> dict[int, int]:
        """The first record offset of each log partition that is not folded yet."""
        return {at: progress.folded_to for at, progress in self.of_partition.items()}


class FoldedState(FoldedTo):
    """The state that a fold starts from: how far each log partition is folded, and what must not change meanwhile.

    Of two folds that start from the same state one is refused, whatever it writes first: facts that are older than
    those of somebody who went on meanwhile would otherwise come to lie on top of them.
    """

    def __init__(self, store: Store) -> None:
        # these first: what is read then is no older, and if it is newer, what is written is refused
        begin = inheritable_thread_target(store.spark)(partial(GuardedWriter, store))
        with ThreadPoolExecutor() as threads:
            begun = list(threads.map(begin, (each.table for each in LAYERED)))
        self.writers = {each.table.name: writer for each, writer in zip(LAYERED, begun, strict=True)}
        super().__init__(store)


class StateWriter(ABC):
    """Writes the effects of one fold: what `FoldWriter` and `ReplayWriter` have in common."""

    def __init__(
        self, store: Store, effects: DataFrame | pa.Table, settings: FoldSettings, clock: Clock, log_epoch: int
    ) -> None:
        self._store = store
        self._effects = effects  # in the cluster, or here
        self._log_epoch = log_epoch
        self._settings = settings
        self._now = timestamp_of(clock)
        self._now_ms = clock.now_ms()

    @abstractmethod
    def _facts(self, summary: Summary) -> list[Callable[[], object]]:
        """What has to be written to state tables of this fold's own, each to another table."""

    @abstractmethod
    def _moved(self, progress: Progress, before: Progress | None) -> Progress | None:
        """The progress of a log partition after this fold; None: as before."""

    def _write(self, summary: Summary, state: FoldedTo | None = None) -> None:
        kinds = summary.rows.keys()
        facts = self._facts(summary)
        if QUARANTINE_KIND in kinds:
            facts.append(partial(self._merge, QUARANTINE.name, self._merge_quarantine))
        if TOPIC in kinds:
            facts.append(self._write_topics)
        self._side_by_side(facts)
        self._write_progress(summary, state or FoldedTo(self._store))

    def _side_by_side(self, writes: Sequence[Callable[[], object]]) -> None:
        """Writes into different tables: each is mostly waiting."""
        with ThreadPoolExecutor(max(1, len(writes))) as threads:
            for written in [threads.submit(inheritable_thread_target(self._store.spark)(write)) for write in writes]:
                written.result()

    def _merge(self, table: str, write: Callable[[], None]) -> None:
        with_retries(write, f"a write into {table}", self._settings)

    @property
    def _of_epoch(self) -> str:
        """SQL: whether a row of a state table is of the epoch of this fold."""
        return f"log_epoch = {self._log_epoch}"

    def _of_kind(self, kind: str) -> DataFrame:
        if isinstance(self._effects, pa.Table):
            rows = self._store.spark.createDataFrame(self._effects.filter(pc.equal(self._effects["kind"], kind)))
        else:
            rows = self._effects.where(F.col("kind") == kind)
        return rows.withColumn("log_epoch", F.lit(self._log_epoch))

    def _merge_quarantine(self) -> None:
        self._quarantine_merge().execute()

    def _quarantine_merge(self) -> DeltaMergeBuilder:
        source = self._of_kind(QUARANTINE_KIND).withColumn("quarantined_at", self._now)
        columns = ["log_partition", "log_epoch", "record_offset", "reason", "key", "value", "quarantined_at"]
        return (
            self._store.delta(QUARANTINE.name)
            .alias("t")
            .merge(
                source.select(columns).alias("s"),
                "t.log_partition = s.log_partition AND t.log_epoch = s.log_epoch AND t.record_offset = s.record_offset",
            )
            .whenNotMatchedInsert(values={name: f"s.{name}" for name in columns})
        )

    def _write_topics(self) -> None:
        known = self._store.read(TOPICS.name).alias("t")
        told = self._of_kind(TOPIC).select("topic_id", "topic").alias("s")
        news = told.join(known, F.expr("t.topic_id = s.topic_id AND t.topic <= s.topic"), "left_anti")
        if not news.isEmpty():
            self._merge_topics(news)

    def _merge_topics(self, news: DataFrame) -> None:
        pairs = [(row["topic_id"], row["topic"]) for row in news.collect()]
        note_topics(self._store, pairs, Settings(fold=self._settings))

    def _write_progress(self, summary: Summary, state: FoldedTo) -> None:
        of_all = (self._moved(row, state.of_partition.get(row.log_partition)) for row in summary.progress)
        moved = [row for row in of_all if row is not None]
        if not moved:
            return
        pending = self._open_commits(summary, state)
        if state.progress.files is not None and pending is not None:
            self._replace_progress(moved, state, state.progress.files, pending)
            return
        rows = self._progress_rows(moved)
        if PENDING in summary.rows:
            rows = rows.join(pending_arrays(self._of_kind(PENDING)), "log_partition", "left")
        else:
            rows = rows.withColumn("pending", F.lit(None).cast(_PENDING_ARRAY))
        rows = rows.withColumn("pending", F.coalesce("pending", F.array().cast(_PENDING_ARRAY)))
        rows = rows.withColumn("folded_at", self._now).select(FOLD_PROGRESS.names())
        others = state.of_partition.keys() - {row.log_partition for row in moved}
        if others:
            rows = rows.unionByName(state.rows.where(F.col("log_partition").isin(list(others))))
        state.progress.overwrite(rows.coalesce(1))

    def _open_commits(self, summary: Summary, state: FoldedTo) -> dict[int, list[dict[str, Any]]] | None:
        """The open transactional commits of all log partitions after this fold; None: some, not in the driver."""
        return None if state.has_pending or PENDING in summary.rows else {}

    def _replace_progress(
        self,
        moved: Sequence[Progress],
        state: FoldedTo,
        commit: FileCommit,
        pending: Mapping[int, list[dict[str, Any]]],
    ) -> None:
        """Without a job of Spark's: of all that a small batch takes, its writing would take the longest.

        ``pending`` are the open transactional commits of all log partitions.
        """
        rows = state.of_partition | {row.log_partition: row for row in moved}
        folded_at_us = state.folded_at_us | {row.log_partition: self._now_ms * 1000 for row in moved}
        table = pa.Table.from_pylist(
            [
                row._asdict()
                | {"log_epoch": self._log_epoch, "pending": pending.get(at, []), "folded_at": folded_at_us[at]}
                for at, row in sorted(rows.items())
            ],
            schema=_PROGRESS_SCHEMA,
        )
        commit.replace([written_file(commit.folder, table, ["log_partition"])], state.files)

    def _progress_rows(self, progress: Sequence[Progress]) -> DataFrame:
        """The progress as a literal in the plan: a row for each log partition."""
        rows = ", ".join(
            f"({row.log_partition}, {self._log_epoch}, {row.folded_to}L, {row.records}L, {row.unknown_records}L)"
            for row in progress
        )
        columns = "log_partition, log_epoch, folded_to, records, unknown_records"
        return self._store.spark.sql(f"SELECT * FROM VALUES {rows} AS progress({columns})")


def combined_records(records: DataFrame, *more: Column) -> DataFrame:
    """Of each key the last value and the last tombstone, of rows that each know some of it."""
    return records.groupBy(*RECORDS.key).agg(
        F.max("value_offset").alias("value_offset"),
        F.max_by("value", "value_offset").alias("value"),
        F.max("tombstone_offset").alias("tombstone_offset"),
        F.max("log_epoch").alias("log_epoch"),
        *more,
    )


def offset_of_partition(offsets: Mapping[int, int], partition: str = "log_partition") -> str:
    """SQL: the record offset that belongs to a row's log partition; null where there is none."""
    return f"CASE {' '.join(f'WHEN {partition} = {at} THEN {offset}L' for at, offset in offsets.items())} END"


def _files_and_rows(writer: GuardedWriter) -> tuple[list[StoredFile] | None, pa.Table | None]:
    """The files of a table as of the writer's version, and its rows; None where Arrow does not reach them."""
    if writer.files is None:
        return None, None
    try:
        table = table_as_of(writer.files.folder, writer.version)
        return stored_files(table), whole(table)
    except UNREADABLE:
        return None, None
