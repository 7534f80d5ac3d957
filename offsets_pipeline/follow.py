"""Following a topic, and folding what comes in: both queries in one process, and the figures about them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from pyspark import inheritable_thread_target
from pyspark.sql.streaming.listener import StreamingQueryListener

from offsets_pipeline.delta_reader import UNREADABLE
from offsets_pipeline.errors import OffsetsError
from offsets_pipeline.fold.stream import start_fold
from offsets_pipeline.ingest.topic import TopicIngest, TopicObserver
from offsets_pipeline.layers import DESCRIBED, OFFSETS
from offsets_pipeline.metrics import Metrics, MetricsServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config import Settings
    from offsets_pipeline.fold.stream import FoldStream
    from offsets_pipeline.ingest.topic_admin import TopicBounds
    from offsets_pipeline.ingest.topic_plan import Reading
    from offsets_pipeline.query.state import StateReader

_COUNT_SECONDS = 30.0  # from one look into the state tables to the next
_WRITE_SECONDS = 2.0
_POLL_SECONDS = 0.1


class QueryMetrics(StreamingQueryListener):
    """Figures of every batch of every query of the session."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing to count."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Count a batch."""
        query = str(event.progress.name)
        self._metrics.add("offsets_batches_total", 1, query=query)
        self._metrics.add("offsets_batch_duration_seconds_sum", event.progress.batchDuration / 1000, query=query)
        self._metrics.add("offsets_batch_duration_seconds_count", 1, query=query)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing to count."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing to count."""


class TopicMetrics(TopicObserver):
    """Figures of how a topic is followed; what is seen is also told to ``say``, warnings to ``warn``."""

    def __init__(self, metrics: Metrics, say: Callable[[str], None], warn: Callable[[str], None], clock: Clock) -> None:
        self._metrics = metrics
        self._say = say
        self._warn = warn
        self._clock = clock
        self.read_to: dict[int, int] = {}
        for name in ("offsets_records_read_total", "offsets_warnings_total"):
            metrics.add(name, 0)

    def planned(self, reading: Reading) -> None:
        """Reading begins, or begins again."""
        self._metrics.set("offsets_log_epoch", reading.epoch)
        self._say(f"epoch {reading.epoch} of the log, {len(reading.starts)} log partitions")

    def landed(self, records: int) -> None:
        """Records were appended to the log."""
        self._metrics.add("offsets_records_read_total", records)
        if records:
            self._say(f"{records} records landed")

    def looked(
        self, read_to: Mapping[int, int], bounds: Mapping[int, TopicBounds], open_since_ms: Mapping[int, int]
    ) -> None:
        """How topic and log stand."""
        self.read_to = dict(read_to)
        behind = {at: max(0, each.stable - read_to[at]) for at, each in bounds.items()}
        self._metrics.set_all("offsets_log_behind_topic_records", "log_partition", behind)
        unstable = {at: each.end - each.stable for at, each in bounds.items()}
        self._metrics.set_all("offsets_topic_unstable_records", "log_partition", unstable)
        now_ms = self._clock.now_ms()
        ages = {at: max(0.0, (now_ms - since) / 1000) for at, since in open_since_ms.items()}
        self._metrics.set_all("offsets_topic_open_transaction_seconds", "log_partition", ages)

    def warned(self, text: str) -> None:
        """Something is not as it should be."""
        self._metrics.add("offsets_warnings_total", 1)
        self._warn(text)


class Watched:
    """Keeps figures, and shows them in a file or at a port, until `close`."""

    def __init__(
        self, spark: SparkSession, metrics: Metrics, file: Path | None, address: tuple[str, int] | None
    ) -> None:
        self._metrics = metrics
        self._file = file
        self._server = None if address is None else MetricsServer(metrics, *address)
        self._listener: QueryMetrics | None = QueryMetrics(metrics)
        self._spark = spark
        spark.streams.addListener(self._listener)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._reader: Callable[[], StateReader] | None = None
        if file is not None:
            metrics.write(file)  # so a place that cannot be written to is refused at once

    def start(self, reader: Callable[[], StateReader], observer: TopicMetrics) -> None:
        """Look into the state tables from time to time, and keep the file up to date."""
        if self._file is None and self._server is None:
            return

        def keep() -> None:
            counted = 0.0
            while True:
                if time.monotonic() - counted > _COUNT_SECONDS:
                    count_state(reader, observer, self._metrics)
                    counted = time.monotonic()
                ended = self._stopped.wait(_WRITE_SECONDS)
                if ended:
                    count_state(reader, observer, self._metrics)
                if self._file is not None:
                    try:
                        self._metrics.write(self._file)
                    except OffsetsError as error:
                        observer.warned(str(error))
                if ended:
                    return

        self._thread = threading.Thread(target=keep, name="figures", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Show them a last time."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        if self._server is not None:
            self._server.close()
        if self._listener is not None:
            self._spark.streams.removeListener(self._listener)
            self._listener = None


def count_state(reader: Callable[[], StateReader], observer: TopicMetrics, metrics: Metrics) -> None:
    """Look into the state tables; where they cannot be read now, the next look will do."""
    try:
        tables = reader()
        epoch = tables.log_epoch()
        of_epoch = f"log_epoch = {epoch}"
        groups = f"({DESCRIBED.latest('groups', of_epoch)})"
        offsets = f"({OFFSETS.latest('committed_offsets', of_epoch)})"
        (alive,) = tables.rows(
            f"SELECT count(*) AS n FROM {groups} g WHERE state <> 'Dead' AND NOT misplaced", "groups"
        )
        (live,) = tables.rows(
            f"SELECT count(*) AS n FROM {offsets} o LEFT ANTI JOIN (SELECT log_partition, group_id FROM {groups} g "
            "WHERE state = 'Dead') d ON d.log_partition = o.log_partition AND d.group_id = o.group_id "
            "WHERE committed_offset >= 0 AND NOT misplaced",
            "committed_offsets",
            "groups",
        )
        (corrupt,) = tables.rows("SELECT count(*) AS n FROM quarantine", "quarantine")
        folded = tables.rows("SELECT log_partition, folded_to FROM fold_progress", "fold_progress")
    except (*UNREADABLE, OffsetsError):
        return
    metrics.set("offsets_groups", alive["n"])
    metrics.set("offsets_committed_offsets", live["n"])
    metrics.set("offsets_quarantined_records", corrupt["n"])
    folded_to = {row["log_partition"]: row["folded_to"] for row in folded}
    behind = {at: max(0, end - folded_to.get(at, 0)) for at, end in observer.read_to.items()}
    metrics.set_all("offsets_fold_behind_log_records", "log_partition", behind)


class Follower:
    """Both queries together: what ends one ends the other."""

    def __init__(self, ingest: TopicIngest, settings: Settings, clock: Clock) -> None:
        self._ingest = ingest
        self._settings = settings
        self._clock = clock
        self._stopped = threading.Event()
        self._errors: list[Exception] = []

    def stop(self) -> None:
        """End `run` soon."""
        self._stopped.set()

    def run(self, on_batch: Callable[[int, int], None], *, available_now: bool = False) -> int:
        """Read and fold until stopped, or with ``available_now`` what is there; returns how many records were read.

        The ingest is prepared before. Raises what made either of them end.
        """
        store = self._ingest.store
        if available_now:
            read = self._ingest.run(available_now=True)
            start_fold(store, self._settings, self._clock, available_now=True, on_batch=on_batch).await_end()
            return read
        fold = start_fold(store, self._settings, self._clock, available_now=False, on_batch=on_batch)
        threads = [
            self._beside(store.spark, "ingest-topic", self._ingest.run),
            self._beside(store.spark, "fold", fold.await_end),
        ]
        try:
            while not self._stopped.wait(_POLL_SECONDS):
                pass
        finally:
            self._end(fold, threads)
        if self._errors:
            raise self._errors[0]
        return self._ingest.added

    def _beside(self, spark: SparkSession, name: str, run: Callable[[], Any]) -> threading.Thread:
        def until_it_ends() -> None:
            try:
                run()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is raised by who waits
                self._errors.append(error)
            finally:
                self._stopped.set()

        thread = threading.Thread(target=inheritable_thread_target(spark)(until_it_ends), name=name)
        thread.start()
        return thread

    def _end(self, fold: FoldStream, threads: list[threading.Thread]) -> None:
        self._ingest.stop()
        threads[0].join()  # what it read last is in the log then
        fold.stop()
        for thread in threads:
            thread.join()
