"""Follows a broker's topic: a Structured Streaming query appends new records to the log (R4).

The query's source reads raw record batches up to each log partition's high watermark (record_batch_source.py). So the
log holds the same records as the broker's segment files, of open and aborted transactions too.

The start of a query depends on the log and its metadata, never on a checkpoint: each query's checkpoint is deleted when
the query ends. After any failure `topic_watch.py` plans the next query from the log.
"""

from __future__ import annotations

import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import StreamingQueryException

from offsets_pipeline.common.foreign_errors import first_line, may_pass, raised_on_executor
from offsets_pipeline.common.warnings import Warnings
from offsets_pipeline.errors import (
    BrokerUnreachable,
    KafkaFailed,
    LogTruncated,
    NoSuchTopic,
    OffsetsError,
    StorageFailed,
    StreamFailed,
    WrongRecords,
)
from offsets_pipeline.ingest.batch_barrier import BatchBarrier
from offsets_pipeline.ingest.record_kind import topic_kind_of
from offsets_pipeline.ingest.segments.segment_files import OFFSETS_TOPIC
from offsets_pipeline.ingest.topic.record_batch_source import (
    MAY_PASS,
    SourceOptions,
    are_few,
    are_undivided,
    planned_ends,
    ranges_between,
    read_stream,
    shared_out,
)
from offsets_pipeline.ingest.topic.topic_append import TopicAppender, TopicReader
from offsets_pipeline.ingest.topic.topic_client import TopicClient, TopicDescription
from offsets_pipeline.ingest.topic.topic_plan import check_topic
from offsets_pipeline.ingest.topic.topic_progress import TopicObserver, TopicProgress
from offsets_pipeline.ingest.topic.topic_watch import TopicWatch
from offsets_pipeline.kafka.broker.fetch import FetchPosition
from offsets_pipeline.semantics.coordinator_semantics import AUTO, MODERN, CoordinatorSemantics
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.log.task_results import parallelism
from offsets_pipeline.store.session import require_context
from offsets_pipeline.store.store import Store, session_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from offsets_pipeline.common.clock import Clock
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
    from offsets_pipeline.kafka.broker.offset_ranges import OffsetRange
    from offsets_pipeline.store.log.append import Append, RecordsFold
    from offsets_pipeline.store.store import SparkSource

_QUERY = "ingest-topic"
# The source does not react to interrupts while it waits for a broker: this limits how long a stop of the query waits.
_STOP_TIMEOUT, _STOP_SECONDS = "spark.sql.streaming.stopTimeout", 10
_POLL_SECONDS = 0.1
_FOLD_SECONDS = 1.0  # between two looks for appends of other processes
_FAILURES_IN_A_ROW = 5
_MAX_BACKOFF_SECONDS = 5.0
_STEADY_SECONDS = 60  # reset the failure count if a query has run this long and has caught up with the topic


class FoldsAppends(Protocol):
    """What folds the appends of an ingest: `Folding`."""

    def next_fold(self, store: Store, log_incarnation: int) -> RecordsFold | None:
        """Return a fold of the next append, to run where its records are; None if a fold has to read the log."""

    def fold(self, store: Store, append: Append | None = None) -> None:
        """Fold the log, or take what was folded of an append."""


class TopicIngest:
    """Copies one topic to the log of one store: call `prepare`, then `run`; `stop` ends `run` and `await_topic`."""

    def __init__(
        self,
        spark: SparkSource,
        location: str,
        options: KafkaOptions,
        settings: Settings,
        clock: Clock,
        observer: TopicObserver | None = None,
        topic: str | None = None,
        semantics: CoordinatorSemantics | None = None,
    ) -> None:
        self._folding: FoldsAppends | None = None
        self._spark_source = spark
        self._location = location
        self._options = options
        self._settings = settings
        self._clock = clock
        self._observer = observer or TopicObserver()
        self._topic = topic or settings.topic.name
        chosen = settings.log.coordinator_semantics
        self._semantics = semantics or (None if chosen == AUTO else CoordinatorSemantics(chosen))
        self._stopped = threading.Event()
        self._topic_watch: TopicWatch | None = None
        self._failures: list[OffsetsError | _TopicChangedError] = []
        self._is_steady = False
        self._warnings = Warnings(self._observer.warned)
        self.added = 0

    @property
    def _spark(self) -> SparkSession:
        return session_of(self._spark_source)

    @property
    def store(self) -> Store:
        """The store that `prepare` created or opened."""
        return self._prepared.store

    @property
    def _prepared(self) -> TopicWatch:
        assert self._topic_watch is not None  # noqa: S101 - prepare comes first
        return self._topic_watch

    def await_topic(self) -> bool:
        """Wait until the cluster has the topic, if its first consumer will create it; False if `stop` came first.

        Raises NoSuchTopic for another topic than `__consumer_offsets`. Raises BrokerUnreachable, AuthenticationFailed,
        NotAuthorized and KafkaFailed as `prepare`; once it waits, only the errors that do not pass. Raises NotAStore if
        `prepare` would.
        """
        Store.find(self._spark_source, self._location)
        is_missing = False
        with self._admin() as admin:
            while not self._stopped.is_set():
                try:
                    admin.describe()
                except NoSuchTopic:
                    if self._topic != OFFSETS_TOPIC:
                        raise
                    if not is_missing:
                        self._observer.missing(admin.address())
                    is_missing = True
                except (BrokerUnreachable, KafkaFailed) as away:
                    if not is_missing:
                        raise
                    self._observer.unreachable(away)
                else:
                    return True
                self._stopped.wait(self._settings.topic.watch_interval_ms / 1000)
        return False

    def prepare(self) -> Store:
        """Open the store or create it, and check the topic. Starts Spark for a new store or a schema only.

        Raises:
            NotAStore: something else is at the location, or a store of another format.
            BrokerUnreachable, AuthenticationFailed, NotAuthorized, NoSuchTopic, KafkaFailed: a request failed.
            WrongRecords: the topic holds records of another kind.
            StoreMismatch: the store mirrors another log, or reproduces another coordinator than asked for.
        """
        store = Store.find(self._spark_source, self._location)
        with self._admin() as admin:
            topic = admin.describe()
            self._observer.connected(admin.address(), topic.cluster_id)
            if store is None or store.properties.topic_name is None:
                first = admin.first_records(admin.bounds(topic.partitions, of_all=True))
                expected = None if store is None else store.properties.topic_kind
                kind = topic_kind_of(f"topic {self._topic}", self._topic, first, expected)
            else:
                kind = store.properties.topic_kind
            asked = self._semantics if kind.has_groups else MODERN
            semantics = asked or admin.coordinator_semantics()
        if store is None:
            properties = StoreProperties(
                MIRRORED,
                topic.partitions,
                topic.cluster_id,
                topic.topic_id,
                self._topic,
                semantics,
                kind,
            )
            store = Store.create(self._spark_source, self._location, properties)
        store.require(MIRRORED)
        check_topic(store.location, self._topic, store.properties, topic)
        known = store.properties.coordinator_semantics
        if known != semantics and asked is not None:
            store.require_semantics(semantics)
        elif known != semantics:
            self._warnings.warn(
                f"the broker's coordinator is {semantics}, that of {store.location} is {known}: it changes"
            )
            store = store.with_semantics(semantics)
        self._topic_watch = TopicWatch(
            store, self._topic, self._settings, self._clock, self._observer, self._warnings.warn
        )
        return store

    def stop(self) -> None:
        """End `run` between two batches.

        If no broker answers, `run` ends after the timeout of a request and some seconds for the query.
        """
        self._stopped.set()

    def run(self, *, available_now: bool = False, folding: FoldsAppends | None = None) -> int:
        """Read until `stop`, or with ``available_now`` up to the topic's end; returns how many records it added.

        Folds with ``folding`` after each append, and each second without one: another process may have appended, too.
        Retries after errors of the broker, errors of the storage that may pass and conflicts with other writers; with
        ``available_now`` raises them.

        Raises:
            AuthenticationFailed, NotAuthorized, StoreMismatch: as `prepare`.
            StorageRefused: the storage refuses access, or lacks the bucket.
            WrongRecords: the first records of a topic that was empty are of another kind than the store.
            StreamFailed: the query failed too often in a row.
            NotOnConnect: the session is of a Spark Connect server.
        """
        require_context(self._spark, "reading a topic")
        self._folding = folding
        failures, backoff_seconds = 0, _POLL_SECONDS
        while not self._stopped.is_set():
            before, self._is_steady = self.added, False
            failed, away = False, None
            try:
                if self._read(available_now=available_now) and available_now:
                    break
                backoff_seconds = _POLL_SECONDS
                continue
            except _QueryFailedError as error:
                failed = True
                said = f"reading topic {self._topic} failed: {error}"
            except OffsetsError as error:
                # a commit without an answer, too: the next reading goes on from what the log has by then
                if available_now or not (may_pass(error) or isinstance(error, MAY_PASS)):
                    raise
                said = str(error)
                away = error if isinstance(error, (*MAY_PASS, StorageFailed)) else None
            if self._is_steady or self.added > before:
                failures, backoff_seconds = 0, _POLL_SECONDS
            failures += failed
            if failures > _FAILURES_IN_A_ROW:
                raise StreamFailed(f"{said}; the query failed too often without reading a record")
            if away is None:
                self._warnings.warn(f"{said}; trying again")
            else:
                self._observer.unreachable(away)
            backoff_seconds = min(2 * backoff_seconds, _MAX_BACKOFF_SECONDS)
            self._stopped.wait(backoff_seconds)
        return self.added

    # --- one query

    def _admin(self) -> TopicClient:
        return TopicClient(self._options, self._topic)

    def _read(self, *, available_now: bool) -> bool:
        """Plan a reading, start its query, and watch query and topic until the query ends or must end.

        Returns True if the query ended by itself and its log incarnation counts.
        """
        with self._admin() as admin:
            topic = admin.describe()
            progress = self._prepared.plan(admin, topic, needs_all=available_now)
            with tempfile.TemporaryDirectory(prefix="offsets-topic-", ignore_cleanup_errors=True) as checkpoint:
                barrier = BatchBarrier()
                query = self._start(progress, topic, admin, barrier, checkpoint, available_now=available_now)
                try:
                    ended = self._watch(query, progress, admin, topic)
                finally:
                    self._end(query, barrier)
                ended = ended and self._look(progress, admin, topic)
                self._prepared.end(progress)
        return ended and progress.counts

    def _start(
        self,
        progress: TopicProgress,
        topic: TopicDescription,
        admin: TopicClient,
        barrier: BatchBarrier,
        checkpoint: str,
        *,
        available_now: bool,
    ) -> StreamingQuery:
        def confirm() -> None:
            if admin.describe() != topic:
                raise _TopicChangedError

        reading = progress.reading
        source = f"kafka://{topic.cluster_id or self._options.bootstrap_server}/{self._topic}"
        starts = {at: FetchPosition(start, progress.leader_epochs.get(at)) for at, start in reading.starts.items()}
        options = SourceOptions(
            self._topic,
            self._options,
            starts,
            max_offsets=self._settings.topic.max_records_per_batch,
            tasks=parallelism(self._spark),
            min_offsets=self._settings.topic.min_records_per_batch,
            min_offsets_wait_ms=self._settings.topic.min_records_wait_ms,
        )
        reader = TopicReader(self._topic, self._options, source, self.store.properties)
        appender = TopicAppender(reading.log_incarnation, self._settings, self._clock, confirm, reader.read_all)
        self._failures.clear()
        positions = dict(starts)

        def next_fold(store: Store) -> RecordsFold | None:
            return None if self._folding is None else self._folding.next_fold(store, reading.log_incarnation)

        def land(rows: DataFrame, batch_id: int) -> None:
            try:
                with barrier.batch():
                    ends = planned_ends(Path(checkpoint), batch_id)
                    complete_ms = self._prepared.begin_batch(progress, ends)
                    here = self.store.in_session(rows.sparkSession)
                    ranges = ranges_between(positions, ends)
                    self._check_first(admin, ranges)
                    fetched = (lambda: reader.rows(admin.fetch(ranges))) if are_few(ranges) else None
                    fold = next_fold if are_undivided(shared_out(ranges, options.tasks)) else None
                    append = appender.append(here, rows, complete_ms, fetched, fold)
                    positions.update(ends)
                    progress.advance(ends)
                    self.added += append.records
                    self._observer.landed(append.records)
                    if self._folding is not None and append.records:
                        self._folding.fold(here, append)
            except Exception as error:
                failure = error if isinstance(error, _TopicChangedError) else raised_on_executor(error)
                if failure is not None:
                    self._failures.append(failure)  # Spark keeps only the text of an exception
                raise

        writer = (
            read_stream(self._spark, options)
            .writeStream.queryName(self._query_name())
            .option("checkpointLocation", Path(checkpoint).as_uri())
            .foreachBatch(land)
        )
        if available_now:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime="0 seconds").start()  # the source waits for records

    def _check_first(self, admin: TopicClient, ranges: Sequence[OffsetRange]) -> None:
        """Check the first records of a log: a store of an empty topic has the kind that the topic's name suggests.

        Raises WrongRecords if the topic holds records of another kind.
        """
        if self._prepared.has_records:
            return
        first = admin.first_records({each.partition: each for each in ranges})
        try:
            topic_kind_of(f"topic {self._topic}", self._topic, first, self.store.properties.topic_kind)
        except WrongRecords as error:
            raise WrongRecords(
                f"{error}; {self.store.location} has no records: remove it, or name another store"
            ) from None
        self._prepared.has_records = bool(first)

    def _query_name(self) -> str:
        """A name that no active query has: one that waits for a broker keeps its own after `_end` has left it."""
        taken = {query.name for query in self._spark.streams.active}
        return _QUERY if _QUERY not in taken else f"{_QUERY}-{uuid.uuid4().hex[:8]}"

    def _end(self, query: StreamingQuery, barrier: BatchBarrier) -> None:
        """Stop the query after its batch.

        Leaves a query that waits for a broker after a timeout. It ends when a broker answers, and appends nothing.
        """
        before = self._spark.conf.get(_STOP_TIMEOUT, None)
        barrier.close(_STOP_SECONDS)
        self._spark.conf.set(_STOP_TIMEOUT, f"{_STOP_SECONDS}s")
        try:
            query.stop()
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() != "java.util.concurrent.TimeoutException":
                raise
        finally:
            if before is None:
                self._spark.conf.unset(_STOP_TIMEOUT)
            else:
                self._spark.conf.set(_STOP_TIMEOUT, before)

    def _watch(
        self, query: StreamingQuery, progress: TopicProgress, admin: TopicClient, topic: TopicDescription
    ) -> bool:
        """Watch the query; returns True if it ended by itself, False on `stop` or if the reading needs a new plan."""
        interval = self._settings.topic.watch_interval_ms / 1000
        began = time.monotonic()
        next_look, next_fold = began + min(interval, _FOLD_SECONDS), began + _FOLD_SECONDS
        while not self._stopped.is_set():
            if not query.isActive:
                return self._ended_well(query)
            if self._folding is not None and time.monotonic() >= next_fold:
                self._folding.fold(self.store)
                next_fold = time.monotonic() + _FOLD_SECONDS
            if time.monotonic() >= next_look:
                complete = progress.complete
                try:
                    if not self._look(progress, admin, topic):
                        return False
                except MAY_PASS as away:
                    self._observer.unreachable(away)  # the query retries, too
                if progress.complete != complete and time.monotonic() - began >= _STEADY_SECONDS:
                    self._is_steady = True
                next_look = time.monotonic() + interval
            time.sleep(_POLL_SECONDS)
        return False

    def _ended_well(self, query: StreamingQuery) -> bool:
        """True if the query ended without an exception, False if the topic has changed; raises other failures."""
        try:
            query.awaitTermination()
        except StreamingQueryException as exception:
            failure = self._failures[-1] if self._failures else raised_on_executor(exception)  # by the source
            if isinstance(failure, (_TopicChangedError, LogTruncated)):
                return False
            if self._failures:
                raise self._failures[-1] from None
            said = first_line(exception) if failure is None else str(failure)
            raise _QueryFailedError(self._options.without_secrets(said)) from None
        return True

    def _look(self, progress: TopicProgress, admin: TopicClient, topic: TopicDescription) -> bool:
        """Look at the topic while the query reads it; False if the reading needs a new plan."""
        if not self._prepared.look(progress, admin, topic):
            return False
        self._warnings.recovered()  # the cluster answers again
        return True


class _QueryFailedError(Exception):
    """A query ended with a Spark exception.

    The message is that of the source's own error, or the first line of the exception's.
    """


class _TopicChangedError(Exception):
    """The topic's description changed while a query read the topic."""
