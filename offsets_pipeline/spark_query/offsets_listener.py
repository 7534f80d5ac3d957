"""`OffsetsListener`: commits the Kafka offsets of PySpark streaming queries to consumer groups.

    listener = OffsetsListener("localhost:9092", "billing")
    spark.streams.addListener(listener)
    ...
    listener.close()

Spark posts the progress of a batch after it has written the batch's file in `commits/` of the checkpoint. So a group is
never ahead of a completed batch. Spark delivers this event in a thread of its own, maybe after the query has ended:
`close` and `flush` wait for it.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from offsets_pipeline.common.foreign_errors import in_one_line
from offsets_pipeline.common.warnings import Warnings, warn
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.coordinator.requests import validated_group_id
from offsets_pipeline.errors import ConfigError
from offsets_pipeline.kafka.broker.cluster import Cluster
from offsets_pipeline.kafka.broker.groups_client import commit_group_offsets
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions, are_bootstrap_servers
from offsets_pipeline.spark_query.kafka_source_offsets import (
    CompletedBatch,
    commits_of,
    parse_kafka_offsets,
    refuse_shared_topics,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.coordinator.requests import OffsetAndMetadata
    from offsets_pipeline.semantics.partition_state import TopicPartition
    from offsets_pipeline.spark_query.kafka_source_offsets import SourceOffsets

_KAFKA_SOURCES = ("KafkaV2[", "KafkaSource[")  # descriptions of Spark's Kafka sources
_BATCH_RAN = "addBatch"  # in the durations of a trigger
_EXIT_SECONDS = 10.0
_POLL_SECONDS = 0.1
_NO_BATCH = -1
_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS = 1.0, 30.0


class OffsetsListener(StreamingQueryListener):
    """Commits the end offsets of each completed batch of the session's queries to a group without members.

    Commits run in a thread: a query never waits for them, and never fails by them. A failed commit is a warning on
    stderr, and is retried with the newest offsets.

    Call `close` at the end of the job, before `removeListener`: it waits for the progress of the last batch and for its
    commit. Else the end of the Python process waits up to 10 s for both.

    Args:
        store: the folder of an owned store, or bootstrap servers HOST:PORT[,HOST:PORT]; None: only
            ``bootstrap_servers``.
        group: the group, without members.
        bootstrap_servers: commit to the consumer group of this cluster, too.
        options: options of Kafka's clients for the cluster, as security.protocol.
        query: only the query of this name; by default all queries of the session.
        source: only the Kafka source with this number in its query, counted from 0; by default all.
        settings: settings of the coordinator of the store.

    Raises ConfigError for an option that this client does not support, or without store and bootstrap servers;
    InvalidGroupId.
    """

    def __init__(
        self,
        store: str | Path | None,
        group: str,
        bootstrap_servers: str | None = None,
        *,
        options: Mapping[str, str] | None = None,
        query: str | None = None,
        source: int | None = None,
        settings: Settings | None = None,
    ) -> None:
        validated_group_id(group)
        targets: list[StoreTarget | BrokerTarget] = []
        addresses = [] if bootstrap_servers is None else [bootstrap_servers]
        if are_bootstrap_servers(store):
            addresses.append(str(store))
        elif store is not None:
            targets.append(StoreTarget(store, settings))
        targets += [BrokerTarget(KafkaOptions(each, options or {})) for each in addresses]
        if not targets:
            raise ConfigError("an OffsetsListener has nowhere to commit to: give a store or bootstrap servers")
        self._commits = [NewestCommits(target, group) for target in targets]
        self._group = group
        self._query = query
        self._source = source
        self._readers: dict[str, str] = {}  # id of the query that reads a topic
        self._last_batches: dict[str, int] = {}  # by run id, the last batch whose progress Spark has delivered
        self._delivered = threading.Condition()
        self._warnings = Warnings(warn)
        atexit.register(self.close)

    def close(self, timeout_seconds: float = _EXIT_SECONDS) -> bool:
        """Flush, then stop; returns False if `flush` does. Idempotent.

        Warns if offsets are not committed, or if Spark has not delivered all progress.
        """
        deadline = time.monotonic() + timeout_seconds
        delivered = self._await_events(deadline)
        if not delivered:
            self._warnings.warn(
                f"group {self._group} lacks offsets: Spark has not delivered the progress of the last batch"
            )
        done = [each.close(max(0.0, deadline - time.monotonic())) for each in self._commits]
        atexit.unregister(self.close)
        return delivered and all(done)

    def flush(self, timeout_seconds: float = _EXIT_SECONDS) -> bool:
        """Wait until the batches that queries have completed are committed; returns False if they are not in time.

        Waits for Spark's events of queries whose start or progress this listener has seen: the progress of the last
        batch, or the end of the query. A stopped session delivers no more events.
        """
        deadline = time.monotonic() + timeout_seconds
        delivered = self._await_events(deadline)
        return delivered and all(each.flush(max(0.0, deadline - time.monotonic())) for each in self._commits)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's
        """Expect the events of this run. Spark calls this before `start` returns."""
        with self._delivered:
            self._last_batches[str(event.runId)] = _NO_BATCH

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's
        """Take the end offsets of a completed batch."""
        try:
            progress = event.progress
            try:
                self._take(progress)
            finally:
                with self._delivered:
                    self._last_batches[str(progress.runId)] = progress.batchId
                    self._delivered.notify_all()
        except Exception as error:  # noqa: BLE001 - a listener must not fail its query
            self._warnings.warn(f"group {self._group} gets no offsets: {in_one_line(error)}")

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's
        """Let another query read the topics; Spark posts this event after those of all batches of the run."""
        query_id = str(event.id)
        self._readers = {topic: reader for topic, reader in self._readers.items() if reader != query_id}
        with self._delivered:
            self._last_batches.pop(str(event.runId), None)
            self._delivered.notify_all()

    def _await_events(self, deadline: float) -> bool:
        """Wait for the events of all batches that queries have completed; returns False if they are not in time."""
        while True:
            active = _completed_batches()
            with self._delivered:
                if active is None or all(
                    run_id in active and batch >= active[run_id] for run_id, batch in self._last_batches.items()
                ):
                    return True
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._delivered.wait(min(left, _POLL_SECONDS))

    def _take(self, progress: StreamingQueryProgress) -> None:
        if self._query not in {None, progress.name} or _BATCH_RAN not in progress.durationMs:
            return
        offsets: dict[str, SourceOffsets] = {}
        for number, source in enumerate(progress.sources):
            if source.description.startswith(_KAFKA_SOURCES) and self._source in {None, number}:
                found = parse_kafka_offsets(source.endOffset or "")
                if found:
                    offsets[str(number)] = found
        if offsets:
            query_id = str(progress.id)
            named = f"query {progress.name or query_id}"
            refuse_shared_topics(offsets, named, "add a listener with source=NUMBER and a group for each")
            self._refuse_second_reader(query_id, named, offsets)
            for each in self._commits:
                each.add(query_id, CompletedBatch(progress.batchId, None, offsets))

    def _refuse_second_reader(self, query_id: str, named: str, sources: Mapping[str, SourceOffsets]) -> None:
        """Raise ConfigError if another query reads one of the topics: a group has one offset for each partition."""
        for topic in {where.topic for offsets in sources.values() for where in offsets}:
            reader = self._readers.setdefault(topic, query_id)
            if reader != query_id:
                raise ConfigError(
                    f"{named} reads topic {topic}, which query {reader} reads too; "
                    "add a listener with query=NAME and a group for each"
                )


def _completed_batches() -> dict[str, int] | None:
    """The last completed batch of each active query of the session, by run id; None if the session is stopped."""
    try:
        queries = SparkSession.active().streams.active
        return {
            str(query.runId): next(
                (each.batchId for each in reversed(query.recentProgress) if _BATCH_RAN in each.durationMs), _NO_BATCH
            )
            for query in queries
        }
    except (PySparkException, Py4JError, OSError):
        return None


class StoreTarget:
    """An owned store. A target connects with the first commit, and is used by one thread."""

    def __init__(self, location: str | Path, settings: Settings | None) -> None:
        self.name = str(location)
        self._location = location
        self._settings = settings
        self._coordinator: Coordinator | None = None

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit offsets and wait until they are written. Raises as `Coordinator.open` and `commit_offsets`."""
        if self._coordinator is None:
            store = OwnedStore.open(self._location)
            self._coordinator = Coordinator.open(
                store, self._settings, partitions={store.partition_for(group_id)}, housekeeping=False
            )
        self._coordinator.commit_offsets(group_id, offsets)

    def close(self) -> None:
        """Disconnect; the next commit connects again."""
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is not None:
            coordinator.close()


class BrokerTarget:
    """A cluster of brokers."""

    def __init__(self, options: KafkaOptions) -> None:
        self.name = options.bootstrap_server
        self._cluster = Cluster(options)

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit offsets and wait until they are written. Raises the errors of `commit_group_offsets`."""
        commit_group_offsets(
            self._cluster, group_id, {where: (each.offset, each.metadata) for where, each in offsets.items()}
        )

    def close(self) -> None:
        """Disconnect; the next commit connects again."""
        self._cluster.close()


class NewestCommits:
    """Commits to one target, in a thread of its own, so that `add` never waits.

    A failed commit is a warning. The thread retries it after 1 s, later after up to 30 s, with the newest batch of the
    query. `flush` makes it retry at once.
    """

    def __init__(self, target: StoreTarget | BrokerTarget, group_id: str) -> None:
        self._target = target
        self._group_id = group_id
        self._changed = threading.Condition()
        self._newest: dict[str, CompletedBatch] = {}  # by query id: not committed yet
        self._is_committing = False
        self._closing = False
        self._hurries = False  # a flush waits
        self._warnings = Warnings(warn, f"commits offsets of group {group_id} to {target.name} again")
        self._thread: threading.Thread | None = None

    def add(self, query_id: str, batch: CompletedBatch) -> None:
        """Queue a batch in place of the older queued batches of its query. Does nothing after `close`."""
        with self._changed:
            if self._closing:
                return
            self._newest[query_id] = batch
            if self._thread is None:  # here, for threads do not survive a fork
                self._thread = threading.Thread(target=self._run, name="offsets-listener", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until all batches are committed; returns False if they are not after ``timeout_seconds``."""
        with self._changed:
            self._hurries = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not (self._newest or self._is_committing), timeout_seconds)

    def close(self, timeout_seconds: float) -> bool:
        """Flush, then end the thread; returns whether all batches are committed. Idempotent."""
        deadline = time.monotonic() + timeout_seconds
        flushed = self.flush(timeout_seconds)
        with self._changed:
            first, self._closing = not self._closing, True
            lost = sum(sum(map(len, batch.offsets.values())) for batch in self._newest.values())
            self._changed.notify_all()
        if first and lost:
            warn(f"{lost} offsets of group {self._group_id} are not committed to {self._target.name}: the job ends")
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        return flushed

    def _run(self) -> None:
        backoff = _BACKOFF_SECONDS
        while batches := self._next():
            failed = None
            for query_id, batch in batches.items():
                try:
                    for offsets in commits_of(batch, query_id, names_sources=False):
                        self._target.commit(self._group_id, offsets)
                except Exception as error:  # noqa: BLE001 - a listener must not fail its query
                    failed = in_one_line(error)
                    self._target.close()
                    with self._changed:
                        self._newest.setdefault(query_id, batch)  # unless a newer one has come meanwhile
            if failed is None:
                self._warnings.recovered()
            else:
                self._warnings.warn(
                    f"cannot commit offsets of group {self._group_id} to {self._target.name}: {failed}; will retry"
                )
            with self._changed:
                self._is_committing = False
                self._changed.notify_all()
                if failed is None:
                    backoff = _BACKOFF_SECONDS
                else:
                    self._changed.wait_for(lambda: self._closing or self._hurries, backoff)
                    self._hurries = False
                    backoff = min(2 * backoff, _MAX_BACKOFF_SECONDS)
        self._target.close()

    def _next(self) -> dict[str, CompletedBatch]:
        """Wait for batches to commit, and take them; none when the thread is to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._newest or self._closing)
            if self._closing:
                return {}
            batches, self._newest = self._newest, {}
            self._is_committing = True
            return batches
