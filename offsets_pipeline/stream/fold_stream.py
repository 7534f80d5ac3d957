"""The fold as a Structured Streaming query over versions of the log."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

from offsets_pipeline.batch_barrier import BarrierClosedError, BatchBarrier
from offsets_pipeline.errors import OffsetsError, StreamFailed
from offsets_pipeline.foreign_errors import first_line, raised_on_executor
from offsets_pipeline.stream.folding import Folding, nothing
from offsets_pipeline.stream.log_version_source import FORMAT, LogVersionSource, log_versions

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
        folding: Folding,
        checkpoint: tempfile.TemporaryDirectory[str],
    ) -> None:
        self._query = query
        self._failures = failures
        self._gate = gate
        self._folding = folding
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
            self._folding.finish()
        finally:
            self._close()

    def await_end(self) -> None:
        """Wait until the stream ends. Raises an OffsetsError if a failure ended it."""
        try:
            self._query.awaitTermination()
            self._folding.finish()
        except StreamingQueryException as exception:
            if self._failures:
                raise self._failures[-1] from None
            if self._gate.closed:
                return
            raise raised_on_executor(exception) or _stopped(exception) from exception
        finally:
            self._close()

    def _close(self) -> None:
        self._folding.close()
        self._checkpoint.cleanup()


def start_fold(
    store: Store,
    settings: Settings,
    clock: Clock,
    *,
    available_now: bool,
    on_fold: Callable[[int], object] = nothing,
    on_expiry: Callable[[int, int], None] | None = None,
    on_upkeep: Callable[[Sequence[Upkeep]], object] = nothing,
    warn: Callable[[str], None] = nothing,
) -> FoldStream:
    """Start a streaming fold of the log; with ``available_now`` up to its present end.

    The stream over an owned store also expires offsets (R18-R22), unless `expire_in_stream` is false. With
    ``available_now`` it expires once, before the query starts, so that the query folds the tombstones too. Otherwise it
    expires at its start and then every `offsets_retention_check_interval_ms`.

    Without ``available_now`` it also compacts small files and removes old ones, every `upkeep_interval_ms`. The
    callbacks are those of `Folding`.
    """
    failures: list[OffsetsError] = []
    folding = Folding(store, settings, clock, on_fold=on_fold, on_expiry=on_expiry, on_upkeep=on_upkeep, warn=warn)
    if available_now:
        folding.expire()
    gate = BatchBarrier()

    def fold(rows: DataFrame, _: int) -> None:
        try:
            with gate.batch():
                folding.fold(store.in_session(rows.sparkSession))
        except BarrierClosedError:
            raise
        except Exception as error:  # Spark reports only its text and its stack
            failures.append(raised_on_executor(error) or _stopped(error))
            raise

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
        folding.start()
    return FoldStream(query, failures, gate, folding, checkpoint)


def _stopped(error: Exception) -> StreamFailed:
    return StreamFailed(f"the fold of the log stopped: {first_line(error)}")
