"""Metrics of a followed topic: of its streaming queries, of topic and log, and of the state tables."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Self

import pyarrow as pa
from pyspark.sql.streaming.listener import StreamingQueryListener

from offsets_pipeline.delta import TableFolder
from offsets_pipeline.delta.schemas import FOLD_PROGRESS, LOG, QUARANTINE
from offsets_pipeline.foreign_errors import first_line
from offsets_pipeline.ingest.topic.topic_observer import TopicObserver
from offsets_pipeline.log.log_range import PLACE
from offsets_pipeline.log.log_scan import LogScan
from offsets_pipeline.metrics.metrics_server import serve_metrics
from offsets_pipeline.periodic import Periodic
from offsets_pipeline.semantics.answering import ANSWERS, HIDES_OFFSETS
from offsets_pipeline.state.merge_on_read import DESCRIBED, OFFSETS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.delta import DataFile, Snapshot
    from offsets_pipeline.errors import OffsetsError
    from offsets_pipeline.ingest.topic.topic_progress import TopicProgress
    from offsets_pipeline.metrics.metric_registry import Metrics
    from offsets_pipeline.query.state_reader import StateReader

_PLACE = pa.schema([LOG.arrow_schema().field(name) for name in PLACE])
_COUNT_SECONDS = 30.0  # between two counts of the state tables
_WRITE_SECONDS = 2.0
_EVENTS_SECONDS = 10.0  # to wait for the last events of queries that ended
_BEHIND = "offsets_log_behind_topic_records"
_OF_TOPICS_OFFSETS = (
    _BEHIND,
    "offsets_topic_unstable_records",
    "offsets_topic_open_transaction_seconds",
)


class QueryMetrics(StreamingQueryListener):
    """Metrics of every batch of every streaming query of the session."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._running: set[str] = set()
        self._changed = threading.Condition()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Expect events of this query. Spark calls this before `start` returns."""
        with self._changed:
            self._running.add(str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Count a batch."""
        query = str(event.progress.name)
        self._metrics.add("offsets_batches_total", 1, query=query)
        self._metrics.add("offsets_batch_duration_seconds_sum", event.progress.batchDuration / 1000, query=query)
        self._metrics.add("offsets_batch_duration_seconds_count", 1, query=query)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing to count."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Expect no more events of this query: they come in order."""
        with self._changed:
            self._running.discard(str(event.runId))
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait for the last events of all queries that started, but at most ``seconds``."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running, seconds)


@contextmanager
def batches_counted(spark: SparkSession, metrics: Metrics) -> Iterator[None]:
    """Count the batches of all queries that run in the `with` block, including the last ones."""
    listener = QueryMetrics(metrics)
    spark.streams.addListener(listener)
    try:
        yield
    finally:
        listener.wait(_EVENTS_SECONDS)
        spark.streams.removeListener(listener)


class TopicMetrics(TopicObserver):
    """Metrics of a followed topic; passes each call on to ``following``."""

    def __init__(self, metrics: Metrics, following: TopicObserver, clock: Clock) -> None:
        self._metrics = metrics
        self._following = following
        self._clock = clock
        self._progress: TopicProgress | None = None  # of the last look, if it succeeded
        metrics.add("offsets_records_read_total", 0)

    def connected(self, address: str, cluster_id: str | None) -> None:
        """Pass the call on."""
        self._following.connected(address, cluster_id)

    def missing(self, address: str) -> None:
        """Set the topic as not up."""
        self._metrics.set("offsets_topic_up", 0)
        self._following.missing(address)

    def planned(self, progress: TopicProgress) -> None:
        """Set the incarnation of the log: the query starts or restarts."""
        self._metrics.set("offsets_log_incarnation", progress.reading.log_incarnation)
        self._is_up()
        self._following.planned(progress)

    def landed(self, records: int) -> None:
        """Count records that were appended to the log, which may have caught up with the last look by them."""
        self._metrics.add("offsets_records_read_total", records)
        if self._progress is not None:
            self._metrics.set_all(_BEHIND, "log_partition", self._progress.behind())
        self._following.landed(records)

    def looked(self, progress: TopicProgress) -> None:
        """Set the gauges of the topic and of the log's distance from it."""
        self._progress = progress
        unstable = {at: each.end - each.stable for at, each in progress.bounds.items()}
        now_ms = self._clock.now_ms()
        ages = {at: max(0.0, (now_ms - since) / 1000) for at, since in progress.open_since_ms.items()}
        gauges: tuple[Mapping[int, float], ...] = (progress.behind(), unstable, ages)
        for name, values in zip(_OF_TOPICS_OFFSETS, gauges, strict=True):
            self._metrics.set_all(name, "log_partition", values)
        self._is_up()
        self._following.looked(progress)

    def unreachable(self, error: OffsetsError) -> None:
        """Drop the gauges of the topic's offsets: their last values say nothing about the topic now."""
        self._progress = None
        self._metrics.set("offsets_topic_up", 0)
        for name in _OF_TOPICS_OFFSETS:
            self._metrics.set_all(name, "log_partition", {})
        self._following.unreachable(error)

    def transaction_ended(self, log_partition: int) -> None:
        """Pass the call on."""
        self._following.transaction_ended(log_partition)

    def _is_up(self) -> None:
        self._metrics.set("offsets_topic_up", 1)
        self._metrics.set("offsets_topic_last_success_timestamp_seconds", self._clock.now_ms() / 1000)

    def warned(self, text: str) -> None:
        """Pass the call on."""
        self._following.warned(text)


class LogExtent:
    """The lowest and the highest record offset of each log partition; `look` reads only files that are new to it."""

    def __init__(self) -> None:
        self._read: set[str] = set()
        self._found: dict[tuple[int, int], tuple[int, int]] = {}

    def look(self, log: Snapshot, log_incarnation: int) -> dict[int, tuple[int, int]]:
        """Return the extents by log partition, for one log incarnation in a version of `log`.

        Raises as `TableFolder.open_file`.
        """
        files = {file.name: file for file in log.files()}
        scan = LogScan(TableFolder(log.folder, LOG), _PLACE)
        for name in files.keys() - self._read:
            self._look_into(scan, files[name])
            self._read.add(name)
        self._read &= files.keys()
        return {at: extent for (of, at), extent in self._found.items() if of == log_incarnation}

    def _look_into(self, scan: LogScan, file: DataFile) -> None:
        key, offsets = ["log_incarnation", "log_partition"], ["record_offset_min", "record_offset_max"]
        for rows in scan.rows([file]):
            bounds = rows.group_by(key, use_threads=False).aggregate(
                [("record_offset", "min"), ("record_offset", "max")]
            )
            for *place, first, last in zip(*(bounds[name].to_pylist() for name in key + offsets), strict=True):
                log_incarnation, at = place
                lowest, highest = self._found.get((log_incarnation, at), (first, last))
                self._found[log_incarnation, at] = min(first, lowest), max(last, highest)


class StateMetrics:
    """Metrics of the state tables, and of their distance from the log."""

    def __init__(self, metrics: Metrics, reader: Callable[[], StateReader]) -> None:
        self._metrics = metrics
        self._reader = reader
        self._extent = LogExtent()

    def count(self) -> None:
        """Count the tables and set the gauges. Raises as `StateReader`, or one of `UNREADABLE`."""
        tables = self._reader()
        if not tables.properties.topic_kind.is_connect:
            self._count_groups(tables)
        log_incarnation = tables.current_log.number
        of_log = {"log_incarnation": [log_incarnation]}
        corrupt = tables.table(QUARANTINE.name).rows(["log_partition"], of_log)
        self._metrics.set("offsets_quarantined_records", corrupt.num_rows)
        folded = tables.table(FOLD_PROGRESS.name).rows(["log_partition", "folded_to"], of_log)
        folded_to = dict(zip(*(each.to_pylist() for each in folded.columns), strict=True))
        behind = dict.fromkeys(range(tables.offsets_partitions), 0)
        for at, (first, last) in self._extent.look(tables.table("log"), log_incarnation).items():
            behind[at] = max(0, last + 1 - max(folded_to.get(at, 0), first))
        self._metrics.set_all("offsets_fold_behind_log_records", "log_partition", behind)

    def _count_groups(self, tables: StateReader) -> None:
        groups, offsets = (tables.relations.newest(each) for each in (DESCRIBED, OFFSETS))
        hiding = f"(SELECT log_partition, group_id FROM {groups} WHERE {HIDES_OFFSETS})"
        counts = {
            "offsets_groups": f"FROM {groups} WHERE {ANSWERS}",
            "offsets_committed_offsets": (
                f"FROM {offsets} ANTI JOIN {hiding} USING (log_partition, group_id) WHERE {OFFSETS.answered}"
            ),
        }
        for name, rows in counts.items():
            (count,) = tables.relations.select(f"SELECT count(*) AS n {rows}")["n"].to_pylist()
            self._metrics.set(name, count)


class Watched:
    """Exposes metrics in a file or at a port until `close`, or the end of `with`; passes later failures to ``warn``.

    Raises MetricsUnavailable if the file cannot be written, or the address cannot be bound, at the start.
    """

    def __init__(
        self, metrics: Metrics, file: Path | None, address: tuple[str, int] | None, warn: Callable[[str], None]
    ) -> None:
        self._warn = warn
        self._periodic: list[Periodic[None]] = []
        self._write = None if file is None else partial(metrics.write, file)
        if self._write is not None:
            self._write()
        self._server = None if address is None else serve_metrics(metrics, *address)

    def start(self, count: Callable[[], None]) -> None:
        """Call ``count`` every half minute and rewrite the file every two seconds, each in a thread.

        Does nothing without a file and a port.
        """
        if self._write is None and self._server is None:
            return
        self._start("figures", count, _COUNT_SECONDS, "cannot count the state tables")
        if self._write is not None:
            self._start("metrics-file", self._write, _WRITE_SECONDS, "metrics are not up to date")

    def _start(self, name: str, run: Callable[[], None], rest_seconds: float, failing: str) -> None:
        periodic = Periodic(
            run,
            round(rest_seconds * 1000),
            rests=True,
            warn=self._warn,
            describe=lambda error: f"{failing}: {first_line(error)}",
            at_end=run,
        )
        self._periodic.append(periodic)
        periodic.start(name)

    def close(self) -> None:
        """Count and write once more, then close the port."""
        for each in self._periodic:
            each.close()
        if self._server is not None:
            self._server.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
