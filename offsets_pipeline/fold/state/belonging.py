"""The version of a table of the state that belongs to the progress of a fold.

`fold_progress` names the version. A table at an older version was restored alone, lost a commit file, or was copied
while it was written. The same is true of a progress that is older than a removal of facts: the removed rows are in
published tables that the progress does not name.

Three kinds of later commits belong to the progress: of a fold that has not swapped the progress yet, of a publishing,
and of a rearrangement of files, such as OPTIMIZE. A change by another program (RESTORE, DELETE) does not
(docs/adr/0037).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.errors import DamagedTable
from offsets_pipeline.store.delta.protocol import changes_rows, info_of, is_own

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offsets_pipeline.fold.state.fold_progress import FoldProgress
    from offsets_pipeline.store.delta.protocol import Action
    from offsets_pipeline.store.delta.snapshot import Snapshot
    from offsets_pipeline.store.delta.table_folder import TableFolder

#: Delta application whose transactions in published tables are the state incarnation that their rows are of.
INCARNATION = "offsets-incarnation"
#: Delta application whose transactions in tables of facts are the number of the progress by which facts were removed.
REMOVED_BY = "offsets-removed-by"
_ALONE = "it was restored or copied alone, or lost a commit"
#: In place of the version of a table that is too old, while a reload appends to it.
_BEFORE_RELOAD = 2**62


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
        actions = table.actions(later) or []
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
