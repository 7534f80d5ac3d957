"""An epoch of the log takes over when it counts, and then at one stroke."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.errors import WriteConflict
from offsets_pipeline.fold import reload
from offsets_pipeline.fold.epoch_writer import EpochWriter
from offsets_pipeline.fold.settle import Settler
from offsets_pipeline.fold.stream import start_fold
from offsets_pipeline.log.notes import LogNotes
from offsets_pipeline.query.views import register_views
from tests.kafka.live import wait_until
from tests.logs import capture_rows
from tests.spark.stores import CLOCK, appended, assert_as_reference, copied, export_of, log_of, state_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offsets_pipeline.fold.state import FoldedTo
    from offsets_pipeline.fold.summary import Summary
    from offsets_pipeline.log.rows import LogRow
    from tests.spark.stores import Workbench

pytestmark = [pytest.mark.streaming, pytest.mark.slow]

OLD, NEW = "4.2.0-kip848", "4.2.0-txn-open"


@pytest.fixture
def store(folded: Callable[[str], Path], tmp_path: Path) -> Path:
    """A store that answers from a first epoch."""
    return copied(folded(OLD), tmp_path / "store")


def new_log(start: float = 0, end: float = 1) -> list[LogRow]:
    """Of each log partition this share of its records."""
    parts = (rows[int(start * len(rows)) : int(end * len(rows))] for rows in capture_rows(NEW).values())
    return [row for part in parts for row in part]


def let_it_count(workbench: Workbench, store: Path, epoch: int = 1) -> None:
    notes = LogNotes(workbench.open(store), workbench.settings, CLOCK, epoch)
    notes.bounds(dict.fromkeys(range(5), (0, 10_000)))


def view_of(workbench: Workbench, store: Path) -> list[tuple[object, ...]]:
    register_views(workbench.spark, str(store))
    rows = workbench.spark.sql("SELECT group_id, topic, partition, committed_offset FROM current_offsets ORDER BY ALL")
    return [tuple(row) for row in rows.collect()]


def test_an_epoch_is_not_folded_before_it_counts_and_then_all_of_it(either_way: Workbench, store: Path) -> None:
    before, rows = state_rows(store), new_log()
    appended(store, new_log(0, 0.5), log_epoch=1)
    either_way.fold(store)
    assert state_rows(store) == before
    assert either_way.verify(store).equal
    let_it_count(either_way, store)
    either_way.fold(store)  # although there is nothing new in the log
    assert_as_reference(store, new_log(0, 0.5))
    appended(store, new_log(0.5), log_epoch=1)
    either_way.fold(store)
    assert_as_reference(store, rows)
    assert either_way.verify(store).equal
    folded = state_rows(store)
    either_way.reload(store)
    assert state_rows(store) == folded
    assert len(log_of(store)) > len(rows)  # the older epoch stays as history


def test_readers_see_the_old_state_until_all_of_the_new_one_is_there(
    workbench: Workbench, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, seen = (export_of(store), view_of(workbench, store)), []
    monkeypatch.setattr(Settler, "after_fold", lambda *_: None)  # so rows of both stay
    appended(store, new_log(), log_epoch=1)
    let_it_count(workbench, store)
    write = EpochWriter._write_progress

    def look_and_write(self: EpochWriter, summary: Summary, state: FoldedTo) -> None:
        seen.append((export_of(store), view_of(workbench, store)))
        if len(seen) == 1:  # as if it died here: all is written but what makes it count
            raise WriteConflict
        write(self, summary, state)

    monkeypatch.setattr(EpochWriter, "_write_progress", look_and_write)
    workbench.fold(store)
    assert seen == [before] * 2
    after = (export_of(store), view_of(workbench, store))
    workbench.reload(store)  # of the one epoch alone
    assert (export_of(store), view_of(workbench, store)) == after != before
    assert_as_reference(store, new_log())


def test_an_epoch_without_records_takes_over_too(workbench: Workbench, store: Path) -> None:
    let_it_count(workbench, store)
    workbench.fold(store)
    assert export_of(store) == {"groups": {}}
    assert workbench.verify(store).equal
    assert view_of(workbench, store) == []
    appended(store, new_log(), log_epoch=1)
    workbench.fold(store)
    assert_as_reference(store, new_log())


def test_a_reload_of_one_log_partition_brings_the_whole_epoch(workbench: Workbench, store: Path) -> None:
    appended(store, new_log(), log_epoch=1)
    let_it_count(workbench, store)
    workbench.reload(store, 0)
    assert workbench.verify(store).equal
    assert set(export_of(store)["groups"]) == _groups_of(workbench, store)


def _groups_of(workbench: Workbench, store: Path) -> set[str]:
    register_views(workbench.spark, str(store))
    return {row["group_id"] for row in workbench.spark.table("consumer_groups").collect()}


def test_a_running_stream_notices_an_epoch_also_where_nothing_is_appended(workbench: Workbench, store: Path) -> None:
    before = export_of(store)
    appended(store, new_log(), log_epoch=1)
    stream = start_fold(workbench.open(store), workbench.settings, CLOCK, available_now=False)
    try:
        wait_until(lambda: stream.query.lastProgress is not None, "the stream does not run")
        assert export_of(store) == before
        let_it_count(workbench, store)
        wait_until(lambda: export_of(store) != before, "the epoch does not take over")
    finally:
        stream.stop()
    assert_as_reference(store, new_log())
    assert reload.switch_epoch(workbench.open(store), workbench.settings, CLOCK) == 0
