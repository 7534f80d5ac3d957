"""Which version of a table of the state belongs to a progress, commit by commit."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from offsets_pipeline.errors import DamagedTable
from offsets_pipeline.fold.state.fold_progress import (
    INCARNATION,
    REMOVED_BY,
    FoldProgress,
    PartitionProgress,
    belonging,
    with_older_noted,
)
from offsets_pipeline.store.delta.schemas import CURRENT_OFFSETS, FOLD_PROGRESS, OFFSET_FACTS
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.delta.upkeep import compact
from tests.unit.coordinator.states import refusal
from tests.unit.state.state_files import offset, write

Tables = tuple[TableFolder, TableFolder, FoldProgress]


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """Facts and published rows at version 2, which the progress names. Their incarnation is 3."""
    facts, rows, table = (
        TableFolder(str(tmp_path / each.name), each) for each in (OFFSET_FACTS, CURRENT_OFFSETS, FOLD_PROGRESS)
    )
    for each in (facts, rows, table):
        each.create()
    for at in range(2):
        write(facts, [offset("a0", at)], incarnation=3)
        rows.commit(seen=rows.snapshot())
    versions = {OFFSET_FACTS.name: 2, CURRENT_OFFSETS.name: 2}
    FoldProgress.read(table).swap({0: PartitionProgress(0, incarnation=3)}, versions)
    return facts, rows, FoldProgress.read(table)


def versions(table: TableFolder, progress: FoldProgress) -> tuple[int, int, int]:
    """The versions that belong: to a writer, to a reader of published rows, and just what is named."""
    return (
        belonging(table, progress).version,
        belonging(table, progress, is_named=True).version,
        belonging(table, progress, is_named=True, is_exact=True).version,
    )


def test_facts_of_later_folds_belong_but_are_not_just_what_is_named(tables: Tables) -> None:
    facts, _, progress = tables
    assert versions(facts, progress) == (2, 2, 2)
    assert compact(facts) == 2  # a rearrangement
    assert versions(facts, progress) == (3, 3, 3)
    write(facts, [offset("a0", 9)], incarnation=3)
    facts.commit(seen=facts.snapshot())  # no rows
    assert versions(facts, progress) == (5, 5, 3)
    progress.versions.clear()
    assert versions(facts, progress) == (5, 5, 5)


def test_facts_of_a_later_fold_belong_if_the_version_before_it_is_no_longer_kept(tables: Tables) -> None:
    facts, _, progress = tables
    write(facts, [offset("a0", 9)], incarnation=3)
    DeltaTable(facts.folder).create_checkpoint()
    for version in range(3):
        Path(facts.folder, "_delta_log", f"{version:020d}.json").unlink()
    facts = TableFolder(facts.folder, facts.table)
    assert refusal(belonging, facts, progress, is_named=True, is_exact=True) == ""
    assert versions(facts, progress) == (3, 3, 3)


def test_published_rows_belong_if_they_are_of_the_incarnation_that_counts(tables: Tables) -> None:
    _, rows, progress = tables
    schema = CURRENT_OFFSETS.arrow_schema()
    row = {name: each for name, each in offset("a0", 1).items() if name in schema.names}
    published = pa.Table.from_pylist([row], schema=schema)
    # a publishing, a commit without rows, a reload that has not ended, and again one without rows
    for incarnation, expected in ((3, (3, 2, 2)), (None, (4, 2, 2)), (4, (4, 2, 2)), (None, (4, 2, 2))):
        added = [] if incarnation is None else [rows.write_file(published)]
        rows.commit(added, seen=rows.snapshot(), advance={INCARNATION: incarnation} if incarnation else {})
        assert versions(rows, progress) == expected


@pytest.mark.parametrize("is_newest", [True, False])
def test_a_progress_that_is_older_than_a_removal_of_facts_does_not_belong(tables: Tables, *, is_newest: bool) -> None:
    facts, _, progress = tables
    facts.commit(seen=facts.snapshot(), advance={REMOVED_BY: progress.number})
    assert versions(facts, progress) == (3, 3, 3)
    facts.commit(seen=facts.snapshot(), advance={REMOVED_BY: progress.number + 1})
    if not is_newest:
        progress.fenced()
        assert refusal(belonging, facts, progress) == ""
        assert versions(facts, progress) == (4, 4, 4)
        return
    with pytest.raises(DamagedTable, match=f"{FOLD_PROGRESS.name} is older than {facts.folder}: it was restored"):
        belonging(facts, progress)


def test_lost_commits_and_changes_of_other_programs_are_damage(tables: Tables) -> None:
    facts, rows, progress = tables
    assert with_older_noted((facts, rows), progress) is progress
    progress.versions |= {OFFSET_FACTS.name: 3}
    with pytest.raises(
        DamagedTable, match="is at version 2, and the progress of its fold belongs to version 3: it was"
    ):
        belonging(facts, progress)
    noted = with_older_noted((facts, rows), progress)  # a reload begins
    assert noted.snapshot.version == progress.snapshot.version + 1
    assert noted.versions == {OFFSET_FACTS.name: 2**62, CURRENT_OFFSETS.name: 2}
    assert with_older_noted((facts, rows), noted) is noted
    with pytest.raises(DamagedTable, match="belongs to a later one, and a reload has not ended: it was restored"):
        belonging(facts, noted)
    progress.versions[OFFSET_FACTS.name] = 2
    DeltaTable(facts.folder).delete()
    with pytest.raises(DamagedTable, match="was changed by another program: version 3, DELETE"):
        belonging(facts, progress)
