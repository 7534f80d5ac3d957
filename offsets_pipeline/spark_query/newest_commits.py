"""Targets of offsets of queries, and a thread that commits the newest batch of each query to one, with retries."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from offsets_pipeline.common.foreign_errors import in_one_line
from offsets_pipeline.common.warnings import Warnings, warn
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.kafka.broker.cluster import Cluster
from offsets_pipeline.kafka.broker.group_offsets_client import commit_group_offsets
from offsets_pipeline.spark_query.kafka_source_offsets import CompletedBatch, commits_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.coordinator.requests import OffsetAndMetadata
    from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
    from offsets_pipeline.semantics.partition_state import TopicPartition

_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS = 1.0, 30.0


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
