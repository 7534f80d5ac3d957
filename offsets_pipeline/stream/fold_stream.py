"""The fold as a Structured Streaming query over the table `log`; it also expires offsets of an owned store."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from pyspark import inheritable_thread_target
from pyspark.errors import StreamingQueryException

from offsets_pipeline.batch_barrier import BarrierClosedError, BatchBarrier
from offsets_pipeline.coordinator.expiry_runs import StreamExpiry
from offsets_pipeline.delta import COMPRESSION
from offsets_pipeline.delta.properties import OWNED
from offsets_pipeline.delta.schemas import LOG
from offsets_pipeline.errors import OffsetsError, StreamFailed
from offsets_pipeline.foreign_errors import first_line, raised_on_executor
from offsets_pipeline.state.fold import fold_batch, switch_log_incarnation_if_due
from offsets_pipeline.store import absolute
from offsets_pipeline.stream.catch_up import catch_up
from offsets_pipeline.stream.publisher import Publisher
from offsets_pipeline.stream.stream_upkeep import StreamUpkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config import Settings
    from offsets_pipeline.maintenance import Upkeep
    from offsets_pipeline.store import Store

_LOOK_SECONDS = 1.0  # added to the trigger's interval
_READ_OPTIONS = {
    # A batch must hold whole appends. Delta may deliver the files of one append in any order, so a batch that ended
    # between two of them could fold a record before its predecessor (R15).
    "maxFilesPerTrigger": str(2**31 - 1),
    # A cleaning only rewrites files: it adds no record.
    "skipChangeCommits": "true",
}


class IncarnationWatch:
    """Calls ``switch`` at an interval, so that the fold switches to a new incarnation of the log without a new append.

    A batch switches too, but Spark runs none while nothing is appended.
    """

    def __init__(self, query: StreamingQuery, switch: Callable[[], object], interval_seconds: float) -> None:
        self._query = query
        self._switch = switch
        self._interval_seconds = interval_seconds
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, store: Store) -> None:
        """Start a thread that looks for a new log incarnation while the query runs."""
        look = inheritable_thread_target(store.spark)(self._look)
        self._thread = threading.Thread(target=look, name="log incarnations", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._stopped.wait(self._interval_seconds) and self._query.isActive:
            self._switch()

    def close(self) -> None:
        """Wait for a look in progress, and end the thread."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


class FoldStream:
    """A running fold: `stop` ends it, `await_end` waits for its end."""

    def __init__(
        self,
        query: StreamingQuery,
        failures: list[OffsetsError],
        gate: BatchBarrier,
        publisher: Publisher,
        watch: IncarnationWatch,
        beside: Sequence[StreamExpiry | StreamUpkeep],
        at_end: Callable[[], object],
    ) -> None:
        self._query = query
        self._failures = failures
        self._gate = gate
        self._publisher = publisher
        self._watch = watch
        self._beside = beside
        self._at_end = at_end

    @property
    def query(self) -> StreamingQuery:
        """The streaming query, for its progress."""
        return self._query

    def stop(self) -> None:
        """Stop between two batches."""
        try:
            self._gate.close()
            self._query.stop()
            self._publisher.finish()
        finally:
            self._close()

    def await_end(self) -> None:
        """Wait until the stream ends. Raises an OffsetsError if a failure ended it."""
        try:
            self._query.awaitTermination()
            self._watch.close()
            self._at_end()
            if self._failures:  # of the switch to another log incarnation; a failed batch raises an exception
                raise self._failures[-1]
            self._publisher.finish()
        except StreamingQueryException as exception:
            if self._failures:
                raise self._failures[-1] from None
            if self._gate.closed:
                return
            raise StreamFailed(_said(exception)) from exception
        finally:
            self._close()

    def _close(self) -> None:
        """End the threads that run beside the batches."""
        for each in self._beside:
            each.close()
        self._watch.close()
        self._publisher.close()


def start_fold(
    store: Store,
    settings: Settings,
    clock: Clock,
    *,
    available_now: bool,
    checkpoint: str | None = None,
    on_batch: Callable[[int, int], None] | None = None,
    on_expiry: Callable[[int, int], None] | None = None,
    on_upkeep: Callable[[Sequence[Upkeep]], None] | None = None,
    warn: Callable[[str], None] | None = None,
) -> FoldStream:
    """Start a streaming fold of the log; with ``available_now`` up to its present end.

    The stream over an owned store also expires offsets (R18-R22), unless `expire_in_stream` is false. With
    ``available_now`` it expires once, before the query starts, so that the query folds the tombstones too. Otherwise it
    expires at its start and then every `offsets_retention_check_interval_ms`.

    Without ``available_now`` it also compacts small files and removes old ones, every `upkeep_interval_ms`.

    Args:
        store: The store whose log to fold.
        settings: All settings.
        clock: The current time.
        available_now: Whether to end when the log is folded, rather than to wait for more.
        checkpoint: A folder, by default within the store. It holds only which appends were read: `fold_progress` holds
            the progress. After a lost checkpoint the query reads the log once more.
        on_batch: Called with the id of each batch and the number of records that it folded. The id is -1 for a fold
            outside of a batch: of another incarnation of the log, or of a stream that was far behind (`catch_up`).
        on_expiry: Called with the numbers of offsets and groups that a run expired.
        on_upkeep: Called with the upkeep of each table, after a run that changed anything.
        warn: Called with one line for each batch that put records into quarantine (R6), and for failures that may pass.
    """
    failures: list[OffsetsError] = []
    after_batch, warn = on_batch or _nothing, warn or _nothing
    expiry = _expiry(store, settings, clock, on_expiry, warn)
    if expiry is not None and available_now:
        expiry.run_once()
    publisher = Publisher(store, settings.fold, clock, warn)
    folder = _checkpoint(store, checkpoint)
    catch_up(store, folder, settings, clock, [publisher.after_fold, partial(after_batch, -1)], warn)
    upkeep = _upkeep(store, settings, clock, checkpoint, on_upkeep or _nothing, warn)
    beside = [each for each in (expiry, upkeep) if each is not None]
    gate = BatchBarrier()  # shared with `switch`, so that only one of them folds a new log incarnation

    def fold_rows(rows: DataFrame, batch_id: int) -> None:
        here = store.in_session(rows.sparkSession)
        try:
            with gate.batch():
                folded = fold_batch(here, rows, settings, clock, warn)
                publisher.after_fold(folded)
        except Exception as error:
            ours = raised_on_executor(error)
            if ours is not None:
                failures.append(ours)  # Spark reports only the text and the stack of an error
            raise
        after_batch(batch_id, folded)

    def switch() -> None:
        """Fold a newer incarnation of the log, as an empty batch would."""
        try:
            with gate.batch():
                folded = switch_log_incarnation_if_due(store, settings, clock)
                if folded is not None:
                    publisher.after_fold(folded)
        except BarrierClosedError:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends the stream as it would end a batch
            failures.append(raised_on_executor(error) or StreamFailed(_said(error)))
            query.stop()
            return
        if folded is not None:
            after_batch(-1, folded)

    query = _writer(store, settings, folder, available_now=available_now).foreachBatch(fold_rows).start()
    watch = IncarnationWatch(query, switch, settings.fold.trigger_interval_ms / 1000 + _LOOK_SECONDS)
    if not available_now:
        publisher.start()
        watch.start(store)
        for each in beside:
            each.start()
    return FoldStream(query, failures, gate, publisher, watch, beside, switch if available_now else _nothing)


def _expiry(
    store: Store,
    settings: Settings,
    clock: Clock,
    on_expiry: Callable[[int, int], None] | None,
    warn: Callable[[str], object],
) -> StreamExpiry | None:
    """Return the retention of an owned store; None if a broker expires offsets (R4) or the settings disable it."""
    is_of_groups = store.properties.kind == OWNED and not store.properties.topic_kind.is_connect
    if not is_of_groups or not settings.fold.expire_in_stream:
        return None
    if store.is_schema:
        warn(
            f"this stream does not expire offsets: {store.location} is a schema, and a coordinator needs the folder of "
            "a store; fold the store by its folder, or set expire_in_stream = false"
        )
        return None
    location = store.arrow_folder(LOG.name).removesuffix(f"/{LOG.name}")
    return StreamExpiry(location, settings, clock, on_expiry)


def _checkpoint(store: Store, folder: str | None) -> str:
    return absolute(folder) if folder else store.checkpoint("fold")


def _upkeep(
    store: Store,
    settings: Settings,
    clock: Clock,
    checkpoint: str | None,
    on_upkeep: Callable[[Sequence[Upkeep]], object],
    warn: Callable[[str], object],
) -> StreamUpkeep | None:
    """Return the upkeep beside the stream; None if the settings disable it."""
    interval_ms = settings.fold.upkeep_interval_ms
    cleaning = settings if settings.fold.clean_in_stream else None
    return (
        StreamUpkeep(
            *(store, clock, interval_ms, checkpoint, on_upkeep, warn),
            settings=cleaning,
            sample_retention_hours=settings.lag.sample_retention_hours,
            compression=settings.log.codec(COMPRESSION),
        )
        if interval_ms
        else None
    )


def _writer(store: Store, settings: Settings, checkpoint: str, *, available_now: bool) -> DataStreamWriter:
    writer = (
        store.read_stream(LOG.name, _READ_OPTIONS)
        .writeStream.queryName("fold")
        .option("checkpointLocation", checkpoint)
    )
    if available_now:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{settings.fold.trigger_interval_ms} milliseconds")


def _said(exception: Exception) -> str:
    return f"the fold of the log stopped: {first_line(exception)}"


def _nothing(*_: object) -> None:
    """Do nothing: the default of the callbacks."""
