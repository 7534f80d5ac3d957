"""The log of an owned store for Kafka Connect: offsets, target states and configurations of connectors.

All records of a connector are in one log partition, that of its name (as R1 for groups). A process holds the last
record of each key in memory, and looks for new records of other processes before each answer and each append.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Self, TypeVar

import pyarrow as pa

from offsets_pipeline.common.clock import Clock, SystemClock
from offsets_pipeline.common.closing import Closing
from offsets_pipeline.connect.connector_offsets import ConnectorOffset
from offsets_pipeline.connect.target_states import TARGET_STATE_PREFIX, ends_tasks
from offsets_pipeline.coordinator.appender import Appender
from offsets_pipeline.coordinator.gauges import Counts
from offsets_pipeline.coordinator.owned_log import OwnedLog, Record
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.coordinator.registry import Instance
from offsets_pipeline.errors import InvalidRequest, LogMovedOn
from offsets_pipeline.semantics.connect_keys import ConnectRecordType
from offsets_pipeline.semantics.log_row import in_log_order
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.semantics.topic_replay import CONNECT_INPUT_SCHEMA, compact_topic, connect_rows
from offsets_pipeline.semantics.topic_state import ConnectRecord, TopicPartitionState
from offsets_pipeline.store.log.log_reader import as_input

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.coordinator.appender import Claims, Handler, Request

Answer = TypeVar("Answer")

#: Log partitions of a new store: Connect's default of `offset.storage.partitions`.
PARTITIONS = 25
TIMEOUT_MS = 5_000


class ConnectLog(Closing):
    """An open log; close it with `close`, or use it in ``with``. Thread-safe. Open it after a fork, never before."""

    def __init__(self, store: OwnedStore, clock: Clock | None = None) -> None:
        self.store = store
        self._lock = threading.RLock()
        count = store.properties.offsets_partitions
        self._log = OwnedLog(store.location, count, f"connect {Instance.here()}")
        self._states: list[TopicPartitionState] = []
        self._stopped_at: dict[str, int] = {}
        self._appender = Appender(self._log, self._lock, clock or SystemClock(), self._catch_up, self._replay, Counts())

    @classmethod
    def create(
        cls, location: str | Path, cluster_id: str, partitions: int = PARTITIONS, *, must_be_new: bool = False
    ) -> OwnedStore:
        """Create an owned store for the connectors of one cluster, as `OwnedStore.create` does."""
        return OwnedStore.create(location, partitions, TopicKind.CONNECT, cluster_id, must_be_new=must_be_new)

    @classmethod
    def open(cls, location: str | Path, clock: Clock | None = None) -> Self:
        """Open the log of an owned store, and read it.

        Raises NoSuchStore, NotAStore, NotCoordinator (a mirrored store), StoreMismatch (a store for groups),
        UnsupportedTable.
        """
        opened = cls(OwnedStore.open(location, TopicKind.CONNECT), clock)
        opened._load()
        opened._appender.start()
        return opened

    def close(self) -> None:
        """Append the waiting requests, then end. Idempotent."""
        self._appender.close()

    # --- reads; those below `read` are for its function and for handlers, which hold the lock

    def read(self, answer: Callable[[], Answer]) -> Answer:
        """Call ``answer`` with the newest records. Raises StoreReplaced, UnsupportedTable, StorageFailed."""
        with self._lock:
            self._catch_up()
            return answer()

    def record(self, connector: str, raw_key: bytes) -> ConnectRecord | None:
        """The last record of a key of a connector."""
        return self._state_of(connector).records.get(raw_key.decode())

    def records(self, connector: str) -> Iterator[tuple[str, ConnectRecord]]:
        """The last record of each raw key of a connector, tombstones included."""
        return (
            (key, each) for key, each in self._state_of(connector).records.items() if each.key.connector == connector
        )

    def offsets(self, connector: str) -> list[ConnectorOffset]:
        """The offsets of a connector by source partition (R30)."""
        by_partition: dict[str, dict[str, ConnectRecord]] = defaultdict(dict)
        for raw_key, each in self.records(connector):
            if each.key.record_type is ConnectRecordType.OFFSET:
                by_partition[each.key.source_partition or ""][raw_key] = each
        found = []
        for source_partition, records in sorted(by_partition.items()):
            newest = max(records.values(), key=attrgetter("record_offset"))
            if newest.value is not None:
                raw_keys = sorted(raw_key for raw_key, each in records.items() if each.value is not None)
                found.append(ConnectorOffset(source_partition, newest.value, tuple(raw_keys)))
        return found

    def connectors(self) -> list[str]:
        """The names of connectors with a record that is not deleted, in order."""
        return sorted(
            {each.key.connector for state in self._states for each in state.records.values() if each.value is not None}
        )

    def stopped_at(self, connector: str) -> int:
        """The record offset of the last stop or deletion of a connector that was read; -1 without one."""
        return self._stopped_at.get(connector, -1)

    def new_record(self, connector: str, raw_key: bytes, value: bytes | None) -> Record:
        """Return a record of a connector to append. Raises InvalidRequest for an empty name."""
        if not connector:
            raise InvalidRequest("a connector's name must not be empty")
        return Record(self.store.partition_for(connector), raw_key, value)

    def _state_of(self, connector: str) -> TopicPartitionState:
        return self._states[self.store.partition_for(connector)]

    # --- appends

    def submit(self, what: str, handler: Handler, claims: Claims, timeout_ms: float = TIMEOUT_MS) -> Request:
        """Queue a request. Its handler validates it against the newest records, and returns the records to append.

        ``claims`` as of `Request`. The request fails with RequestTimedOut if its append has not begun in time. Raises
        CoordinatorNotAvailable if the log is closed.
        """
        return self._appender.submit(what, handler, lambda: claims, timeout_ms)

    # --- the log

    def _load(self) -> None:
        tables: list[pa.Table] = []
        seen = [state.end for state in self._states]
        every = range(self.store.properties.offsets_partitions)
        self._log.open(every, tables.append)
        self._states = [TopicPartitionState(TopicKind.CONNECT) for _ in every]
        if tables:
            rows = as_input(pa.concat_tables(tables), CONNECT_INPUT_SCHEMA)
            self._replay(in_log_order(compact_topic(rows, TopicKind.CONNECT, {})))
        for state, end in zip(self._states, seen, strict=False):  # a record before a new one may have been a stop
            for each in state.records.values():
                if each.key.record_type is ConnectRecordType.TARGET_STATE and each.record_offset >= end:
                    self._stopped_at[each.key.connector] = each.record_offset

    def _catch_up(self) -> None:
        """Apply new rows of the log. The caller holds the lock."""
        try:
            for rows in self._log.catch_up():
                self._replay(rows)
        except LogMovedOn:
            self._load()

    def _replay(self, rows: pa.Table) -> None:
        for row in connect_rows(rows):
            state = self._states[row.log_partition]
            state.replay(row)
            if row.key is not None and row.key.startswith(TARGET_STATE_PREFIX):
                record = state.records.get(row.key.decode())
                if record is not None and ends_tasks(record.value):
                    self._stopped_at[record.key.connector] = record.record_offset
