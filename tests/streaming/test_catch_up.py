"""A stream that is far behind folds the log's files at once, and Spark continues behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.clock import SystemClock
from offsets_pipeline.log.stream_checkpoint import StreamCheckpoint
from offsets_pipeline.maintenance import maintain_store
from offsets_pipeline.stream import catch_up as catch_up_module
from offsets_pipeline.stream.fold_stream import start_fold
from tests.logs import LogPartition
from tests.spark.stores import CLOCK, appended, assert_as_reference, copied, log_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.spark.stores import Workbench

pytestmark = pytest.mark.streaming


@pytest.fixture(autouse=True)
def few_commits_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four unread commits are far behind."""
    monkeypatch.setattr(catch_up_module, "FAR_BEHIND", 4)


@pytest.fixture
def behind(workbench: Workbench, empty: Callable[[int], Path], tmp_path: Path) -> tuple[Path, LogPartition]:
    """A store whose stream has read one commit and not the next five, which upkeep has compacted; and its log."""
    location, log = copied(empty(1), tmp_path / "store"), LogPartition()
    append(location, log, commits=1)
    assert folds(workbench, location) == [(0, 2)]
    append(location, log, commits=5)
    maintain_store(workbench.open(location), SystemClock())
    return location, log


def append(location: Path, log: LogPartition, *, commits: int) -> None:
    for _ in range(commits):
        log.rows.clear()
        log.commit(("g", "t", log.next_offset % 3), log.next_offset)
        log.group(2, "classic", generation=log.next_offset)
        appended(location, log.rows)


def folds(workbench: Workbench, location: Path) -> list[tuple[int, int]]:
    """Fold to the end of the log; returns batch ids and records."""
    found: list[tuple[int, int]] = []
    start_fold(
        workbench.open(location),
        workbench.settings,
        CLOCK,
        available_now=True,
        on_batch=lambda batch_id, records: found.append((batch_id, records)),
    ).await_end()
    assert_as_reference(location, log_of(location))
    return found


def test_a_stream_far_behind_folds_the_compacted_files_and_continues_with_its_next_batch(
    workbench: Workbench, behind: tuple[Path, LogPartition]
) -> None:
    location, log = behind
    assert folds(workbench, location) == [(-1, 10)]  # and no batch: Spark reads none of the five commits
    assert folds(workbench, location) == []
    append(location, log, commits=1)
    assert folds(workbench, location) == [(2, 2)]


def test_a_stream_that_dies_while_it_catches_up_reads_again_what_is_folded(
    workbench: Workbench, behind: tuple[Path, LogPartition], monkeypatch: pytest.MonkeyPatch
) -> None:  # R15
    location, log = behind

    def die(*_: object) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(StreamCheckpoint, "advance", die)
        with pytest.raises(OSError, match="killed"):
            folds(workbench, location)
    assert folds(workbench, location) == [(-1, 0)]
    (location / "_checkpoints" / "fold" / "commits" / "1").unlink()  # died before the last file
    append(location, log, commits=1)
    assert sum(records for _, records in folds(workbench, location)) == 2
    append(location, log, commits=4)
    assert folds(workbench, location) == [(-1, 8)]
