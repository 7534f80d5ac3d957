"""Writing effects into the state tables.

Several tables cannot commit together, so a batch is written in an order in which it may die anywhere and simply
run again: first facts, each guarded by its record offset and therefore safe to write twice (R15), last and in one
commit the progress with the open transactions. A fold that did not move its progress did not happen.

1. side by side:
   quarantine, topics     rows that are not there yet
   committed_offsets      appended: of an identity the highest (log_epoch, record_offset) wins (R10); a replay puts
                          the settled state in place of what was there
   group_records          of each key the last value and the last tombstone; then
   groups                 described anew from group_records, where those may have changed
2. fold_progress          only if nobody else moved it since it was read
"""

from __future__ import annotations

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
from offsets_pipeline.latest import IDENTITY
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
    Table,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from delta.tables import DeltaMergeBuilder
    from pyspark.sql import Column, DataFrame

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config import FoldSettings
    from offsets_pipeline.fold.summary import Summary
    from offsets_pipeline.store import Store

_PENDING_ARRAY = FOLD_PROGRESS.schema()["pending"].dataType
_FILE_ROWS = 250_000  # rows of a fold that go into one file
_SETTLED_ATTEMPTS = 3  # of a replay, before it lets a stream go on appending
_NOT_OLDER = "(s.log_epoch > t.log_epoch OR (s.log_epoch = t.log_epoch AND s.record_offset >= t.record_offset))"


class FoldedState:
    """The state that a fold starts from: how far each log partition is folded, and what must not change meanwhile.

    Of two folds that start from the same state one is refused, whatever it writes first: facts that are older than
    those of somebody who went on meanwhile would otherwise come to lie on top of them.
    """

    def __init__(self, store: Store) -> None:
        self.offsets = GuardedWriter(store, COMMITTED_OFFSETS.name)  # first: it is older than what is read then
        self.progress = GuardedWriter(store, FOLD_PROGRESS.name)
        self.rows = store.as_of(FOLD_PROGRESS.name, self.progress.version)
        found = self.rows.select(*Progress._fields).collect()
        self.of_partition = {row["log_partition"]: Progress(*row) for row in found}

    @property
    def folded_to(self) -> dict[int, int]:
        """The first record offset of each log partition that is not folded yet."""
        return {at: progress.folded_to for at, progress in self.of_partition.items()}


class StateWriter:
    """Writes the effects of one fold.

    ``replayed`` is empty for a fold that goes on from where the last one ended. For a replay from the start it maps
    each replayed log partition to the record offset it was replayed to: state at or below that which the replay did
    not bring forth is removed, and state above it, that a running stream wrote meanwhile, is left alone. ``whole``
    says that these are all there are.
    """

    def __init__(
        self,
        store: Store,
        effects: DataFrame,
        settings: FoldSettings,
        clock: Clock,
        replayed: Mapping[int, int] | None = None,
        *,
        whole: bool = False,
    ) -> None:
        self._store = store
        self._effects = effects
        self._settings = settings
        self._now = timestamp_of(clock)
        self._replayed = dict(replayed or {})
        self._whole = whole
        self._may_be_first = False

    def write(self, summary: Summary, state: FoldedState | None) -> None:
        """Write everything. ``summary`` is of the effects; ``state`` is what the fold started from, None for a replay.

        Raises WriteConflict where another fold moved the progress since, or overtook a write too often.
        """
        kinds = frozenset(summary.rows)
        self._may_be_first = state is None or not state.of_partition
        facts: list[Callable[[], None]] = [partial(self._write_groups, kinds)]
        if self._replayed:
            facts.append(self._replace_offsets)
        elif OFFSET in kinds and state is not None:
            facts.append(partial(self._append_offsets, state.offsets, summary.rows[OFFSET]))
        if QUARANTINE_KIND in kinds or self._quarantine_may_shrink():
            facts.append(partial(self._merge, QUARANTINE.name, self._merge_quarantine))
        if TOPIC in kinds:
            facts.append(self._write_topics)
        # a write is mostly waiting for small jobs, so those into different tables go on side by side
        with ThreadPoolExecutor(len(facts)) as threads:
            for written in [threads.submit(inheritable_thread_target(self._store.spark)(write)) for write in facts]:
                written.result()
        self._write_progress(summary, state or FoldedState(self._store))

    def _write_topics(self) -> None:
        unnamed = self._unnamed_topics()
        if not unnamed.isEmpty():
            self._merge(TOPICS.name, partial(self._merge_topics, unnamed))

    def _write_groups(self, kinds: frozenset[str]) -> None:
        facts = self._group_facts(kinds)
        if facts is not None:
            self._merge(GROUP_RECORDS.name, partial(self._merge_group_records, facts))
            self._merge(GROUPS.name, partial(self._merge_groups, facts))

    def _merge(self, table: str, write: Callable[[], None]) -> None:
        with_retries(write, f"a merge into {table}", self._settings)

    def _of_kind(self, kind: str) -> DataFrame:
        return self._effects.where(F.col("kind") == kind).withColumn("log_epoch", F.lit(LOG_EPOCH))

    def _replayed_to(self, partition: str) -> str:
        """SQL: how far a replay went in this log partition; null where it was not replayed."""
        if not self._replayed:
            return "CAST(NULL AS BIGINT)"
        cases = " ".join(f"WHEN {partition} = {p} THEN {end}L" for p, end in self._replayed.items())
        return f"CASE {cases} END"

    def _remove_unmatched(self, merge: DeltaMergeBuilder, newest: str) -> DeltaMergeBuilder:
        """In a replay: what is in the state and not brought forth by the replayed records is wrong."""
        if not self._replayed:
            return merge
        return merge.whenNotMatchedBySourceDelete(f"{newest} < {self._replayed_to('t.log_partition')}")

    def _merge_facts(
        self, table: Table, source: DataFrame, on: str, settle: Callable[[DeltaMergeBuilder], DeltaMergeBuilder]
    ) -> None:
        """Insert the rows that are not there; ``settle`` says what becomes of those that are, and of others.

        Into a table that nobody wrote to yet it is enough to insert, which is much less work; unless somebody else
        did so meanwhile, and then the whole merge follows.
        """

        def merge() -> DeltaMergeBuilder:
            builder = self._store.delta(table.name).alias("t").merge(source.alias("s"), on)
            return builder.whenNotMatchedInsertAll()

        if self._may_be_first and self._store.version(table.name) == 0:
            written = merge().execute().first()
            commits = 1 if written is not None and written["num_inserted_rows"] else 0
            if self._store.version(table.name) == commits:
                return
        settle(merge()).execute()

    def _quarantine_may_shrink(self) -> bool:
        """Whether a replay may find that a record in quarantine is none that belongs there."""
        if not self._replayed:
            return False
        records = self._store.read(QUARANTINE.name).where("record_offset IS NOT NULL")
        return not records.where(F.col("log_partition").isin(list(self._replayed))).isEmpty()

    def _merge_quarantine(self) -> None:
        source = self._of_kind(QUARANTINE_KIND).withColumn("quarantined_at", self._now)
        columns = ["log_partition", "log_epoch", "record_offset", "reason", "key", "value", "quarantined_at"]
        merge = (
            self._store.delta(QUARANTINE.name)
            .alias("t")
            .merge(
                source.select(columns).alias("s"),
                "t.log_partition = s.log_partition AND t.log_epoch = s.log_epoch AND t.record_offset = s.record_offset",
            )
            .whenNotMatchedInsert(values={name: f"s.{name}" for name in columns})
        )
        self._remove_unmatched(merge, "t.record_offset").execute()

    def _unnamed_topics(self) -> DataFrame:
        named = self._store.read(TOPICS.name).select("topic_id")
        return (
            self._of_kind(TOPIC)
            .select("topic_id", "topic")
            .dropDuplicates(["topic_id"])
            .join(named, "topic_id", "left_anti")
        )

    def _merge_topics(self, unnamed: DataFrame) -> None:
        (
            self._store.delta(TOPICS.name)
            .alias("t")
            .merge(unnamed.alias("s"), "t.topic_id = s.topic_id")
            .whenNotMatchedInsertAll()
            .execute()
        )

    def _append_offsets(self, table: GuardedWriter, rows: int) -> None:
        facts = self._of_kind(OFFSET).withColumn("settled", F.lit(table.version == 0))  # alone each is there once
        if rows <= _FILE_ROWS:
            facts = facts.coalesce(1)
        table.append(facts.select(COMMITTED_OFFSETS.names()).sortWithinPartitions(*IDENTITY))

    def _replace_offsets(self) -> None:
        """Put what was replayed in place of what it covers.

        Facts that a stream appends at this moment, from an older state, must not come to lie on settled ones. Where
        it does so again and again, what was replayed goes beside them, as facts of which the highest wins.
        """
        attempts = count()

        def replace() -> None:
            settled = next(attempts) < _SETTLED_ATTEMPTS
            table = GuardedWriter(self._store, COMMITTED_OFFSETS.name)
            rows = self._of_kind(OFFSET).withColumn("settled", F.lit(settled)).select(COMMITTED_OFFSETS.names())
            rows = rows.sortWithinPartitions(*IDENTITY)
            if table.version:
                here = F.col("log_partition").isin(list(self._replayed))
                newer = self._store.read(COMMITTED_OFFSETS.name).where(
                    ~here | F.expr(f"record_offset >= {self._replayed_to('log_partition')}")
                )
                rows = rows.unionByName(newer.withColumn("settled", F.col("settled") & ~here))
            replaced = None
            if not self._whole:
                replaced = f"log_partition IN ({', '.join(map(str, self._replayed))})"
                rows = rows.where(replaced)
            if settled:
                table.overwrite(rows, replaced)
            else:
                table.overwrite_unguarded(rows, replaced)

        self._merge(COMMITTED_OFFSETS.name, replace)

    def _group_facts(self, kinds: frozenset[str]) -> DataFrame | None:
        """The facts about groups that have to be written; None where there are none.

        A commit says no more than that its group exists (R14). Where the state knows the group and no record of it
        is among the effects, it says nothing new, and a steady stream of commits writes nothing here.
        """
        facts = self._of_kind(GROUP_RECORD)
        commits = self._of_kind(GROUP_COMMIT)
        if self._replayed or self._may_be_first:
            return facts.unionByName(commits)
        if GROUP_COMMIT in kinds:
            alive = self._store.read(GROUPS.name).where("state <> 'Dead'").select("log_partition", "group_id")
            commits = commits.join(alive, ["log_partition", "group_id"], "left_anti").select(
                [*self._effects.columns, "log_epoch"]
            )
            if GROUP_RECORD in kinds:
                touched = facts.select("log_partition", "group_id")
                of_touched = self._of_kind(GROUP_COMMIT).join(touched, ["log_partition", "group_id"], "left_semi")
                commits = commits.unionByName(of_touched).dropDuplicates(["log_partition", "group_id"])
                return facts.unionByName(commits)
            return None if commits.isEmpty() else commits
        return facts if GROUP_RECORD in kinds else None

    def _merge_group_records(self, facts: DataFrame) -> None:
        names = GROUP_RECORDS.names()
        later = {name: f"s.{name} > coalesce(t.{name}, -1)" for name in ("value_offset", "tombstone_offset")}
        merged: dict[str, str | Column] = {
            "value_offset": "greatest(s.value_offset, t.value_offset)",
            "value": f"CASE WHEN {later['value_offset']} THEN s.value ELSE t.value END",
            "tombstone_offset": "greatest(s.tombstone_offset, t.tombstone_offset)",
            "log_epoch": "greatest(s.log_epoch, t.log_epoch)",
        }
        condition = f"{later['value_offset']} OR {later['tombstone_offset']}"
        if self._replayed:  # what lies below the replayed end is replaced, whatever stands there
            end = self._replayed_to("s.log_partition")
            keep = {name: f"coalesce(t.{name}, -1) >= {end}" for name in later}
            merged = {
                "value_offset": f"CASE WHEN {keep['value_offset']} THEN t.value_offset ELSE s.value_offset END",
                "value": f"CASE WHEN {keep['value_offset']} THEN t.value ELSE s.value END",
                "tombstone_offset": f"CASE WHEN {keep['tombstone_offset']} THEN t.tombstone_offset "
                "ELSE s.tombstone_offset END",
                "log_epoch": "greatest(s.log_epoch, t.log_epoch)",
            }
            condition = " OR ".join(
                f"NOT (s.{name} <=> t.{name})" for name in ("value_offset", "value", "tombstone_offset")
            )
        self._merge_facts(
            GROUP_RECORDS,
            facts.select(names),
            "t.log_partition = s.log_partition AND t.group_id = s.group_id"
            " AND t.record_type = s.record_type AND t.record_key = s.record_key",
            lambda merge: self._remove_unmatched(
                merge.whenMatchedUpdate(condition, merged), "greatest(t.value_offset, t.tombstone_offset)"
            ),
        )

    def _merge_groups(self, facts: DataFrame) -> None:
        records = self._store.read(GROUP_RECORDS.name)
        if self._replayed:
            records = records.where(F.col("log_partition").isin(list(self._replayed)))
        else:
            touched = facts.select("log_partition", "group_id").distinct()
            records = records.join(touched, ["log_partition", "group_id"], "left_semi")
        names = [name for name in GROUPS.names() if name != "members"]  # an array of structs is compared as JSON
        differs = " OR ".join(
            [f"NOT (s.{name} <=> t.{name})" for name in names] + ["NOT (to_json(s.members) <=> to_json(t.members))"]
        )
        newer = _NOT_OLDER
        if self._replayed:
            newer = f"({newer} OR t.record_offset < {self._replayed_to('s.log_partition')})"
        # a row made from more records knows more: a slower writer does not take it back
        condition = f"{newer} AND ({differs})"
        self._merge_facts(
            GROUPS,
            described_groups(records, self._store.properties.offsets_partitions),
            "t.log_partition = s.log_partition AND t.group_id = s.group_id",
            lambda merge: self._remove_unmatched(merge.whenMatchedUpdateAll(condition), "t.record_offset"),
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

    def _moved(self, row: Progress, before: Progress | None) -> Progress:
        """The progress of a log partition after this fold. Raises WriteConflict where a replay is behind it."""
        if before is None:
            return row
        if not self._replayed:
            return row._replace(
                records=before.records + row.records, unknown_records=before.unknown_records + row.unknown_records
            )
        if row.folded_to < before.folded_to:
            raise WriteConflict("fold_progress was moved by another fold")
        return row

    def _progress_rows(self, progress: Sequence[Progress]) -> DataFrame:
        """The progress as a literal in the plan: a row for each log partition."""
        rows = ", ".join(
            f"({row.log_partition}, {LOG_EPOCH}, {row.folded_to}L, {row.records}L, {row.unknown_records}L)"
            for row in progress
        )
        columns = "log_partition, log_epoch, folded_to, records, unknown_records"
        return self._store.spark.sql(f"SELECT * FROM VALUES {rows} AS progress({columns})")  # noqa: S608 - numbers
