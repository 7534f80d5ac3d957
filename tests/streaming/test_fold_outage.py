"""`fold` as a stream goes on after an outage of S3."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.errors import StorageRefused
from offsets_pipeline.fold.stream import fold_stream
from offsets_pipeline.fold.stream.fold_stream import start_fold
from offsets_pipeline.fold.stream.folding import Folding
from offsets_pipeline.store.delta import retry
from offsets_pipeline.store.delta.s3_access import task_environment
from tests.logs import LogPartition
from tests.places import copied, place_of
from tests.spark.stores import CLOCK, appended, assert_as_reference, rows_of
from tests.unit.delta.faulty_s3 import Fault, FaultyS3, operation_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.stores import Workbench

pytestmark = [pytest.mark.streaming, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(spark: SparkSession) -> Iterator[tuple[FaultyS3, Path]]:
    server = FaultyS3()
    with server.serving("fold-outages", timeout_ms=3_000) as uri:
        before = spark.sparkContext.environment.copy()
        spark.sparkContext.environment.update(task_environment())  # the stream's source is in a process of its own
        yield server, place_of(uri)
        spark.sparkContext.environment = before


def test_a_stream_goes_on_after_outages_and_ends_if_access_is_refused(
    workbench: Workbench,
    empty: Callable[[int], Path],
    server: tuple[FaultyS3, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "_UNANSWERED_SECONDS", 0.0)
    monkeypatch.setattr(fold_stream, "_RETRY_SECONDS", 0.1)
    s3, root = server
    store, log, warnings = copied(empty(1), root / "folded"), LogPartition(), list[str]()

    def append(offset: int) -> None:
        before = len(log.rows)
        log.commit(("g", "t", 0), offset)
        appended(store, log.rows[before:])

    def is_folded() -> bool:
        return [row["folded_to"] for row in rows_of(store, "fold_progress")] == [log.rows[-1].record_offset + 1]

    def no_state_is_written(method: str, path: str) -> Fault | None:
        return Fault.ERROR_503 if operation_of(method, path) == "PUT file" and "/log/" not in path else None

    append(0)
    settings = replace(workbench.settings, fold=replace(workbench.settings.fold, trigger_interval_ms=200))
    stream = start_fold(Folding(workbench.open(store), settings, CLOCK, warn=warnings.append))
    ended = ThreadPoolExecutor(1).submit(stream.await_end)
    try:
        wait_until("the stream folds", is_folded, 120)
        for offset, fault in enumerate((no_state_is_written, lambda *_: Fault.ERROR_503), 1):
            s3.fault = fault
            if fault is no_state_is_written:
                append(offset)
            wait_until("the outage is noticed", lambda: any("trying again" in each for each in warnings), 120)
            s3.settle()
            append(offset)
            wait_until("the stream folds again", is_folded, 120)
            assert any("goes on" in each for each in warnings)
            warnings.clear()
        assert_as_reference(store, log.rows)
        s3.fault = lambda *_: Fault.REFUSED
        with pytest.raises(StorageRefused, match=rf"^cannot .* {store}/.* refused access to the bucket fold-outages; "):
            ended.result(60)
    finally:
        s3.settle()
        stream.stop()
