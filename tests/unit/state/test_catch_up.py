"""When a stream over the log is far behind, and what is done then. Without Spark; tests/streaming has the stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.delta.schemas import LOG
from offsets_pipeline.log.append import LATE
from offsets_pipeline.log.stream_checkpoint import StreamCheckpoint
from offsets_pipeline.state.fold import fold_log
from offsets_pipeline.stream import catch_up as catch_up_module
from offsets_pipeline.stream.catch_up import catch_up
from tests.folded_stores import opened
from tests.logs import LogPartition
from tests.spark.stores import CLOCK, appended, assert_as_reference, log_of, versions

if TYPE_CHECKING:
    from offsets_pipeline.config import Settings
    from offsets_pipeline.store import Store


@pytest.fixture(autouse=True)
def few_commits_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four unread commits are far behind."""
    monkeypatch.setattr(catch_up_module, "FAR_BEHIND", 4)


@pytest.fixture
def log(store: Store, settings: Settings) -> LogPartition:
    """The log of the store; its first three records are folded, and a stream has read their commit."""
    log = LogPartition(0, start=1)
    for number in range(3):
        log.commit(("g", "t", number), number)
    appended(store.location, log.rows)
    fold_log(store, settings, CLOCK)
    folder = Path(store.checkpoint("fold"))
    offset = {"reservoirVersion": store.version(LOG.name) + 1, "index": -1, "isStartingVersion": False}
    for name, line in {"offsets/0": json.dumps(offset), "commits/0": "{}"}.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(f"v1\n{line}")
    return log


def commit(store: Store, log: LogPartition, commits: int) -> None:
    for _ in range(commits):
        log.rows.clear()
        log.commit(("g", "t", log.next_offset % 4), log.next_offset)
        appended(store.location, log.rows)


def test_a_stream_far_behind_continues_behind_what_was_folded(
    store: Store, log: LogPartition, settings: Settings
) -> None:
    commit(store, log, 4)
    folded: list[int] = []
    assert catch_up(store, store.checkpoint("fold"), settings, CLOCK, [folded.append])
    assert folded == [4]
    assert StreamCheckpoint(store.checkpoint("fold")).unread_version() == store.version(LOG.name) + 1
    assert_as_reference(store.location, log_of(store.location))


def test_a_stream_a_few_commits_behind_reads_them(store: Store, log: LogPartition, settings: Settings) -> None:
    commit(store, log, 3)
    assert_left_to_the_stream(store, settings)


def test_a_stream_without_a_checkpoint_reads_the_log(store: Store, log: LogPartition, settings: Settings) -> None:
    commit(store, log, 9)
    assert not catch_up(store, f"{store.location}/elsewhere", settings, CLOCK)


@pytest.mark.parametrize("commits_before", [0, 2])
def test_a_stream_that_has_late_records_to_read_reads_them(
    store: Store, log: LogPartition, settings: Settings, commits_before: int
) -> None:  # R15
    commit(store, log, commits_before)
    table = store.table(LOG.name)
    table.commit(seen=table.snapshot(), advance={LATE: 0})  # an ingest does it in the commit of the late records
    late = LogPartition()
    late.commit(("late", "t", 0), 0)
    appended(store.location, late.rows, backfill=True)
    commit(store, log, 9)
    assert_left_to_the_stream(store, settings)


def assert_left_to_the_stream(store: Store, settings: Settings) -> None:
    before, unread = versions(Path(store.location)), StreamCheckpoint(store.checkpoint("fold")).unread_version()
    assert not catch_up(store, store.checkpoint("fold"), settings, CLOCK)
    assert versions(Path(store.location)) == before
    assert StreamCheckpoint(store.checkpoint("fold")).unread_version() == unread


@pytest.mark.parametrize("lost", [1, 2])
def test_records_that_the_progress_lost_are_folded_before_the_stream_goes_on(
    store: Store, log: LogPartition, settings: Settings, lost: int
) -> None:  # R11
    producer_id = 7
    for _ in range(lost):
        log.rows.clear()
        log.commit(("g", "t", 0), log.next_offset, producer_id)
        appended(store.location, log.rows)
        fold_log(store, settings, CLOCK)
    checkpoint = Path(store.checkpoint("fold"))
    offset = {"reservoirVersion": store.version(LOG.name) + 1, "index": -1, "isStartingVersion": False}
    for name, line in {"offsets/1": json.dumps(offset), "commits/1": "{}"}.items():
        (checkpoint / name).write_text(f"v1\n{line}")
    commits = sorted(Path(store.location, "fold_progress", "_delta_log").glob("*.json"))
    for each in commits[-lost:]:
        each.unlink()
    folded: list[int] = []
    catch_up(opened(Path(store.location)), store.checkpoint("fold"), settings, CLOCK, [folded.append])
    assert folded == [lost]
    log.rows.clear()
    log.end_commit(producer_id)
    appended(store.location, log.rows)
    fold_log(opened(Path(store.location)), settings, CLOCK)
    assert_as_reference(store.location, log_of(store.location))
