"""A new incarnation of the log takes over in one commit, when it counts."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.errors import CommitUnknown, StorageFailed, StorageRefused, StreamFailed
from offsets_pipeline.fold.maintenance import maintain_store
from offsets_pipeline.fold.state.fold import fold_log
from offsets_pipeline.fold.state.fold_progress import FoldProgress
from offsets_pipeline.fold.state.merge_on_read import STATE_TABLES
from offsets_pipeline.fold.stream import fold_stream, folding
from offsets_pipeline.fold.stream import folding as publisher_module
from offsets_pipeline.fold.stream.fold_stream import start_fold
from offsets_pipeline.fold.stream.folding import Folding, Publisher
from offsets_pipeline.questions.query.retention_forecast import retention_inputs
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.store.log.clean import clean_log
from offsets_pipeline.store.log.metadata import LogMetadata
from offsets_pipeline.store.store import Store
from tests.kafka.live import wait_until
from tests.logs import capture_rows
from tests.places import copied
from tests.spark.stores import (
    AFTER_CAPTURES,
    CLOCK,
    appended,
    assert_as_reference,
    described_offsets,
    export_of,
    log_of,
    rows_of,
    segments_of,
    state_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offsets_pipeline.fold.state.fold_progress import PartitionProgress
    from offsets_pipeline.semantics.log_row import LogRow
    from offsets_pipeline.store.store_snapshot import LogIncarnation
    from tests.spark.stores import Workbench

    Partitions = dict[int, PartitionProgress]

pytestmark = [pytest.mark.streaming, pytest.mark.slow]

either_reload = pytest.mark.parametrize("log_partitions", [[], [0, 1]], ids=["all", "two log partitions"])
OLD, NEW = "4.2.0-kip848", "4.2.0-txn-open"


class Died(Exception):
    """Raised by a test in the middle of a fold."""


@pytest.fixture
def store(folded: Callable[[str], Path], place: Path) -> Path:
    """A store that answers from a first log incarnation."""
    return copied(folded(OLD), place / "store")


def new_log(start: float = 0, end: float = 1) -> list[LogRow]:
    """Of each log partition this share of its records."""
    parts = (rows[int(start * len(rows)) : int(end * len(rows))] for rows in capture_rows(NEW).values())
    return [row for part in parts for row in part]


def assert_state_is_of(store: Path, rows: list[LogRow]) -> None:
    """Assert that the state is that of these rows, with names of topic ids of the older log incarnation."""
    assert_as_reference(store, rows, earlier=[row for part in capture_rows(OLD).values() for row in part])


def let_it_count(workbench: Workbench, store: Path, log_incarnation: int = 1) -> None:
    notes = LogMetadata(workbench.open(store), CLOCK, log_incarnation)
    notes.bounds(dict.fromkeys(range(5), (0, 10_000)))


def a_new_log_incarnation_counts(workbench: Workbench, store: Path) -> None:
    appended(store, new_log(), log_incarnation=1)
    let_it_count(workbench, store)


def answers(store: Path) -> tuple[object, ...]:
    inputs = retention_inputs(StateReader(str(store), at_most=0))
    held = [(each.group_id, len(each.offsets), each.pending) for each in inputs]
    return export_of(store), held


def incarnations_of(store: Path) -> set[int]:
    """The state incarnations of the facts."""
    tables = (DeltaTable(store / each.name).to_pyarrow_table() for each in STATE_TABLES)
    return {incarnation for table in tables for incarnation in table["incarnation"].to_pylist()}


def view_of(workbench: Workbench, store: Path) -> list[tuple[object, ...]]:
    query = "SELECT group_id, topic, partition, committed_offset FROM current_offsets"
    return sorted(map(tuple, workbench.sql(store, query)))


def test_log_incarnation_is_folded_as_a_whole_once_it_counts(either_way: Workbench, store: Path) -> None:
    before, rows = state_rows(store), new_log()
    appended(store, new_log(0, 0.5), log_incarnation=1)
    either_way.fold(store)
    assert state_rows(store) == before
    let_it_count(either_way, store)
    either_way.fold(store)  # although there is nothing new in the log
    assert_state_is_of(store, new_log(0, 0.5))
    appended(store, new_log(0.5), log_incarnation=1)
    either_way.fold(store)
    assert_state_is_of(store, rows)
    folded = state_rows(store)
    either_way.reload(store)
    assert state_rows(store) == folded
    assert len(log_of(store)) > len(rows)  # the older log incarnation stays as history


def test_readers_see_the_old_state_until_all_of_the_new_one_is_there(
    workbench: Workbench, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # but for Spark's, between the commits of published rows and the one that names them (docs/adr/0037)
    before, seen = answers(store), []
    appended(store, new_log(), log_incarnation=1)
    assert workbench.verify(store).equal  # of the log incarnation that counts
    let_it_count(workbench, store)
    replace = FoldProgress.replace

    def look_and_replace(self: FoldProgress, *more: Any) -> None:  # noqa: ANN401
        seen.append(answers(store))
        if len(seen) == 1:  # as if it died here: everything is written but what names it
            raise Died
        monkeypatch.undo()
        replace(self, *more)

    monkeypatch.setattr(FoldProgress, "replace", look_and_replace)
    with pytest.raises(Died):
        workbench.fold(store)
    workbench.fold(store)
    assert seen == [before] * 2
    after = answers(store)
    assert view_of(workbench, store) == described_offsets(store)
    assert incarnations_of(store) == {1, 2, 3}  # for readers that began with the older one
    workbench.reload(store)  # of the one log incarnation alone
    assert answers(store) == after != before
    assert_state_is_of(store, new_log())


def test_a_log_incarnation_without_records_takes_over_too(workbench: Workbench, store: Path) -> None:
    let_it_count(workbench, store)
    workbench.fold(store)
    assert export_of(store) == {"groups": {}}
    assert workbench.verify(store).equal
    assert view_of(workbench, store) == []
    appended(store, new_log(), log_incarnation=1)
    workbench.fold(store)
    assert_state_is_of(store, new_log())


def test_a_reload_of_one_log_partition_brings_the_whole_log_incarnation(workbench: Workbench, store: Path) -> None:
    a_new_log_incarnation_counts(workbench, store)
    workbench.reload(store, 0)
    assert workbench.verify(store).equal
    assert set(export_of(store)["groups"]) == _groups_of(workbench, store)


def _groups_of(workbench: Workbench, store: Path) -> set[str]:
    return {row["group_id"] for row in workbench.sql(store, "SELECT group_id FROM consumer_groups")}


def test_running_stream_notices_a_new_log_incarnation_without_an_append(workbench: Workbench, store: Path) -> None:
    before = export_of(store)
    appended(store, new_log(), log_incarnation=1)
    stream = start_fold(Folding(workbench.open(store), workbench.settings, CLOCK))
    try:
        wait_until(lambda: stream.query.lastProgress is not None, "the stream does not run")
        assert export_of(store) == before
        let_it_count(workbench, store)
        wait_until(lambda: export_of(store) != before, "the log incarnation does not take over")
    finally:
        stream.stop()
    assert_state_is_of(store, new_log())
    assert workbench.fold(store) == 0


def test_stream_ends_with_the_error_of_a_fold(
    workbench: Workbench, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the disk is gone\nand a stack with it")

    monkeypatch.setattr(folding, "fold_log", broken)
    running = start_fold(Folding(workbench.open(store), workbench.settings, CLOCK))
    with pytest.raises(StreamFailed, match=r"^the fold of the log stopped: the disk is gone$"):
        running.await_end()


def test_stream_goes_on_after_errors_that_may_pass_and_ends_with_another_one(
    workbench: Workbench, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [StorageFailed("503"), StorageFailed("503"), CommitUnknown("no answer"), None, StorageRefused("403")]
    folded, warnings = threading.Event(), list[str]()

    def fold_or_fail(*arguments: Any) -> int:  # noqa: ANN401
        error = errors.pop(0)
        if error is not None:
            raise error
        records = fold_log(*arguments)
        folded.set()
        return records

    monkeypatch.setattr(folding, "fold_log", fold_or_fail)
    monkeypatch.setattr(fold_stream, "_RETRY_SECONDS", 0.01)
    a_new_log_incarnation_counts(workbench, store)
    running = start_fold(Folding(workbench.open(store), workbench.settings, CLOCK, warn=warnings.append))
    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(running.await_end)
        try:
            wait_until(folded.is_set, "the stream does not go on", 120, lambda: str((warnings, errors)))
            assert_state_is_of(store, new_log())
            appended(store, [new_log()[-1]._replace(record_offset=1_000_000)], log_incarnation=1)
            with pytest.raises(StorageRefused, match=r"^403$"):
                ended.result(60)
        finally:
            running.stop()
    assert warnings == ["503; trying again", "no answer; trying again", "the fold goes on"]


def test_batch_during_the_switch_of_another_process_is_folded(
    workbench: Workbench, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended(store, new_log(0, 0.5), log_incarnation=1)
    let_it_count(workbench, store)
    log_is_read, go_on = threading.Event(), threading.Event()
    replace = FoldProgress.replace

    def wait_and_replace(self: FoldProgress, *more: Any) -> None:  # noqa: ANN401
        log_is_read.set()
        assert go_on.wait(60)
        replace(self, *more)

    def taken_over_since(of: Store) -> LogIncarnation:
        monkeypatch.undo()
        go_on.set()
        other.join()
        return of.current_log()

    monkeypatch.setattr(FoldProgress, "replace", wait_and_replace)
    other = threading.Thread(target=workbench.reload, args=[store])
    other.start()
    assert log_is_read.wait(60)
    appended(store, new_log(0.5), log_incarnation=1)
    monkeypatch.setattr(Store, "current_log", taken_over_since)  # the batch has read the progress by then
    workbench.fold(store)
    assert_state_is_of(store, new_log())


@either_reload
def test_reload_of_a_superseded_log_incarnation_changes_nothing(
    workbench: Workbench, store: Path, monkeypatch: pytest.MonkeyPatch, log_partitions: list[int]
) -> None:
    replace = FoldProgress.replace

    def after_another_took_over(self: FoldProgress, *more: Any) -> None:  # noqa: ANN401
        monkeypatch.undo()
        a_new_log_incarnation_counts(workbench, store)
        workbench.fold(store)
        replace(self, *more)

    monkeypatch.setattr(FoldProgress, "replace", after_another_took_over)
    workbench.reload(store, *log_partitions)
    assert_state_is_of(store, new_log())


@either_reload
def test_log_incarnation_takes_over_also_after_a_concurrent_reload(
    workbench: Workbench, store: Path, monkeypatch: pytest.MonkeyPatch, log_partitions: list[int]
) -> None:
    a_new_log_incarnation_counts(workbench, store)
    older = workbench.open(store).log_incarnations()[-2]
    replace = FoldProgress.replace

    def after_a_reload(self: FoldProgress, *more: Any) -> None:  # noqa: ANN401
        monkeypatch.undo()
        with pytest.MonkeyPatch.context() as patch:  # a reload that looked before the log incarnation counted
            patch.setattr(Store, "current_log", lambda _: older)
            workbench.reload(store, *log_partitions)
        replace(self, *more)

    monkeypatch.setattr(FoldProgress, "replace", after_a_reload)
    workbench.fold(store)
    assert_state_is_of(store, new_log())


def test_describe_that_began_on_the_older_log_incarnation_finishes_on_it(
    workbench: Workbench, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, names = export_of(store), StateReader.topic_names

    def after_another_took_over(reader: StateReader) -> dict[str, str]:
        monkeypatch.undo()
        a_new_log_incarnation_counts(workbench, store)
        workbench.fold(store)
        maintain_store(workbench.open(store), CLOCK)
        return names(reader)

    monkeypatch.setattr(StateReader, "topic_names", after_another_took_over)
    assert export_of(store) == before
    assert incarnations_of(store) == {2}
    assert export_of(store) != before


def test_rows_of_an_older_log_incarnation_are_dropped_when_no_reader_needs_them(
    workbench: Workbench, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = Publisher(workbench.open(store), workbench.settings.fold, CLOCK, pytest.fail)
    a_new_log_incarnation_counts(workbench, store)
    workbench.fold(store)
    for _ in range(2):
        publisher.finish()
    assert incarnations_of(store) == {1, 2}
    monkeypatch.setattr(publisher_module, "_REST_SECONDS", 0)
    publisher.finish()
    assert incarnations_of(store) == {2}
    assert_state_is_of(store, new_log())


def test_cleaning_removes_a_superseded_log_incarnation(
    workbench: Workbench, empty: Callable[[int], Path], place: Path
) -> None:
    store = copied(empty(5), place / "store")
    workbench.ingest(store, segments_of(OLD), clock=AFTER_CAPTURES)
    workbench.fold(store)
    old = rows_of(store, "log")
    times = sorted(row["record_timestamp"] for row in old)
    middle_ms = times[len(times) // 2] // 1000
    a_new_log_incarnation_counts(workbench, store)
    clean_log(workbench.open(store), workbench.settings, CLOCK, dry_run=True)
    assert sum(row["log_incarnation"] == 0 for row in rows_of(store, "log")) == len(old)
    workbench.fold(store)
    later = FixedClock(middle_ms + 3_600_000)
    done = clean_log(workbench.open(store), workbench.settings, later, older_than_ms=3_600_000)
    left = rows_of(store, "log")
    young = [row for row in old if row["record_timestamp"] >= middle_ms * 1000]
    assert 0 < len(young) < len(old)
    assert sorted((row for row in left if row["log_incarnation"] == 0), key=str) == sorted(young, key=str)
    assert done.removed == len(old) + len(new_log()) - len(left)
    assert workbench.verify(store).equal

    clean_log(workbench.open(store), workbench.settings, CLOCK)
    assert {row["log_incarnation"] for row in rows_of(store, "log")} == {1}
    assert workbench.verify(store).equal
