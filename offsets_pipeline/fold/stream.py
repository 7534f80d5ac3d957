"""The fold as a Structured Streaming query over the table `log`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pyspark import inheritable_thread_target
from pyspark.errors import StreamingQueryException

from offsets_pipeline.batch_gate import BatchGate, GateClosedError
from offsets_pipeline.errors import OffsetsError, StreamFailed, first_line
from offsets_pipeline.fold.batch import fold_batch
from offsets_pipeline.fold.reload import switch_epoch_if_due
from offsets_pipeline.fold.settle import Settler
from offsets_pipeline.retry import with_retries
from offsets_pipeline.tables import LOG

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

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
        gate: BatchGate,
        settler: Settler,
        watch: EpochWatch,
        at_end: Callable[[], object],
    ) -> None:
        self._query = query
        self._failures = failures
        self._gate = gate
        self._settler = settler
        self._watch = watch
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
            self._watch.close()
            self._settler.close()

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
            self._watch.close()
            self._settler.close()


def start_fold(
    store: Store,
    settings: Settings,
    clock: Clock,
    *,
    available_now: bool,
    checkpoint: str | None = None,
    on_batch: Callable[[int, int], None] | None = None,
    warn: Callable[[str], None] | None = None,
) -> FoldStream:
    """Start folding the log; with ``available_now`` up to what is there, else on and on.

    ``checkpoint`` is a folder, by default within the store. It says which appends were read, no more: progress
    stands in the state tables, so a checkpoint that is lost costs one more reading of the log and nothing else.
    ``on_batch`` is told each batch's id and how many records it folded; the id is -1 where another epoch of the log was
    folded between batches. ``warn`` gets a line for each batch of which records went into quarantine (R6).
    """
    failures: list[OffsetsError] = []
    settler = Settler(store, settings.fold)
    gate = BatchGate()  # also for a look between two batches: both would bring an epoch in

    def fold_rows(rows: DataFrame, batch_id: int) -> None:
        here = store.in_session(rows.sparkSession)
        try:
            with gate.batch():
                folded = fold_batch(here, rows, settings, clock, warn)
                settler.after_fold(folded)
        except OffsetsError as error:
            failures.append(error)  # Spark passes on no more of it than a text with its stack
            raise
        if on_batch is not None:
            on_batch(batch_id, folded)

    def switch() -> None:
        """What a batch of nothing would do."""
        try:
            with gate.batch():
                folded = with_retries(
                    lambda: switch_epoch_if_due(store, settings, clock), "another epoch's fold", settings.fold
                )
                if folded is not None:
                    settler.after_fold(folded)
        except GateClosedError:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends the stream as it would end a batch
            failures.append(error if isinstance(error, OffsetsError) else StreamFailed(_said(error)))
            query.stop()
            return
        if folded is not None and on_batch is not None:
            on_batch(-1, folded)

    writer = (
        store.read_stream(LOG.name, _READ_OPTIONS)
        .writeStream.queryName("fold")
        .option("checkpointLocation", checkpoint or store.checkpoint("fold"))
        .foreachBatch(fold_rows)
    )
    if available_now:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{settings.fold.trigger_interval_ms} milliseconds")
    query = writer.start()
    watch = EpochWatch(query, switch, settings.fold.trigger_interval_ms / 1000 + _LOOK_SECONDS)
    if not available_now:
        watch.start(store)
    return FoldStream(query, failures, gate, settler, watch, switch if available_now else _nothing)


def _said(exception: Exception) -> str:
    return f"the fold of the log stopped: {first_line(exception)}"


def _nothing() -> None:
    """What else there is to do at the end of a fold that was stopped."""
