"""Several writers at once: a running stream with reloads, and concurrent ingests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier, Event
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import inheritable_thread_target

from offsets_pipeline.common.config.sections import FoldSettings
from offsets_pipeline.errors import WriteConflict
from offsets_pipeline.fold.state.fold import fold_log
from offsets_pipeline.fold.stream.fold_stream import FoldStream, start_fold
from offsets_pipeline.fold.stream.folding import Folding
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.log.append import LogAppender
from offsets_pipeline.store.store import Store
from tests.logs import capture_rows
from tests.places import copied
from tests.spark.segments import write_prefix
from tests.spark.stores import CLOCK, assert_as_reference, log_of, segments_of, table

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from offsets_pipeline.ingest.segments.segment_ingest import IngestReport
    from tests.spark.stores import Workbench

pytestmark = [pytest.mark.streaming, pytest.mark.slow, pytest.mark.usefixtures("many_retries")]

DEADLINE_SECONDS = 240
OFTEN = FoldSettings(trigger_interval_ms=200)


def runs(stream: FoldStream) -> bool:
    return bool(stream.query.isActive)


def test_reload_beside_a_running_stream_loses_nothing(
    workbench: Workbench, empty: Callable[[int], Path], chance: random.Random, place: Path, tmp_path: Path
) -> None:
    bench = replace(workbench, settings=replace(workbench.settings, fold=OFTEN))
    store = copied(empty(5), place / "store")
    folded = Event()

    def on_fold(records: int) -> None:
        if records:
            folded.set()

    stream = start_fold(Folding(bench.open(store), bench.settings, CLOCK, on_fold=on_fold))
    try:
        for step, share in enumerate((0.3, 0.6, 0.9)):
            bench.ingest(store, write_prefix(segments_of("4.2.0-txn-open"), tmp_path / f"{step}", share, chance))
            assert bench.reload(store) > 0  # the stream folds the same records meanwhile; either may be first
        folded.clear()
        bench.ingest(store, segments_of("4.2.0-txn-open"))
        assert folded.wait(DEADLINE_SECONDS)
        assert runs(stream)
    finally:
        stream.stop()
    stream.await_end()
    assert not runs(stream)
    bench.fold(store)
    assert log_of(store) == sorted(
        (row for rows in capture_rows("4.2.0-txn-open").values() for row in rows),
        key=lambda row: (row.log_partition, row.record_offset),
    )
    assert_as_reference(store, log_of(store))


def test_two_ingests_of_one_log_at_once_append_each_record_once(
    workbench: Workbench, empty: Callable[[int], Path], chance: random.Random, place: Path, tmp_path: Path
) -> None:
    store = copied(empty(5), place / "store")
    prefix = write_prefix(segments_of("4.2.0-classic"), tmp_path / "prefix", 0.6, chance)
    together = Barrier(2)

    def ingest(path: Path) -> IngestReport:
        together.wait(DEADLINE_SECONDS)
        return workbench.ingest(store, path)

    with ThreadPoolExecutor(2) as threads:
        run = inheritable_thread_target(workbench.spark)(ingest)
        reports = [
            each.result() for each in [threads.submit(run, path) for path in (prefix, segments_of("4.2.0-classic"))]
        ]
    rows = log_of(store)
    assert rows == sorted(
        (row for of_one in capture_rows("4.2.0-classic").values() for row in of_one),
        key=lambda row: (row.log_partition, row.record_offset),
    )
    assert sum(report.added for report in reports) == len(rows)
    workbench.fold(store)
    assert_as_reference(store, rows)


def test_two_first_ingests_at_once_make_one_store(workbench: Workbench, place: Path) -> None:
    """The second process finds incomplete tables, or a log with records; both must work."""
    store = place / "store"
    together = Barrier(2)

    def ingest() -> int:
        together.wait(DEADLINE_SECONDS)
        return workbench.ingest(store, segments_of("4.2.0-classic")).added

    with ThreadPoolExecutor(2) as threads:
        run = inheritable_thread_target(workbench.spark)(ingest)
        added = [each.result() for each in [threads.submit(run) for _ in range(2)]]
    records = sum(map(len, capture_rows("4.2.0-classic").values()))
    assert sorted(added) == [0, records]
    assert table(store, "log").num_rows == records


def test_failed_first_ingest_leaves_a_store_that_another_appended_to(
    workbench: Workbench, place: Path, tmp_path: Path
) -> None:
    store, rejected = place / "store", tmp_path / "rejected"
    properties = StoreProperties(MIRRORED, 5)
    creator = Store.create(workbench.spark, str(store), properties)
    workbench.ingest(store, segments_of("4.2.0-classic"))
    creator.discard()
    assert table(store, "log").num_rows == sum(map(len, capture_rows("4.2.0-classic").values()))
    Store.create(workbench.spark, str(rejected), properties).discard()
    assert not rejected.exists()


def test_append_that_another_overtook_writes_nothing(
    workbench: Workbench, folded: Callable[[str], Path], place: Path
) -> None:
    store = workbench.open(copied(folded("4.2.0-classic"), place / "store"))
    before = table(store.location, "log").num_rows
    first, second = LogAppender(store), LogAppender(store)
    rows = store.read("log").limit(1)
    assert first.append_late(rows, first.place(CLOCK)).records == 1
    with pytest.raises(WriteConflict):
        second.append_late(rows, second.place(CLOCK))
    assert table(store.location, "log").num_rows == before + 1


def test_stopped_stream_completes_its_running_batch(
    workbench: Workbench,
    empty: Callable[[int], Path],
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    store = copied(empty(5), place / "store")
    workbench.ingest(store, segments_of("4.2.0-txn-open"))
    begun, told = Event(), Event()

    def fold_slowly(of: Store, *more: Any) -> int:  # noqa: ANN401
        begun.set()
        assert told.wait(DEADLINE_SECONDS)
        # Spark cancels what a stream that is stopped computes
        assert of.spark.sql("SELECT reflect('java.lang.Thread', 'sleep', id + 2000) FROM range(2)").collect()
        return fold_log(of, *more)

    monkeypatch.setattr("offsets_pipeline.fold.stream.folding.fold_log", fold_slowly)
    stream = start_fold(Folding(workbench.open(store), workbench.settings, CLOCK))
    assert begun.wait(DEADLINE_SECONDS)
    told.set()
    stream.stop()
    stream.await_end()
    assert_as_reference(store, log_of(store))
    _, stderr = capfd.readouterr()
    assert "\tat " not in stderr
