"""The fold as a Structured Streaming query over the table `log`, with the retention of an owned store beside it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pyspark import inheritable_thread_target
from pyspark.errors import StreamingQueryException

from offsets_pipeline.batch_barrier import BarrierClosedError, BatchBarrier
from offsets_pipeline.coordinator.expiry_runs import StreamExpiry
from offsets_pipeline.delta.properties import OWNED
from offsets_pipeline.delta.schemas import LOG
from offsets_pipeline.errors import OffsetsError, StreamFailed, first_line, raised_on_executor
from offsets_pipeline.state.fold import fold_batch, switch_epoch_if_due
from offsets_pipeline.state.table_compaction import Compactor
from offsets_pipeline.store import absolute

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config import Settings
    from offsets_pipeline.store import Store

_LOOK_SECONDS = 1.0  # beside the trigger's interval
_READ_OPTIONS = {
    # A batch must hold whole appends: the files of one append may come in any order, so a batch that ended between
    # two of them could fold a record before its predecessor (R15).
    "maxFilesPerTrigger": str(2**31 - 1),
    # Cleaning rewrites what was folded long ago.
    "skipChangeCommits": "true",
}


class EpochWatch:
    """Lets a new epoch of the log take over as soon as it counts, also where nothing is appended to the log.

    Batches do it too; this is for the time between them.
    """

    def __init__(self, query: StreamingQuery, switch: Callable[[], object], interval_seconds: float) -> None:
        self._query = query
        self._switch = switch
        self._interval_seconds = interval_seconds
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, store: Store) -> None:
        """Look from now on again and again, as long as the query runs."""
        look = inheritable_thread_target(store.spark)(self._look)
        self._thread = threading.Thread(target=look, name="epochs", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._stopped.wait(self._interval_seconds) and self._query.isActive:
            self._switch()

    def close(self) -> None:
        """Look no more, once a look that goes on is over."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


class FoldStream:
    """A running fold: `await_end` returns when it ends, `stop` ends it."""

    def __init__(
        self,
        query: StreamingQuery,
        failures: list[OffsetsError],
        gate: BatchBarrier,
        compactor: Compactor,
        watch: EpochWatch,
        expiry: StreamExpiry | None,
        at_end: Callable[[], object],
    ) -> None:
        self._query = query
        self._failures = failures
        self._gate = gate
        self._compactor = compactor
        self._watch = watch
        self._expiry = expiry
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
        finally:
            self._close()

    def await_end(self) -> None:
        """Wait until the stream ends. Raises what made it end, as an OffsetsError."""
        try:
            self._query.awaitTermination()
            self._watch.close()
            self._at_end()
            if self._failures:  # not of a batch: those end the query with an exception
                raise self._failures[-1]
        except StreamingQueryException as exception:
            if self._failures:
                raise self._failures[-1] from None
            if self._gate.closed:
                return
            raise StreamFailed(_said(exception)) from exception
        finally:
            self._close()

    def _close(self) -> None:
        """End what runs beside the batches."""
        if self._expiry is not None:
            self._expiry.close()
        self._watch.close()
        self._compactor.close()


def start_fold(
    store: Store,
    settings: Settings,
    clock: Clock,
    *,
    available_now: bool,
    checkpoint: str | None = None,
    on_batch: Callable[[int, int], None] | None = None,
    on_expiry: Callable[[int, int], None] | None = None,
    warn: Callable[[str], None] | None = None,
) -> FoldStream:
    """Start folding the log; with ``available_now`` up to what is there, else on and on.

    The stream over an owned store also expires offsets (R18-R22), unless `expire_in_stream` is false: with
    ``available_now`` once, before it starts, so that it folds the tombstones too; else at its start and then every
    `offsets_retention_check_interval_ms`. ``on_expiry`` gets the numbers of offsets and groups that a run expired.

    ``checkpoint`` is a folder, by default within the store. It says which appends were read, no more: progress
    stands in the state tables, so a checkpoint that is lost costs one more reading of the log and nothing else.
    ``on_batch`` is told each batch's id and how many records it folded; the id is -1 where another epoch of the log was
    folded between batches. ``warn`` gets a line for each batch of which records went into quarantine (R6).
    """
    failures: list[OffsetsError] = []
    after_batch = on_batch or _nothing
    expiry = _expiry(store, settings, clock, on_expiry, warn or _nothing)
    if expiry is not None and available_now:
        expiry.run_once()
    compactor = Compactor(store, settings.fold)
    gate = BatchBarrier()  # also for a look between two batches: both would bring an epoch in

    def fold_rows(rows: DataFrame, batch_id: int) -> None:
        here = store.in_session(rows.sparkSession)
        try:
            with gate.batch():
                folded = fold_batch(here, rows, settings, clock, warn)
                compactor.after_fold(folded)
        except Exception as error:
            ours = raised_on_executor(error)
            if ours is not None:
                failures.append(ours)  # Spark passes on no more of it than a text with its stack
            raise
        after_batch(batch_id, folded)

    def switch() -> None:
        """What a batch of nothing would do."""
        try:
            with gate.batch():
                folded = switch_epoch_if_due(store, settings, clock)
                if folded is not None:
                    compactor.after_fold(folded)
        except BarrierClosedError:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends the stream as it would end a batch
            failures.append(raised_on_executor(error) or StreamFailed(_said(error)))
            query.stop()
            return
        if folded is not None:
            after_batch(-1, folded)

    query = _writer(store, settings, checkpoint, available_now=available_now).foreachBatch(fold_rows).start()
    watch = EpochWatch(query, switch, settings.fold.trigger_interval_ms / 1000 + _LOOK_SECONDS)
    if not available_now:
        watch.start(store)
        if expiry is not None:
            expiry.start()
    return FoldStream(query, failures, gate, compactor, watch, expiry, switch if available_now else _nothing)


def _expiry(
    store: Store,
    settings: Settings,
    clock: Clock,
    on_expiry: Callable[[int, int], None] | None,
    warn: Callable[[str], object],
) -> StreamExpiry | None:
    """The retention of an owned store; None where a broker expires offsets (R4), or the settings leave it to others."""
    if store.properties.kind != OWNED or not settings.fold.expire_in_stream:
        return None
    if store.is_schema:
        warn(
            f"this stream expires no offsets: {store.location} is a schema, and a coordinator needs the folder of a "
            "store; fold the store by its folder, or set expire_in_stream = false"
        )
        return None
    location = store.arrow_folder(LOG.name).removesuffix(f"/{LOG.name}")
    return StreamExpiry(location, settings, clock, on_expiry)


def _writer(store: Store, settings: Settings, checkpoint: str | None, *, available_now: bool) -> DataStreamWriter:
    writer = (
        store.read_stream(LOG.name, _READ_OPTIONS)
        .writeStream.queryName("fold")
        .option("checkpointLocation", absolute(checkpoint) if checkpoint else store.checkpoint("fold"))
    )
    if available_now:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{settings.fold.trigger_interval_ms} milliseconds")


def _said(exception: Exception) -> str:
    return f"the fold of the log stopped: {first_line(exception)}"


def _nothing(*_: object) -> None:
    """Do nothing: without a listener of batches, and at the end of a fold that runs until it is stopped."""
