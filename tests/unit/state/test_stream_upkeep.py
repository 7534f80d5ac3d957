"""Upkeep beside a stream, at a time that the test sets and without Spark."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from offsets_pipeline.common.clock import FixedClock, SystemClock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.common.config.sections import FoldSettings, LogSettings
from offsets_pipeline.errors import StorageFailed, WriteConflict
from offsets_pipeline.fold import maintenance
from offsets_pipeline.fold.maintenance import Upkeep, maintain_store
from offsets_pipeline.fold.state.fold import fold_log, reload_partitions
from offsets_pipeline.fold.state.merge_on_read import RECORDS
from offsets_pipeline.fold.stream import folding
from offsets_pipeline.fold.stream.folding import StreamUpkeep
from offsets_pipeline.store.delta.schemas import LATER_TABLES, LOG, TABLES
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.delta.upkeep import compact, live, never, vacuum
from offsets_pipeline.store.log.clean import Cleaned
from tests.logs import LogPartition
from tests.places import place_of
from tests.spark.stores import appended, log_of
from tests.unit.state.state_files import published
from tests.unit.test_periodic import HOUR_MS, Waits

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from offsets_pipeline.common.clock import Clock
    from offsets_pipeline.store.store import Store

BEGIN_MS = SystemClock().now_ms()  # the commits of the tables have the machine's time


class Running:
    """Upkeep that runs in the test's thread, on a clock of its own, and what it says."""

    def __init__(self, store: Store, runs: int, settings: Settings | None = None) -> None:
        self.clock = FixedClock(BEGIN_MS)
        self.stopped = Waits(self.clock)
        self.done: list[Sequence[Upkeep]] = []
        self.done_at: list[int] = []
        self.warnings: list[str] = []
        self._end_ms = BEGIN_MS + runs * HOUR_MS
        wanted = settings or Settings()
        hourly = replace(wanted, fold=replace(wanted.fold, upkeep_interval_ms=HOUR_MS))
        upkeep = StreamUpkeep(store, self, hourly, self.on_upkeep, self.warnings.append)
        upkeep._stopped = self.stopped
        for _ in upkeep.results():
            pass

    def now_ms(self) -> int:
        now_ms = self.clock.now_ms()
        if now_ms > self._end_ms:
            self.stopped.set()
        return now_ms

    def on_upkeep(self, done: Sequence[Upkeep]) -> None:
        self.done.append(done)
        self.done_at.append(self.clock.now_ms() - BEGIN_MS)


def keeps_nothing(store: Store) -> Store:
    """The store, whose tables keep no file that they have dropped."""
    for each in store.tables:
        table = store.table(each.name)
        seen = table.snapshot()
        properties = {"delta.deletedFileRetentionDuration": "interval 0 hours"}
        table.commit(seen=seen, metadata=table.with_properties(seen, properties))
    return store


def append_batches(store: Store, batches: int) -> None:
    log = LogPartition()
    for _ in range(batches):
        log.commit(("g", "t", log.next_offset % 3), log.next_offset)
        appended(store.location, log.rows)
        log.rows.clear()


def of_log(running: Running) -> tuple[int, int, int]:
    """Files of the log before and after its one upkeep, and removed files."""
    assert len(running.done) == 1
    (log,) = [each for each in running.done[0] if each.table == LOG.name]
    return log.files_before, log.files, log.removed


def stored_files(store: Store, table: str = LOG.name) -> int:
    return sum("_delta_log" not in path.parts for path in place_of(store.location, table).rglob("*.parquet"))


def incarnations(store: Store) -> list[str]:
    """The incarnation of each file of facts about groups' records, which are never published."""
    return sorted(file.partition["incarnation"] for file in store.table(RECORDS.name).snapshot().files())


def test_every_interval_small_files_of_the_log_become_one_and_old_files_go(store: Store) -> None:
    append_batches(keeps_nothing(store), 12)
    rows = log_of(store.location)
    running = Running(store, 3, Settings(log=LogSettings(offsets_topic_compression_codec="gzip")))
    assert running.done_at == [HOUR_MS]  # later runs find nothing to do, and say nothing
    (done,) = running.done
    assert [each.table for each in done] == [each.name for each in TABLES]
    assert {each.table: (each.files_before, each.files, each.removed) for each in done if each.files} == {
        "log": (12, 1, 12)
    }
    assert stored_files(store) == 1
    (file,) = store.table(LOG.name).snapshot().files()
    with store.table(LOG.name).open_file(file) as parquet:
        codec = parquet.metadata.row_group(0).column(0).compression
    assert codec == "GZIP"
    assert log_of(store.location) == rows
    assert running.warnings == []


def test_upkeep_beside_a_stream_leaves_publishing_to_the_stream(store: Store, settings: Settings) -> None:
    log = LogPartition()
    for offset in (5, 6):  # the first fold publishes itself
        log.commit(("h", "t", 0), offset)  # a group of log partition 0
        log.group(2, "h")
        appended(store.location, log.rows)
        log.rows.clear()
        fold_log(store, settings, SystemClock())
        if offset == 5:
            reload_partitions(store, None, settings, SystemClock())
    assert Running(store, 1, settings).done
    assert published(store.location) == [("t0", 0, 5)]
    assert incarnations(store) == ["1", "2", "2"]
    maintain_store(store, SystemClock(), settings)
    assert published(store.location) == [("t0", 2, 6)]
    assert incarnations(store) == ["2"]  # those that are never published are compacted


def test_files_of_other_writers_are_no_upkeep(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    append_batches(store, 1)
    whole = compact

    def beside_an_append(*arguments: Any) -> int:  # noqa: ANN401
        replaced = whole(*arguments)
        if arguments[0].folder == store.table(LOG.name).folder:
            append_batches(store, 1)
        return replaced

    monkeypatch.setattr(maintenance, "compact", beside_an_append)
    assert Running(store, 1).done == []


def test_dropped_files_stay_as_long_as_the_table_keeps_them(store: Store) -> None:
    append_batches(store, 3)
    assert of_log(Running(store, 1)) == (3, 1, 0)
    assert stored_files(store) == 4
    assert of_log(Running(store, 2)) == (1, 1, 3)  # no reader of an older version is left when the second run comes
    assert stored_files(store) == 1


def test_failure_is_reported_once_and_the_next_run_tries_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    append_batches(store, 2)
    failures: list[Exception] = [WriteConflict("overtaken"), WriteConflict("overtaken"), OSError("disk full\nand more")]

    def maintain(*arguments: object, **more: object) -> list[Upkeep]:
        if failures:
            raise failures.pop(0)
        return maintain_store(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(folding, "maintain_store", maintain)
    running = Running(store, 4)
    failed = f"upkeep of {store.location} failed:"
    assert running.warnings == [
        f"{failed} overtaken; the next run tries again",
        f"{failed} OSError: disk full; the next run tries again",
    ]
    assert running.done_at == [4 * HOUR_MS]


def test_the_log_is_cleaned_once_per_history_hours(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    cleanings: list[int] = []
    failures: list[Exception] = [WriteConflict("overtaken")]

    def clean(of: Store, settings: Settings, clock: Clock, *, older_than_ms: int) -> Cleaned:
        assert (of, older_than_ms) == (store, settings.log.history_hours * HOUR_MS)
        if failures:
            raise failures.pop()
        cleanings.append((clock.now_ms() - BEGIN_MS) // HOUR_MS)
        return Cleaned(1, 2, 3, 1, 2, 3)

    monkeypatch.setattr(maintenance, "clean_log", clean)
    wanted = Settings(log=LogSettings(history_hours=3))
    running = Running(store, 10, settings=wanted)
    assert cleanings == [2, 5, 8]  # the first try failed, and the next run tried again
    assert running.warnings == [f"upkeep of {store.location} failed: overtaken; the next run tries again"]
    assert running.done == []
    Running(store, 3, settings=Settings())  # by default all history stays
    Running(store, 3)
    Running(store, 3, settings=replace(wanted, fold=FoldSettings(clean_in_stream=False)))
    assert cleanings == [2, 5, 8]


@pytest.mark.parametrize("removed", [0, 1])
def test_a_cleaning_is_upkeep_if_it_removed_a_record(
    store: Store, monkeypatch: pytest.MonkeyPatch, removed: int
) -> None:
    append_batches(store, 1)

    def clean(of: Store, *_: object, **__: object) -> Cleaned:
        table = of.table(LOG.name)
        seen = table.snapshot()
        if removed:
            table.commit(remove=seen.files(), seen=seen, is_change=False)
        else:
            append_batches(of, 1)  # as another writer
        return Cleaned(1, 2, 1, 1, 2, 1 - removed)

    monkeypatch.setattr(maintenance, "clean_log", clean)
    monkeypatch.setattr(maintenance, "compact", lambda *_: 0)
    done = maintain_store(store, SystemClock(), Settings(log=LogSettings(history_hours=1)), publishes=False)
    (log,) = [each for each in done if each.table == LOG.name]
    assert (log.files_before, log.files) == (1, 1 - removed)


def test_on_a_full_disk_files_are_removed_although_none_can_be_written(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_batches(keeps_nothing(store), 12)
    assert compact(store.table(LOG.name)) == 12
    append_batches(store, 2)
    rows = log_of(store.location)

    def full(*_: object) -> None:
        raise StorageFailed("no space left")

    for writes in ("rewritten", "publish"):
        monkeypatch.setattr(maintenance, writes, full)
    assert stored_files(store) == 12 + 1 + 2
    with pytest.raises(StorageFailed, match=r"^no space left$"):
        maintain_store(store, SystemClock(), Settings())
    assert stored_files(store) == 1 + 2
    assert log_of(store.location) == rows


def test_stop_ends_a_run_before_its_next_table_or_file(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    append_batches(keeps_nothing(store), 3)
    clock = SystemClock()
    assert maintain_store(store, clock, Settings(), publishes=False, is_stopping=lambda: True) == []
    monkeypatch.setattr("offsets_pipeline.fold.maintenance.vacuum", lambda *_: (0, 0))
    maintain_store(store, clock, Settings(), publishes=False)
    assert stored_files(store) == 4
    asked = iter([False, True])
    assert vacuum(store.table(LOG.name), lambda: next(asked))[0] == 1
    assert stored_files(store) == 3


def test_a_run_that_is_stopped_reads_no_further_table(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []

    def noted(folder: TableFolder) -> tuple[int, int]:
        looked_at.append(folder.table.name)
        return live(folder)

    monkeypatch.setattr("offsets_pipeline.fold.maintenance.live", noted)
    asked = iter([False, False, True])
    assert maintain_store(store, SystemClock(), Settings(), is_stopping=lambda: next(asked)) == []
    assert looked_at == [table.name for table in store.tables[:2]]
    first = chain([False] * (len(store.tables) + len(LATER_TABLES) + 1), repeat(True))  # a look at each, and one table
    done = maintain_store(store, SystemClock(), Settings(), publishes=False, is_stopping=lambda: next(first))
    assert [each.table for each in done] == [store.tables[0].name]


def test_storage_that_fails_is_no_reason_to_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise StorageFailed("cannot list the folder")

    monkeypatch.setattr("offsets_pipeline.fold.maintenance.vacuum", broken)
    running = Running(store, 2)
    assert running.warnings == [f"upkeep of {store.location} failed: cannot list the folder; the next run tries again"]


def test_files_that_a_table_dropped_go_ten_minutes_after_a_run_found_them(store: Store) -> None:
    append_batches(store, 3)
    folder, since_ms = store.table(LOG.name), dict[str, int]()
    uncommitted = folder.write_file(folder.snapshot().rows().slice(0, 1))
    assert vacuum(folder, never, since_ms, 0) == (0, stored_files(store) + len(commits_of(folder)))
    compact(folder)
    assert vacuum(folder, never, since_ms, 1_000)[0] == 0
    assert vacuum(folder, never, since_ms, 600_999)[0] == 0
    assert vacuum(folder, never, since_ms, 601_000)[0] == 3
    assert vacuum(folder, never, since_ms, 9_000_000)[0] == 0
    assert since_ms == {}  # those that are gone, too
    assert stored_files(store) == 2
    assert place_of(folder.folder, uncommitted.name).exists()  # a task wrote it for a commit to come


@pytest.mark.parametrize("is_whole", [True, False])
def test_commits_before_the_last_checkpoint_go_ten_minutes_after_a_run_found_it(store: Store, is_whole: bool) -> None:
    append_batches(store, 3)
    folder, since_ms = store.table(LOG.name), dict[str, int]()
    before, version = len(commits_of(folder)), folder.snapshot().version
    commits = place_of(folder.folder, "_delta_log")
    DeltaTable(folder.folder).create_checkpoint()
    append_batches(store, 2)
    held = rows_by_deltalake(folder)
    if not is_whole:  # a writer that was killed has not named it yet
        (commits / "_last_checkpoint").unlink()
    assert vacuum(folder, never, since_ms, 0)[0] == 0
    assert vacuum(folder, never, since_ms, 599_999)[0] == 0
    assert vacuum(folder, never, since_ms, 600_000)[0] == (before - 1 if is_whole else 0)
    first = version if is_whole else 0
    assert sorted(int(each.stem) for each in commits.glob("*.json")) == list(range(first, version + 3))
    assert rows_by_deltalake(folder) == held
    append_batches(store, 1)
    rows = [each.snapshot().rows().num_rows for each in (folder, TableFolder(folder.folder, folder.table))]
    assert rows == [len(held) + 1] * 2  # of an object that has read the commits, and of a new one


def rows_by_deltalake(folder: TableFolder) -> list[str]:
    rows = DeltaTable(folder.folder).to_pyarrow_table().to_pylist()
    return sorted(map(repr, rows))


def commits_of(folder: TableFolder) -> list[Path]:
    return list(place_of(folder.folder, "_delta_log").iterdir())
