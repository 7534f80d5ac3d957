"""Writing what a fold brings: on top of what is settled."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from offsets_pipeline.delta.schemas import GROUP_RECORDS, GROUPS
from offsets_pipeline.fold.dataframes import described_groups
from offsets_pipeline.fold.state import FoldedState, StateWriter, combined_records, offset_of_partition
from offsets_pipeline.layers import DESCRIBED, OFFSETS, RECORDS, LayeredTable
from offsets_pipeline.semantics.effects import GROUP_COMMIT, GROUP_RECORD, OFFSET

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pyspark.sql import Column, DataFrame, Row

    from offsets_pipeline.fold.summary import Progress, Summary
    from offsets_pipeline.guarded import GuardedWriter

_FILE_ROWS = 250_000  # rows of a fold that go into one file
_FEW = 20_000  # names of groups that may be collected to stand in a query; more are joined, which takes more jobs


class FoldWriter(StateWriter):
    """Writes the effects of a fold that goes on from where the last one ended."""

    def write(self, summary: Summary, state: FoldedState) -> None:
        """Append everything. ``summary`` is of the effects; ``state`` is what the fold started from.

        Raises WriteConflict where another fold went on since.
        """
        self._state = state
        self._write(summary, state)

    def _facts(self, summary: Summary) -> list[Callable[[], object]]:
        facts: list[Callable[[], object]] = []
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
        if self._state.has_pending and self._state.writers[OFFSETS.table.name].version:
            facts = self._without_overtaken(facts)
        self._append(OFFSETS, facts, rows)

    def _without_overtaken(self, facts: DataFrame) -> DataFrame:
        """The facts without those of transactions that a later record overtook before their marker came (R10, R11).

        All others come from behind the folded position, and so are newer than what is there.
        """
        key = list(OFFSETS.key)
        carried = facts.where(f"record_offset < {offset_of_partition(self._state.folded_to)}").select(key)
        known = self._store.latest(OFFSETS, self._of_epoch).select(*key, F.col("record_offset").alias("known"))
        known = known.join(F.broadcast(carried), key, "left_semi")
        return facts.join(F.broadcast(known), key, "left").where("known IS NULL OR record_offset > known").drop("known")

    def _append(self, layered: LayeredTable, rows: DataFrame, most: int) -> None:
        writer = self._state.writers[layered.table.name]
        if most <= _FILE_ROWS:
            rows = rows.coalesce(1)
        rows = rows.withColumn("settled", F.lit(lies_alone(writer))).select(layered.table.names())
        writer.append(rows.sortWithinPartitions(*layered.key))

    def _write_groups(self, summary: Summary) -> None:
        facts = self._group_facts(summary)
        if facts is None:
            return
        most = sum(summary.rows.get(kind, 0) for kind in (GROUP_COMMIT, GROUP_RECORD))
        records = facts.withColumn("news", F.lit(True))
        if self._state.writers[RECORDS.table.name].version:
            rows = self._store.read(GROUP_RECORDS.name).where(self._of_epoch)
            known = self._of_groups(rows.select(RECORDS.columns), facts, most)
            records = records.unionByName(known.withColumn("news", F.lit(False)))
        records = combined_records(records, F.max("news").alias("news")).persist()
        try:
            self._append(RECORDS, records.where("news"), most)
            groups = described_groups(records.drop("news"), self._store.properties.offsets_partitions)
            self._append(DESCRIBED, groups, most)
        finally:
            records.unpersist()

    def _group_facts(self, summary: Summary) -> DataFrame | None:
        """The facts about groups that have to be written; None where there are none.

        A commit says no more than that its group exists (R14). Where the state knows the group and no record of it
        is among the effects, it says nothing new, and a steady stream of commits writes nothing here.
        """
        facts = self._of_kind(GROUP_RECORD).select(RECORDS.columns)
        commits = self._of_kind(GROUP_COMMIT).select(RECORDS.columns)
        if not self._state.writers[DESCRIBED.table.name].version:
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
        rows = self._store.read(GROUPS.name).where(self._of_epoch).select(*key, "state", "record_offset")
        if most > _FEW:
            states = rows.groupBy(key).agg(F.max_by("state", "record_offset").alias("state"))
            return commits.join(states.where("state <> 'Dead'"), key, "left_anti")
        groups = set(commits.select(key).collect())
        newest: dict[tuple[int, str], tuple[int, str]] = {}
        for *group, state, record_offset in rows.where(_is_one_of(groups)).collect():
            at = (group[0], group[1])
            newest[at] = max(newest.get(at, (-1, "")), (record_offset, state))
        unknown = {group for group in groups if newest.get(tuple(group), (-1, "Dead"))[1] == "Dead"}
        return commits.where(_is_one_of(unknown)) if unknown else None


def lies_alone(writer: GuardedWriter) -> bool:
    """Whether what is appended is all that its table holds: then each key is there once."""
    return writer.version == 0


def _is_one_of(groups: Collection[Row]) -> Column:
    """Whether a row is about one of these groups, each a row of log partition and group id.

    A group of that name in another log partition of these passes too (R1: it is misplaced); it is only looked at.
    """
    partitions, names = ({group[column] for group in groups} for column in range(2))
    return F.col("log_partition").isin(partitions) & F.col("group_id").isin(names)
