"""Flushes of a source task's offsets, and its start after the last flush (R31)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from offsets_pipeline.common.closing import Closing
from offsets_pipeline.common.foreign_errors import in_one_line
from offsets_pipeline.common.periodic import Periodic
from offsets_pipeline.errors import InvalidRequest, NoSuchOffset, OffsetsError

if TYPE_CHECKING:
    from offsets_pipeline.connect.offset_backing_store import JsonObject, OffsetStorageReader, OffsetStorageWriter

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class FlushSettings:
    """Settings with Connect's names, and a record count after which a flush is due; None: only the interval counts."""

    offset_flush_interval_ms: int = 60_000
    offset_flush_timeout_ms: int = 5_000
    offset_flush_records: int | None = None


class OffsetCommitter(Closing):
    """Flushes a writer's offsets by interval and by record count, and at `close`.

    A flush that fails or does not end in time is cancelled: its offsets stay queued. With `start` a thread flushes by
    interval; without it, call `commit_if_due` from the task's loop. ``clock`` returns seconds.
    """

    def __init__(
        self,
        writer: OffsetStorageWriter,
        settings: FlushSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = writer
        self._settings = settings or FlushSettings()
        self._clock = clock
        self._committing = threading.Lock()
        self._records = 0
        self._committed_at = clock()
        self._periodic = Periodic(
            self.commit,
            self._settings.offset_flush_interval_ms,
            at_once=False,
            rests=True,
            warn=_LOG.warning,
            describe=lambda error: f"the flush of offsets failed: {in_one_line(error)}; they stay queued",
            name="source-task-offset-committer",
        )

    def start(self) -> None:
        """Start the thread."""
        self._periodic.start()

    def record(self, partition: JsonObject | None, offset: JsonObject, records: int = 1) -> None:
        """Queue the offset after records that the task has written, and flush if the count is reached."""
        self._writer.offset(partition, offset)
        self._records += records
        count = self._settings.offset_flush_records
        if count is not None and self._records >= count:
            self.commit()

    def commit_if_due(self) -> bool:
        """Flush if the interval has passed; returns whether all offsets up to now are written."""
        if (self._clock() - self._committed_at) * 1000 < self._settings.offset_flush_interval_ms:
            return False
        return self.commit()

    def commit(self) -> bool:
        """Flush now; returns whether the queued offsets are written. Logs a failure, and keeps its offsets queued."""
        with self._committing:
            self._committed_at, self._records = self._clock(), 0
            if not self._writer.begin_flush():
                return True
            timeout_ms = self._settings.offset_flush_timeout_ms
            try:
                self._writer.do_flush(timeout_ms).result(timeout_ms / 1000)
            except BaseException as error:
                self._writer.cancel_flush()
                if not isinstance(error, (FutureTimeoutError, OffsetsError)):
                    raise  # such as KeyboardInterrupt: `close` can flush again
                reason = error if isinstance(error, OffsetsError) else f"it took more than {timeout_ms} ms"
                _LOG.warning("the flush of offsets failed: %s; they stay queued", reason)
                return False
            return True

    def close(self) -> bool:
        """Flush once more and end the thread; returns whether all offsets are written. Idempotent."""
        self._periodic.close()
        return self.commit()


OffsetReset = Literal["earliest", "latest", "none"]


def initialize_offsets(
    reader: OffsetStorageReader,
    partitions: Sequence[JsonObject | None],
    offset_reset: OffsetReset | Mapping[str, Any] = "earliest",
    positions: Callable[[JsonObject | None, str], Mapping[str, Any] | None] | None = None,
) -> list[Mapping[str, Any] | None]:
    """Return the start of a task in each source partition: its last flushed offset, or one by ``offset_reset``.

    Args:
        reader: reads the connector's offsets.
        partitions: source partitions of the task.
        offset_reset: for partitions without an offset: ``earliest``, ``latest``, ``none`` or an offset.
        positions: returns the source's earliest or latest position of a partition; None is the source's own start,
            and its earliest position without this function.

    Raises NoSuchOffset if a partition has no offset and ``offset_reset`` is ``none``, InvalidRequest for another
    ``offset_reset``, and for ``latest`` without ``positions``.
    """
    if offset_reset not in get_args(OffsetReset) and not isinstance(offset_reset, Mapping):
        raise InvalidRequest(
            f"offset_reset={offset_reset!r} is not allowed: it takes earliest, latest, none or an offset"
        )
    if offset_reset == "latest" and positions is None:
        raise InvalidRequest(
            "offset_reset='latest' needs the function positions, which returns a source's latest position"
        )
    found: list[Mapping[str, Any] | None] = []
    for partition, offset in zip(partitions, reader.offsets(partitions), strict=True):
        if offset is not None:
            found.append(offset)
        elif not isinstance(offset_reset, str):
            found.append(offset_reset)
        elif offset_reset == "none":
            raise NoSuchOffset(f"source partition {partition} has no offset, and offset.reset is none; set another one")
        else:
            found.append(None if positions is None else positions(partition, offset_reset))
    return found
