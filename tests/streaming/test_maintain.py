"""Maintenance while a stream runs: few files and no unused files remain, and the stream continues."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from offsets_pipeline.common.clock import SystemClock
from offsets_pipeline.common.config.sections import LogSettings
from offsets_pipeline.fold.maintenance import maintain_store
from offsets_pipeline.fold.state.merge_on_read import STATE_TABLES
from offsets_pipeline.store.delta.schemas import TABLES
from tests.logs import LogPartition
from tests.places import copied
from tests.spark.stores import appended, assert_as_reference, export_of, log_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.spark.stores import Workbench

pytestmark = [pytest.mark.streaming, pytest.mark.slow]


def live_files(location: Path, table: str) -> set[str]:
    return set(DeltaTable(location / table).file_uris())


def stored_files(location: Path, table: str) -> set[str]:
    return {str(path) for path in (location / table).rglob("*.parquet") if "_delta_log" not in path.parts}


def appended_steps(location: Path, log: LogPartition, steps: int) -> None:
    for _ in range(steps):
        log.commit(("g", "t", log.next_offset % 3), log.next_offset)
        log.group(2, "classic", generation=log.next_offset)
        appended(location, log.rows)
        log.rows.clear()


def test_stream_goes_on_and_dead_files_go(workbench: Workbench, empty: Callable[[int], Path], place: Path) -> None:
    location = copied(empty(1), place / "store")
    for each in TABLES:
        at_once = {"delta.deletedFileRetentionDuration": "interval 0 hours"}
        DeltaTable(location / each.name).alter.set_table_properties(at_once)
    log = LogPartition()
    for _ in range(2):
        appended_steps(location, log, 2)
        assert workbench.fold(location) == 4
    appended_steps(location, log, 3)  # no fold has read these
    unfolded = len(live_files(location, "log"))
    store = workbench.open(location)
    done = {each.table: each for each in maintain_store(store, SystemClock())}
    assert len(live_files(location, "log")) == 1
    assert (done["log"].files_before, done["log"].files, done["log"].removed) == (unfolded, 1, unfolded)
    for table in STATE_TABLES:
        for name in table.names:
            assert stored_files(location, name) == live_files(location, name)
            assert done[name].removed >= done[name].files_before
            rows = DeltaTable(location / name).to_pyarrow_table()
            assert rows.num_rows == rows.group_by(list(table.key)).aggregate([]).num_rows
    assert workbench.fold(location) == 6
    assert_as_reference(location, log_of(location))
    maintain_store(store, SystemClock())
    assert stored_files(location, "log") == live_files(location, "log")
    assert_as_reference(location, log_of(location))


def test_history_that_is_not_wanted_goes(
    workbench: Workbench, folded: Callable[[str], Path], place: Path
) -> None:  # R23
    location = copied(folded("4.2.0-kip848"), place / "store")
    rows, answers = log_of(location), export_of(location)
    store = workbench.open(location)
    maintain_store(store, SystemClock(), workbench.settings)  # by default all is
    assert log_of(location) == rows
    wanted = replace(workbench.settings, log=LogSettings(history_hours=1))
    done = {each.table: each for each in maintain_store(store, SystemClock(), wanted)}
    assert len(log_of(location)) < len(rows)
    assert done["log"].bytes < done["log"].bytes_before
    assert export_of(location) == answers
    assert workbench.verify(location).equal


def test_upkeep_beside_a_stream_removes_history_that_is_not_wanted(
    workbench: Workbench, folded: Callable[[str], Path], place: Path
) -> None:  # R23
    location = copied(folded("4.2.0-kip848"), place / "store")
    rows, answers = log_of(location), export_of(location)
    store = workbench.open(location)
    wanted = replace(workbench.settings, log=LogSettings(history_hours=1))
    done = {each.table: each for each in maintain_store(store, SystemClock(), wanted, publishes=False)}
    assert len(log_of(location)) < len(rows)
    assert done["log"].bytes < done["log"].bytes_before
    assert export_of(location) == answers
    assert workbench.verify(location).equal
