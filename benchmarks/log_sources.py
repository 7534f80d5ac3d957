"""Compares two sources of a streaming query over the table `log`: Delta's, and that of the versions (ADR 39).

    .venv/bin/python -m benchmarks.log_sources [--appends 100] [--records 1000]

Appends so many records again and again. Each query hands the records of an append to the driver as Arrow rows, as a
fold takes them. Prints the seconds from an append until the rows are there, and the processor time of all processes.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import threading
import time
from typing import TYPE_CHECKING

from benchmarks.day import Day
from benchmarks.processes import ProcessTree
from offsets_pipeline.common.config import load_settings
from offsets_pipeline.fold.state.changes import ReplayStart
from offsets_pipeline.fold.state.unfolded import files_after
from offsets_pipeline.fold.stream.fold_stream import FORMAT, LogVersionSource, log_versions
from offsets_pipeline.store.delta.schemas import LOG
from offsets_pipeline.store.log.log_reader import LogReader
from offsets_pipeline.store.log.log_scan import LogRange
from offsets_pipeline.store.session import build_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from offsets_pipeline.store.store import Store

_TRIGGER = "1 second"
_SETTLE_SECONDS = 10.0
_PATIENCE_SECONDS = 60.0


def of_versions(spark: SparkSession, store: Store, rows: Callable[[int], object], folder: str) -> StreamingQuery:
    """Start a query over the versions of the log, which reads the files that later commits have added."""
    start = ReplayStart(store.properties.offsets_partitions)
    every = LogRange(dict.fromkeys(range(start.offsets_partitions), 0))
    reader = LogReader(store.table(LOG.name), every, start.schema, start.compact)
    seen = store.table(LOG.name).snapshot().version

    def fold(*_: object) -> None:
        nonlocal seen
        log = store.table(LOG.name).snapshot()
        rows(sum(table.num_rows for table in reader.read(files_after(seen, log))))
        seen = log.version

    spark.dataSource.register(LogVersionSource)
    source = spark.readStream.format(FORMAT).options(**log_versions(store)).load()
    return _started(source, fold, folder)


def of_delta(spark: SparkSession, store: Store, rows: Callable[[int], object], folder: str) -> StreamingQuery:
    """Start a query over Delta's source."""
    names = ReplayStart(store.properties.offsets_partitions).schema.names

    def fold(batch: DataFrame, _: int) -> None:
        rows(batch.select(*(name for name in names if name in batch.columns)).toArrow().num_rows)

    return _started(spark.readStream.format("delta").load(f"{store.location}/{LOG.name}"), fold, folder)


def _started(source: DataFrame, fold: Callable[[DataFrame, int], None], folder: str) -> StreamingQuery:
    writer = source.writeStream.option("checkpointLocation", f"{folder}/checkpoint").foreachBatch(fold)
    return writer.trigger(processingTime=_TRIGGER).start()


def main() -> None:
    """Measure both, and print a line for each."""
    parser = argparse.ArgumentParser(
        description="Compare two sources of a streaming query over the log.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--appends", type=int, default=100, metavar="N", help="appends of each round")
    parser.add_argument("--records", type=int, default=1_000, metavar="N", help="records of each")
    options = parser.parse_args()
    spark = build_session("log-sources", load_settings())
    for (name, start), number in itertools.product((("versions", of_versions), ("Delta's", of_delta)), (1, 2)):
        with tempfile.TemporaryDirectory(prefix="offsets-sources-") as folder:
            _measure(f"{name}, round {number}", spark, start, folder, options)
    spark.stop()


def _measure(
    name: str,
    spark: SparkSession,
    start: Callable[[SparkSession, Store, Callable[[int], object], str], StreamingQuery],
    folder: str,
    options: argparse.Namespace,
) -> None:
    day = Day(f"{folder}/store", options.records, 0)  # no record replaces another one of its append
    there, count = threading.Condition(), 0

    def rows(number: int) -> None:
        nonlocal count
        with there:
            count += number
            there.notify_all()

    day.append(1)
    query = start(spark, day.store, rows, folder)
    time.sleep(_SETTLE_SECONDS)
    seconds = []
    with ProcessTree(os.getpid()).watched() as taken:
        for _ in range(options.appends):
            with there:
                wanted = count + options.records
            day.append(options.records)
            appended = time.monotonic()
            with there:
                if not there.wait_for(lambda: count >= wanted, _PATIENCE_SECONDS):  # noqa: B023 - of this turn
                    raise SystemExit(f"log_sources: error: {name}: {count} rows of {wanted} came")
            seconds.append(time.monotonic() - appended)
    query.stop()
    print(
        f"{name}: {statistics.median(seconds):.2f} s from an append to its rows (median of {options.appends}), "
        f"{taken.seconds / options.appends:.3f} s of processor time each, the append included",
        flush=True,
    )


if __name__ == "__main__":
    main()
