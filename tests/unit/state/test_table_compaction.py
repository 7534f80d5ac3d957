"""Compaction of the state tables without Spark, and rows that come in behind the base (R10, R15)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from offsets_pipeline.state.table_compaction import Compactor, Sizes, compact, sizes_of

from offsets_pipeline.config.sections import FoldSettings
from offsets_pipeline.delta.table_folder import TableFolder
from offsets_pipeline.errors import DamagedTable, StorageFailed, WriteConflict
from offsets_pipeline.state import table_compaction
from offsets_pipeline.state.fold_progress import FoldProgress, PartitionProgress, compacted_to
from offsets_pipeline.state.merge_on_read import DESCRIBED, OFFSETS
from tests.unit.state.state_files import append, before_swap, offset, offsets, progress_of

if TYPE_CHECKING:
    from offsets_pipeline.delta.reader import StoredFile
    from offsets_pipeline.store import Store


def with_offsets(record_offset: int) -> dict[str, int]:
    """The ends of a log partition after a compaction of `committed_offsets` alone."""
    return compacted_to(0) | {OFFSETS.name: record_offset}


def test_late_rows_behind_a_compaction_change_nothing_and_newer_ones_count(store: Store) -> None:  # R10, R15
    progress_of(store).swap({at: PartitionProgress(at, incarnation=1, folded_to=50) for at in (0, 1)})
    append(store, offset("a0", 10), offset("a1", 20), offset("a2", 30), offset("z0", 3, log_partition=1))
    assert compact(store, OFFSETS)
    base = [("a0", 10, 10), ("a1", 20, 20), ("a2", 30, 30), ("z0", 3, 3)]
    assert offsets(store) == base
    append(store, offset("a0", 9), offset("a1", 20), offset("z0", 2, log_partition=1))
    assert offsets(store) == base
    append(store, offset("a2", 31), offset("b0", 4), offset("z0", 4, log_partition=1))
    after = [("a0", 10, 10), ("a1", 20, 20), ("a2", 31, 31), ("b0", 4, 4), ("z0", 4, 4)]
    assert offsets(store) == after
    append(store, offset("a2", 29), offset("b0", 32), offset("a0", 33, is_tombstone=True))
    last = [("a0", 33, None), ("a1", 20, 20), ("a2", 31, 31), ("b0", 32, 32), ("z0", 4, 4)]
    assert offsets(store) == last
    assert compact(store, OFFSETS)
    assert sizes_of(store, OFFSETS) == (5, 0, 0, 0)
    assert offsets(store) == last


def test_streams_that_read_a_state_table_skip_a_compaction(store: Store) -> None:
    progress_of(store).swap({0: PartitionProgress(0, incarnation=1, folded_to=50)})
    append(store, offset("a0", 10))
    assert compact(store, OFFSETS)
    commit = Path(store.location, OFFSETS.name, "_delta_log", f"{store.version(OFFSETS.name):020d}.json")
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    changes = [action[kind]["dataChange"] for action in actions for kind in ("add", "remove") if kind in action]
    assert changes == [False, False]


def test_no_reader_sees_a_base_that_goes_beyond_its_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    progress_of(store).swap({at: PartitionProgress(at, incarnation=1, folded_to=50) for at in (0, 1)})
    append(store, offset("a0", 10), offset("a1", 30), offset("z0", 3, log_partition=1))
    ends: dict[int, int] = {}
    whole = TableFolder.commit

    def commit(self: TableFolder, *arguments: Any, **named: Any) -> int:  # noqa: ANN401
        if self.folder == store.table(OFFSETS.name).folder:
            ends.update({at: each.compacted_to[OFFSETS.name] for at, each in progress_of(store).partitions.items()})
        return whole(self, *arguments, **named)

    monkeypatch.setattr(TableFolder, "commit", commit)
    assert compact(store, OFFSETS)
    assert ends == {0: 31, 1: 4}


def test_compaction_of_one_table_says_nothing_of_another_one(store: Store) -> None:
    progress_of(store).swap({0: PartitionProgress(0, incarnation=1, folded_to=50)})
    append(store, offset("a0", 10))
    assert compact(store, OFFSETS)
    group = {"log_partition": 0, "group_id": "g", "state": "Empty", "misplaced": False, "record_offset": 40}
    append(store, group, table=DESCRIBED)  # of a fold between the two compactions
    append(store, offset("a0", 40))
    assert compact(store, DESCRIBED)
    found = progress_of(store).partitions[0].compacted_to
    assert (found[OFFSETS.name], found[DESCRIBED.name]) == (11, 41)


def test_compaction_beside_a_fold_and_a_reload_keeps_their_progress(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = {at: PartitionProgress(at, incarnation=1, folded_to=50) for at in (0, 1)}
    progress_of(store).swap(start)
    append(store, offset("a0", 10), offset("z0", 3, log_partition=1))
    moved = {
        0: replace(start[0], folded_to=60),
        1: replace(start[1], folded_to=55, incarnation=2, compacted_to=compacted_to(1)),
    }
    whole = FoldProgress.compact_to

    def compact_to(self: FoldProgress, table: str, ends: dict[int, int]) -> None:
        progress_of(store).swap(moved)
        whole(self, table, ends)

    monkeypatch.setattr(FoldProgress, "compact_to", compact_to)
    assert compact(store, OFFSETS)
    assert progress_of(store).partitions == moved | {0: replace(moved[0], compacted_to=with_offsets(11))}


def test_compaction_beside_a_fold_names_the_end_of_the_base_for_the_progress_of_that_fold(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = {at: PartitionProgress(at, incarnation=1, folded_to=50) for at in (0, 1)}
    progress_of(store).swap(start)
    append(store, offset("a0", 10), offset("z0", 3, log_partition=1))
    moved = start | {0: replace(start[0], folded_to=60)}
    before_swap(monkeypatch, lambda: progress_of(store).swap(moved))
    assert compact(store, OFFSETS)
    assert progress_of(store).partitions == {
        0: replace(moved[0], compacted_to=with_offsets(11)),
        1: replace(moved[1], compacted_to=with_offsets(4)),
    }


def test_compaction_leaves_the_table_as_it_is_if_folds_always_come_first(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress_of(store).swap({0: PartitionProgress(0, incarnation=1, folded_to=50)})
    append(store, offset("a0", 10), offset("a0", 11))

    def overtaken(*_: object) -> None:
        raise WriteConflict("a fold came first")

    monkeypatch.setattr(FoldProgress, "swap", overtaken)
    before = store.version(OFFSETS.name)
    assert not compact(store, OFFSETS)
    assert store.version(OFFSETS.name) == before
    assert offsets(store) == [("a0", 11, 11)]


@pytest.mark.parametrize("drop", [False, True])
def test_compaction_drops_older_incarnations_if_asked_and_keeps_those_that_will_be_named(
    store: Store, drop: bool
) -> None:
    progress_of(store).swap({0: PartitionProgress(0, incarnation=2, folded_to=50)})
    for incarnation in (1, 2, 3):
        append(store, offset("a0", 10 * incarnation), incarnation=incarnation)
    assert compact(store, OFFSETS, drop=drop)
    found = sorted((file.partition["incarnation"], file.partition["base"]) for file in files_of(store))
    assert found == [("1", "false")] * (not drop) + [("2", "true"), ("3", "false")]
    assert offsets(store) == [("a0", 20, 20)]


def test_second_of_two_compactions_of_one_version_changes_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress_of(store).swap({0: PartitionProgress(0, incarnation=1, folded_to=50)})
    append(store, offset("a0", 10), offset("a1", 11))
    whole = FoldProgress.compact_to

    def compact_to(self: FoldProgress, table: str, ends: dict[int, int]) -> None:
        monkeypatch.setattr(FoldProgress, "compact_to", whole)
        assert compact(store, OFFSETS)
        whole(self, table, ends)

    monkeypatch.setattr(FoldProgress, "compact_to", compact_to)
    assert not compact(store, OFFSETS)
    assert sizes_of(store, OFFSETS) == (2, 0, 0, 0)
    assert offsets(store) == [("a0", 10, 10), ("a1", 11, 11)]


def test_log_partitions_of_many_rows_have_base_files_of_their_own(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_compaction, "_ROWS_AT_ONCE", 3)
    progress_of(store).swap({at: PartitionProgress(at, incarnation=1, folded_to=50) for at in range(4)})
    rows = {0: 2, 1: 2, 2: 1, 3: 1}
    append(store, *(offset(f"a{place}", place, log_partition=at) for at, held in rows.items() for place in range(held)))
    assert compact(store, OFFSETS)
    assert [(file.lowest["log_partition"], file.rows) for file in files_of(store)] == [(0, 2), (1, 3), (3, 1)]


@pytest.mark.parametrize("error", [StorageFailed("out of reach"), OSError("disk full")])
def test_compaction_that_fails_for_a_while_is_tried_again_beside_the_folds(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    fails, warnings = [True], list[str]()

    def sizes(*_: object) -> Sizes:
        if fails:
            raise error
        return Sizes(0, 0, 0, 0)

    monkeypatch.setattr(table_compaction, "sizes_of", sizes)
    compactor = Compactor(store, FoldSettings(compact_rows=1), warnings.append)
    for _ in range(2):
        compactor.after_fold(1)
        wait_for(compactor)
        fails.clear()
    compactor.after_fold(1)
    compactor.close()
    said = str(error) if isinstance(error, StorageFailed) else "OSError: disk full"
    assert warnings == [f"cannot compact the state tables of {store.location}: {said}; the next look tries again"]


def test_compaction_that_cannot_succeed_fails_the_next_fold(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise DamagedTable("a file is missing")

    monkeypatch.setattr(table_compaction, "sizes_of", broken)
    compactor = Compactor(store, FoldSettings(compact_rows=1), pytest.fail)
    compactor.after_fold(1)
    wait_for(compactor)
    with pytest.raises(DamagedTable, match="a file is missing"):
        compactor.after_fold(1)
    compactor.close()


def wait_for(compactor: Compactor) -> None:
    """Wait until the look in progress has ended."""
    assert compactor._looking is not None
    compactor._looking.exception(60)


def files_of(store: Store) -> list[StoredFile]:
    """The files of `committed_offsets`, by their first log partition."""
    found = store.table(OFFSETS.name).snapshot().files()
    return sorted(found, key=lambda file: int(file.lowest["log_partition"]))


def test_a_look_of_the_compactor_reads_the_progress_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    progress_of(store).swap({0: PartitionProgress(0, incarnation=1, folded_to=50)})
    append(store, offset("a0", 10))
    read = FoldProgress.read
    reads: list[str] = []

    def counted(table: TableFolder) -> FoldProgress:
        reads.append(table.folder)
        return read(table)

    monkeypatch.setattr(FoldProgress, "read", counted)
    compactor = Compactor(store, FoldSettings(), print)
    assert compactor.compact_if_due() == []
    assert len(reads) == 1
    compactor.close()
