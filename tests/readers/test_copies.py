"""Copies of a store that were made table by table while it was folded."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.errors import DamagedTable
from offsets_pipeline.fold.state.fold import reload_partitions
from offsets_pipeline.fold.state.publishing import publish
from offsets_pipeline.store.delta.table_folder import TableFolder
from tests.folded_stores import new_store
from tests.logs import in_batches
from tests.places import copied
from tests.readers.stores import IN_DRIVER, captured, fold
from tests.spark.stores import CLOCK, appended, export_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random
    from typing import Any

LOG = captured("4.2.0-txn-open")
MANY_RECORDS = 1_000_000


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Copies of a store after each commit of folds, publishings and a reload."""
    folder, found = tmp_path_factory.mktemp("moments"), list[Path]()
    store = new_store(folder / "store", LOG.offsets_partitions, LOG.semantics)
    first, *batches = in_batches(LOG.rows, 4)
    fold(store, first)
    assert publish(store, CLOCK)
    with copied_after_each_commit(folder / "store", found):
        for batch in batches:
            appended(store.location, batch)
            found.append(copied(folder / "store", folder / f"moment-{len(found)}"))
            fold(store, [])
            assert publish(store, CLOCK)
        reload_partitions(store, None, IN_DRIVER, CLOCK)
    return found


@contextlib.contextmanager
def copied_after_each_commit(store: Path, copies: list[Path]) -> Iterator[None]:
    whole = TableFolder.commit

    def commit(self: TableFolder, *arguments: Any, **named: Any) -> int:  # noqa: ANN401
        version = whole(self, *arguments, **named)
        copies.append(copied(store, store.with_name(f"moment-{len(copies)}")))
        return version

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableFolder, "commit", commit)
        yield


@pytest.mark.parametrize("count", [60, pytest.param(600, marks=pytest.mark.long)])
def test_copy_that_was_made_table_by_table_answers_right_or_names_a_table(
    moments: list[Path], tmp_path: Path, chance: Random, count: int
) -> None:
    exact = {str(export_of(each, MANY_RECORDS)) for each in moments}
    refused: list[str] = []
    for number in range(count):
        store = tmp_path / f"copy-{number}"
        store.mkdir()
        tables = [each.name for each in moments[0].iterdir() if each.name != "log"]
        order = [*chance.sample(tables, len(tables)), "log"]  # it has all that the tables have
        whens = sorted(chance.choices(moments, k=len(order)), key=moments.index)
        for table, when in zip(order, whens, strict=True):
            (store / table).symlink_to(when / table)
        try:
            assert str(export_of(store, MANY_RECORDS)) in exact
        except DamagedTable as error:
            refused.append(str(error))
    assert 0 < len(refused) < count
    named = r"the table \S+/(\w+) .*; make the state again from the log: offsets reload --store \S+"
    assert all(re.fullmatch(named, each) for each in refused)
    assert any("/fold_progress is older than" in each for each in refused)
