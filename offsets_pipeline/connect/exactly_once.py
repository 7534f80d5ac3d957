"""Exactly-once for source tasks: rows and source offsets reach a target table in one commit (R31).

The target table decides. After each flush the task writes the same offsets to the store, with the number of the flush.
`ExactlyOnceTask.start` first writes offsets that the store lacks, so a task resumes from the store's offsets as any
other.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Self

from offsets_pipeline.connect.target_states import claim_of, refuse_writes
from offsets_pipeline.connect.target_table import FlushedOffsets, TargetTable
from offsets_pipeline.coordinator.appender import EXCLUSIVE, SHARED
from offsets_pipeline.coordinator.requests import Outcome
from offsets_pipeline.errors import CommitUnknown, InvalidRequest, OffsetsError, OffsetsLost, TaskFenced
from offsets_pipeline.semantics.connect_keys import ConnectRecordType, canonical_json, offset_key, offset_value

if TYPE_CHECKING:
    import pyarrow as pa

    from offsets_pipeline.connect.offset_backing_store import JsonObject, OffsetBackingStore
    from offsets_pipeline.coordinator.appender import Handler
    from offsets_pipeline.coordinator.owned_log import Record

_LOG = logging.getLogger(__name__)
_MAX_TASK = 999_999_999


class _Note(NamedTuple):
    """The record of a store that says which flush of a task its offsets are of."""

    epoch: int = -1
    flush: int = -1
    table_id: str = ""
    record_offset: int = -1
    is_reset: bool = False  # all offsets were reset since: those of the table are not to come back


class ExactlyOnceTask:
    """One task of a source connector that writes a target table. Thread-safe.

    Call `start` first, and `close` at the end. A new instance of the same task fences older ones: their next `commit`
    is refused. Source partitions stay with their task; close a task before its partitions go to another one, unless it
    was killed. ``task`` is 0 to 999,999,999; raises InvalidRequest for another one.
    """

    def __init__(self, store: OffsetBackingStore, connector: str, target: TargetTable, task: int = 0) -> None:
        if not 0 <= task <= _MAX_TASK:
            raise InvalidRequest(f"task {task} is not allowed; it takes 0 to {_MAX_TASK}")
        self._store = store
        self._connector = connector
        self._target = target
        self._task = task
        self._lock = threading.RLock()
        self._queued: dict[str, str] = {}
        self._flushed = FlushedOffsets()
        self._followed = -1  # the flush that the store's offsets are of
        self._epoch = -1
        self._begun = -1
        self._is_unknown = False

    @property
    def application(self) -> str:
        """The application id: as Kafka Connect makes the transactional id of a task's producer."""
        return self._application(self._task)

    @property
    def epoch(self) -> int:
        """The epoch of this instance; -1 before `start`."""
        return self._epoch

    @property
    def flush(self) -> int:
        """The number of the last flush, from 0; -1 without one."""
        return self._flushed.flush

    def start(self) -> None:
        """Fence older instances, then write to the store the offsets of the target table that it lacks.

        If the table has a later flush than the store, the store gets its offsets, also those of other tasks of the
        connector: a killed one may not start again. A source partition whose offset was altered or reset in the store
        since keeps the store's offset.

        Raises ConnectorStopped, OffsetsLost if the table has a later flush without its offsets, RequestTimedOut, and as
        `TargetTable.commit`.
        """
        with self._lock:
            while True:
                try:
                    self._start()
                except TaskFenced as fenced:  # another instance started at the same time: the later one counts
                    _LOG.warning("%s", fenced)
                    continue
                return

    def offset(self, partition: JsonObject | None, offset: JsonObject | None) -> None:
        """Queue the source offset after the rows of the next `commit`; None deletes it.

        Raises as `offset_key` and `offset_value`.
        """
        offset_key(self._connector, partition), offset_value(offset)
        with self._lock:
            self._queued[canonical_json(partition)] = canonical_json(offset)

    def commit(self, rows: pa.Table) -> bool:
        """Commit rows and the queued offsets to the table; returns whether the store has these offsets, too.

        If the store cannot be written now, the next commit, `close` or the next `start` writes the offsets.

        Raises TaskFenced if a newer instance has started, ConnectorStopped if the connector was stopped since the
        start, StorageFailed, InvalidRequest for rows without an offset or that do not fit the table: nothing was
        written, and the offsets stay queued. Raises CommitUnknown if the commit may be there: then start the task
        again, and read on from its offsets.
        """
        with self._lock:
            self._require_started()
            if not self._queued:
                if rows.num_rows:
                    raise InvalidRequest("rows without a source offset would be written again; call offset first")
                return self._follow()
            self._store.log.read(self._refuse)
            flush = max(self.flush, self._followed) + 1
            offsets = {partition: (offset, flush) for partition, offset in self._queued.items()}
            flushed = FlushedOffsets(flush, {**self._flushed.offsets, **offsets})
            try:
                self._target.commit(self.application, self._epoch, flushed, rows)
            except CommitUnknown:
                self._is_unknown = True
                raise
            self._flushed, self._queued = flushed, {}
            return self._follow()

    def close(self) -> bool:
        """Write to the store the offsets of the table that it lacks; returns whether it has all.

        Drops queued offsets, because their rows are not written. Idempotent.
        """
        with self._lock:
            self._queued = {}
            return self._epoch < 0 or self._is_unknown or self._follow()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the target table is the truth

    def _start(self) -> None:
        self._begun = self._store.stopped_at(self._connector)
        note = self._store.log.read(lambda: self._note(self._task))
        epoch = 1 + max(self._target.epoch(self.application), note.epoch)
        self._target.fence(self.application, epoch)
        flushed = self._target.flushed(self.application, note.flush)

        def handler(_: int) -> Outcome[None]:
            now = self._note(self._task)
            if now.epoch >= epoch:
                raise self._fenced(epoch)
            if now.table_id == self._target.table_id and flushed.flush < now.flush:
                raise OffsetsLost(
                    f"cannot resume {self.application}: the store has the offsets of its flush {now.flush}, "
                    f"{self._target.location} only of flush {flushed.flush}; restore the newest version of the table"
                )
            records = list(self._ahead(flushed, now)) if flushed.flush > now.flush else []
            note = self._note_record(self._task, epoch, max(flushed.flush, now.flush))
            return Outcome([*records, note], None)

        self._call(f"the start of {self.application} with epoch {epoch}", handler, self._task)
        for task, of_task in self._store.log.read(self._other_notes).items():
            self._recover(task, of_task)
        self._flushed, self._epoch, self._queued, self._is_unknown = flushed, epoch, {}, False
        self._followed = max(flushed.flush, note.flush)

    def _recover(self, task: int, note: _Note) -> None:
        """Write to the store the offsets of the last flush of another task that it lacks."""
        application = self._application(task)
        if note.table_id != self._target.table_id:
            return
        flushed = self._target.flushed(application, note.flush)
        if flushed.flush <= note.flush:
            return

        def handler(_: int) -> Outcome[None]:
            if self._note(task) != note:  # it runs, and has followed itself
                return Outcome([], None)
            followed = self._note_record(task, note.epoch, flushed.flush)
            return Outcome([*self._ahead(flushed, note), followed], None)

        self._call(f"the offsets of flush {flushed.flush} of {application}", handler, task)

    def _other_notes(self) -> dict[int, _Note]:
        """The notes of the connector's other tasks. The caller holds the log's lock."""
        keys = (each.key for _, each in self._store.log.records(self._connector))
        tasks = (key.task for key in keys if key.record_type is ConnectRecordType.TASK_FLUSH)
        return {task: self._note(task) for task in tasks if task is not None and task != self._task}

    def _ahead(self, flushed: FlushedOffsets, note: _Note) -> Iterator[Record]:
        """Records of offsets that the table has and the store lacks. The caller holds the log's lock."""
        if note.is_reset:
            return
        written_at: dict[str | None, int] = {}
        for _, each in self._store.log.records(self._connector):
            if each.key.record_type is ConnectRecordType.OFFSET:
                at = each.key.source_partition
                written_at[at] = max(each.record_offset, written_at.get(at, -1))
        for partition, (offset, flush) in flushed.offsets.items():
            if flush <= note.flush:
                continue
            if written_at.get(partition, -1) > note.record_offset >= 0:
                _LOG.warning(
                    "the offset of %s in %s was changed since flush %s of %s; it counts, and not the %s of %s",
                    partition, self._store.log.store.location, note.flush, self.application, offset,
                    self._target.location,
                )  # fmt: skip
                continue
            yield self._offset_record(partition, offset)

    # --- the store follows

    def _follow(self) -> bool:
        if self._followed >= self.flush:
            return True

        def handler(_: int) -> Outcome[None]:
            self._refuse()
            records = [
                self._offset_record(partition, offset)
                for partition, (offset, flush) in self._flushed.offsets.items()
                if flush > self._followed
            ]
            return Outcome([*records, self._note_record(self._task, self._epoch, self.flush)], None)

        try:
            self._call(f"flush {self.flush} of {self.application}", handler, self._task)
        except (OffsetsError, OSError) as error:
            _LOG.warning(
                "flush %s of %s is in %s, but not yet in the store: %s",
                self.flush,
                self.application,
                self._target.location,
                error,
            )
            return False
        self._followed = self.flush
        return True

    def _call(self, what: str, handler: Handler, task: int) -> None:
        claims = {claim_of(self._connector): SHARED, ("task", self._application(task)): EXCLUSIVE}
        self._store.log.submit(what, handler, claims).result()

    def _refuse(self) -> None:
        """Raise TaskFenced or ConnectorStopped by the store's newest records. The caller holds the log's lock."""
        if self._note(self._task).epoch > self._epoch:
            raise self._fenced(self._epoch)

    def _note(self, task: int) -> _Note:
        """Return the note of a task in the store. Raises ConnectorStopped."""
        refuse_writes(self._store.log, self._connector, f"as {self.application}", self._begun)
        record = self._store.log.record(self._connector, self._note_key(task))
        if record is None or record.value is None:
            return _Note()
        found = json.loads(record.value)
        is_reset = found.get("reset", False)
        return _Note(found["epoch"], found["flush"], found["table"], record.record_offset, is_reset)

    def _application(self, task: int) -> str:
        return f"{self._store.log.store.properties.cluster_id}-{self._connector}-{task}"

    def _note_key(self, task: int) -> bytes:
        return f"flush-{self._connector}-{task}".encode()

    def _note_record(self, task: int, epoch: int, flush: int) -> Record:
        value = canonical_json({"epoch": epoch, "flush": flush, "table": self._target.table_id})
        return self._store.log.new_record(self._connector, self._note_key(task), value.encode())

    def _offset_record(self, partition: str, offset: str) -> Record:
        key = offset_key(self._connector, json.loads(partition))
        value = None if offset == "null" else offset.encode()
        return self._store.log.new_record(self._connector, key, value)

    def _require_started(self) -> None:
        if self._epoch < 0:
            raise InvalidRequest(f"the task {self.application} has not started; call start first")
        if self._is_unknown:
            raise InvalidRequest(
                f"an earlier commit of {self.application} may be in {self._target.location}; start the task again"
            )

    def _fenced(self, epoch: int) -> TaskFenced:
        return TaskFenced(
            f"cannot write as {self.application} with epoch {epoch}: another instance of this task has started; "
            "nothing was written; stop this one"
        )
