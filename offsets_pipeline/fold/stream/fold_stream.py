"""The fold as a Structured Streaming query over versions of the log."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

from offsets_pipeline.common.foreign_errors import first_line, raised_on_executor
from offsets_pipeline.errors import OffsetsError, StreamFailed
from offsets_pipeline.fold.stream.log_version_source import FORMAT, LogVersionSource, log_versions
from offsets_pipeline.ingest.batch_barrier import BarrierClosedError, BatchBarrier
from offsets_pipeline.store.session import require_context

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from offsets_pipeline.fold.stream.folding import Folding


class FoldStream:
    """A running fold: `stop` ends it, `await_end` waits for its end."""

    def __init__(
        self,
        query: StreamingQuery,
        failures: list[OffsetsError],
        barrier: BatchBarrier,
        folding: Folding,
        checkpoint: tempfile.TemporaryDirectory[str],
    ) -> None:
        self._query = query
        self._failures = failures
        self._gate = barrier
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


def start_fold(folding: Folding) -> FoldStream:
    """Start a streaming fold of the log, and the work beside it.

    The stream over an owned store also expires offsets (R18-R22), unless `expire_in_stream` is false: at its start and
    then every `offsets_retention_check_interval_ms`. It compacts small files and removes old ones, every
    `upkeep_interval_ms`.

    Raises NotOnConnect.
    """
    require_context(folding.store.spark, "a fold without --available-now")
    store, failures = folding.store, list[OffsetsError]()
    barrier = BatchBarrier()

    def fold(rows: DataFrame, _: int) -> None:
        try:
            with barrier.batch():
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
    interval = f"{folding.settings.fold.trigger_interval_ms} milliseconds"
    query = writer.trigger(processingTime=interval).start()
    folding.start()
    return FoldStream(query, failures, barrier, folding, checkpoint)


def _stopped(error: Exception) -> StreamFailed:
    return StreamFailed(f"the fold of the log stopped: {first_line(error)}")
