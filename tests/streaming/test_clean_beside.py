"""Cleaning while streams and ingests run: no record is lost or repeated, and conflicting commits are retried."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

import pytest
from pyspark import inheritable_thread_target

from offsets_pipeline.common.config.sections import FoldSettings
from offsets_pipeline.errors import WriteConflict
from offsets_pipeline.fold.stream.fold_stream import start_fold
from offsets_pipeline.fold.stream.folding import Folding
from offsets_pipeline.store.log import clean
from offsets_pipeline.store.log.append import Append, LogAppender
from offsets_pipeline.store.log.clean import Cleaned, clean_log
from offsets_pipeline.store.log.metadata import LogMetadata
from tests.logs import LogPartition
from tests.places import copied
from tests.random_logs import IN_SEGMENTS, random_log
from tests.spark.segments import batches_of, write_log, write_prefix, write_segment
from tests.spark.stores import CLOCK, assert_as_reference, export_of, log_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offsets_pipeline.semantics.log_row import LogRow
    from tests.spark.stores import Workbench

pytestmark = [pytest.mark.streaming, pytest.mark.slow, pytest.mark.usefixtures("many_retries")]

DEADLINE_SECONDS = 240
PARTITIONS = IN_SEGMENTS.log_partitions
OFTEN = FoldSettings(trigger_interval_ms=200)


def cleaned(bench: Workbench, store: Path) -> Cleaned:
    return clean_log(bench.open(store), bench.settings, CLOCK)


def a_log(tmp_path: Path, seed: int) -> tuple[list[LogRow], Path]:
    chosen = random.Random(seed)
    rows = random_log(chosen, 300, IN_SEGMENTS).rows()
    return rows, write_log(tmp_path / "whole", rows, partitions=PARTITIONS)


def test_stream_that_runs_and_restarts_over_a_log_that_is_cleaned_gives_the_whole_log_s_state(
    workbench: Workbench, empty: Callable[[int], Path], place: Path, tmp_path: Path
) -> None:
    bench = replace(workbench, settings=replace(workbench.settings, fold=OFTEN))
    rows, whole = a_log(tmp_path, 24)
    store, chosen = copied(empty(PARTITIONS), place / "store"), random.Random(22)
    bench.ingest(store, write_prefix(whole, tmp_path / "0", 0.2, chosen))
    bench.fold(store)
    bench.ingest(store, write_prefix(whole, tmp_path / "1", 0.4, chosen))
    bench.reload(store)  # further than the stream has read
    assert cleaned(bench, store).removed > 0
    folded, removed = Event(), 0
    stream = start_fold(Folding(bench.open(store), bench.settings, CLOCK, on_fold=lambda _: folded.set()))
    try:
        for step, share in enumerate((0.6, 0.8), 2):
            folded.clear()
            bench.ingest(store, write_prefix(whole, tmp_path / f"{step}", share, chosen))
            removed += cleaned(bench, store).removed  # while the stream folds what was just appended
            assert folded.wait(DEADLINE_SECONDS)
            removed += cleaned(bench, store).removed
        assert stream.query.isActive
    finally:
        stream.stop()
    stream.await_end()
    assert removed > 0
    with ThreadPoolExecutor(1) as threads:
        ingest = threads.submit(inheritable_thread_target(bench.spark)(bench.ingest), store, whole)
        cleaned(bench, store)
        ingest.result(DEADLINE_SECONDS)
    bench.fold(store)
    assert_as_reference(store, rows)
    answers = export_of(store)
    assert cleaned(bench, store).removed > 0
    assert bench.fold(store) == 0
    assert_as_reference(store, rows)
    assert bench.reload(store) == len(log_of(store)) < len(rows) / 2
    assert bench.verify(store).equal
    assert export_of(store) == answers


def commits(count: int) -> LogPartition:
    log = LogPartition()
    for number in range(count):
        log.commit(("g", "t", number % 2), number)
    return log


class Damaged(NamedTuple):
    """A folded store of a log whose second batch was damaged, and segments of this log whole and one batch longer."""

    store: Path
    log: LogPartition
    whole: Path
    longer: Path

    @property
    def first(self) -> list[LogRow]:
        """The rows in the store."""
        return [*self.log.rows[:3], *self.log.rows[6:9]]


@pytest.fixture(scope="module")
def damaged_once(
    workbench: Workbench, empty: Callable[[int], Path], tmp_path_factory: pytest.TempPathFactory
) -> Damaged:
    folder, log = tmp_path_factory.mktemp("damaged"), commits(12)
    batches = batches_of(log.rows)
    torn = bytearray(batches[1])
    torn[-3] ^= 0xFF
    made = Damaged(
        copied(empty(1), folder / "store"),
        log,
        write_segment(folder / "whole", 0, b"".join(batches)),
        write_segment(folder / "longer", 0, b"".join([batches[0], torn, *batches[2:]])),
    )
    workbench.ingest(made.store, write_segment(folder / "first", 0, b"".join([batches[0], torn, batches[2]])))
    workbench.fold(made.store)
    assert log_of(made.store) == made.first
    return made


@pytest.fixture
def damaged(damaged_once: Damaged, place: Path) -> Damaged:
    return damaged_once._replace(store=copied(damaged_once.store, place / "store"))


@pytest.fixture
def before_the_commit(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], list[int]]:
    """Let something happen right before the first attempt of a cleaning commits; returns a list of the attempts."""

    def arrange(happen: Callable[[], object]) -> list[int]:
        attempts: list[int] = []

        class Notes(LogMetadata):
            def cleaned(self, cleaned_to: dict[int, int]) -> None:  # type: ignore[override]
                attempts.append(len(attempts))
                if len(attempts) == 1:
                    happen()
                super().cleaned(cleaned_to)

        monkeypatch.setattr(clean, "LogMetadata", Notes)
        return attempts

    return arrange


def test_append_during_a_cleaning_does_not_conflict(
    workbench: Workbench, damaged: Damaged, before_the_commit: Callable[[Callable[[], object]], list[int]]
) -> None:
    attempts = before_the_commit(lambda: workbench.ingest(damaged.store, damaged.longer))
    assert cleaned(workbench, damaged.store).removed == 3  # but for the last of each key, and the last folded
    assert len(attempts) == 1
    assert log_of(damaged.store)[-3:] == damaged.log.rows[9:]
    assert workbench.fold(damaged.store) == 3
    assert_as_reference(damaged.store, damaged.first + damaged.log.rows[9:])


def test_late_records_beside_a_cleaning_are_looked_at(
    workbench: Workbench, damaged: Damaged, before_the_commit: Callable[[Callable[[], object]], list[int]]
) -> None:
    attempts = before_the_commit(lambda: workbench.ingest(damaged.store, damaged.whole))
    cleaned(workbench, damaged.store)
    assert len(attempts) == 2
    workbench.fold(damaged.store)
    assert_as_reference(damaged.store, log_of(damaged.store))
    (group,) = export_of(damaged.store)["groups"].values()
    assert {each["partition"]: each["offset"] for each in group["offsets"]} == {0: 10, 1: 11}  # as of the whole log


def test_others_that_rewrite_the_log_are_noticed(
    workbench: Workbench, damaged: Damaged, before_the_commit: Callable[[Callable[[], object]], list[int]]
) -> None:
    workbench.ingest(damaged.store, damaged.longer)
    workbench.fold(damaged.store)
    store = workbench.open(damaged.store)
    attempts = before_the_commit(lambda: store.spark.sql(f"OPTIMIZE {store.table_name('log')}"))
    left = len(log_of(damaged.store)) - cleaned(workbench, damaged.store).removed
    assert (len(attempts), len(log_of(damaged.store))) == (2, left)
    assert_as_reference(damaged.store, damaged.first + damaged.log.rows[9:])


def test_late_records_that_a_cleaning_overtook_are_left_out(
    workbench: Workbench, damaged: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_late = LogAppender.append_late
    overtaken: list[WriteConflict] = []

    def overtaken_once(self: LogAppender, *arguments: object) -> Append:
        if not overtaken:
            assert cleaned(workbench, damaged.store).removed > 0
            with pytest.raises(WriteConflict) as conflict:
                append_late(self, *arguments)  # type: ignore[arg-type]
            overtaken.append(conflict.value)
            raise conflict.value
        return append_late(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(LogAppender, "append_late", overtaken_once)
    report = workbench.ingest(damaged.store, damaged.whole)
    assert len(overtaken) == 1
    assert (report.added, report.left_out) == (3, 6)
    assert not any(row["backfill"] for row in rows_of(damaged.store, "log"))
    assert workbench.fold(damaged.store) == 3
    assert_as_reference(damaged.store, damaged.first + damaged.log.rows[9:])


def test_only_one_of_two_cleanings_counts(
    workbench: Workbench, damaged: Damaged, before_the_commit: Callable[[Callable[[], object]], list[int]]
) -> None:
    done: list[Cleaned] = []
    attempts = before_the_commit(lambda: done.append(cleaned(workbench, damaged.store)))
    last = cleaned(workbench, damaged.store)
    assert len(attempts) == 2
    assert done[0].removed > last.removed == 0
    assert len(log_of(damaged.store)) == last.records
