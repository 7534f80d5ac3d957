"""Following a broker's offsets topic: a Structured Streaming query that lands it in the log as it grows (R4).

Spark's Kafka source reads, by `assign`: who subscribes joins a group, and so writes into the topic that is read here.
It reads committed records, up to the last stable offset of each log partition. Such a log holds neither control records
nor producer ids: what is in it was committed, and folded by record offset it gives the visible state (R10).

The log says where reading goes on, and nothing else does: the query's checkpoint is thrown away when it ends. So a
query that fails for whatever reason is simply planned anew (topic_plan.py) from what the log holds.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import StreamingQueryException

from offsets_pipeline.batch_barrier import BatchBarrier
from offsets_pipeline.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    KafkaFailed,
    NoSuchTopic,
    NotAuthorized,
    OffsetsError,
    TopicStopped,
    first_line,
    raised_on_executor,
)
from offsets_pipeline.ingest.record_kind import OFFSETS_RECORDS
from offsets_pipeline.ingest.topic.topic_admin import TopicAdmin, TopicBounds, kafka_error, require_connector
from offsets_pipeline.ingest.topic.topic_append import TopicAppender
from offsets_pipeline.ingest.topic.topic_metadata import TopicMetadata
from offsets_pipeline.ingest.topic.topic_plan import Reading, Unfinished, check_topic, plan_reading
from offsets_pipeline.ingest.topic.topic_progress import TopicProgress
from offsets_pipeline.store import MIRRORED, Store, StoreProperties

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config import Settings
    from offsets_pipeline.ingest.topic.kafka_options import KafkaOptions
    from offsets_pipeline.ingest.topic.topic_admin import TopicDescription

# Spark's newer way to find out where partitions end leaves internal topics out, without a word.
_DEPRECATED_FETCHING = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"
# The older way waits for a broker where no interrupt reaches it: who stops the query meanwhile must not wait too.
_STOP_TIMEOUT, _STOP_SECONDS = "spark.sql.streaming.stopTimeout", 10
_POLL_SECONDS = 0.1
_FAILURES_IN_A_ROW = 5
_MOST_WAITS = 10  # that double
_STEADY_SECONDS = 60  # a query that ran for so long, and read what there was, is no failure in a row with the last one
# What a cluster that is up may answer for a while; what it says of us and our rights does not pass by itself.
_MAY_PASS = (KafkaFailed, NoSuchTopic)
# A query that runs reads what comes within seconds, also where that is seen only later: by so much two complete reads
# may seem to lie further apart than tombstones are kept.
_GRACE_MS, _LATE_LOOKS = 60_000, 4


class TopicObserver:
    """Is told how a topic is followed; each method does nothing here."""

    def planned(self, reading: Reading) -> None:
        """Reading begins, or begins again."""

    def landed(self, records: int) -> None:
        """So many records were appended to the log."""

    def looked(
        self, read_to: Mapping[int, int], bounds: Mapping[int, TopicBounds], open_since_ms: Mapping[int, int]
    ) -> None:
        """How far each log partition was read, how the topic stands, and since when transactions hold it back."""

    def warned(self, text: str) -> None:
        """Something that is not as it should be, in one line."""


class TopicIngest:
    """Lands one topic in the log of one store: `prepare`, then `run`, which `stop` ends."""

    def __init__(
        self,
        spark: SparkSession,
        location: str,
        options: KafkaOptions,
        settings: Settings,
        clock: Clock,
        observer: TopicObserver | None = None,
        topic: str | None = None,
    ) -> None:
        require_connector(spark)
        self._spark = spark
        self._location = location
        self._options = options
        self._settings = settings
        self._clock = clock
        self._observer = observer or TopicObserver()
        self._topic = topic or settings.topic.name
        self._stopped = threading.Event()
        self._notes: TopicMetadata | None = None
        self._unfinished: Unfinished | None = None
        self._failures: list[OffsetsError | _TopicChangedError] = []
        self._is_steady = False
        self._warned_of: frozenset[int] = frozenset()
        self._warning = ""
        self.added = 0

    @property
    def store(self) -> Store:
        """The store, once `prepare` made or found it."""
        return self._prepared.store

    @property
    def _prepared(self) -> TopicMetadata:
        assert self._notes is not None  # noqa: S101 - prepare comes first
        return self._notes

    def prepare(self) -> Store:
        """Look at the topic and open the store, or create it.

        Raises BrokerUnreachable, AuthenticationFailed, NotAuthorized, NoSuchTopic or KafkaFailed for what the broker
        answers, WrongRecords for a topic that holds something else, StoreMismatch and InvalidPartitionCount where the
        store mirrors another log.
        """
        with self._admin() as admin:
            topic = admin.describe()
            store = Store.find(self._spark, self._location)
            if store is None or store.properties.topic_name is None:
                OFFSETS_RECORDS.require(f"topic {self._topic}", admin.first_records(admin.bounds(topic.partitions)))
        if store is None:
            properties = StoreProperties(MIRRORED, topic.partitions, topic.cluster_id, topic.topic_id, self._topic)
            store = Store.create(self._spark, self._location, properties)
        store.require(MIRRORED)
        check_topic(store.location, self._topic, store.properties, topic)
        self._notes = TopicMetadata(store, self._topic, self._settings, self._clock)
        return store

    def stop(self) -> None:
        """End `run` soon, between two batches.

        While no broker answers that may take as long as a question to it does, and the query some more seconds.
        """
        self._stopped.set()

    def run(self, *, available_now: bool = False) -> int:
        """Read until stopped, or with ``available_now`` up to what is there; returns how many records were added.

        A broker that goes away or fails is waited for, and so are other writers; with ``available_now`` that is raised.
        Raises what `prepare` does of who we are and of another log, where that comes to light later, and TopicStopped
        where the query fails again and again.
        """
        self._spark.conf.set(_DEPRECATED_FETCHING, "true")
        failures = waits = 0
        while not self._stopped.is_set():
            before, self._is_steady = self.added, False
            failed = False
            try:
                if self._read(available_now=available_now) and available_now:
                    break
                waits = 0
                continue
            except _QueryFailedError as error:
                failed = True
                said = f"reading topic {self._topic} failed: {error}"
            except OffsetsError as error:
                if available_now or not (error.retriable or isinstance(error, _MAY_PASS)):
                    raise
                said = str(error)
            if self._is_steady or self.added > before:
                failures = waits = 0
            failures += failed
            if failures > _FAILURES_IN_A_ROW:
                raise TopicStopped(f"{said}, again and again")
            self._warn(f"{said}; trying again")
            waits = min(waits + 1, _MOST_WAITS)
            self._stopped.wait(min(2**waits * _POLL_SECONDS, self._settings.fold.max_backoff_ms / 1000))
        return self.added

    def _warn(self, text: str) -> None:
        """Warn, of the same not again and again."""
        if text != self._warning:
            self._warning = text
            self._observer.warned(text)

    # --- one query

    def _admin(self) -> TopicAdmin:
        return TopicAdmin(self._spark, self._options, self._topic)

    def _read(self, *, available_now: bool) -> bool:
        """Plan, start the query, and watch it and the topic until the query ends or has to.

        Returns whether it came to its end by itself, and all that was stable when it began is in the epoch that counts.
        """
        with self._admin() as admin:
            topic = admin.describe()
            check_topic(self.store.location, self._topic, self.store.properties, topic)
            progress = self._planned(admin, topic)
            if progress.counts:
                self._prepared.adopt(topic)
                self._prepared.note(progress)
            self._prepared.names(admin.topic_names())
            with tempfile.TemporaryDirectory(prefix="offsets-topic-", ignore_cleanup_errors=True) as checkpoint:
                gate = BatchBarrier()
                query = self._start(progress.reading, topic, admin, gate, checkpoint, available_now=available_now)
                try:
                    ended = self._watch(query, progress, admin, topic)
                finally:
                    self._end(query, gate)
                ended = ended and self._look(query, progress, admin, topic)
                progress.advance(self._ends(query))
                if progress.counts:
                    self._prepared.note(progress)
        return ended and progress.counts

    def _planned(self, admin: TopicAdmin, topic: TopicDescription) -> TopicProgress:
        """What is to be read, at its beginning."""
        now_ms = self._clock.now_ms()  # before it is asked what is stable
        bounds = admin.bounds(topic.partitions)
        retention_ms = admin.delete_retention_ms()
        topic_id = self.store.properties.topic_id
        reading = plan_reading(self._prepared.known(), topic_id, topic, bounds, retention_ms, now_ms, self._unfinished)
        begun = None if self._unfinished is None else self._unfinished.reading.complete
        if reading.anew is None:
            self._unfinished = None
        elif reading.complete != begun:  # else it goes on
            self._warn(f"topic {self._topic} is read anew, as epoch {reading.epoch}: {reading.anew}")
            self._unfinished = Unfinished(topic, reading)
        self._observer.planned(reading)
        grace_ms = max(_GRACE_MS, _LATE_LOOKS * self._settings.topic.watch_interval_ms)
        return TopicProgress(reading, bounds, now_ms, retention_ms + grace_ms)

    def _start(
        self,
        reading: Reading,
        topic: TopicDescription,
        admin: TopicAdmin,
        gate: BatchBarrier,
        checkpoint: str,
        *,
        available_now: bool,
    ) -> StreamingQuery:
        def confirm() -> None:
            if admin.describe() != topic:
                raise _TopicChangedError

        source = f"kafka://{topic.cluster_id or self._options.bootstrap_server}/{self._topic}"
        appender = TopicAppender(reading.epoch, source, self._settings, self._clock, confirm)
        self._failures.clear()

        def land(rows: DataFrame, _: int) -> None:
            try:
                with gate.batch():
                    added = appender.append(self.store.in_session(rows.sparkSession), rows)
                    self.added += added
                    self._observer.landed(added)
            except Exception as error:
                failure = error if isinstance(error, _TopicChangedError) else raised_on_executor(error)
                if failure is not None:
                    self._failures.append(failure)  # Spark passes on no more of it than a text with its stack
                raise

        starts = {str(at): start for at, start in sorted(reading.starts.items())}
        reader = (
            self._spark.readStream.format("kafka")
            .options(**self._options.for_spark())
            .option("kafka.isolation.level", "read_committed")
            .option("assign", json.dumps({self._topic: sorted(reading.starts)}))
            .option("startingOffsets", json.dumps({self._topic: starts}))
            .option("maxOffsetsPerTrigger", self._settings.topic.max_records_per_batch)
            .option("failOnDataLoss", "true")
        )
        writer = (
            reader.load()
            .writeStream.queryName("ingest-topic")
            .option("checkpointLocation", Path(checkpoint).as_uri())
            .foreachBatch(land)
        )
        if available_now:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{self._settings.topic.trigger_interval_ms} milliseconds").start()

    def _end(self, query: StreamingQuery, gate: BatchBarrier) -> None:
        """Stop the query, once its batch is over.

        One that waits for a broker is left to itself: it ends when one answers, landing nothing.
        """
        before = self._spark.conf.get(_STOP_TIMEOUT, None)
        gate.close(_STOP_SECONDS)
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
        self, query: StreamingQuery, progress: TopicProgress, admin: TopicAdmin, topic: TopicDescription
    ) -> bool:
        """Whether the query came to its end by itself; else it has to be planned anew, or is to end."""
        interval = self._settings.topic.watch_interval_ms / 1000
        began = time.monotonic()
        next_look = began + min(interval, 1.0)
        while not self._stopped.is_set():
            if not query.isActive:
                return self._ended_well(query)
            if time.monotonic() >= next_look:
                complete = progress.complete
                try:
                    if not self._look(query, progress, admin, topic):
                        return False
                except (BrokerUnreachable, *_MAY_PASS) as away:
                    self._warn(f"{away}; trying again")  # so does the query
                if progress.complete != complete and time.monotonic() - began >= _STEADY_SECONDS:
                    self._is_steady = True
                next_look = time.monotonic() + interval
            time.sleep(_POLL_SECONDS)
        return False

    def _ended_well(self, query: StreamingQuery) -> bool:
        """False where the topic is another one; raises what else made it end."""
        try:
            query.awaitTermination()
        except StreamingQueryException as exception:
            failure = self._failures[-1] if self._failures else self._refused(exception)
            if isinstance(failure, _TopicChangedError):
                return False
            if failure is not None:
                raise failure from None
            raise _QueryFailedError(self._options.without_secrets(first_line(exception))) from None
        return True

    def _refused(self, exception: StreamingQueryException) -> OffsetsError | None:
        """What the broker has against us, where that is why the query ended: it does not pass by itself."""
        origin = getattr(exception, "_origin", None)  # of the JVM: with what it was caused by
        refusal = None if origin is None else kafka_error(origin, self._options, self._topic)
        return refusal if isinstance(refusal, (AuthenticationFailed, NotAuthorized)) else None

    def _look(self, query: StreamingQuery, progress: TopicProgress, admin: TopicAdmin, topic: TopicDescription) -> bool:
        """See how topic and query stand, and note it; False where the reading has to be planned anew."""
        now_ms = self._clock.now_ms()
        if admin.describe() != topic or self._prepared.is_superseded(progress.reading.epoch):
            return False
        bounds = admin.bounds(topic.partitions)
        transactions_ms = admin.open_since_ms([at for at, each in bounds.items() if each.stable < each.end])
        names = admin.topic_names()
        progress.advance(self._ends(query))
        counted = progress.counts
        if not progress.look(now_ms, bounds, transactions_ms):
            return False
        self._warning = ""  # what was warned of is over
        self._prepared.names(names)
        if progress.counts and not counted:  # all of it is in the log: from here on it counts
            self._prepared.note(progress)
            self._prepared.adopt(topic)
            self._unfinished = None
        self._warn_of_open(progress.open_since_ms)
        self._observer.looked(progress.read_to, bounds, progress.open_since_ms)
        if progress.counts and self._prepared.is_due():
            self._prepared.note(progress)
        return True

    def _ends(self, query: StreamingQuery) -> dict[int, int]:
        """How far the query got: what its last batch said, which is in the log by then."""
        progress: Any = query.lastProgress
        found: dict[int, int] = {}
        for source in progress["sources"] if progress else ():
            ends = source["endOffset"]
            ends = json.loads(ends) if isinstance(ends, str) else ends
            found |= {int(at): int(end) for at, end in ((ends or {}).get(self._topic) or {}).items()}
        return found

    def _warn_of_open(self, open_since: Mapping[int, int]) -> None:
        """Warn once of each log partition that a hanging transaction holds back."""
        limit_ms = self._settings.topic.open_transaction_warning_ms
        now_ms = self._clock.now_ms()
        hanging = {at: now_ms - since for at, since in open_since.items() if now_ms - since >= limit_ms}
        for at in sorted(hanging.keys() - self._warned_of):
            self._warn(
                f"log partition {at} is held back by a transaction, for at least {hanging[at] // 1000} s: nothing "
                "behind it is seen until it ends (kafka-transactions.sh finds and aborts it)"
            )
        self._warned_of = frozenset(hanging)


class _QueryFailedError(Exception):
    """A query ended with an exception of Spark's; the message is its first line."""


class _TopicChangedError(Exception):
    """The topic that is read is no longer the one that it was."""
