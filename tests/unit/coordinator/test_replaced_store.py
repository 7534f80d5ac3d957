"""A store is restored, created again or deleted while a coordinator is open: it acknowledges no further request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.coordinator.registry import FOLDER
from offsets_pipeline.errors import StoreReplaced
from tests.places import copied, remove_place
from tests.unit.coordinator.states import at
from tests.unit.coordinator.stores import log_of, opened

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offsets_pipeline.coordinator.coordinator import Coordinator
    from offsets_pipeline.store.delta.data_file import DataFile

REPLACED = "was deleted, restored or created again while it was open: .* version 3, which was read; open it again"


def restore(backup: Path, store: Path) -> None:
    remove_place(store)
    copied(backup, store)


def an_older_copy(backup: Path, store: Path) -> None:
    restore(backup, store)


def an_older_copy_that_grew_as_far(backup: Path, store: Path) -> None:
    restore(backup, store)
    with opened(store) as other:
        other.commit_offsets("other", {("t", 0): 1})
        other.commit_offsets("other", {("t", 0): 2})


def an_older_copy_that_grew_further(backup: Path, store: Path) -> None:
    an_older_copy_that_grew_as_far(backup, store)
    with opened(store) as other:
        other.commit_offsets("other", {("t", 0): 3})


def a_new_store(_: Path, store: Path) -> None:
    remove_place(store)
    OwnedStore.create(store, 3)


def a_new_store_that_grew_as_far(_: Path, store: Path) -> None:
    a_new_store(_, store)
    with opened(store) as other:
        for offset in range(3):
            other.commit_offsets("other", {("t", 0): offset})


def nothing(_: Path, store: Path) -> None:
    remove_place(store)


REPLACEMENTS = [
    an_older_copy,
    an_older_copy_that_grew_as_far,
    an_older_copy_that_grew_further,
    a_new_store,
    a_new_store_that_grew_as_far,
    nothing,
]


def files_of(store: Path) -> set[Path]:
    """All that is part of the log, or of another table."""
    return {
        path for path in store.rglob("*") if path.is_file() and FOLDER not in path.parts and "turn" not in path.name
    }


@pytest.mark.on_s3
@pytest.mark.parametrize("replaced_by", REPLACEMENTS)
def test_nothing_is_acknowledged_or_answered_once_the_store_was_replaced(
    store: Path, tmp_path: Path, replaced_by: Callable[[Path, Path], None]
) -> None:
    with opened(store) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 1})
        copied(store, tmp_path / "backup")
        coordinator.commit_offsets("g", {("t", 0): 2})
        coordinator.commit_offsets("g", {("t", 0): 3})
        replaced_by(tmp_path / "backup", store)
        before = files_of(store)
        for ask in (
            lambda: coordinator.commit_offsets("g", {("t", 0): 4}),
            lambda: coordinator.commit_offsets("g", {("t", 0): 4}, acks=1),
            lambda: coordinator.fetch_offsets("g"),
            lambda: coordinator.load_partition(coordinator.partition_for("g")),
        ):
            with pytest.raises(StoreReplaced, match=REPLACED) as raised:
                ask()
            assert (raised.value.kafka_name, raised.value.retriable) == ("NOT_COORDINATOR", False)
        assert files_of(store) == before
        coordinator._core.begin_registration()
        assert store.exists() == (replaced_by is not nothing)
    if replaced_by is nothing:
        assert not store.exists()
        return
    rows = log_of(store)
    with opened(store) as again:  # which serves what was put there
        again.commit_offsets("g", {("t", 0): 5})
        assert again.fetch_offsets("g")[at()].offset == 5
    assert sum(map(len, log_of(store).values())) == sum(map(len, rows.values())) + 1


@pytest.mark.local_only("on an object store the check comes beside the data file (ADR 41)")
def test_an_append_that_was_validated_before_the_store_was_replaced_is_refused(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(store) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 1})
        copied(store, tmp_path / "backup")
        for offset in (2, 3):
            coordinator.commit_offsets("g", {("t", 0): offset})
        write_file = coordinator._core.log._table.write_file

        def meanwhile(*arguments: object, **named: str) -> DataFile:
            restore(tmp_path / "backup", store)
            return write_file(*arguments, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(coordinator._core.log._table, "write_file", meanwhile)
        with pytest.raises(StoreReplaced, match=REPLACED):
            coordinator.commit_offsets("g", {("t", 0): 4})
    assert DeltaTable(store / "log").version() == 1
    assert files_of(store) == {store / path.relative_to(tmp_path / "backup") for path in files_of(tmp_path / "backup")}


def test_a_copy_of_the_same_log_is_the_same_store(store: Path, tmp_path: Path) -> None:
    with opened(store) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 1})
        copied(store, tmp_path / "copy")
        restore(tmp_path / "copy", store)
        coordinator.commit_offsets("g", {("t", 0): 2})
        assert coordinator.fetch_offsets("g")[at()].offset == 2
    assert [len(rows) for rows in log_of(store).values()] == [2]


def test_old_commits_that_a_checkpoint_replaced_are_not_missed(coordinator: Coordinator, store: Path) -> None:
    """As Delta removes them after `delta.logRetentionDuration`: the log is the same one."""
    coordinator.commit_offsets("g", {("t", 0): 1})
    with opened(store) as other:
        other.commit_offsets("g", {("t", 0): 2})
        other.commit_offsets("h", {("t", 0): 3})
    DeltaTable(store / "log").create_checkpoint()
    for version in (0, 1, 2):
        (store / "log" / "_delta_log" / f"{version:020d}.json").unlink()
    assert coordinator.fetch_offsets("g")[at()].offset == 2
    coordinator.commit_offsets("g", {("t", 0): 4})
    assert coordinator.fetch_offsets("g")[at()].offset == 4
    assert DeltaTable(store / "log").version() == 4
