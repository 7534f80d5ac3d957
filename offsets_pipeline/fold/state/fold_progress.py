"""The table `fold_progress`: the end of the folded log, the one place where two folds compete.

It has a row for each log partition from the first fold on. A fold reads it, appends rows to the state tables, and then
swaps it: the swap fails if another fold came first. Rows of a fold that died or lost the race are correct, or not read
because their incarnation is not named here (docs/adr/0008).

It also names the version of each other table of the state that belongs to the progress. A table at an older version was
restored alone, lost a commit file, or was copied while it was written. The same is true of a progress that is older
than a removal of facts: the removed rows are in published tables that the progress does not name.

Three kinds of later commits belong to the progress: of a fold that has not swapped the progress yet, of a publishing,
and of a rearrangement of files, such as OPTIMIZE. A change by another program (RESTORE, DELETE) does not
(docs/adr/0037).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.errors import DamagedTable, WriteConflict
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.store.delta.data_file import APPLICATION, FOLDED, LATE
from offsets_pipeline.store.delta.protocol import Action, changes_rows, info_of, is_own
from offsets_pipeline.store.delta.schemas import FOLD_PROGRESS, LOG_INCARNATION, VERSIONS

if TYPE_CHECKING:
    from offsets_pipeline.semantics.effects import ReplayedPartition
    from offsets_pipeline.store.delta.snapshot import Snapshot
    from offsets_pipeline.store.delta.table_folder import TableFolder

_SCHEMA = FOLD_PROGRESS.arrow_schema()
#: Incarnation of the state before the first fold: no row has it.
NO_INCARNATION = 0
#: Incarnation of log partitions that a question replays from their start. No table of a store has it.
UNSTORED_INCARNATION = 2**31 - 1
_SWAPS = 20  # attempts of a publishing beside folds
#: Delta application whose transactions in published tables are the state incarnation that their rows are of.
INCARNATION = "offsets-incarnation"
#: Delta application whose transactions in tables of facts are the number of the progress by which facts were removed.
REMOVED_BY = "offsets-removed-by"
_ALONE = "it was restored or copied alone, or lost a commit"
#: In place of the version of a table that is too old, while a reload appends to it.
_BEFORE_RELOAD = 2**62
_NOTHING: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class PartitionProgress:
    """A row of `fold_progress`.

    ``incarnation`` is the state's, ``log_incarnation`` the log's. ``folded_to`` is the first record offset that is not
    folded yet. ``published_to``: the published tables have all records before this one. ``pending`` are the
    transactional commits without a marker (R11). ``folded_at_us`` is the time of the last fold in microseconds since
    1970. ``log_commit`` is the hash of the last commit of the table `log` that is folded (`commit_hash`), the same in
    all rows; None if it is not known.
    """

    log_partition: int
    log_incarnation: int = LOG_INCARNATION
    incarnation: int = NO_INCARNATION
    semantics: CoordinatorSemantics = MODERN
    folded_to: int = 0
    published_to: int = 0
    records: int = 0
    unknown_records: int = 0
    folded_at_us: int = 0
    pending: list[dict[str, Any]] = field(default_factory=list)
    log_commit: str | None = None


class FoldProgress:
    """The table `fold_progress` as of one version. `swap` replaces it, unless another fold was first.

    ``snapshot`` is that version. ``versions`` are those of the other tables of the state that belong to it, by name.
    """

    def __init__(self, table: TableFolder, snapshot: Snapshot) -> None:
        self._table = table
        self.snapshot = snapshot
        rows = snapshot.rows()
        self.partitions = _by_log_partition(rows)
        columns = rows.select(VERSIONS).slice(0, 1).to_pylist()  # each row has them
        self.versions: dict[str, int] = {
            name: each
            for row in columns
            for versions in row.values()
            for name, each in (versions or {}).items()
            if each is not None
        }
        #: how often the table was written; `replace` goes on behind it
        self.number = snapshot.transaction(APPLICATION)
        #: the version of the table `log` that is folded; -1: none. And the hash of its commit
        self.log_version, self.log_commit = snapshot.transaction(FOLDED), log_commit_of(self.partitions)
        #: appends of late records are folded up to this version of LATE
        self.late = snapshot.transaction(LATE)

    @classmethod
    def read(cls, table: TableFolder) -> Self:
        """Read the newest version."""
        return cls(table, table.snapshot())

    def is_newest(self) -> bool:
        """Whether this is the newest version of the table."""
        return self._table.snapshot().version == self.snapshot.version

    def says_same(self, other: FoldProgress) -> bool:
        """Whether another progress names the same incarnations, published equally far, and so the same facts."""
        ends = [{at: each.published_to for at, each in one.partitions.items()} for one in (self, other)]
        return self.incarnations == other.incarnations and ends[0] == ends[1]

    @property
    def log_incarnation(self) -> int:
        """Incarnation of the log that the state answers for."""
        return max((each.log_incarnation for each in self.partitions.values()), default=LOG_INCARNATION)

    @property
    def incarnation(self) -> int:
        """The newest incarnation of the state."""
        return max((each.incarnation for each in self.partitions.values()), default=NO_INCARNATION)

    @property
    def semantics(self) -> CoordinatorSemantics | None:
        """The coordinator semantics of the state; None before the first fold."""
        return next((each.semantics for each in self.partitions.values()), None)

    @property
    def incarnations(self) -> dict[int, int]:
        """The incarnation of the state by log partition."""
        return {at: each.incarnation for at, each in self.partitions.items()}

    @property
    def folded_to(self) -> dict[int, int]:
        """The first record offset of each log partition that is not folded yet."""
        return {at: each.folded_to for at, each in self.partitions.items()}

    def swap(
        self,
        partitions: Mapping[int, PartitionProgress],
        versions: Mapping[str, int],
        folded: Mapping[str, int] = _NOTHING,
        log_commit: str | None = None,
    ) -> None:
        """Commit these rows in place of all; ``versions`` are those of the tables that the fold has written.

        ``folded`` and ``log_commit`` are as for `replace`.

        Raises WriteConflict if another fold has swapped since this was read. A publishing is not in the way.
        """
        try:
            self.replace(partitions, {**self.versions, **versions}, folded, log_commit)
        except WriteConflict:
            newest = FoldProgress.read(self._table)
            if _published(self.partitions, newest.partitions) != newest.partitions:
                raise
            newest.swap(_published(partitions, newest.partitions), versions, folded, log_commit)

    def note_published(self, versions: Mapping[str, int]) -> FoldProgress:
        """Note that tables of these versions have all that is folded as of this progress.

        Returns the progress that it replaced. If the newest progress is of other incarnations, returns that one and
        replaces nothing. Raises WriteConflict if folds came first too often.
        """
        ends = {at: replace(each, published_to=each.folded_to) for at, each in self.partitions.items()}
        newest = FoldProgress.read(self._table)
        for _ in range(_SWAPS):
            if newest.incarnations != self.incarnations:
                break
            try:
                newest.replace(_published(newest.partitions, ends), newest.latest(versions))
                break
            except WriteConflict:
                newest = FoldProgress.read(self._table)
        else:
            raise WriteConflict(
                f"cannot write {self._table.folder}: other writers came first {_SWAPS} times; run it again"
            )
        return newest

    def latest(self, versions: Mapping[str, int]) -> dict[str, int]:
        """Versions of tables: for each the later one of this progress and ``versions``."""
        later = {name: max(each, self.versions.get(name, each)) for name, each in versions.items()}
        return {**self.versions, **later}

    def fenced(self, versions: Mapping[str, int] = _NOTHING) -> Self:
        """Commit the same rows again, so that a reload that read this progress cannot swap it; returns the new one.

        ``versions`` replaces the versions of these tables. Raises WriteConflict if another process has replaced the
        progress.
        """
        version = self.replace(self.partitions, {**self.versions, **versions})
        return type(self)(self._table, self._table.snapshot(version))

    def replace(
        self,
        partitions: Mapping[int, PartitionProgress],
        versions: Mapping[str, int],
        folded: Mapping[str, int] = _NOTHING,
        log_commit: str | None = None,
    ) -> int:
        """Commit these rows, and the versions of all tables, in place of all; returns the version committed.

        ``folded`` has new versions of FOLDED and LATE, which may be lower: a fold then reads folded records again.
        ``log_commit`` is the hash of the commit of FOLDED.

        Raises WriteConflict if another process has replaced them since this was read.
        """
        rows = [
            {
                **vars(each),
                "log_commit": log_commit if FOLDED in folded else self.log_commit,
                "coordinator_semantics": each.semantics.value,
                "folded_at": each.folded_at_us,
                **dict.fromkeys(VERSIONS, versions),  # each column takes those of its fields
            }
            for _, each in sorted(partitions.items())
        ]
        found = pa.Table.from_pylist(rows, schema=_SCHEMA)
        return self._table.replace(found, seen=self.snapshot, advance={APPLICATION: self.number + 1, **folded})


def progress_of(snapshot: Snapshot) -> dict[int, PartitionProgress]:
    """The rows of a version of `fold_progress`, by log partition."""
    return _by_log_partition(snapshot.rows())


def log_commit_of(partitions: Mapping[int, PartitionProgress]) -> str | None:
    """The hash of the commit of the table `log` that is folded last; None before the first fold, or if unknown."""
    return next((each.log_commit for each in partitions.values()), None)


def _by_log_partition(rows: pa.Table) -> dict[int, PartitionProgress]:
    folded_at = rows["folded_at"].cast(pa.int64())
    rows = rows.drop_columns(["folded_at", *VERSIONS]).append_column("folded_at_us", folded_at)
    if not any(pc.list_value_length(rows["pending"]).to_pylist()):
        rows = rows.drop_columns(["pending"])  # they have times, and Arrow imports pandas to convert one
    return {
        row["log_partition"]: PartitionProgress(semantics=CoordinatorSemantics(row.pop("coordinator_semantics")), **row)
        for row in rows.to_pylist()
    }


def pending_of(partitions: Mapping[int, PartitionProgress]) -> pa.Table:
    """The columns `log_partition` and `pending` of these rows."""
    rows = [{"log_partition": at, "pending": each.pending} for at, each in partitions.items()]
    return pa.Table.from_pylist(rows, schema=FOLD_PROGRESS.arrow_schema(["log_partition", "pending"]))


def progressed(
    before: Mapping[int, PartitionProgress], replayed: Mapping[int, ReplayedPartition], now_ms: int
) -> dict[int, PartitionProgress]:
    """The progress of the log partitions of ``before`` after a replay that started there."""
    moved = dict(before)
    for at, each in replayed.items():
        if at in before and each.records:
            moved[at] = replace(
                before[at],
                folded_to=each.folded_to,
                records=before[at].records + each.records,
                unknown_records=before[at].unknown_records + each.unknown_records,
                pending=each.pending,
                folded_at_us=now_ms * 1000,
            )
    return moved


def _published(
    partitions: Mapping[int, PartitionProgress], others: Mapping[int, PartitionProgress]
) -> dict[int, PartitionProgress]:
    """These partitions with the higher `published_to` of both; an incarnation takes none from another one."""
    found = dict(partitions)
    for at in partitions.keys() & others.keys():
        if partitions[at].incarnation == others[at].incarnation:
            end = max(partitions[at].published_to, others[at].published_to)
            found[at] = replace(partitions[at], published_to=end)
    return found


# --- versions of other tables that belong to a progress


def belonging(
    table: TableFolder, progress: FoldProgress, *, is_named: bool = False, is_exact: bool = False
) -> Snapshot:
    """The newest version of a table with rows of the incarnation of a progress.

    A reload replaces published rows before the progress names their incarnation. Until then the version before the
    reload belongs to the progress. With ``is_named`` the same is true of the rows of a publishing: a reader has read
    the facts before, and needs published rows that are no newer. With ``is_exact`` it is true of the facts of a fold,
    too, as long as the version before it is kept.

    Raises DamagedTable for a table that is older than the named version, or that another program has changed, and for a
    progress that is older than the removal of facts that it names.
    """
    newest, version = table.snapshot(), progress.versions.get(table.table.name)
    if newest.transaction(REMOVED_BY) > progress.number and progress.is_newest():
        raise _not_belonging(progress.snapshot.folder, f"is older than {table.folder}: {_ALONE}")
    if version is None or newest.version == version:
        return newest
    if newest.version < version:
        named = "a later one, and a reload has not ended" if version == _BEFORE_RELOAD else f"version {version}"
        raise _not_belonging(
            table.folder, f"is at version {newest.version}, and the progress of its fold belongs to {named}: {_ALONE}"
        )
    found, belongs = version, True
    for later in range(version + 1, newest.version + 1):
        actions = newest.actions(later) or []
        if changes_rows(actions):
            if not is_own(actions):
                operation = info_of(actions).get("operation", "an unknown operation")
                raise _not_belonging(table.folder, f"was changed by another program: version {later}, {operation}")
            written = [each["txn"]["version"] for each in actions if each.get("txn", {}).get("appId") == INCARNATION]
            belongs = not written or (written == [progress.incarnation] and not is_named)
            if is_exact and _adds_facts(actions) and table.commit_file(found) is not None:
                break
        if belongs:
            found = later
    return newest if found == newest.version else table.snapshot(found)


def _adds_facts(actions: Iterable[Action]) -> bool:
    return not any(each["txn"]["appId"] in (INCARNATION, REMOVED_BY) for each in actions if "txn" in each)


def with_older_noted(tables: Iterable[TableFolder], progress: FoldProgress) -> FoldProgress:
    """Mark in the progress the tables that are older than it names; returns the newest progress.

    A reload calls this before it appends to these tables: if it died, its commits would make their versions high enough
    to seem right. Raises WriteConflict.
    """
    versions = progress.versions
    older = [table.table.name for table in tables if table.snapshot().version < versions.get(table.table.name, 0)]
    if all(versions[name] == _BEFORE_RELOAD for name in older):
        return progress
    return progress.fenced(dict.fromkeys(older, _BEFORE_RELOAD))


def _not_belonging(folder: str, what: str) -> DamagedTable:
    store, _, _ = folder.rpartition("/")
    return DamagedTable(f"the table {folder} {what}; make the state again from the log: offsets reload --store {store}")
