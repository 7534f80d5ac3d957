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

A fold that goes on appends on top of what is settled (layers.py); a replay puts what is right in place of what is
there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from pyspark import inheritable_thread_target
from pyspark.sql import functions as F

from offsets_pipeline.errors import WriteConflict
from offsets_pipeline.fold.dataframes import described_groups, pending_arrays
from offsets_pipeline.fold.effects import GROUP_COMMIT, GROUP_RECORD, OFFSET, PENDING, TOPIC
from offsets_pipeline.fold.effects import QUARANTINE as QUARANTINE_KIND
from offsets_pipeline.fold.summary import Progress
from offsets_pipeline.guarded import GuardedWriter
from offsets_pipeline.layers import DESCRIBED, OFFSETS, RECORDS, LayeredTable
from offsets_pipeline.retry import with_retries
from offsets_pipeline.store import timestamp_of
from offsets_pipeline.tables import (
    COMMITTED_OFFSETS,
    FOLD_PROGRESS,
    GROUP_RECORDS,
    GROUPS,
    LOG_EPOCH,
    QUARANTINE,
    TOPICS,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, Row

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config import FoldSettings
    from offsets_pipeline.fold.summary import Summary
    from offsets_pipeline.store import Store

_PENDING_ARRAY = FOLD_PROGRESS.schema()["pending"].dataType
_FILE_ROWS = 250_000  # rows of a fold that go into one file
_FEW = 20_000  # groups that may be named one by one; more are joined, which takes more jobs
_SETTLED_ATTEMPTS = 3  # of a replay, before it lets a stream go on appending


class FoldedState:
    """The state that a fold starts from: how far each log partition is folded, and what must not change meanwhile.

    Of two folds that start from the same state one is refused, whatever it writes first: facts that are older than
    those of somebody who went on meanwhile would otherwise come to lie on top of them.
    """

    def __init__(self, store: Store) -> None:
        # these first: what is read then is no older, and if it is newer, what is written is refused
        self.offsets = GuardedWriter(store, COMMITTED_OFFSETS.name)
        self.group_records = GuardedWriter(store, GROUP_RECORDS.name)
        self.groups = GuardedWriter(store, GROUPS.name)
        self.progress = GuardedWriter(store, FOLD_PROGRESS.name)
        self.rows = store.read(FOLD_PROGRESS.name)
        found = self.rows.select(*Progress._fields, F.size("pending").alias("pending")).collect()
        self.of_partition = {row["log_partition"]: Progress(*row[: len(Progress._fields)]) for row in found}
        self.has_pending = any(row["pending"] > 0 for row in found)

    @property
    def folded_to(self) -> dict[int, int]:
        """The first record offset of each log partition that is not folded yet."""
        return {at: progress.folded_to for at, progress in self.of_partition.items()}


class StateWriter(ABC):
    """Writes the effects of one fold: what `FoldWriter` and `ReplayWriter` have in common."""

    def __init__(self, store: Store, effects: DataFrame, settings: FoldSettings, clock: Clock) -> None:
        self._store = store
        self._effects = effects
        self._settings = settings
        self._now = timestamp_of(clock)

    @abstractmethod
    def _facts(self, summary: Summary) -> list[Callable[[], None]]:
        """What has to be written to state tables of this fold's own, each to another table."""

    @abstractmethod
    def _moved(self, progress: Progress, before: Progress | None) -> Progress:
        """The progress of a log partition after this fold."""

    def _write(self, summary: Summary, state: FoldedState | None = None) -> None:
        kinds = summary.rows.keys()
        facts = self._facts(summary)
        if QUARANTINE_KIND in kinds:
            facts.append(partial(self._merge, QUARANTINE.name, self._merge_quarantine))
        if TOPIC in kinds:
            facts.append(self._write_topics)
        # a write is mostly waiting for small jobs, so those into different tables go on side by side
        with ThreadPoolExecutor(max(1, len(facts))) as threads:
            for written in [threads.submit(inheritable_thread_target(self._store.spark)(write)) for write in facts]:
                written.result()
        self._write_progress(summary, state or FoldedState(self._store))

    def _merge(self, table: str, write: Callable[[], None]) -> None:
        with_retries(write, f"a write into {table}", self._settings)

    def _of_kind(self, kind: str) -> DataFrame:
        return self._effects.where(F.col("kind") == kind).withColumn("log_epoch", F.lit(LOG_EPOCH))

    def _merge_quarantine(self) -> None:
        source = self._of_kind(QUARANTINE_KIND).withColumn("quarantined_at", self._now)
        columns = ["log_partition", "log_epoch", "record_offset", "reason", "key", "value", "quarantined_at"]
        (
            self._store.delta(QUARANTINE.name)
            .alias("t")
            .merge(
                source.select(columns).alias("s"),
                "t.log_partition = s.log_partition AND t.log_epoch = s.log_epoch AND t.record_offset = s.record_offset",
            )
            .whenNotMatchedInsert(values={name: f"s.{name}" for name in columns})
            .execute()
        )

    def _write_topics(self) -> None:
        named = self._store.read(TOPICS.name).select("topic_id")
        told = self._of_kind(TOPIC).select("topic_id", "topic").dropDuplicates(["topic_id"])
        unnamed = told.join(named, "topic_id", "left_anti")
        if not unnamed.isEmpty():
            self._merge(TOPICS.name, partial(self._merge_topics, unnamed))

    def _merge_topics(self, unnamed: DataFrame) -> None:
        (
            self._store.delta(TOPICS.name)
            .alias("t")
            .merge(unnamed.alias("s"), "t.topic_id = s.topic_id")
            .whenNotMatchedInsertAll()
            .execute()
        )

    def _write_progress(self, summary: Summary, state: FoldedState) -> None:
        moved = [self._moved(row, state.of_partition.get(row.log_partition)) for row in summary.progress]
        rows = self._progress_rows(moved)
        if PENDING in summary.rows:
            rows = rows.join(pending_arrays(self._effects), "log_partition", "left")
        else:
            rows = rows.withColumn("pending", F.lit(None).cast(_PENDING_ARRAY))
        rows = rows.withColumn("pending", F.coalesce("pending", F.array().cast(_PENDING_ARRAY)))
        rows = rows.withColumn("folded_at", self._now).select(FOLD_PROGRESS.names())
        others = state.of_partition.keys() - {row.log_partition for row in moved}
        if others:
            rows = rows.unionByName(state.rows.where(F.col("log_partition").isin(list(others))))
        state.progress.overwrite(rows.coalesce(1))

    def _progress_rows(self, progress: Sequence[Progress]) -> DataFrame:
        """The progress as a literal in the plan: a row for each log partition."""
        rows = ", ".join(
            f"({row.log_partition}, {LOG_EPOCH}, {row.folded_to}L, {row.records}L, {row.unknown_records}L)"
            for row in progress
        )
        columns = "log_partition, log_epoch, folded_to, records, unknown_records"
        return self._store.spark.sql(f"SELECT * FROM VALUES {rows} AS progress({columns})")  # noqa: S608 - numbers


class FoldWriter(StateWriter):
    """Writes the effects of a fold that goes on from where the last one ended."""

    def write(self, summary: Summary, state: FoldedState) -> None:
        """Append everything. ``summary`` is of the effects; ``state`` is what the fold started from.

        Raises WriteConflict where another fold went on since.
        """
        self._state = state
        self._write(summary, state)

    def _facts(self, summary: Summary) -> list[Callable[[], None]]:
        facts: list[Callable[[], None]] = []
        if OFFSET in summary.rows:
            facts.append(partial(self._append_offsets, summary.rows[OFFSET]))
        if summary.rows.keys() & {GROUP_COMMIT, GROUP_RECORD}:
            facts.append(partial(self._write_groups, summary))
        return facts

    def _moved(self, progress: Progress, before: Progress | None) -> Progress:
        if before is None:
            return progress
        return progress._replace(
            records=before.records + progress.records,
            unknown_records=before.unknown_records + progress.unknown_records,
        )

    def _append_offsets(self, rows: int) -> None:
        facts = self._of_kind(OFFSET)
        if self._state.has_pending and self._state.offsets.version:
            facts = self._without_overtaken(facts)
        self._append(OFFSETS, self._state.offsets, facts, rows)

    def _without_overtaken(self, facts: DataFrame) -> DataFrame:
        """The facts without those of transactions that a later record overtook before their marker came (R10, R11).

        All others come from behind the folded position, and so are newer than what is there.
        """
        key = list(OFFSETS.key)
        cases = " ".join(f"WHEN log_partition = {at} THEN {end}L" for at, end in self._state.folded_to.items())
        carried = facts.where(f"record_offset < CASE {cases} ELSE 0L END").select(key)
        known = self._store.latest(OFFSETS).select(*key, F.col("record_offset").alias("known"))
        known = known.join(F.broadcast(carried), key, "left_semi")
        return facts.join(F.broadcast(known), key, "left").where("known IS NULL OR record_offset > known").drop("known")

    def _append(self, layered: LayeredTable, table: GuardedWriter, rows: DataFrame, most: int) -> None:
        if most <= _FILE_ROWS:
            rows = rows.coalesce(1)
        alone = table.version == 0  # then each key is there once
        rows = rows.withColumn("settled", F.lit(alone)).select(layered.table.names())
        table.append(rows.sortWithinPartitions(*layered.key))

    def _write_groups(self, summary: Summary) -> None:
        facts = self._group_facts(summary)
        if facts is None:
            return
        most = sum(summary.rows.get(kind, 0) for kind in (GROUP_COMMIT, GROUP_RECORD))
        records = facts.withColumn("news", F.lit(True))
        if self._state.group_records.version:
            known = self._of_groups(self._store.read(GROUP_RECORDS.name).select(RECORDS.columns), facts, most)
            records = records.unionByName(known.withColumn("news", F.lit(False)))
        records = _combined(records, F.max("news").alias("news")).persist()
        try:
            self._append_group_records(records, most)
            self._append_groups(records, most)
        finally:
            records.unpersist()

    def _append_group_records(self, records: DataFrame, most: int) -> None:
        self._append(RECORDS, self._state.group_records, records.where("news"), most)

    def _append_groups(self, records: DataFrame, most: int) -> None:
        described = described_groups(records.drop("news"), self._store.properties.offsets_partitions)
        self._append(DESCRIBED, self._state.groups, described, most)

    def _group_facts(self, summary: Summary) -> DataFrame | None:
        """The facts about groups that have to be written; None where there are none.

        A commit says no more than that its group exists (R14). Where the state knows the group and no record of it
        is among the effects, it says nothing new, and a steady stream of commits writes nothing here.
        """
        facts = self._of_kind(GROUP_RECORD).select(RECORDS.columns)
        commits = self._of_kind(GROUP_COMMIT).select(RECORDS.columns)
        if not self._state.groups.version:
            return facts.unionByName(commits)
        if GROUP_COMMIT not in summary.rows:
            return facts
        news = self._of_unknown_groups(commits, summary.rows[GROUP_COMMIT])
        if GROUP_RECORD not in summary.rows:
            return news
        told = self._of_groups(commits, facts, summary.rows[GROUP_RECORD])
        return facts.unionByName(told) if news is None else facts.unionByName(told).unionByName(news)

    def _of_groups(self, rows: DataFrame, facts: DataFrame, most: int) -> DataFrame:
        """Those rows that are about a group which the facts, ``most`` at the most, are about."""
        key = list(DESCRIBED.key)
        if most > _FEW:
            return rows.join(F.broadcast(facts.select(key).distinct()), key, "left_semi")
        return rows.where(_is_one_of(facts.select(key).distinct().collect()))

    def _of_unknown_groups(self, commits: DataFrame, most: int) -> DataFrame | None:
        """Those commits whose groups the state does not know, or knows to be dead; None: there are none."""
        key = list(DESCRIBED.key)
        rows = self._store.read(GROUPS.name).select(*key, "state", "record_offset")
        if most > _FEW:
            states = rows.groupBy(key).agg(F.max_by("state", "record_offset").alias("state"))
            return commits.join(states.where("state <> 'Dead'"), key, "left_anti")
        groups = set(commits.select(key).collect())
        states = rows.where(_is_one_of(groups)).groupBy(key).agg(F.max_by("state", "record_offset").alias("state"))
        unknown = groups - set(states.where("state <> 'Dead'").select(key).collect())
        return commits.where(_is_one_of(unknown)) if unknown else None


class ReplayWriter(StateWriter):
    """Writes the effects of a replay from the start in place of the state that is there.

    ``replayed`` maps each replayed log partition to the record offset it was replayed to: state below that which the
    replay did not bring forth is removed, and state above it, that a running stream wrote meanwhile, is left alone.
    ``whole`` says that no other log partition has records.
    """

    def __init__(
        self,
        store: Store,
        effects: DataFrame,
        settings: FoldSettings,
        clock: Clock,
        replayed: Mapping[int, int],
        *,
        whole: bool,
    ) -> None:
        super().__init__(store, effects, settings, clock)
        self._replayed = dict(replayed)
        self._whole = whole

    def write(self, summary: Summary) -> None:
        """Write everything. ``summary`` is of the effects.

        Raises WriteConflict where a fold is ahead of the replay, or others overtook a write too often.
        """
        self._write(summary)

    def _facts(self, summary: Summary) -> list[Callable[[], None]]:
        facts: list[Callable[[], None]] = [
            self._replace_offsets,
            partial(self._merge, GROUPS.name, self._replace_groups),
        ]
        if QUARANTINE_KIND not in summary.rows:
            facts.append(partial(self._merge, QUARANTINE.name, self._clear_quarantine))
        return facts

    def _moved(self, progress: Progress, before: Progress | None) -> Progress:
        if before is not None and progress.folded_to < before.folded_to:
            raise WriteConflict("fold_progress was moved by another fold")
        return progress

    def _replayed_to(self) -> str:
        """SQL: how far the replay went in a row's log partition; null where it was not replayed."""
        cases = " ".join(f"WHEN log_partition = {at} THEN {end}L" for at, end in self._replayed.items())
        return f"CASE {cases} END"

    def _replace_offsets(self) -> None:
        """Put what was replayed in place of what it covers.

        Facts that a stream appends at this moment, from an older state, must not come to lie on settled ones. Where
        it does so again and again, what was replayed goes beside them, as facts of which the highest wins.
        """
        attempts = count()

        def replace() -> None:
            guarded = next(attempts) < _SETTLED_ATTEMPTS
            table = GuardedWriter(self._store, COMMITTED_OFFSETS.name)
            rows = self._of_kind(OFFSET).withColumn("settled", F.lit(guarded))
            newer = None
            if table.version:
                newer = self._store.read(COMMITTED_OFFSETS.name).where(f"record_offset >= {self._replayed_to()}")
            self._replace(OFFSETS, table, rows, newer, guarded=guarded)

        self._merge(COMMITTED_OFFSETS.name, replace)

    def _replace_groups(self) -> None:
        of_records = GuardedWriter(self._store, GROUP_RECORDS.name)
        of_groups = GuardedWriter(self._store, GROUPS.name)
        facts = self._of_kind(GROUP_RECORD).unionByName(self._of_kind(GROUP_COMMIT)).select(RECORDS.columns)
        if of_records.version:
            facts = facts.unionByName(self._newer_group_records())
        records = _combined(facts).persist()
        try:
            described = described_groups(records, self._store.properties.offsets_partitions)
            self._replace(RECORDS, of_records, records.withColumn("settled", F.lit(True)))
            self._replace(DESCRIBED, of_groups, described.withColumn("settled", F.lit(True)))
        finally:
            records.unpersist()

    def _newer_group_records(self) -> DataFrame:
        """What was said of groups behind the replayed end."""

        def newer(name: str, offset: str) -> Column:
            return F.when(F.col(offset) >= F.expr(self._replayed_to()), F.col(name)).alias(name)

        rows = self._store.latest(RECORDS).where(F.col("log_partition").isin(list(self._replayed)))
        kept = rows.select(
            *RECORDS.key,
            newer("value", "value_offset"),
            newer("value_offset", "value_offset"),
            newer("tombstone_offset", "tombstone_offset"),
            "log_epoch",
        )
        return kept.where("value_offset IS NOT NULL OR tombstone_offset IS NOT NULL").select(RECORDS.columns)

    def _replace(
        self,
        layered: LayeredTable,
        table: GuardedWriter,
        rows: DataFrame,
        newer: DataFrame | None = None,
        *,
        guarded: bool = True,
    ) -> None:
        """Put ``rows`` in place of those of the replayed log partitions; ``newer`` ones stay, on top."""
        names = layered.table.names()
        rows = rows.select(names).sortWithinPartitions(*layered.key)
        if newer is not None:
            rows = rows.unionByName(newer.withColumn("settled", F.lit(False)).select(names))
        replayed = f"log_partition IN ({', '.join(map(str, self._replayed))})"
        if self._whole and table.version:
            rows = rows.unionByName(self._store.read(layered.table.name).where(f"NOT {replayed}"))
        overwrite = table.overwrite if guarded else table.overwrite_unguarded
        overwrite(rows, None if self._whole else replayed)

    def _merge_quarantine(self) -> None:
        self._clear_quarantine()
        super()._merge_quarantine()

    def _clear_quarantine(self) -> None:
        """Remove records that belong there no more."""
        if not self._store.version(QUARANTINE.name):
            return
        here = F.col("log_partition").isin(list(self._replayed)) & F.col("record_offset").isNotNull()
        if not self._store.read(QUARANTINE.name).where(here).isEmpty():
            found = self._of_kind(QUARANTINE_KIND).select("log_partition", "log_epoch", "record_offset")
            (
                self._store.delta(QUARANTINE.name)
                .alias("t")
                .merge(
                    found.alias("s"),
                    "t.log_partition = s.log_partition AND t.log_epoch = s.log_epoch"
                    " AND t.record_offset = s.record_offset",
                )
                .whenNotMatchedBySourceDelete(f"t.record_offset < {self._replayed_to()}")
                .execute()
            )


def _combined(records: DataFrame, *more: Column) -> DataFrame:
    """Of each key the last value and the last tombstone, of rows that each know some of it."""
    return records.groupBy(*RECORDS.key).agg(
        F.max("value_offset").alias("value_offset"),
        F.max_by("value", "value_offset").alias("value"),
        F.max("tombstone_offset").alias("tombstone_offset"),
        F.max("log_epoch").alias("log_epoch"),
        *more,
    )


def _is_one_of(groups: Collection[Row]) -> Column:
    """Whether a row is about one of these groups, each a row of log partition and group id.

    A group of that name in another log partition of these passes too (R1: it is misplaced); it is only looked at.
    """
    partitions, names = ({group[column] for group in groups} for column in range(2))
    return F.col("log_partition").isin(partitions) & F.col("group_id").isin(names)
