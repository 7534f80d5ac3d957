"""Verify notices every row that was changed, removed or added by hand, and reload repairs it (R16)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from offsets_pipeline.common.config.sections import FoldSettings
from offsets_pipeline.errors import DamagedTable
from offsets_pipeline.fold.maintenance import maintain_store
from offsets_pipeline.semantics.columnar_replay import Replay
from offsets_pipeline.store.log.clean import clean_log
from tests.logs import oracle
from tests.places import copied
from tests.spark.segments import write_prefix
from tests.spark.stores import (
    CLOCK,
    Workbench,
    add,
    alter,
    assert_as_reference,
    differences,
    export_of,
    log_of,
    remove,
    rows_of,
    segments_of,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

CAPTURE = "4.2.0-txn-open"  # log partition 2 has an open transaction, 4 a group with members
ONE_ROW = {
    "current_offsets": "group_id = 'x-live' AND topic = 't1' AND partition = 0",
    "group_records": "group_id = 'x-live' AND record_type = 2",
    "consumer_groups": "group_id = 'x-live'",
    "fold_progress": "log_partition = 2",
}
CHANGES = {
    "current_offsets": {"committed_offset": "committed_offset + 1"},
    "group_records": {"value": r"'\x00\x00'::BLOB"},
    "consumer_groups": {"state": "'Empty'"},
    "fold_progress": {"pending": "NULL"},
}
#: Names of the rows that count of facts and published rows.
COMPARED = {"current_offsets": "offset_facts", "consumer_groups": "group_facts"}


def change(store: Path, table: str) -> None:
    alter(store, table, CHANGES[table], ONE_ROW[table])


def lose(store: Path, table: str) -> None:
    remove(store, table, ONE_ROW[table])


def invent(store: Path, table: str) -> None:
    """A row like another, of a group that the log does not know."""
    add(store, table, {"group_id": "'nobody'"}, ONE_ROW[table])


def double(store: Path, table: str) -> None:
    """A row that is there already."""
    add(store, table, {}, ONE_ROW[table])


@pytest.mark.parametrize(
    ("by", "tables"),
    [
        (change, [*ONE_ROW]),
        # a log partition without progress counts as not folded: its state is then all different
        *((by, ["current_offsets", "group_records", "consumer_groups"]) for by in (lose, invent)),
        (double, ["current_offsets", "consumer_groups"]),  # a fact counts once
    ],
)
def test_fault_of_the_state_is_found_and_repaired(
    workbench: Workbench,
    folded: Callable[[str], Path],
    place: Path,
    by: Callable[[Path, str], None],
    tables: list[str],
) -> None:
    store = copied(folded(CAPTURE), place / "store")
    for table in tables:
        before = rows_of(store, table)
        by(store, table)
        assert sorted(map(str, rows_of(store, table))) != sorted(map(str, before))
    compared = [COMPARED.get(table, table) for table in tables]
    found = workbench.verify(store)
    assert found.differences == dict.fromkeys(compared, 1)
    assert sorted(example.partition(":")[0] for example in found.examples) == sorted(compared)
    assert workbench.reload(store) == len(log_of(store))
    assert_as_reference(store, log_of(store))
    assert differences(store, oracle(CAPTURE)) == []


@pytest.mark.parametrize("table", ["offset_facts", "current_offsets", "group_records", "consumer_groups"])
def test_table_that_another_program_has_changed_is_refused_and_repaired(
    workbench: Workbench, folded: Callable[[str], Path], place: Path, table: str
) -> None:
    store = copied(folded(CAPTURE), place / "store")
    DeltaTable(store / table).delete()
    refused = rf"^the table {store}/{table} was changed by another program: version \d+, DELETE; make the state again "
    for ask in (export_of, workbench.verify, lambda at: workbench.reload(at, 4)):  # of the others, rows would stay
        with pytest.raises(DamagedTable, match=refused + f"from the log: offsets reload --store {store}$"):
            ask(store)
    assert workbench.reload(store) == len(log_of(store))
    assert_as_reference(store, log_of(store))
    assert differences(store, oracle(CAPTURE)) == []
    assert workbench.verify(store).equal


def test_lost_progress_is_noticed_and_repaired(
    workbench: Workbench, folded: Callable[[str], Path], place: Path
) -> None:
    store = copied(folded(CAPTURE), place / "store")
    lose(store, "fold_progress")
    assert workbench.verify(store).differences == {"fold_progress": 1}
    workbench.reload(store, 2)
    assert_as_reference(store, log_of(store))
    lose(store, "fold_progress")
    workbench.fold(store)  # a fold repairs it, too
    assert_as_reference(store, log_of(store))


def test_raised_progress_is_noticed(workbench: Workbench, folded: Callable[[str], Path], place: Path) -> None:
    store = copied(folded(CAPTURE), place / "store")
    alter(store, "fold_progress", {"folded_to": "folded_to + 1"}, "log_partition = 0")
    found = workbench.verify(store)
    assert found.differences == {"fold_progress": 1}
    assert found.examples == [
        (
            "fold_progress: log_partition 0: the log gives {'folded_to': 9, 'pending': []}, "
            "the state has {'folded_to': 10, 'pending': []}"
        )
    ]


def test_records_that_are_not_folded_yet_are_not_a_difference(
    workbench: Workbench, empty: Callable[[int], Path], place: Path
) -> None:
    store = copied(empty(5), place / "store")
    assert workbench.verify(store).equal
    workbench.ingest(store, segments_of(CAPTURE))
    found = workbench.verify(store)
    assert (found.equal, found.records, found.groups) == (True, 0, 0)
    assert export_of(store) == {"groups": {}}


def test_digests_are_those_of_the_records_however_they_were_folded(
    workbench: Workbench,
    folded: Callable[[str], Path],
    empty: Callable[[int], Path],
    place: Path,
    tmp_path: Path,
    chance: random.Random,
) -> None:
    expected = workbench.verify(folded(CAPTURE)).digests
    assert {table for _, table, _ in expected} == {"offset_facts", "group_facts"}
    store, segments = copied(empty(5), place / "store"), segments_of(CAPTURE)
    in_tasks = Workbench(workbench.spark, replace(workbench.settings, fold=FoldSettings(driver_rows=0)))
    workbench.ingest(store, write_prefix(segments, tmp_path / "half", 0.5, chance))
    in_tasks.fold(store)
    assert workbench.verify(store).digests != expected
    workbench.ingest(store, segments)
    in_tasks.fold(store)
    assert in_tasks.verify(store).digests == expected
    maintain_store(workbench.open(store), CLOCK)
    assert clean_log(workbench.open(store), workbench.settings, CLOCK).removed
    for independent in (False, True):
        found = workbench.verify(store, independent=independent)
        assert (found.equal, found.digests) == (True, expected)


def test_a_fault_of_the_fold_is_found_by_the_specification(
    workbench: Workbench, folded: Callable[[str], Path], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = copied(folded(CAPTURE), place / "store")
    expected = workbench.verify(store)
    assert workbench.verify(store, independent=True) == expected
    whole = Replay._modern_offsets

    def loses_an_identity(self: Replay, *arguments: Any) -> tuple[Any, ...]:  # noqa: ANN401
        last, *others = whole(self, *arguments)
        return last[:-1], *others

    monkeypatch.setattr(Replay, "_modern_offsets", loses_an_identity)
    workbench.reload(store)
    assert workbench.verify(store).equal
    found = workbench.verify(store, independent=True)
    assert found.differences == {"offset_facts": 1}
