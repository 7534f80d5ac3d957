"""`OffsetBackingStore`, `OffsetStorageReader` and `OffsetStorageWriter`, as Kafka Connect names them (R30, R31)."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, Self

from offsets_pipeline.connect.connect_log import TIMEOUT_MS, ConnectLog
from offsets_pipeline.connect.target_states import claim_of, refuse_writes
from offsets_pipeline.coordinator.appender import SHARED, Answer
from offsets_pipeline.coordinator.requests import Outcome
from offsets_pipeline.errors import FlushInProgress, InvalidRequest, OffsetsError
from offsets_pipeline.semantics.connect_keys import (
    canonical_json,
    offset_key,
    offset_value,
    parse_connect_key,
    parse_connect_value,
)
from offsets_pipeline.semantics.topic_kind import TopicKind

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.common.clock import Clock

    #: A source partition or a source offset: a JSON object.
    JsonObject = Mapping[str, Any]


class OffsetBackingStore:
    """Raw keys and values of offsets, in an owned store. Call `start` first, and `stop` at the end.

    >>> from offsets_pipeline import ConnectLog, OffsetBackingStore, OffsetStorageReader, OffsetStorageWriter
    >>> ConnectLog.create("owned-connect", cluster_id="lab").properties.cluster_id
    'lab'
    >>> with OffsetBackingStore("owned-connect") as store:
    ...     writer = OffsetStorageWriter(store, "files")
    ...     writer.offset({"filename": "a.txt"}, {"position": 17})
    ...     writer.begin_flush(), writer.do_flush().result()
    ...     OffsetStorageReader(store, "files").offset({"filename": "a.txt"})
    (True, None)
    {'position': 17}
    """

    def __init__(self, location: str | Path, clock: Clock | None = None) -> None:
        self._location = location
        self._clock = clock
        self._log: ConnectLog | None = None

    @property
    def log(self) -> ConnectLog:
        """The open log. Raises InvalidRequest before `start` and after `stop`."""
        if self._log is None:
            raise InvalidRequest(f"the offsets in {self._location} are not open; call start first")
        return self._log

    def start(self) -> None:
        """Open the store and read its log. Raises as `ConnectLog.open`."""
        if self._log is None:
            self._log = ConnectLog.open(self._location, self._clock)

    def stop(self) -> None:
        """Append what waits, then close. Idempotent."""
        log, self._log = self._log, None
        if log is not None:
            log.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def get(self, keys: Collection[bytes]) -> dict[bytes, bytes | None]:
        """The newest value of each raw key; None if there is none. Raises CorruptRecord for a key of another form."""
        connectors = {key: _connector(key) for key in keys}

        def found() -> dict[bytes, bytes | None]:
            records = {key: self.log.record(connector, key) for key, connector in connectors.items()}
            return {
                key: None if record is None or record.value is None else record.value.encode()
                for key, record in records.items()
            }

        return self.log.read(found)

    def stopped_at(self, connector: str) -> int:
        """The record offset of the last stop or deletion of a connector; -1 without one."""
        return self.log.read(lambda: self.log.stopped_at(connector))

    def set(
        self, values: Mapping[bytes, bytes | None], timeout_ms: float = TIMEOUT_MS, since: int | None = None
    ) -> Future[None]:
        """Append these values in one commit; None deletes. The result of the future is None, or the error.

        ``since`` is `stopped_at` when the task began; None: any.

        Raises CorruptRecord for a key or value of another form. The future fails with ConnectorStopped if a connector
        is STOPPED, since its offsets may be altered, was stopped after ``since``, or was deleted, with InvalidRequest
        for an empty name, and with RequestTimedOut if the append did not begin in time. In a callback of a future its
        `result` raises InvalidRequest if it would have to wait.
        """
        connectors = {key: _connector(key) for key in values}
        for value in values.values():
            parse_connect_value(value)
        if not values:
            done: Future[None] = Future()
            done.set_result(None)
            return done

        def handler(_: int) -> Outcome[None]:
            for connector in set(connectors.values()):
                refuse_writes(self.log, connector, "offsets", since)
            return Outcome([self.log.new_record(connectors[key], key, value) for key, value in values.items()], None)

        claims = {claim_of(connector): SHARED for connector in connectors.values()}
        what = f"a flush of {len(values)} offsets of {', '.join(sorted(set(connectors.values())))}"
        return self.log.submit(what, handler, claims, timeout_ms).done

    def connector_partitions(self, connector: str) -> list[dict[str, Any]]:
        """The source partitions of a connector that have an offset."""
        offsets = self.log.read(lambda: self.log.offsets(connector))
        found = [json.loads(each.source_partition) for each in offsets]
        return [each for each in found if each is not None]


def _connector(key: bytes) -> str:
    parsed = parse_connect_key(key, TopicKind.CONNECT_OFFSETS)
    assert parsed is not None  # noqa: S101 - the kind has no other keys
    return parsed.connector


class OffsetStorageReader:
    """Reads offsets of one connector."""

    def __init__(self, backing_store: OffsetBackingStore, connector: str) -> None:
        self._store = backing_store
        self._connector = connector

    def offset(self, partition: JsonObject | None) -> dict[str, Any] | None:
        """The offset of a source partition; None if there is none."""
        return self.offsets([partition])[0]

    def offsets(self, partitions: Collection[JsonObject | None]) -> list[dict[str, Any] | None]:
        """The offset of each source partition in this order; None for one without an offset."""
        log = self._store.log
        known = {each.source_partition: each for each in log.read(lambda: log.offsets(self._connector))}
        found = (known.get(canonical_json(partition)) for partition in partitions)
        return [None if each is None else json.loads(each.source_offset) for each in found]


class OffsetStorageWriter:
    """Queues offsets of one connector and flushes them; one flush at a time (R31). Thread-safe.

    `begin_flush` takes the queued offsets, `do_flush` writes them. After a failure, or `cancel_flush`, they are queued
    again, except those that got newer ones meanwhile. A writer begins with its task, after the start of the store: once
    the connector was stopped after that, each flush fails with ConnectorStopped.
    """

    def __init__(self, backing_store: OffsetBackingStore, connector: str) -> None:
        self._store = backing_store
        self._connector = connector
        self._begun = backing_store.stopped_at(connector)
        self._lock = threading.Lock()
        self._queued: dict[bytes, bytes | None] = {}
        self._flushing: dict[bytes, bytes | None] | None = None
        self._flush_number = 0

    @property
    def queued(self) -> int:
        """The number of offsets that wait for a flush."""
        with self._lock:
            return len(self._queued)

    def offset(self, partition: JsonObject | None, offset: JsonObject | None) -> None:
        """Queue an offset for the next flush; None deletes it. Raises as `offset_key` and `offset_value`."""
        key, value = offset_key(self._connector, partition), offset_value(offset)
        with self._lock:
            self._queued[key] = value

    def begin_flush(self) -> bool:
        """Take the queued offsets; returns False if there are none. Raises FlushInProgress if one was not ended."""
        with self._lock:
            if self._flushing is not None:
                raise FlushInProgress(f"a flush of the offsets of {self._connector} is in progress; end it first")
            if not self._queued:
                return False
            self._flushing, self._queued = self._queued, {}
            return True

    def do_flush(self, timeout_ms: float = TIMEOUT_MS) -> Future[None]:
        """Write what `begin_flush` took. The flush has ended when the future is done; it cannot be cancelled.

        A late result of a cancelled flush changes nothing. In a callback of a future its `result` raises InvalidRequest
        if it would have to wait.
        """
        with self._lock:
            if self._flushing is None:
                raise InvalidRequest(f"no flush of the offsets of {self._connector} has begun; call begin_flush first")
            values, number = dict(self._flushing), self._flush_number
        try:
            done = self._store.set(values, timeout_ms, self._begun)
        except OffsetsError as error:
            done = Future()
            done.set_exception(error)
        ended = Answer[None](done.thread if isinstance(done, Answer) else None)
        ended.set_running_or_notify_cancel()

        def end(written: Future[None]) -> None:
            error = CancelledError() if written.cancelled() else written.exception()
            with self._lock:
                if number == self._flush_number:
                    self._end_flush(failed=error is not None)
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)

        done.add_done_callback(end)
        return ended

    def cancel_flush(self) -> None:
        """Queue the offsets of the flush again, except those with newer ones; without a flush there are none."""
        with self._lock:
            self._end_flush(failed=True)

    def _end_flush(self, *, failed: bool) -> None:
        if failed and self._flushing is not None:
            self._queued = self._flushing | self._queued
        self._flushing = None
        self._flush_number += 1
