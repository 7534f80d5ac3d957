"""Verify notices every row that was changed, removed or added by hand, and reload repairs it (R16)."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from offsets_pipeline.delta.reader import answer
from offsets_pipeline.semantics import columnar_replay
from offsets_pipeline.semantics.compaction import last_of_each
from tests.logs import oracle
from tests.spark.stores import assert_as_reference, copied, differences, export_of, log_of, rows_of, segments_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.spark.stores import Workbench

pytestmark = pytest.mark.slow

CAPTURE = "4.2.0-txn-open"  # log partition 2 has an open transaction, 4 a group with members
ONE_ROW = {
    "committed_offsets": "group_id = 'x-live' AND topic = 't1' AND partition = 0",
    "group_records": "group_id = 'x-live' AND record_type = 2",
    "groups": "group_id = 'x-live'",
    "fold_progress": "log_partition = 2",
}
CHANGES = {
    "committed_offsets": {"committed_offset": "committed_offset + 1"},
    "group_records": {"value": "X'0000'"},
    "groups": {"state": "'Empty'"},
    "fold_progress": {"pending": "NULL"},
}


def change(store: Path, table: str) -> None:
    DeltaTable(store / table).update(CHANGES[table], predicate=ONE_ROW[table])


def remove(store: Path, table: str) -> None:
    DeltaTable(store / table).delete(ONE_ROW[table])


def add(store: Path, table: str) -> None:
    """A row like another, of a group that the log does not know."""
    row = _one_row(store, table)
    at = row.schema.get_field_index("group_id")
    group_id = pa.array(["nobody"], row.schema.field(at).type)
    write_deltalake(store / table, row.set_column(at, row.schema.field(at), group_id), mode="append")


def double(store: Path, table: str) -> None:
    """A row that is there already."""
    write_deltalake(store / table, _one_row(store, table), mode="append")


def _one_row(store: Path, table: str) -> pa.Table:
    found = answer(f"SELECT * FROM t WHERE {ONE_ROW[table]}", {"t": DeltaTable(store / table)}).read_all()
    assert found.num_rows == 1
    return found


@pytest.mark.parametrize("alter", [change, remove, add, double])
def test_change_by_hand_is_found_and_repaired(
    workbench: Workbench,
    folded: Callable[[str], Path],
    tmp_path: Path,
    alter: Callable[[Path, str], None],
) -> None:
    store = copied(folded(CAPTURE), tmp_path / "store")
    # a log partition without progress counts as not folded: its state is then all different
    tables = [table for table in ONE_ROW if alter is change or table != "fold_progress"]
    for table in tables:
        before = rows_of(store, table)
        alter(store, table)
        assert sorted(map(str, rows_of(store, table))) != sorted(map(str, before))
    found = workbench.verify(store)
    assert found.differences == dict.fromkeys(tables, 1)
    assert sorted(example.partition(":")[0] for example in found.examples) == sorted(tables)
    assert workbench.reload(store) == len(log_of(store))
    assert_as_reference(store, log_of(store))
    assert differences(store, oracle(CAPTURE)) == []


def test_lost_progress_is_noticed_and_repaired(
    workbench: Workbench, folded: Callable[[str], Path], tmp_path: Path
) -> None:
    store = copied(folded(CAPTURE), tmp_path / "store")
    remove(store, "fold_progress")
    assert workbench.verify(store).differences == {"fold_progress": 1}
    workbench.reload(store, 2)
    assert_as_reference(store, log_of(store))
    remove(store, "fold_progress")
    shutil.rmtree(store / "_checkpoints")
    workbench.fold(store)  # a fold repairs it, too
    assert_as_reference(store, log_of(store))


def test_raised_progress_is_noticed(workbench: Workbench, folded: Callable[[str], Path], tmp_path: Path) -> None:
    store = copied(folded(CAPTURE), tmp_path / "store")
    DeltaTable(store / "fold_progress").update({"folded_to": "folded_to + 1"}, predicate="log_partition = 0")
    found = workbench.verify(store)
    assert found.differences == {"fold_progress": 1}
    assert found.examples == [
        (
            "fold_progress: log_partition 0: the log gives {'folded_to': 9, 'pending': []}, "
            "the state has {'folded_to': 10, 'pending': []}"
        )
    ]


def test_records_that_are_not_folded_yet_are_not_a_difference(
    workbench: Workbench, empty: Callable[[int], Path], tmp_path: Path
) -> None:
    store = copied(empty(5), tmp_path / "store")
    assert workbench.verify(store).equal
    workbench.ingest(store, segments_of(CAPTURE))
    found = workbench.verify(store)
    assert (found.equal, found.records, found.groups) == (True, 0, 0)
    assert export_of(store) == {"groups": {}}


def test_a_fault_of_the_fold_is_found_by_the_specification(
    workbench: Workbench, folded: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = copied(folded(CAPTURE), tmp_path / "store")
    expected = workbench.verify(store)
    assert workbench.verify(store, independent=True) == expected
    monkeypatch.setattr(columnar_replay, "last_of_each", lambda *of: last_of_each(*of)[:-1])  # loses an identity
    workbench.reload(store)
    assert workbench.verify(store).equal
    found = workbench.verify(store, independent=True)
    assert found.differences == {"committed_offsets": 1}
