"""The fold as a Structured Streaming query over versions of the log; it also expires offsets of an owned store."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

from offsets_pipeline.batch_barrier import BatchBarrier
from offsets_pipeline.coordinator.expiry_runs import StreamExpiry
from offsets_pipeline.delta import COMPRESSION
from offsets_pipeline.delta.properties import OWNED
from offsets_pipeline.delta.schemas import LOG
from offsets_pipeline.errors import OffsetsError, StreamFailed
from offsets_pipeline.foreign_errors import first_line, raised_on_executor
from offsets_pipeline.state.fold import fold_log
from offsets_pipeline.stream.log_version_source import FORMAT, LogVersionSource, log_versions
from offsets_pipeline.stream.publisher import Publisher
from offsets_pipeline.stream.stream_upkeep import StreamUpkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.config import Settings
    from offsets_pipeline.maintenance import Upkeep
    from offsets_pipeline.store import Store


class FoldStream:
    """A running fold: `stop` ends it, `await_end` waits for its end."""

    def __init__(
        self,
        query: StreamingQuery,
        failures: list[OffsetsError],
        gate: BatchBarrier,
        publisher: Publisher,
        beside: Sequence[StreamExpiry | StreamUpkeep],
        checkpoint: tempfile.TemporaryDirectory[str],
    ) -> None:
        self._query = query
        self._failures = failures
        self._gate = gate
        self._publisher = publisher
        self._beside = beside
        self._checkpoint = checkpoint

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
            self._publisher.finish()
        except StreamingQueryException as exception:
            if self._failures:
                raise self._failures[-1] from None
            if self._gate.closed:
                return
            raise raised_on_executor(exception) or StreamFailed(
                f"the fold of the log stopped: {first_line(exception)}"
            ) from exception
        finally:
            self._close()

    def _close(self) -> None:
        """End the threads that run beside the batches."""
        for each in self._beside:
            each.close()
        self._publisher.close()
        self._checkpoint.cleanup()


def start_fold(
    store: Store,
    settings: Settings,
    clock: Clock,
    *,
    available_now: bool,
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
        on_batch: Called with the id of each batch and the number of records that it folded.
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
    upkeep = _upkeep(store, settings, clock, on_upkeep or _nothing, warn)
    beside = [each for each in (expiry, upkeep) if each is not None]
    gate = BatchBarrier()

    def fold(rows: DataFrame, batch_id: int) -> None:
        here = store.in_session(rows.sparkSession)
        try:
            with gate.batch():
                folded = fold_log(here, settings, clock, warn)
                publisher.after_fold(folded)
        except Exception as error:
            ours = raised_on_executor(error)
            if ours is not None:
                failures.append(ours)  # Spark reports only the text and the stack of an error
            raise
        after_batch(batch_id, folded)

    store.spark.dataSource.register(LogVersionSource)
    # the start of a query depends on `fold_progress`, never on its checkpoint
    checkpoint = tempfile.TemporaryDirectory(prefix="offsets-fold-", ignore_cleanup_errors=True)
    writer = (
        store.spark.readStream.format(FORMAT)
        .options(**log_versions(store))
        .load()
        .writeStream.queryName("fold")
        .option("checkpointLocation", Path(checkpoint.name).as_uri())
        .foreachBatch(fold)
    )
    interval = f"{settings.fold.trigger_interval_ms} milliseconds"
    query = (writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=interval)).start()
    if not available_now:
        publisher.start()
        for each in beside:
            each.start()
    return FoldStream(query, failures, gate, publisher, beside, checkpoint)


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


def _upkeep(
    store: Store,
    settings: Settings,
    clock: Clock,
    on_upkeep: Callable[[Sequence[Upkeep]], object],
    warn: Callable[[str], object],
) -> StreamUpkeep | None:
    """Return the upkeep beside the stream; None if the settings disable it."""
    interval_ms = settings.fold.upkeep_interval_ms
    cleaning = settings if settings.fold.clean_in_stream else None
    return (
        StreamUpkeep(
            *(store, clock, interval_ms, on_upkeep, warn),
            settings=cleaning,
            sample_retention_hours=settings.lag.sample_retention_hours,
            compression=settings.log.codec(COMPRESSION),
        )
        if interval_ms
        else None
    )


def _nothing(*_: object) -> None:
    """Do nothing: the default of the callbacks."""
