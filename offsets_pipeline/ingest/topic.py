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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from offsets_pipeline.errors import BrokerUnreachable, NoSuchStore, NoSuchTopic, OffsetsError, TopicStopped
from offsets_pipeline.ingest.topic_admin import TopicAdmin, TopicBounds, require_connector
from offsets_pipeline.ingest.topic_append import TopicAppender, ends_by_epoch
from offsets_pipeline.ingest.topic_plan import KnownLog, Reading, check_topic, plan_reading
from offsets_pipeline.log.epochs import counting_epoch
from offsets_pipeline.log.notes import LogNotes, TopicRead
from offsets_pipeline.store import MIRRORED, Store, StoreProperties
from offsets_pipeline.tables import LOG_PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config import Settings
    from offsets_pipeline.ingest.kafka_options import KafkaOptions
    from offsets_pipeline.ingest.topic_admin import TopicDescription

# Spark's newer way to find out where partitions end leaves internal topics out, without a word.
_DEPRECATED_FETCHING = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"
_POLL_SECONDS = 0.1
_FAILURES_IN_A_ROW = 5
_MOST_WAITS = 10  # that double
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


@dataclass
class _State:
    """How a reading goes on."""

    reading: Reading
    counts: bool
    read_to: dict[int, int]
    target: tuple[int, dict[int, int]]
    read_at_ms: int
    bounds: Mapping[int, TopicBounds]
    open_since_ms: Mapping[int, int]
    noted_at: float = 0.0


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
        self._failures: list[OffsetsError] = []
        self._names: dict[str, str] = {}
        self._opened: Store | None = None
        self._warned_of: frozenset[int] = frozenset()
        self._warning = ""
        self.added = 0

    @property
    def store(self) -> Store:
        """The store, once `prepare` made or found it."""
        assert self._opened is not None  # noqa: S101 - prepare comes first
        return self._opened

    def prepare(self) -> Store:
        """Look at the topic and open the store, or create it.

        Raises BrokerUnreachable, AuthenticationFailed, NotAuthorized, NoSuchTopic or KafkaFailed for what the broker
        answers, StoreMismatch and InvalidPartitionCount where the store mirrors another log.
        """
        with self._admin() as admin:
            topic = admin.describe()
        try:
            store = Store.open(self._spark, self._location)
        except NoSuchStore:
            properties = StoreProperties(MIRRORED, topic.partitions, topic.cluster_id, topic.topic_id)
            store = Store.create(self._spark, self._location, properties)
        store.require(MIRRORED)
        check_topic(store.location, self._topic, store.properties, topic)
        self._opened = store
        return store

    def stop(self) -> None:
        """End `run` soon, between two batches."""
        self._stopped.set()

    def run(self, *, available_now: bool = False) -> int:
        """Read until stopped, or with ``available_now`` up to what is there; returns how many records were added.

        A broker that goes away is waited for. Raises what `prepare` does, where that comes to light later, and
        TopicStopped where the query fails again and again.
        """
        self._spark.conf.set(_DEPRECATED_FETCHING, "true")
        in_a_row = waits = 0
        while not self._stopped.is_set():
            before = self.added
            try:
                self._read(available_now=available_now)
            except (BrokerUnreachable, NoSuchTopic) as away:
                if available_now:
                    raise
                self._warn(f"{away}; trying again until it answers")
                waits = min(waits + 1, _MOST_WAITS)
                self._stopped.wait(min(2**waits * _POLL_SECONDS, self._settings.fold.max_backoff_ms / 1000))
            except _QueryFailedError as failed:
                in_a_row = 1 if self.added > before else in_a_row + 1
                if in_a_row > _FAILURES_IN_A_ROW:
                    raise TopicStopped(f"reading topic {self._topic} fails again and again: {failed}") from None
                self._stopped.wait(self._settings.fold.retry_backoff_ms / 1000)
            else:
                waits = 0
                if available_now:
                    break
        return self.added

    def _warn(self, text: str) -> None:
        """Warn, of the same not again and again."""
        if text != self._warning:
            self._warning = text
            self._observer.warned(text)

    # --- one query

    def _admin(self) -> TopicAdmin:
        return TopicAdmin(self._spark, self._options, self._topic)

    def _read(self, *, available_now: bool) -> None:
        """Plan, start the query, and watch it and the topic until the query ends or has to."""
        with self._admin() as admin:
            topic = admin.describe()
            check_topic(self.store.location, self._topic, self.store.properties, topic)
            bounds = admin.bounds(topic.partitions)
            retention_ms = admin.delete_retention_ms()
            now_ms = self._clock.now_ms()
            known_topic_id = self.store.properties.topic_id
            reading = plan_reading(self._known(), known_topic_id, topic, bounds, retention_ms, now_ms)
            if reading.anew is not None:
                self._warn(f"topic {self._topic} is read anew, as epoch {reading.epoch}: {reading.anew}")
            self._observer.planned(reading)
            state = _State(
                reading,
                counts=reading.anew is None,
                read_to=dict(reading.starts),
                target=(now_ms, {at: each.stable for at, each in bounds.items()}),
                read_at_ms=reading.read_at_ms,
                bounds=bounds,
                open_since_ms={},
            )
            if state.counts:
                self._adopt(topic)
                self._note(state)
            self._note_names(admin)
            with tempfile.TemporaryDirectory(prefix="offsets-topic-", ignore_cleanup_errors=True) as checkpoint:
                query = self._start(reading, topic, checkpoint, available_now=available_now)
                try:
                    self._watch(query, state, admin, topic, retention_ms)
                finally:
                    query.stop()
                if available_now and not self._stopped.is_set():
                    self._look(query, state, admin, topic)
                self._follow(query, state)
                if state.counts:
                    self._note(state)

    def _start(
        self, reading: Reading, topic: TopicDescription, checkpoint: str, *, available_now: bool
    ) -> StreamingQuery:
        source = f"kafka://{topic.cluster_id}/{self._topic}"
        appender = TopicAppender(reading.epoch, source, self._settings, self._clock)

        def land(rows: DataFrame, _: int) -> None:
            try:
                added = appender.append(self.store.in_session(rows.sparkSession), rows)
            except OffsetsError as error:
                self._failures.append(error)  # Spark passes on no more of it than a text with its stack
                raise
            self.added += added
            self._observer.landed(added)

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

    def _watch(
        self, query: StreamingQuery, state: _State, admin: TopicAdmin, topic: TopicDescription, retention_ms: int
    ) -> None:
        """Return when the query ended in order, or has to be planned anew, or is to end."""
        interval = self._settings.topic.watch_interval_ms / 1000
        next_look = time.monotonic() + min(interval, 1.0)
        while not self._stopped.is_set():
            if not query.isActive:
                self._raise_failure(query)
                return
            if time.monotonic() >= next_look:
                if not self._look(query, state, admin, topic):
                    return
                grace_ms = max(_GRACE_MS, _LATE_LOOKS * self._settings.topic.watch_interval_ms)
                if self._clock.now_ms() - state.read_at_ms > retention_ms + grace_ms:
                    return  # the plan says what that means
                next_look = time.monotonic() + interval
            time.sleep(_POLL_SECONDS)

    def _raise_failure(self, query: StreamingQuery) -> None:
        try:
            query.awaitTermination()
        except StreamingQueryException as exception:
            if self._failures and not self._failures[-1].retriable:
                raise self._failures[-1] from None
            lines = str(exception).strip().splitlines() or [""]
            raise _QueryFailedError(self._options.without_secrets(lines[0])) from None

    def _look(self, query: StreamingQuery, state: _State, admin: TopicAdmin, topic: TopicDescription) -> bool:
        """See how topic and query stand, and note it; False where this is no longer the topic that is read.

        A broker that does not answer is for the query to notice: it waits for it.
        """
        now_ms = self._clock.now_ms()
        try:
            if admin.describe() != topic:
                return False
            bounds = admin.bounds(topic.partitions)
            self._note_names(admin)
        except (BrokerUnreachable, NoSuchTopic) as away:
            self._warn(f"{away}; trying again until it answers")
            return True
        self._warning = ""  # what was warned of is over
        self._follow(query, state)
        state.bounds = bounds
        state.open_since_ms = admin.open_since_ms([at for at, each in bounds.items() if each.stable < each.end])
        stable = {at: each.stable for at, each in bounds.items()}
        if all(state.read_to[at] >= end for at, end in state.target[1].items()):
            state.read_at_ms, state.target = state.target[0], (now_ms, stable)
            if not state.counts:  # all of it is in the log: from here on it counts
                self._note(state)
                self._adopt(topic)
                state.counts = True
        if all(state.read_to[at] >= end for at, end in stable.items()):
            state.read_at_ms = now_ms
        self._warn_of_open(state.open_since_ms)
        self._observer.looked(state.read_to, bounds, state.open_since_ms)
        if state.counts and time.monotonic() - state.noted_at >= self._settings.topic.note_interval_ms / 1000:
            self._note(state)
        return True

    def _follow(self, query: StreamingQuery, state: _State) -> None:
        """How far the query got: what its last batch said, which is in the log by then."""
        progress: Any = query.lastProgress
        for source in progress["sources"] if progress else ():
            ends = source["endOffset"]
            ends = json.loads(ends) if isinstance(ends, str) else ends
            for at, end in ((ends or {}).get(self._topic) or {}).items():
                state.read_to[int(at)] = max(int(end), state.read_to.get(int(at), 0))

    # --- what the store is told

    def _known(self) -> KnownLog:
        epoch = counting_epoch(self.store)
        ends = ends_by_epoch(self.store)
        rows = self.store.read(LOG_PARTITIONS.name).where(F.col("log_epoch") == epoch)
        if "read_at" not in rows.columns:  # a store from before topics were followed
            return KnownLog(epoch, ends)
        at, since = F.unix_millis("read_at").alias("at"), F.unix_millis("complete_since").alias("since")
        followed = rows.where("read_at IS NOT NULL").select("log_partition", "end_offset", at, since).collect()
        if len(followed) < self.store.properties.offsets_partitions:
            return KnownLog(epoch, ends)
        return KnownLog(
            epoch,
            ends,
            {row["log_partition"]: row["end_offset"] for row in followed},
            min(row["at"] for row in followed),
            max(row["since"] for row in followed),
        )

    def _note(self, state: _State) -> None:
        """Note how the topic stands, and how far it was read."""
        reads = {
            at: TopicRead(
                each.start,
                max(state.read_to[at], each.start),
                each.stable,
                each.end,
                state.reading.complete_since_ms,
                state.read_at_ms,
                state.open_since_ms.get(at),
            )
            for at, each in state.bounds.items()
        }
        LogNotes(self.store, self._settings, self._clock, state.reading.epoch).read(reads)
        state.noted_at = time.monotonic()

    def _warn_of_open(self, open_since: Mapping[int, int]) -> None:
        """Warn once of each log partition that a hanging transaction holds back."""
        limit_ms = self._settings.topic.open_transaction_warning_ms
        now_ms = self._clock.now_ms()
        hanging = {at: now_ms - since for at, since in open_since.items() if now_ms - since >= limit_ms}
        for at in sorted(hanging.keys() - self._warned_of):
            self._warn(
                f"log partition {at} is held back by a transaction that was last written to {hanging[at] // 1000} s "
                "ago: nothing behind it is seen until it ends (kafka-transactions.sh finds and aborts it)"
            )
        self._warned_of = frozenset(hanging)

    def _note_names(self, admin: TopicAdmin) -> None:
        names = admin.topic_names()
        new = {topic_id: name for topic_id, name in names.items() if self._names.get(topic_id) != name}
        if new:
            LogNotes(self.store, self._settings, self._clock).topics(new)
            self._names |= new

    def _adopt(self, topic: TopicDescription) -> None:
        """Let the store say which topic its log is of."""
        if (self.store.properties.cluster_id, self.store.properties.topic_id) != (topic.cluster_id, topic.topic_id):
            self._opened = self.store.with_topic(topic.cluster_id, topic.topic_id, self._settings.fold)


class _QueryFailedError(Exception):
    """A query ended with an exception of Spark's; the message is its first line."""
