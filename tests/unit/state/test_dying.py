"""A fold or a reload in the driver that fails at any of its commits gives the same state when it is run again (R15)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from offsets_pipeline.errors import DamagedTable
from offsets_pipeline.fold.state.fold import fold_log, reload_partitions
from offsets_pipeline.fold.state.merge_on_read import OFFSETS
from offsets_pipeline.fold.state.publishing import publish
from tests.parameters import crossed
from tests.spark.stores import CLOCK, appended, assert_as_reference, log_of, rows_of
from tests.unit.state.dying import TABLES, Died, busy_log, dying
from tests.unit.state.state_files import in_order, progress_of, put

if TYPE_CHECKING:
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.store.store import Store


def test_a_fold_in_the_driver_that_dies_at_any_write_runs_again(store: Store, settings: Settings) -> None:
    steps = busy_log(len(TABLES))
    for table, part in zip(TABLES, steps, strict=True):
        appended(store.location, part.rows)
        for when in ("before", "after"):
            with pytest.MonkeyPatch.context() as patch:
                died = dying(table, when, patch)
                with pytest.raises(Died):
                    fold_log(store, settings, CLOCK)
            assert died == [table]
        folded = 0 if table == "fold_progress" else len(part.rows)  # the commit was made before the fold died
        assert fold_log(store, settings, CLOCK) == folded
        assert_as_reference(store.location, log_of(store.location))
    assert len({row["topic_id"] for row in rows_of(store.location, "topics")}) == len(steps)


REPLACED = ["offset_facts", "group_records", "group_facts", "consumer_groups", "current_offsets", "fold_progress"]


@pytest.mark.parametrize(("table", "when", "times"), crossed(REPLACED, ["before", "after"], [1, 2]))
def test_a_reload_in_the_driver_that_dies_at_any_write_runs_again(
    store: Store, settings: Settings, table: str, when: str, times: int
) -> None:
    for part in busy_log(5):
        appended(store.location, part.rows)
    log = log_of(store.location)
    assert fold_log(store, settings, CLOCK) == len(log)
    rows = published_rows(store)
    put(store.table("current_offsets"), [row | {"committed_offset": 999} for row in rows])
    progress = progress_of(store)
    progress.swap(progress.partitions, {"current_offsets": store.version("current_offsets")})
    for _ in range(times):
        with pytest.MonkeyPatch.context() as patch:
            died = dying(table, when, patch)
            with pytest.raises(Died):
                reload_partitions(store, None, settings, CLOCK)
        assert died == [table]
        is_complete = progress_of(store).incarnations != progress.incarnations
        assert is_complete == ((table, when) == ("fold_progress", "after"))
        offsets = rows_of(store.location, "offset_facts")
        seen = {row["committed_offset"] for row in offsets if not row["misplaced"]} - {None}
        assert (seen == {999}) is not is_complete  # no reader sees half a reload
    assert reload_partitions(store, None, settings, CLOCK) == len(log)
    assert published_rows(store) == rows
    assert_as_reference(store.location, log)


def test_a_state_that_another_program_changed_is_made_again(store: Store, settings: Settings) -> None:
    for part in busy_log(2):
        appended(store.location, part.rows)
    fold_log(store, settings, CLOCK)
    rows = published_rows(store)
    DeltaTable(f"{store.location}/current_offsets").update({"committed_offset": "999"})
    for question in (lambda: rows_of(store.location, "offset_facts"), lambda: publish(store, CLOCK)):
        with pytest.raises(
            DamagedTable, match=r"current_offsets was changed by another program.*UPDATE.* offsets reload"
        ):
            question()
    reload_partitions(store, None, settings, CLOCK)
    assert published_rows(store) == rows
    assert_as_reference(store.location, log_of(store.location))


def published_rows(store: Store) -> list[dict[str, Any]]:
    """The rows of `current_offsets`, in order."""
    return in_order(OFFSETS, DeltaTable(f"{store.location}/current_offsets").to_pyarrow_table())
