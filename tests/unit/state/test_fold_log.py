"""Folds of the log's files, for a stream that is far behind. Without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.delta.properties import FORMAT_VERSION
from offsets_pipeline.delta.schemas import LOG
from offsets_pipeline.errors import NotAStore
from offsets_pipeline.log.append import LogAppender
from offsets_pipeline.maintenance import maintain_beside_fold
from offsets_pipeline.state.fold import fold_log
from offsets_pipeline.state.fold_progress import FoldProgress
from tests.logs import LogPartition
from tests.spark.stores import CLOCK, appended, assert_as_reference, log_of, versions
from tests.unit.state.state_files import progress_of

if TYPE_CHECKING:
    from offsets_pipeline.config import Settings
    from offsets_pipeline.store import Store


@pytest.fixture
def behind(store: Store, settings: Settings) -> Store:
    """A store that is folded up to an open transaction, and has 12 commits to the table `log` after it."""
    log, other = LogPartition(0), LogPartition(1)
    for number in range(3):
        log.commit(("g", "a", number), number)
        other.group(2, f"classic{number}")
    log.commit(("g", "open", 0), 7, producer_id=1)
    log.commit(("g", "open", 1), 8, producer_id=2)
    appended(store.location, [*log.rows, *other.rows])
    assert fold_log(store, settings, CLOCK) == 8
    for number in range(10):
        log.rows.clear()
        log.commit(("g", "a", number % 4), 100 + number)
        appended(store.location, log.rows)
    log.rows.clear()
    log.delete(("g", "a", 0))
    log.end_commit(1)
    appended(store.location, log.rows)
    other.rows.clear()
    other.group_tombstone(2, "classic0")
    appended(store.location, other.rows)
    return store


def test_a_fold_of_the_log_takes_what_came_after_the_last_fold_and_only_once(
    behind: Store, settings: Settings
) -> None:  # R11, R15
    assert fold_log(behind, settings, CLOCK) == 13
    assert progress_of(behind).incarnations == {0: 1, 1: 1}  # it continues the state
    assert_as_reference(behind.location, log_of(behind.location))
    folded = versions(Path(behind.location))
    assert fold_log(behind, settings, CLOCK) == 0
    assert versions(Path(behind.location)) == folded


def test_a_running_program_notices_a_newer_format_of_the_store(behind: Store, settings: Settings) -> None:
    """As `follow`, a fold, `snapshot` and repeated upkeep, each before it writes."""
    log = behind.table(LOG.name)
    ingest = LogAppender(behind)
    file = log.write_file(log.snapshot().rows().slice(0, 1))
    seen = log.snapshot()
    newer = str(int(FORMAT_VERSION) + 1)
    metadata = log.with_properties(seen, {"offsets.format.version": newer})
    path = Path(log.folder, "_delta_log", f"{seen.version + 1:020d}.json")
    path.write_text(json.dumps({"metaData": metadata}), encoding="utf-8")  # as a newer version of the program does
    before = versions(Path(behind.location))
    for write in (
        lambda: fold_log(behind, settings, CLOCK),
        lambda: maintain_beside_fold(behind, CLOCK, None, lambda: False),
        lambda: ingest.append_files([file]),
        lambda: LogAppender(behind),
    ):
        reason = f"it has format {newer}, this program reads {FORMAT_VERSION}; use a newer"
        with pytest.raises(NotAStore, match=f"{behind.location}: {reason}"):
            write()
    assert versions(Path(behind.location)) == before


def test_a_fold_of_the_log_that_dies_before_it_notes_its_progress_runs_again(
    behind: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:  # R15
    with monkeypatch.context() as patch:
        patch.setattr(FoldProgress, "swap", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            fold_log(behind, settings, CLOCK)
    assert fold_log(behind, settings, CLOCK) == 13
    assert_as_reference(behind.location, log_of(behind.location))
