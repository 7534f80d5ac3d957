"""Publishing: what is answered goes into tables with one row a key, which any reader of Delta tables may read.

The published rows are those that count as of the progress of the fold, in the columns of the views. The order of the
commits makes it safe to kill anywhere, beside folds and reloads (docs/adr/0037): first the facts that stay, among them
rows that were published and are answered no longer; then the published tables, each in one commit; then
`fold_progress`, which names their versions; then the facts that they cover go.

A log partition's rows are rewritten if it was folded since the last publishing: a file has whole log partitions, about
a million rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.errors import WriteConflict
from offsets_pipeline.fold.state.derived_tables import data_times, note_as_of, write_derived
from offsets_pipeline.fold.state.fold_progress import INCARNATION, REMOVED_BY, FoldProgress, belonging
from offsets_pipeline.fold.state.merge_on_read import DESCRIBED, OFFSETS, StateTable, ended, state_tables_of
from offsets_pipeline.fold.state.published_rows import divided, hiding, in_key_order, write_facts, write_published
from offsets_pipeline.fold.state.stored_rows import StoredRows, are_folded, log_partitions_in, rows_of
from offsets_pipeline.store.delta.data_file import APPLICATION, DataFile
from offsets_pipeline.store.delta.schemas import FOLD_PROGRESS, PUBLISHED_AS_OF, published_tables_of
from offsets_pipeline.store.log.task_results import results_in_tasks

if TYPE_CHECKING:
    from offsets_pipeline.common.clock import Clock
    from offsets_pipeline.fold.state.published_rows import Groups
    from offsets_pipeline.store.delta.snapshot import Snapshot
    from offsets_pipeline.store.delta.table_folder import TableFolder
    from offsets_pipeline.store.store import Store

_DRIVER_BYTES = 256 * 1024 * 1024
_SHARE_ROWS = 1_000_000
_PUBLISHED = (DESCRIBED, OFFSETS)  # groups first: they tell whose offsets are hidden


def publish(store: Store, clock: Clock) -> bool:
    """Publish what is folded; returns False if another writer committed first, and not all is published.

    Raises DamagedTable if a table of the state does not belong to the progress, and as `TableFolder.commit`.
    """
    # first: a publishing or a reload that commits after this conflicts, so no older rows replace its rows
    published = (*published_tables_of(store.properties.topic_kind), PUBLISHED_AS_OF)
    seen = {table.name: store.table(table.name).snapshot() for table in published}
    progress = FoldProgress.read(store.table(FOLD_PROGRESS.name))
    if not progress.partitions:
        return True
    now_ms = clock.now_ms()
    times = data_times(store, progress, now_ms)
    versions: dict[str, int] = {}
    try:
        covered = []
        if store.properties.topic_kind.has_groups:
            covered = _merge_facts(store, progress, seen, versions)
        has_news = any(each.has_news for each in covered)
        versions |= write_derived(store, progress, seen, versions, groups_changed=has_news)
        newest = progress
        if covered or not versions.items() <= progress.versions.items():
            newest = progress.note_published(versions)
        if newest.incarnations != progress.incarnations:  # a reload came first: these are not its rows
            return publish(store, clock)
        for each in covered:
            each.drop(newest.number + 1)
        note_as_of(store, progress, seen[PUBLISHED_AS_OF.name], times, now_ms)
    except WriteConflict:
        return False
    return True


def merged_tables(store: Store) -> list[str]:
    """The published tables that facts are merged with."""
    tables = state_tables_of(store.properties.topic_kind)
    return [table.published.name for table in tables if table.published is not None]


def is_of_unnamed(progress: FoldProgress, seen: Mapping[str, Snapshot]) -> bool:
    """Whether a published table has rows of a reload whose incarnation the progress does not name yet."""
    return any(each.transaction(INCARNATION) > progress.incarnation for each in seen.values())


# --- rows of a replay from the start


@dataclass
class ReplayedRows:
    """Files of the published tables that a replay of ``partitions`` from their start has written."""

    store: Store
    files: dict[str, list[DataFile]]
    partitions: set[int]
    incarnation: int
    _versions: dict[str, int] = field(default_factory=dict)
    _covered: list[Covered] = field(default_factory=list)

    def look(self) -> dict[str, Snapshot]:
        """The published tables as they are now. A later commit of another process is in the way of `publish`."""
        return {name: self.store.table(name).snapshot() for name in self.files}

    def are_published(self, seen: Mapping[str, Snapshot]) -> bool:
        """Whether the rows are in the published tables."""
        return all(self._versions.get(name) == each.version for name, each in seen.items())

    def merge(self, ends: Mapping[int, int]) -> dict[str, int]:
        """Merge the facts of this incarnation, which has all records before these ends, into the published rows.

        Adds the facts that stay to the tables of facts; returns the versions of these tables.
        """
        incarnations = dict.fromkeys(self.partitions, self.incarnation)
        known = {name: self.store.table(name).snapshot() for table in _PUBLISHED for name in table.names}
        rows = StoredRows.of(known.values(), incarnations, self.files)
        shares = _shares([file for each in self.files.values() for file in each], self.partitions, self.partitions)
        found = _Merge(rows, ends, ends).in_shares(self.store, shares)
        for name, files in self.files.items() if not self._versions else ():  # no version of a table ever had them
            self.store.table(name).remove_uncommitted(files)
        self.files = {name: found.files[name] for name in self.files}
        self._covered = [
            Covered(self.store.table(table.name), known[table.name], [*rows.files[table.name]], has_news=True)
            for table in _PUBLISHED
        ]
        return {each.folder.table.name: each.keep(found.files[each.folder.table.name]) for each in self._covered}

    def publish(self, progress: FoldProgress, seen: Mapping[str, Snapshot]) -> dict[str, int]:
        """Replace the published rows of these log partitions; returns the versions of the published tables.

        The rows of other log partitions stay as of ``progress``. If the tables have the new rows already, commits no
        rows, only a transaction with which older publishings conflict. After WriteConflict, call it again.
        """
        is_there = self.are_published(seen)
        for name, each in seen.items():
            self._versions[name] = self._commit(self.store.table(name), each, None if is_there else progress)
        return self._versions

    def _commit(self, folder: TableFolder, seen: Snapshot, progress: FoldProgress | None) -> int:
        added: list[DataFile] = []
        removed: list[DataFile] = []
        if progress is not None:
            own, there = self.files[folder.table.name], seen.files()
            others = progress.partitions.keys() - self.partitions
            known = belonging(folder, progress).files() if others else []
            stay = [file for file in known if file in there and not log_partitions_in(file) & self.partitions]
            # own files are there if a conflict came behind their commit, over another table
            names = {file.name for file in there} & {file.name for file in own}
            removed = [file for file in there if file not in stay and file.name not in names]
            added = [file for file in own if file.name not in names]
            for file in known:
                added += [] if file in stay else write_published(folder, rows_of(folder, [file], others))
        return folder.commit(
            added,
            removed,
            seen=seen,
            advance={INCARNATION: self.incarnation, APPLICATION: seen.transaction(APPLICATION) + 1},
            keep=True,
        )

    def drop_covered(self, number: int) -> None:
        """Remove the facts that `merge` took in, as the progress of this number allows. A conflict leaves them."""
        for each in self._covered:
            with suppress(WriteConflict):
                each.drop(number)


# --- facts that were folded since


class _MergedShare(NamedTuple):
    """Files of published tables and of facts that stay, by table; and whether a group has changed."""

    files: dict[str, list[DataFile]]
    groups_changed: bool


@dataclass(frozen=True)
class _Merge:
    """Merges the facts of some log partitions with their published rows; picklable.

    ``ends`` are those of the folded log: later facts stay as they are. ``published_to`` are the ends of the last
    publishing.
    """

    rows: StoredRows
    ends: Mapping[int, int]
    published_to: Mapping[int, int]

    def __call__(self, share: Collection[int]) -> _MergedShare:
        """Write the files of these log partitions: of published tables, and of facts that stay."""
        files: dict[str, list[DataFile]] = {}
        hidden: Groups = frozenset()
        groups_changed = False
        stored = self.rows.of_partitions(share)
        for table in _PUBLISHED:
            facts = stored.facts(table, [*table.columns, "folded_to"])
            is_folded = are_folded(facts, self.ends)
            folded = facts.filter(is_folded).select(table.columns)
            rows = in_key_order(table, table.newest_rows(folded, stored.published(table, table.columns)))
            answered, kept = divided(table, rows, hidden)
            if table is DESCRIBED:
                hidden = hiding(rows)
                is_new = pc.greater(facts["folded_to"], ended(facts, self.published_to))
                groups_changed = pc.any(is_new).as_py() is True
            target = stored.tables[table.names[1]]
            files[target.table.name] = write_published(target, answered)
            kept = _with_later(kept, facts.filter(pc.invert(is_folded)), self.ends)
            files[table.name] = write_facts(stored.tables[table.name], kept, stored.incarnations)
        return _MergedShare(files, groups_changed)

    def in_shares(self, store: Store, shares: Sequence[Collection[int]]) -> _MergedShare:
        """Write the files of all shares: in the driver for tables of up to `_DRIVER_BYTES`, else in Spark tasks."""
        if len(shares) < 2 or sum(file.size for each in self.rows.files.values() for file in each) <= _DRIVER_BYTES:
            found = list(map(self, shares))
        else:
            found = results_in_tasks(store.spark, shares, self)
        files = {name: [file for each in found for file in each.files[name]] for name in self.rows.files}
        return _MergedShare(files, any(each.groups_changed for each in found))

    def others(self, table: StateTable, files: Sequence[DataFile], shared: Collection[int]) -> list[DataFile]:
        """Write those facts of these files anew that are of no log partition of ``shared``."""
        rest = replace(self.rows, files={table.name: files}).of_partitions(self.rows.incarnations.keys() - shared)
        return write_facts(rest.tables[table.name], rest.facts(table, [*table.columns, "folded_to"]), rest.incarnations)


def _with_later(rows: pa.Table, later: pa.Table, ends: Mapping[int, int]) -> pa.Table:
    """The rows as facts up to these ends, and the later facts."""
    return pa.concat_tables([rows.append_column("folded_to", ended(rows, ends)).cast(later.schema), later])


def _merge_facts(
    store: Store, progress: FoldProgress, published: Mapping[str, Snapshot], versions: dict[str, int]
) -> list[Covered]:
    """Publish what was folded since the last publishing; returns the facts that are published then.

    ``published`` are the published tables as they were before the progress was read. Adds their new versions to
    ``versions``.
    """
    known = {name: belonging(store.table(name), progress) for table in _PUBLISHED for name in table.names}
    newest = {name: published[name] for name in merged_tables(store)}
    # of a reload that died after it had published, or of a publishing that came after a reload
    is_other = any(known[name].version != seen.version for name, seen in newest.items())
    behind = {at for at, each in progress.partitions.items() if is_other or each.published_to < each.folded_to}
    if not behind:
        return []
    if is_of_unnamed(progress, newest):
        progress.fenced()
    rows = StoredRows.of(known.values(), progress.incarnations)
    shares = _shares([file for name in newest for file in rows.files[name]], behind, progress.partitions.keys())
    merge = _Merge(rows, progress.folded_to, {at: each.published_to for at, each in progress.partitions.items()})
    found = merge.in_shares(store, shares)
    shared = {at for share in shares for at in share}
    covered = []
    for table in _PUBLISHED:
        gone = [file for file in rows.files[table.name] if log_partitions_in(file) & shared]
        news = table is DESCRIBED and found.groups_changed
        covered.append(Covered(store.table(table.name), known[table.name], gone, news))
        versions[table.name] = covered[-1].keep(found.files[table.name] + merge.others(table, gone, shared))
    for name, seen in newest.items():
        versions[name] = store.table(name).commit(
            found.files[name],
            [file for file in seen.files() if is_other or log_partitions_in(file) & shared],
            seen=seen,
            advance={INCARNATION: progress.incarnation, APPLICATION: seen.transaction(APPLICATION) + 1},
        )
    return covered


class Covered(NamedTuple):
    """Files of facts that a publishing covers. ``has_news``: they change what is published about groups.

    Its commits change no data, so a feed of facts skips them.
    """

    folder: TableFolder
    seen: Snapshot
    files: list[DataFile]
    has_news: bool

    def keep(self, kept: list[DataFile]) -> int:
        """Add files with the facts that stay; returns the version of the table.

        Call it before the published tables are written: rows that they lose are then in no other table. Until `drop`
        removes the covered facts, these rows are in the table twice, which changes nothing.
        """
        return self.folder.commit(kept, seen=self.seen, is_change=False) if kept else self.seen.version

    def drop(self, number: int) -> None:
        """Remove the covered facts. ``number`` is that of the progress which says that they are published."""
        if self.files:
            self.folder.commit(remove=self.files, seen=self.seen, is_change=False, advance={REMOVED_BY: number})


# --- facts that are not published


def compact_facts(store: Store, progress: FoldProgress, most_files: int = 0) -> None:
    """Put the facts that count into files with each key once, in tables with more than ``most_files`` small files.

    A conflict with another writer leaves them as they are. Raises as `TableFolder.commit`.
    """
    for table in state_tables_of(store.properties.topic_kind):
        if table.published is not None:
            continue
        folder = store.table(table.name)
        seen = belonging(folder, progress)
        stored = StoredRows.of([seen], progress.incarnations)
        files = stored.files[table.name]
        row_count = sum(file.rows for file in files)
        if len(files) - row_count // _SHARE_ROWS - 1 <= most_files:
            continue
        every = sorted(progress.partitions)
        count = max(1, min(len(every), row_count // _SHARE_ROWS))
        written = []
        for at in range(count):
            share = stored.of_partitions(every[at * len(every) // count : (at + 1) * len(every) // count])
            facts = share.facts(table, [*table.columns, "folded_to"])
            is_folded = are_folded(facts, progress.folded_to)
            rows = in_key_order(table, table.newest_rows(facts.filter(is_folded).select(table.columns), None))
            kept = _with_later(rows, facts.filter(pc.invert(is_folded)), progress.folded_to)
            written += write_facts(folder, kept, share.incarnations)
        with suppress(WriteConflict):
            folder.commit(written, files, seen=seen, is_change=False, operation="OPTIMIZE")


def drop_replaced(store: Store, progress: FoldProgress) -> None:
    """Remove the facts of state incarnations that newer ones have replaced. A conflict leaves them."""
    named = {str(each) for each in progress.incarnations.values()}
    for table in state_tables_of(store.properties.topic_kind):
        folder = store.table(table.name)
        seen = folder.snapshot()
        gone = [
            file
            for file in seen.files()
            if file.partition["incarnation"] not in named and int(file.partition["incarnation"]) < progress.incarnation
        ]
        if gone:
            with suppress(WriteConflict):
                folder.commit(remove=gone, seen=seen, is_change=False, advance={REMOVED_BY: progress.number})


def _shares(files: Iterable[DataFile], behind: Collection[int], every: Collection[int]) -> list[list[int]]:
    """The log partitions to rewrite in shares of about a million rows; those of one file stay together."""
    shares: list[tuple[set[int], int]] = [({at}, 0) for at in every]
    for file in files:
        joined = [each for each in shares if each[0] & log_partitions_in(file)]
        shares = [each for each in shares if each not in joined]
        shares.append((set().union(*(each[0] for each in joined)), file.rows + sum(each[1] for each in joined)))
    due = sorted((sorted(partitions), rows) for partitions, rows in shares if partitions & set(behind))
    together: list[list[int]] = []
    held = 0
    for partitions, rows in due:
        if not together or held + rows > _SHARE_ROWS:
            together.append([])
            held = 0
        together[-1] += partitions
        held += rows
    return together
