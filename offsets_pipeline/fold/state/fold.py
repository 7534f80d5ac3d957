"""Folds the log into the state: the records after the last fold, or log partitions from their start.

Both replay files of the log, append what their rows change as facts, and then swap `fold_progress`; only the swap
competes with other folds. The order makes a fold safe to kill anywhere: until the swap nothing is folded, and facts
that were appended twice change nothing (R15).

`fold_progress` names the version of the log that is folded, with a hash of its commit, and the record offsets. A fold
reads the files that later commits have added. If a commit is gone, or its files are compacted, it reads all files from
the record offsets on. If the log has lost folded records, as it was restored alone, it replays all of the log.

A replay from the start writes a new incarnation of its log partitions: facts, and published rows in place of the old
ones. Then the swap names it, and the versions of the published tables. Readers see the old incarnation until then, and
the new one from then on. So a reload is safe beside a running stream, and the switch to a new log incarnation of a
topic is a reload of all log partitions (docs/adr/0014). So is a change of the coordinator semantics: the swap names
them, too, and each fold goes on with those of the state that it found (docs/adr/0017).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from offsets_pipeline.errors import InvalidPartitionCount, UndecodableRecord, WriteConflict
from offsets_pipeline.fold.state.changes import Changes, NextFold, ReplayStart
from offsets_pipeline.fold.state.fold_progress import (
    INCARNATION,
    NO_INCARNATION,
    REMOVED_BY,
    FoldProgress,
    PartitionProgress,
    belonging,
    progressed,
    with_older_noted,
)
from offsets_pipeline.fold.state.publishing import ReplayedRows, is_of_unnamed, merged_tables
from offsets_pipeline.fold.state.replay_job import replay_log
from offsets_pipeline.fold.state.stored_rows import StoredRows
from offsets_pipeline.fold.state.unfolded import files_after, with_late_records
from offsets_pipeline.store.delta.data_file import CLEANED, FOLDED, LATE, DataFile
from offsets_pipeline.store.delta.properties import OWNED
from offsets_pipeline.store.delta.retry import with_retries
from offsets_pipeline.store.delta.schemas import FOLD_PROGRESS, LOG, QUARANTINE, STATE, TOPICS
from offsets_pipeline.store.log.log_reader import LogReader
from offsets_pipeline.store.log.log_scan import LogRange
from offsets_pipeline.store.log.metadata import note_quarantine, note_topics

if TYPE_CHECKING:
    from offsets_pipeline.common.clock import Clock
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
    from offsets_pipeline.store.delta.snapshot import Snapshot
    from offsets_pipeline.store.log.append import Append
    from offsets_pipeline.store.store import Store

_SWAPS = 20  # attempts of a replay to catch up with a stream
_UNFOLDED_COMMITS = 100  # without a record to fold, from which on a fold notes that it has read them


def fold_log(
    store: Store,
    settings: Settings,
    clock: Clock,
    warn: Callable[[str], None] | None = None,
    append: Append | None = None,
) -> int:
    """Fold the log, each log partition from where its last fold ended; returns how many records it replayed.

    Takes what a `NextFold` made of the records of ``append``, and reads no file of the log, if the state still is as
    this fold found it, and has all of the log before the append.

    Replays a log partition from its start if late records were appended to it, and all of them if another incarnation
    of the log counts. ``warn`` gets a line if records went into quarantine (R6).

    Raises UndecodableRecord if the settings say so, WriteConflict if other folds came first too often, NotAStore if the
    store has got another format.
    """
    return with_retries(lambda: _fold_once(store, settings, clock, warn, append), "a fold of the log")


def next_fold(store: Store, settings: Settings, clock: Clock, log_incarnation: int) -> NextFold | None:
    """Return a fold of records that are appended to this incarnation of the log next.

    None if a fold has to read the log: the state lacks log partitions, or a part of the log before the append.
    """
    progress = FoldProgress.read(store.table(FOLD_PROGRESS.name))
    fold = _Fold(store, settings, clock, progress)
    log = store.table(LOG.name).snapshot()
    is_next = progress.log_version == log.version and progress.log_incarnation == log_incarnation
    return fold.continuation() if is_next and not (fold.is_behind or fold.is_of_other(log)) else None


def reload_partitions(
    store: Store,
    partitions: Iterable[int] | None,
    settings: Settings,
    clock: Clock,
    semantics: CoordinatorSemantics | None = None,
) -> int:
    """Replay these log partitions (None: all) from their start and put the result in place of their state.

    Creates tables of the state that are missing. Returns the number of records replayed. Safe beside a running stream.
    Replays with ``semantics``, by default those of the state. Other semantics replay all log partitions.

    Raises InvalidPartitionCount for a log partition that the log does not have, StoreMismatch for an owned store with
    other semantics than `modern`, UndecodableRecord if the settings say so, WriteConflict if other folds came first too
    often.
    """
    if semantics is not None:
        store = store.with_semantics(semantics)
    chosen = None if partitions is None else sorted(set(partitions))
    count = store.current_log().offsets_partitions
    for partition in chosen or []:
        if not 0 <= partition < count:
            raise InvalidPartitionCount(
                f"no log partition {partition} in {store.location}: its log has {count}, 0 to {count - 1}"
            )
    for name in (*(each.name for each in store.tables if each.name in STATE), QUARANTINE.name, TOPICS.name):
        if not store.table(name).exists():
            store.table(name).create()

    def reload() -> int:
        progress = FoldProgress.read(store.table(FOLD_PROGRESS.name))
        return _Fold(store, settings, clock, progress, semantics).rebuild(chosen).records

    return with_retries(reload, "a reload")


def _fold_once(
    store: Store, settings: Settings, clock: Clock, warn: Callable[[str], None] | None, append: Append | None
) -> int:
    store.require_format()
    progress = FoldProgress.read(store.table(FOLD_PROGRESS.name))
    log = store.table(LOG.name).snapshot()
    fold = _Fold(store, settings, clock, progress)
    changes = fold.rest(log, append)
    if changes.quarantine and warn is not None:
        warn(
            f"{len(changes.quarantine)} of {changes.records} records went into quarantine ({changes.first_corrupt()}); "
            "see the store's table quarantine"
        )
    late = with_late_records(log, progress.partitions, progress.late)
    return changes.records + (reload_partitions(store, late, settings, clock) if late else 0)


class _Fold:
    """A fold of records of the log that counts: of its rest, or of log partitions from their start.

    ``progress`` is as it was before the log was read. Replays by ``semantics``, by default those of the state.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        clock: Clock,
        progress: FoldProgress,
        semantics: CoordinatorSemantics | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._progress = progress
        self._found = progress.semantics
        self._semantics = semantics or self._found or store.properties.coordinator_semantics
        current = store.current_log()
        self._log_incarnation, self._count = current.number, current.offsets_partitions
        self._start = ReplayStart(self._count, self._semantics, kind=store.properties.topic_kind)
        self._tables = self._start.tables

    def rest(self, log: Snapshot, append: Append | None) -> Changes:
        """Fold the records of the log that are not folded, or take what was folded of the append if it has them all.

        Replays all log partitions if the state is of an older incarnation of the log, has none of them yet, or is of
        another log.
        """
        progress = self._progress
        if self.is_behind or self.is_of_other(log):
            return self.rebuild(None)
        self._log_incarnation = progress.log_incarnation
        if (
            append is not None
            and append.version == progress.log_version + 1
            and isinstance(append.fold, NextFold)
            and append.fold.continues(progress)
        ):
            changes, to = self._added(append.folded), append.version
        else:
            files, to = files_after(progress.log_version, log), log.version
            changes = self._replay(progress.partitions, self._known(), files)
        if changes.records or to - progress.log_version > _UNFOLDED_COMMITS:
            versions = self._append(changes, progress)
            self._note(changes)
            self._make_durable(log, progress.log_version)
            moved = progressed(progress.partitions, changes.partitions, self._clock.now_ms())
            progress.swap(progress.partitions | moved, versions, {FOLDED: to}, log.commit_hash(to))
        return changes

    @property
    def is_behind(self) -> bool:
        """Whether the state is of an older incarnation of the log, or lacks log partitions."""
        progress = self._progress
        return progress.log_incarnation < self._log_incarnation or progress.partitions.keys() != set(range(self._count))

    def is_of_other(self, log: Snapshot) -> bool:
        """Whether the log has lost records that are folded: it was restored or copied alone, or rows were deleted."""
        return not log.has_rows_of(self._progress.log_version, self._progress.log_commit)

    def continuation(self) -> NextFold:
        """Return a fold that continues the state.

        Raises DamagedTable if a table does not belong to the progress.
        """
        return self._from(self._progress.partitions, self._known())

    def _known(self) -> StoredRows:
        tables = (belonging(self._store.table(name), self._progress) for name in self._start.known)
        return StoredRows.of(tables, self._progress.incarnations)

    def rebuild(self, chosen: list[int] | None) -> Changes:
        """Replay these log partitions from their start into a new incarnation of the state; None: all.

        Replays all of them also if the state lacks one, is of another log incarnation, of other semantics, or of
        another log.

        Raises UndecodableRecord, WriteConflict.
        """
        every = range(self._count)
        log = self._store.table(LOG.name).snapshot()  # the replay reads this version or a later one
        is_whole = self._progress.partitions.keys() == set(every)
        is_same = self._progress.log_incarnation == self._log_incarnation and self._found == self._semantics
        if not (is_whole and is_same) or self.is_of_other(log):
            chosen = None
        has_late = chosen is None or with_late_records(log, every, self._progress.late) <= set(chosen)
        folded = {LATE: log.transaction(LATE)} if has_late else {}
        if chosen is None:  # lower than that of a fold of the old incarnation, which skipped records of the new one
            folded[FOLDED] = log.version
        tables = [self._store.table(name) for name in self._progress.versions]
        if chosen is None or set(chosen) == set(every):
            self._progress = with_older_noted(tables, self._progress)
        else:  # the others stay as they are
            for table in tables:
                belonging(table, self._progress)
        incarnation = self._reserve_incarnation()
        start = {
            at: PartitionProgress(
                at, self._log_incarnation, incarnation, self._semantics, folded_at_us=self._clock.now_ms() * 1000
            )
            for at in every
        }
        replayed = start if chosen is None else {at: start[at] for at in chosen}
        changes = self._replay(replayed, None, log.files())
        versions = self._append(changes)
        written = progressed(replayed, changes.partitions, self._clock.now_ms())
        moved = {at: replace(each, published_to=each.folded_to) for at, each in written.items()}
        self._note(changes, {at: each.folded_to for at, each in moved.items()})
        self._make_durable(log, self._progress.log_version)
        rows = {name: changes.files[name] for name in merged_tables(self._store)}
        published = ReplayedRows(self._store, rows, set(replayed), incarnation)
        self._swap(moved, versions, published, log, folded)
        return changes

    def _make_durable(self, log: Snapshot, after: int) -> None:
        """R27: make commits with acks=1 durable before the state counts their record offsets as folded.

        Else, after a loss of power, the log would give these offsets out again, and no fold would take them.
        """
        if self._store.properties.kind == OWNED:
            log.make_durable(after)

    def _note(self, changes: Changes, replayed_to: Mapping[int, int] = MappingProxyType({})) -> None:
        note_quarantine(self._store, changes.quarantine, self._log_incarnation, self._clock, replayed_to=replayed_to)
        note_topics(self._store, changes.topics)

    def _reserve_incarnation(self) -> int:
        """Reserve the number of a state incarnation, which no other replay gets."""

        def reserve() -> int:
            table = self._store.table(self._tables[0].name)
            snapshot = table.snapshot()
            written = (  # also if another state table was lost and created again
                int(file.partition["incarnation"])
                for each in self._tables
                for file in self._store.table(each.name).snapshot().files()
            )
            number = max(snapshot.transaction(INCARNATION), self._progress.incarnation, NO_INCARNATION, *written) + 1
            table.commit(seen=snapshot, advance={INCARNATION: number})
            return number

        return with_retries(reserve, "a new incarnation of the state")

    def _swap(
        self,
        moved: dict[int, PartitionProgress],
        versions: dict[str, int],
        published: ReplayedRows,
        log: Snapshot,
        folded: Mapping[str, int],
    ) -> None:
        """Let readers see the incarnation, as soon as it has everything that was folded since this snapshot of the log.

        Its rows are published before each swap, and no earlier than those that they replace, so that readers of the old
        progress and of the new one find what they miss in the facts (docs/adr/0037).

        Raises WriteConflict if another log incarnation, other semantics or a newer incarnation took over.
        """
        tables = [self._store.table(each.name) for each in self._tables]
        is_other, found = self.is_of_other(log), self._progress.incarnation
        for _ in range(_SWAPS):
            seen = published.look()
            self._progress = FoldProgress.read(self._store.table(FOLD_PROGRESS.name))
            if (
                self._progress.log_incarnation > self._log_incarnation
                or self._progress.incarnation > published.incarnation  # it may have dropped facts of this one
                or (is_other and self._progress.incarnation > found)  # its state is of this log, and may be ahead
                or self._progress.semantics not in (self._found, self._semantics)
            ):
                raise WriteConflict(
                    f"another reload of {self._store.location} ended first; run it again if it is still needed"
                )
            removed_by = (table.snapshot().transaction(REMOVED_BY) for table in tables)
            self._progress.number = max(self._progress.number, *removed_by)  # also if the progress was restored alone
            # what the state of another log has folded is not in this log
            known = {} if is_other else self._of_log(self._progress.partitions)
            moved |= self._catch_up(moved, known, versions, published, log)
            for at, each in moved.items():  # the log has no record between the two ends, only a gap
                if at in known:
                    moved[at] = replace(each, folded_to=max(known[at].folded_to, each.folded_to))
            if not published.are_published(seen) and any(
                at in known and known[at].folded_to > each.published_to for at, each in moved.items()
            ):
                versions |= published.merge({at: each.folded_to for at, each in moved.items()})
                moved = {at: replace(each, published_to=each.folded_to) for at, each in moved.items()}
            try:
                if not published.are_published(seen) and is_of_unnamed(self._progress, seen):
                    self._progress = self._progress.fenced()
                versions |= published.publish(self._progress, seen)
                partitions = self._of_log(self._progress.partitions | moved)
                is_whole = published.partitions >= partitions.keys()
                named = versions if is_whole else self._progress.latest(versions)
                self._progress.replace(partitions, named, folded, log.commit_hash(log.version))
            except WriteConflict:
                continue
            published.drop_covered(self._progress.number + 1)
            return
        raise WriteConflict(
            f"cannot finish the reload of {self._store.location}: a stream folds faster; "
            "stop the stream, or run the reload again"
        )

    def _of_log(self, partitions: Mapping[int, PartitionProgress]) -> dict[int, PartitionProgress]:
        """Those of the incarnation of the log that was read."""
        return {at: each for at, each in partitions.items() if each.log_incarnation == self._log_incarnation}

    def _catch_up(
        self,
        moved: Mapping[int, PartitionProgress],
        known: Mapping[int, PartitionProgress],
        versions: dict[str, int],
        published: ReplayedRows,
        log: Snapshot,
    ) -> dict[int, PartitionProgress]:
        """Fold what another fold has folded since the log was read, to its progress ``known``, into this incarnation.

        Raises WriteConflict if a cleaning has removed records meanwhile: it keeps what a replay of the log from its
        start needs, or one from where the other fold ended, not one from here (docs/adr/0010).
        """
        late = {at: each for at, each in moved.items() if at in known and known[at].folded_to > each.folded_to}
        if not late:
            return {}
        newest = self._store.table(LOG.name).snapshot()
        if newest.transaction(CLEANED) != log.transaction(CLEANED):
            raise WriteConflict(f"the log of {self._store.location} was cleaned during the reload; run it again")
        incarnations = {at: each.incarnation for at, each in moved.items()}
        tables = (self._store.table(name).snapshot() for name in self._start.known)
        self._make_durable(newest, log.version)
        files = files_after(log.version, newest)
        changes = self._replay(late, StoredRows.of(tables, incarnations, published.files), files)
        versions |= self._append(changes)
        self._note(changes)
        return progressed(late, changes.partitions, self._clock.now_ms())

    def _replay(
        self, progress: Mapping[int, PartitionProgress], known: StoredRows | None, files: Iterable[DataFile]
    ) -> Changes:
        """Replay these files of the log from these starts."""
        fold = self._from(progress, known)
        start = fold.start
        log_range = LogRange(start.folded_to, log_incarnation=self._log_incarnation)
        reader = LogReader(self._store.table(LOG.name), log_range, start.schema, start.compact)
        wanted = [file for file in files if log_range.may_hold(file)]
        at_most = self._settings.fold.driver_rows - start.pending.num_rows
        return self._added(replay_log(self._store, reader, wanted, at_most, fold.changes))

    def _from(self, progress: Mapping[int, PartitionProgress], known: StoredRows | None) -> NextFold:
        tables = {name: self._store.table(name) for table in self._tables for name in table.names}
        incarnations = {at: each.incarnation for at, each in progress.items()}
        return NextFold(self._start.continued(progress), tables, incarnations, known)

    def _append(self, changes: Changes, progress: FoldProgress | None = None) -> dict[str, int]:
        """Append the facts, which other folds may do at the same time; returns the versions of their tables.

        ``progress`` is that of their incarnation; None: a replay from the start makes a new one. Its facts are no
        changes for a feed of facts: published rows are the other part of what it found.

        Raises DamagedTable if a table does not belong to the progress.
        """
        found = {}
        for table in self._tables:
            folder = self._store.table(table.name)
            seen = folder.snapshot() if progress is None else belonging(folder, progress)
            facts = changes.files[table.name]
            is_change = progress is not None
            found[table.name] = folder.commit(add=facts, seen=seen, is_change=is_change) if facts else seen.version
        return found

    def _added(self, changes: Iterable[Changes]) -> Changes:
        """The changes of all tasks.

        Raises UndecodableRecord if a record does not decode and the settings say so (R6).
        """
        whole = Changes()
        for each in changes:
            whole.add(each)
        corrupt = whole.first_corrupt()
        if corrupt is not None and self._settings.log.corrupt_records == "fail":
            raise UndecodableRecord(
                f'{corrupt}; nothing was folded; set corrupt_records = "quarantine" to leave such records out'
            )
        return whole
