"""A fold or a reload in the driver that fails at any of its commits gives the same state when it is run again (R15)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from offsets_pipeline.state.fold import fold_log, reload_partitions
from tests.spark.stores import CLOCK, appended, assert_as_reference, log_of, rows_of
from tests.unit.state.dying import TABLES, Died, busy_log, dying

if TYPE_CHECKING:
    from offsets_pipeline.config import Settings
    from offsets_pipeline.store import Store


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


@pytest.mark.parametrize("table", ["committed_offsets", "group_records", "groups", "fold_progress"])
def test_a_reload_in_the_driver_that_dies_at_any_write_runs_again(store: Store, settings: Settings, table: str) -> None:
    for part in busy_log(5):
        appended(store.location, part.rows)
    log = log_of(store.location)
    assert fold_log(store, settings, CLOCK) == len(log)
    DeltaTable(f"{store.location}/committed_offsets").update({"committed_offset": "999"})
    with pytest.MonkeyPatch.context() as patch:
        died = dying(table, "before", patch)
        with pytest.raises(Died):
            reload_partitions(store, None, settings, CLOCK)
    assert died == [table]
    assert rows_of(store.location, "committed_offsets")[0]["committed_offset"] == 999  # no reader sees half a reload
    assert reload_partitions(store, None, settings, CLOCK) == len(log)
    assert_as_reference(store.location, log)
