"""State tables in a folder, written and read by the program without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offsets_pipeline.fold.state.changes import ReplayStart, StateWriter
from offsets_pipeline.fold.state.fold_progress import PartitionProgress, progressed
from offsets_pipeline.fold.state.merge_on_read import DESCRIBED, OFFSETS, STATE_TABLES
from offsets_pipeline.fold.state.published_rows import rows_by_sql
from offsets_pipeline.fold.state.stored_rows import StoredRows
from offsets_pipeline.semantics.coordinator_semantics import MODERN
from offsets_pipeline.store.delta.schemas import TABLE_BY_NAME
from offsets_pipeline.store.delta.table_folder import TableFolder
from tests.logs import input_table

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from offsets_pipeline.fold.state.changes import Changes
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
    from offsets_pipeline.semantics.log_row import LogRow

_INCARNATION = 1


def state_tables(folder: Path) -> dict[str, TableFolder]:
    """New, empty tables of facts and of published rows."""
    names = [name for each in STATE_TABLES for name in each.names]
    folders = {name: TableFolder(str(folder / name), TABLE_BY_NAME[name]) for name in names}
    for table in folders.values():
        table.create()
    return folders


def append(tables: dict[str, TableFolder], changes: Changes) -> None:
    """Commit the files."""
    for name, folder in tables.items():
        folder.commit(add=changes.files[name], seen=folder.snapshot())


def known_groups(
    tables: dict[str, TableFolder], incarnations: dict[int, int], semantics: CoordinatorSemantics = MODERN
) -> StoredRows:
    """The known state of groups, in the newest version of the tables."""
    names = ReplayStart(1, semantics).known
    return StoredRows.of((tables[name].snapshot() for name in names), incarnations)


class StoredState:
    """The state tables in a folder, and the progress, as a fold in the driver writes them."""

    def __init__(self, folder: Path, offsets_partitions: int, semantics: CoordinatorSemantics) -> None:
        self.tables = state_tables(folder)
        self.semantics = semantics
        self.progress = {
            at: PartitionProgress(at, incarnation=_INCARNATION, semantics=semantics) for at in range(offsets_partitions)
        }

    def fold(self, rows: Iterable[LogRow], *, swap: bool = True) -> None:
        """Fold a batch; without ``swap`` the fold dies before its last step."""
        incarnations = dict.fromkeys(self.progress, _INCARNATION)
        known = known_groups(self.tables, incarnations, self.semantics)
        start = ReplayStart(len(self.progress), self.semantics).continued(self.progress)
        table = start.compact(input_table(rows))
        changes = StateWriter(start, self.tables, incarnations, known).changes([table])
        append(self.tables, changes)
        if swap:
            self.progress = progressed(self.progress, changes.partitions, 0)

    def offsets(self, column: str = "record_offset") -> dict[tuple[int, str, str, int], int]:
        """A column of the rows of visible offsets, by log partition, group, topic and partition."""
        rows = (row for row in self._rows(OFFSETS.name) if row["committed_offset"] is not None)
        return {tuple(row[name] for name in OFFSETS.key): row[column] for row in rows}

    def groups(self) -> dict[tuple[int, str], tuple[str, str]]:
        """Type and state of the groups that exist."""
        rows = (row for row in self._rows(DESCRIBED.name) if row["state"] != "Dead")
        return {(row["log_partition"], row["group_id"]): (row["group_type"], row["state"]) for row in rows}

    def _rows(self, name: str) -> list[dict[str, Any]]:
        table = next(each for each in STATE_TABLES if each.name == name)
        newest = table.newest(f"(FROM facts WHERE incarnation = {_INCARNATION})", None)
        found: list[dict[str, Any]] = rows_by_sql(newest, facts=self.tables[name].snapshot().rows()).to_pylist()
        return found
