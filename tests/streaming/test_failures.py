"""A fold that fails before or after any of its commits gives the same state when it is run again (R15).

tests/unit/state/test_dying.py has folds and reloads in the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.fold.state.fold import fold_log, reload_partitions
from offsets_pipeline.store.delta.retry import with_retries
from tests.places import copied, remove_place
from tests.spark.stores import CLOCK, alter, appended, assert_as_reference, log_of, rows_of
from tests.unit.state.dying import TABLES, Died, busy_log, dying

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.spark.stores import Workbench

pytestmark = pytest.mark.streaming


def test_records_that_go_into_quarantine_are_warned_of(
    either_way: Workbench, empty: Callable[[int], Path], place: Path
) -> None:
    location = copied(empty(1), place / "store")
    appended(location, [row for part in busy_log(2) for row in part.rows])
    store, warnings = either_way.open(location), list[str]()
    fold_log(store, either_way.settings, CLOCK, warnings.append)
    corrupt = [row.record_offset for row in log_of(location) if row.key == b"\x00\x01\x00"]
    assert sorted(row["record_offset"] for row in rows_of(location, "quarantine")) == corrupt
    (warning,) = warnings
    assert warning.startswith(
        f"{len(corrupt)} of {len(log_of(location))} records went into quarantine (record {corrupt[0]} of log "
        "partition 0 does not decode: "
    )
    assert fold_log(store, either_way.settings, CLOCK, warnings.append) == 0
    assert len(warnings) == 1


@pytest.mark.parametrize(
    "tables",  # of the commits, which are the same code as in the driver: the first, one between, and the last
    [("offset_facts", "group_facts", "fold_progress"), pytest.param(TABLES, marks=pytest.mark.long)],
    ids=["three", "all"],
)
def test_fold_that_dies_at_any_write_runs_again(
    either_way: Workbench, empty: Callable[[int], Path], place: Path, tables: Sequence[str]
) -> None:
    location = copied(empty(1), place / "store")
    steps = busy_log(len(tables) + 1)
    log = [row for part in steps for row in part.rows]
    for table, part in zip(["fold_progress", *tables], steps, strict=True):
        appended(location, part.rows)
        store = either_way.open(location)
        for when in ("before", "after"):
            with pytest.MonkeyPatch.context() as patch:
                died = dying(table, when, patch)
                with pytest.raises(Died):
                    fold_log(store, either_way.settings, CLOCK)
            assert died == [table]
        # the progress may be committed before the fold died, or only as a fence against the fold that died before
        folded = 0 if table == "fold_progress" and rows_of(location, table) else len(part.rows)
        assert fold_log(store, either_way.settings, CLOCK) == folded
        assert_as_reference(location, [row for row in log if row.record_offset < part.next_offset])
    assert len({row["topic_id"] for row in rows_of(location, "topics")}) == len(steps)


@pytest.fixture(scope="module")
def busily_folded(workbench: Workbench, empty: Callable[[int], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a busy log, folded; take a copy to change anything."""
    location = copied(empty(1), tmp_path_factory.mktemp("busy") / "store")
    for part in busy_log(5):
        appended(location, part.rows)
    workbench.fold(location)
    return location


@pytest.mark.parametrize(
    "table",
    [
        "offset_facts",
        *(pytest.param(each, marks=pytest.mark.long) for each in ("group_records", "consumer_groups")),
        "current_offsets",
        "fold_progress",
    ],
)
def test_reload_that_dies_at_any_write_runs_again(
    either_way: Workbench, busily_folded: Path, place: Path, table: str
) -> None:
    location = copied(busily_folded, place / "store")
    log = log_of(location)
    spoil(location)
    with pytest.MonkeyPatch.context() as patch:
        died = dying(table, "before", patch)
        with pytest.raises(Died):
            either_way.reload(location)
    assert died == [table]
    seen = {row["committed_offset"] for row in rows_of(location, "offset_facts")}
    assert seen == {999, None}  # no reader sees half a reload
    assert either_way.reload(location) == len(log)
    assert_as_reference(location, log)


def spoil(location: Path) -> None:
    """Write wrong rows into the state, for a reload to repair."""
    alter(location, "current_offsets", {"committed_offset": "999"})
    alter(location, "group_records", {"value": "NULL"}, "record_type = 3")


def test_fold_resumes_after_a_crash(workbench: Workbench, empty: Callable[[int], Path], place: Path) -> None:
    location = copied(empty(1), place / "store")
    first, second = busy_log(2)
    appended(location, first.rows)
    assert workbench.fold(location) == len(first.rows)
    appended(location, second.rows)
    with pytest.MonkeyPatch.context() as patch:
        dying("fold_progress", "before", patch)
        with pytest.raises(Died):
            workbench.fold(location)
    assert rows_of(location, "fold_progress")[0]["folded_to"] == first.next_offset
    assert workbench.fold(location) == len(second.rows)
    assert_as_reference(location, log_of(location))


def test_other_errors_are_not_tried_again() -> None:
    tries: list[int] = []
    waits: list[float] = []

    def broken() -> None:
        tries.append(1)
        raise Died

    with pytest.raises(Died):
        with_retries(broken, "a write", waits.append)
    assert (tries, waits) == ([1], [])


def test_reload_of_a_partition_leaves_the_others_alone(
    workbench: Workbench, folded: Callable[[str], Path], place: Path
) -> None:
    location = copied(folded("4.2.0-txn-open"), place / "store")
    alter(location, "current_offsets", {"metadata": "'altered'"})
    reload_partitions(workbench.open(location), [4], workbench.settings, CLOCK)
    altered = {row["log_partition"] for row in rows_of(location, "current_offsets") if row["metadata"] == "altered"}
    assert altered == {0, 1, 2, 3} & {row["log_partition"] for row in rows_of(location, "current_offsets")}
    assert 4 in {row["log_partition"] for row in rows_of(location, "current_offsets")}


@pytest.mark.parametrize("lost", ["offset_facts", "current_offsets", "consumer_groups", "fold_progress"])
def test_reload_creates_a_table_of_the_state_that_was_lost(
    workbench: Workbench, folded: Callable[[str], Path], place: Path, lost: str
) -> None:
    location = copied(folded("4.2.0-txn-open"), place / "store")
    remove_place(location / lost)
    workbench.reload(location)
    assert_as_reference(location, log_of(location))
    assert workbench.verify(location).equal
