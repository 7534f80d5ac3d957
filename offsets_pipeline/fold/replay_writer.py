"""Writing what a replay brings: in place of what is there (R16).

The tasks that replay write the files of the state themselves, where they can and nobody writes to the state meanwhile
(`FilesReplayWriter`). Else Spark writes, and what a stream folded meanwhile is kept (`RowsReplayWriter`).
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Self

from pyspark import inheritable_thread_target
from pyspark.sql import functions as F

from offsets_pipeline.delta.schemas import COMMITTED_OFFSETS, GROUP_RECORDS, GROUPS, QUARANTINE
from offsets_pipeline.errors import WriteConflict
from offsets_pipeline.file_commit import FileCommit
from offsets_pipeline.fold.dataframes import described_groups
from offsets_pipeline.fold.state import FoldedTo, StateWriter, combined_records, offset_of_partition
from offsets_pipeline.guarded import GuardedWriter, overwrite_unguarded
from offsets_pipeline.layers import DESCRIBED, LAYERED, OFFSETS, RECORDS, LayeredTable
from offsets_pipeline.log.epochs import counting_epoch
from offsets_pipeline.semantics.effects import GROUP_COMMIT, GROUP_RECORD, OFFSET, PENDING
from offsets_pipeline.semantics.effects import QUARANTINE as QUARANTINE_KIND

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

    from offsets_pipeline.delta.schemas import Table
    from offsets_pipeline.fold.summary import Progress, Summary
    from offsets_pipeline.store import Store

_SETTLED_ATTEMPTS = 3  # of a replay, before it lets a stream go on appending


class StateMovedError(Exception):
    """Somebody wrote to the state while the log was replayed, or it is of another epoch now."""


class ReplayWriter(StateWriter):
    """Writes the effects of a replay from the start in place of the state that is there.

    Of each replayed log partition state below the replayed end which the replay did not bring forth is removed, and
    state above it, that a running stream wrote meanwhile, is left alone.
    """

    def _write_replay(self, summary: Summary, progress: FoldedTo | None = None, replaced_as: int | None = None) -> None:
        """Write everything. Raises WriteConflict where others overtook a write too often, or wrote between two.

        ``replaced_as`` is the number under which the offsets are replaced, where that is known beforehand.
        """
        self._replayed = {each.log_partition: each.folded_to for each in summary.progress}
        self._replaced_as = replaced_as
        self._write(summary, progress)
        self._shut_out()

    def _shut_out(self) -> None:
        """Refuse the folds that began between the replay's offsets and its progress.

        These saw the offsets, and not yet how far they reach: what they append is older, and would come to lie on top.
        Raises WriteConflict where one has appended already: the replay has to be made again.
        """
        table = GuardedWriter(self._store, COMMITTED_OFFSETS)
        if self._replaced_as is not None and table.number != self._replaced_as + 1:
            raise WriteConflict(f"a fold wrote to {self._store.table_name(COMMITTED_OFFSETS.name)} beside a replay")
        if table.files is not None:
            table.files.append([])
        else:
            table.append(self._store.read(COMMITTED_OFFSETS.name).limit(0))

    def _facts(self, summary: Summary) -> list[Callable[[], object]]:
        facts = self._state_facts(summary)
        if QUARANTINE_KIND not in summary.rows and self._quarantine_may_shrink():
            facts.append(partial(self._merge, QUARANTINE.name, self._merge_quarantine))
        return facts

    def _state_facts(self, summary: Summary) -> list[Callable[[], object]]:
        """What has to be written to the layered tables."""
        raise NotImplementedError

    def _moved(self, progress: Progress, before: Progress | None) -> Progress | None:
        return None if before is not None and progress.folded_to < before.folded_to else progress

    def _write_progress(self, summary: Summary, state: FoldedTo) -> None:
        if state.log_epoch != self._log_epoch:  # what is written now would be said of another log
            raise StateMovedError
        super()._write_progress(summary, state)

    def _newer_offsets(self, summary: Summary) -> DataFrame:
        """What folds wrote of commits behind the replayed end, or of transactions whose markers lie there (R11)."""
        rows = self._store.read(COMMITTED_OFFSETS.name).where(self._of_epoch)
        behind = f"record_offset >= {offset_of_partition(self._replayed)}"
        if PENDING not in summary.rows:
            return rows.where(behind)
        key = ["log_partition", "record_offset"]
        pending = self._of_kind(PENDING).select(*key, F.lit(True).alias("was_pending"))
        return rows.join(F.broadcast(pending), key, "left").where(f"was_pending OR {behind}").drop("was_pending")

    def _newer_group_records(self) -> DataFrame:
        """What was said of groups behind the replayed end."""

        def newer(name: str, offset: str) -> Column:
            return F.when(F.col(offset) >= F.expr(offset_of_partition(self._replayed)), F.col(name)).alias(name)

        rows = self._store.latest(RECORDS, self._of_epoch).where(F.col("log_partition").isin(list(self._replayed)))
        kept = rows.select(
            *RECORDS.key,
            newer("value", "value_offset"),
            newer("value_offset", "value_offset"),
            newer("tombstone_offset", "tombstone_offset"),
            "log_epoch",
        )
        return kept.where("value_offset IS NOT NULL OR tombstone_offset IS NOT NULL").select(RECORDS.columns)

    def _merge_quarantine(self) -> None:
        """As in any fold, and records that belong there no more are removed."""
        replayed_to = offset_of_partition(self._replayed, "t.log_partition")
        gone = f"t.log_epoch = {self._log_epoch} AND t.record_offset < {replayed_to}"
        self._quarantine_merge().whenNotMatchedBySourceDelete(gone).execute()

    def _quarantine_may_shrink(self) -> bool:
        """Whether it holds records of the replayed log partitions."""
        if not self._store.version(QUARANTINE.name):
            return False
        here = F.col("log_partition").isin(list(self._replayed)) & F.col("record_offset").isNotNull()
        return not self._store.read(QUARANTINE.name).where(self._of_epoch).where(here).isEmpty()


class FoundState:
    """The state as it was before the log was read: commits of files to the layered tables, begun, and the progress.

    What these find was made from no more of the log than a replay sees, and what anybody writes to the state from here
    on makes Delta refuse them. Looking takes some small jobs; they run while the tasks replay. End it by `with`.
    """

    def __init__(self, store: Store, commits: dict[str, FileCommit]) -> None:
        self.commits = commits
        self.folders = {name: commit.folder for name, commit in commits.items()}
        self._threads = ThreadPoolExecutor()
        inherits = inheritable_thread_target(store.spark)
        self._looking = [self._threads.submit(inherits(commit.look)) for commit in commits.values()]
        self._progress: Future[FoldedTo] = self._threads.submit(inherits(FoldedTo), store)

    @classmethod
    def of(cls, store: Store) -> FoundState | None:
        """Look at the state; None where tasks cannot write files for all of it."""
        commits = {each.table.name: FileCommit.begin(store, each.table) for each in LAYERED}
        begun = {name: commit for name, commit in commits.items() if commit is not None}
        return cls(store, begun) if len(begun) == len(commits) else None

    def progress(self) -> FoldedTo:
        """How far each log partition was folded."""
        for each in self._looking:
            each.result()
        return self._progress.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()


class FilesReplayWriter(ReplayWriter):
    """Puts the files that the tasks of a replay of the whole log wrote in place of the state that was found."""

    def write(self, summary: Summary, found: FoundState) -> None:
        """Write everything. ``summary`` is of the effects; ``found`` is the state as it was before the log was read.

        Raises StateMovedError where anybody wrote to the state meanwhile, or another epoch counts.
        """
        self._found = found
        progress = found.progress()
        if progress.log_epoch != self._log_epoch:
            raise StateMovedError
        try:
            self._write_replay(summary, progress, found.commits[COMMITTED_OFFSETS.name].number)
        except WriteConflict as conflict:
            raise StateMovedError from conflict

    def _state_facts(self, summary: Summary) -> list[Callable[[], object]]:
        return [partial(commit.replace, summary.files.get(name, [])) for name, commit in self._found.commits.items()]


class RowsReplayWriter(ReplayWriter):
    """Puts the rows of a replay in place of those of the same log partitions."""

    def write(self, summary: Summary, *, whole: bool) -> None:
        """Write everything. ``summary`` is of the effects; ``whole`` says that no other log partition has records.

        Raises WriteConflict where others overtook a write too often, or wrote between two, and StateMovedError where
        another epoch counts.
        """
        self._whole = whole
        self._write_replay(summary)

    def _state_facts(self, summary: Summary) -> list[Callable[[], object]]:
        return [partial(self._replace_offsets, summary), partial(self._merge, GROUPS.name, self._replace_groups)]

    def _replace_offsets(self, summary: Summary) -> None:
        """Put what was replayed in place of what it covers.

        Facts that a stream appends at this moment, from an older state, must not come to lie on settled ones. Where
        it does so again and again, what was replayed goes beside them, as facts of which the highest wins.
        """
        attempts = count()

        def replace() -> None:
            guarded = next(attempts) < _SETTLED_ATTEMPTS
            table = self._guarded(COMMITTED_OFFSETS)
            rows = self._of_kind(OFFSET).withColumn("settled", F.lit(guarded))
            newer = self._newer_offsets(summary) if table.version else None
            self._replace(OFFSETS, table, rows, newer, guarded=guarded)
            self._replaced_as = table.number if guarded else None

        self._merge(COMMITTED_OFFSETS.name, replace)

    def _guarded(self, table: Table) -> GuardedWriter:
        """A writer of a table that holds rows of no newer epoch: who brings one in from here on refuses the write.

        Raises StateMovedError where another epoch counts already: of that rows may be there.
        """
        writer = GuardedWriter(self._store, table)
        if counting_epoch(self._store) != self._log_epoch:
            raise StateMovedError
        return writer

    def _replace_groups(self) -> None:
        of_records, of_groups = self._guarded(GROUP_RECORDS), self._guarded(GROUPS)
        facts = self._of_kind(GROUP_RECORD).unionByName(self._of_kind(GROUP_COMMIT)).select(RECORDS.columns)
        if of_records.version:
            facts = facts.unionByName(self._newer_group_records())
        records = combined_records(facts).persist()
        try:
            described = described_groups(records, self._store.properties.offsets_partitions)
            self._replace(RECORDS, of_records, records.withColumn("settled", F.lit(True)))
            self._replace(DESCRIBED, of_groups, described.withColumn("settled", F.lit(True)))
        finally:
            records.unpersist()

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
            others = self._store.read(layered.table.name).where(self._of_epoch)
            rows = rows.unionByName(others.where(f"NOT {replayed}"))
        if guarded:
            table.overwrite(rows, None if self._whole else replayed)
        else:  # of another epoch nothing is touched: who brings that in at this moment need not notice
            of_epoch = self._of_epoch if self._whole else f"{self._of_epoch} AND {replayed}"
            overwrite_unguarded(self._store, layered.table, rows, of_epoch)
