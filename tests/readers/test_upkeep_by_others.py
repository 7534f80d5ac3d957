"""OPTIMIZE and VACUUM of tables of the state by another program do no harm to folds, publishings and commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from offsets_pipeline.fold.maintenance import maintain_store
from offsets_pipeline.fold.state.fold import reload_partitions
from offsets_pipeline.fold.state.publishing import publish
from offsets_pipeline.store.delta.table_folder import TableFolder
from tests.folded_stores import new_store, opened
from tests.logs import in_batches
from tests.published import KEYS, assert_published, read
from tests.readers.stores import IN_DRIVER, LogOfStore, captured, fold, random_logs
from tests.spark.stores import CLOCK, assert_answers_as_reference

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from offsets_pipeline.semantics.log_row import LogRow

FACTS = ("offset_facts", "group_facts", "group_records")
LOGS = [captured("4.2.0-txn-open"), captured("4.2.0-kip848"), *random_logs(2)]
each_log = pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)


def optimize(store: Path, tables: tuple[str, ...] = (*KEYS, *FACTS, "published_as_of")) -> None:
    """Rewrite all files of tables: deltalake rewrites a single file for Z-order alone."""
    for name in tables:
        table = DeltaTable(store / name)
        table.optimize.compact()
        if name != "published_as_of" and table.file_uris():
            table.optimize.z_order(["group_id"])


def vacuum(store: Path, **options: Any) -> None:  # noqa: ANN401
    for name in (*KEYS, *FACTS, "published_as_of"):
        DeltaTable(store / name).vacuum(dry_run=False, **options)


def vacuum_all(store: Path) -> None:
    """Remove every file that is not of the newest version: Delta refuses it unless it is told to forget the check."""
    with pytest.raises(Exception, match="Invalid retention period, minimum retention"):
        vacuum(store, retention_hours=0)
    vacuum(store, retention_hours=0, enforce_retention_duration=False)


@each_log
def test_between_folds_publishings_and_reloads(log: LogOfStore, tmp_path: Path) -> None:
    store = new_store(tmp_path / "store", log.offsets_partitions, log.semantics)
    folded: list[LogRow] = []

    def upkeep_by_another() -> None:
        optimize(tmp_path / "store")
        vacuum_all(tmp_path / "store")
        assert_answers_as_reference(store.location, folded)

    for batch in in_batches(log.rows, 4):
        fold(opened(tmp_path / "store"), batch)
        folded += batch
        upkeep_by_another()
        assert publish(opened(tmp_path / "store"), CLOCK)
        upkeep_by_another()
        assert_published(store.location, folded, log.offsets_partitions, log.semantics)
    reload_partitions(opened(tmp_path / "store"), None, IN_DRIVER, CLOCK)
    upkeep_by_another()
    maintain_store(opened(tmp_path / "store"), CLOCK)
    upkeep_by_another()
    assert {name: read(store.location, name) for name in KEYS} == log.specified()


def test_before_any_commit_of_a_fold_or_a_publishing(
    tmp_path: Path, chance: Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publishing whose files were rewritten meanwhile begins again."""
    log = LOGS[0]
    store = new_store(tmp_path / "store", log.offsets_partitions, log.semantics)
    folded: list[LogRow] = []
    attempts, whole = 0, TableFolder.commit

    def commit(self: TableFolder, *arguments: Any, **named: Any) -> int:  # noqa: ANN401
        if chance.random() < 0.3:
            optimize(tmp_path / "store", tuple(KEYS))
            vacuum(tmp_path / "store")
        return whole(self, *arguments, **named)

    monkeypatch.setattr(TableFolder, "commit", commit)
    batches = in_batches(log.rows, 4)
    for batch in batches:
        fold(store, batch)
        folded += batch
        attempts += 1
        while not publish(store, CLOCK):
            attempts += 1
            assert_answers_as_reference(store.location, folded)
        assert_published(store.location, folded, log.offsets_partitions, log.semantics)
        assert_answers_as_reference(store.location, folded)
    assert attempts > len(batches)
