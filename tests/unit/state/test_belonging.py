"""Which version of a table of the state belongs to a progress, commit by commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from offsets_pipeline.errors import DamagedTable
from offsets_pipeline.fold.state.belonging import INCARNATION, REMOVED_BY, belonging, with_older_noted
from offsets_pipeline.fold.state.fold_progress import FoldProgress, PartitionProgress
from offsets_pipeline.store.delta.schemas import CURRENT_OFFSETS, FOLD_PROGRESS, OFFSET_FACTS, Table
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.delta.upkeep import compact
from tests.unit.state.state_files import offset, write

if TYPE_CHECKING:
    from pathlib import Path

NAMED = 2  # the version that the progress names; incarnation 3 counts


def created(folder: Path, table: Table) -> TableFolder:
    found = TableFolder(str(folder / table.name), table)
    found.create()
    return found


@pytest.fixture
def facts(tmp_path: Path) -> TableFolder:
    """A table of facts at the named version."""
    table = created(tmp_path, OFFSET_FACTS)
    for at in range(NAMED):
        write(table, [offset("a0", at)], incarnation=3)
    return table


@pytest.fixture
def rows(tmp_path: Path) -> TableFolder:
    """A published table at the named version."""
    table = created(tmp_path, CURRENT_OFFSETS)
    for _ in range(NAMED):
        commit(table)
    return table


@pytest.fixture
def progress(tmp_path: Path) -> FoldProgress:
    """The progress that names the version of each; it was written once."""
    table = created(tmp_path, FOLD_PROGRESS)
    versions = {OFFSET_FACTS.name: NAMED, CURRENT_OFFSETS.name: NAMED}
    FoldProgress.read(table).swap({0: PartitionProgress(0, incarnation=3)}, versions)
    return FoldProgress.read(table)


def commit(table: TableFolder, *, adds: bool = False, **advance: int) -> None:
    """Commit a row or none, and transactions."""
    row = {"group_id": "h", "topic": "t", "partition": 0, "committed_offset": 1, "log_partition": 0, "record_offset": 1}
    file = table.write_file(pa.Table.from_pylist([row], schema=table.table.arrow_schema())) if adds else None
    named = {"of": INCARNATION, "by": REMOVED_BY}
    advanced = {named[name]: number for name, number in advance.items()}
    table.commit([] if file is None else [file], seen=table.snapshot(), advance=advanced)


def versions(table: TableFolder, progress: FoldProgress) -> tuple[int, int, int]:
    """The versions that belong: to a writer, to a reader of published rows, and just what is named."""
    return (
        belonging(table, progress).version,
        belonging(table, progress, is_named=True).version,
        belonging(table, progress, is_named=True, is_exact=True).version,
    )


def test_facts_of_later_folds_belong_but_are_not_just_what_is_named(facts: TableFolder, progress: FoldProgress) -> None:
    assert versions(facts, progress) == (2, 2, 2)
    facts.commit(seen=facts.snapshot())  # no rows
    assert versions(facts, progress) == (3, 3, 3)
    assert compact(facts) == 2  # a rearrangement
    assert versions(facts, progress) == (4, 4, 4)
    write(facts, [offset("a0", 9)], incarnation=3)
    assert versions(facts, progress) == (5, 5, 4)
    facts.commit(seen=facts.snapshot())
    assert versions(facts, progress) == (6, 6, 4)
    progress.versions.clear()
    assert versions(facts, progress) == (6, 6, 6)


def test_published_rows_belong_if_they_are_of_the_incarnation_that_counts(
    rows: TableFolder, progress: FoldProgress
) -> None:
    assert versions(rows, progress) == (2, 2, 2)
    commit(rows, adds=True, of=3)  # a publishing
    assert versions(rows, progress) == (3, 2, 2)
    commit(rows)
    assert versions(rows, progress) == (4, 2, 2)
    commit(rows, adds=True, of=4)  # a reload that has not ended
    assert versions(rows, progress) == (4, 2, 2)
    commit(rows)
    assert versions(rows, progress) == (4, 2, 2)


@pytest.mark.parametrize(
    ("removed_by", "is_newest", "is_damaged"), [(0, True, False), (1, True, True), (1, False, False)]
)
def test_a_progress_that_is_older_than_a_removal_of_facts_does_not_belong(
    facts: TableFolder, progress: FoldProgress, removed_by: int, *, is_newest: bool, is_damaged: bool
) -> None:
    commit(facts, by=removed_by)
    if not is_newest:
        progress.fenced()
    assert progress.number == 0
    if not is_damaged:
        assert belonging(facts, progress).version == 3
        return
    with pytest.raises(DamagedTable, match=f"{FOLD_PROGRESS.name} is older than {facts.folder}: it was restored"):
        belonging(facts, progress)


def test_changes_of_other_programs_and_lost_commits_are_damage(facts: TableFolder, progress: FoldProgress) -> None:
    progress.versions[OFFSET_FACTS.name] = 3
    with pytest.raises(
        DamagedTable, match="is at version 2, and the progress of its fold belongs to version 3: it was"
    ):
        belonging(facts, progress)
    progress.versions[OFFSET_FACTS.name] = 2
    DeltaTable(facts.folder).delete()
    with pytest.raises(DamagedTable, match="was changed by another program: version 3, DELETE"):
        belonging(facts, progress)


def test_a_reload_notes_the_tables_that_are_too_old_once(
    facts: TableFolder, rows: TableFolder, progress: FoldProgress
) -> None:
    tables = (facts, rows)
    assert with_older_noted(tables, progress) is progress
    progress.versions |= {OFFSET_FACTS.name: 3}
    noted = with_older_noted(tables, progress)
    assert (noted.snapshot.version, noted.versions) == (
        progress.snapshot.version + 1,
        {OFFSET_FACTS.name: 2**62, CURRENT_OFFSETS.name: 2},
    )
    assert with_older_noted(tables, noted) is noted
    with pytest.raises(
        DamagedTable, match=r"is at version 2, and .* belongs to a later one, and a reload has not ended"
    ):
        belonging(facts, noted)
