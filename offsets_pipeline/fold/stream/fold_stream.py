"""The fold as a Structured Streaming query over versions of the log.

A fold needs to know only that the log has a new version: it reads the files of the log itself, from the version that
`fold_progress` names (fold/state/fold.py). So the offsets of the query's source are versions of the table `log`, its
batches have no rows, and its checkpoint holds nothing that a fold needs (docs/adr/0039).
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from offsets_pipeline.common.foreign_errors import first_line, may_pass, raised_on_executor
from offsets_pipeline.common.warnings import Warnings
from offsets_pipeline.errors import OffsetsError, StreamFailed
from offsets_pipeline.ingest.batch_barrier import BarrierClosedError, BatchBarrier
from offsets_pipeline.store.delta.schemas import LOG, LOG_PARTITIONS
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.session import require_context

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.streaming.query import StreamingQuery

    from offsets_pipeline.fold.stream.folding import Folding
    from offsets_pipeline.store.store import Store

FORMAT = "offsets_log_versions"
#: A new version of `log_partitions` may make another incarnation of the log count.
_TABLES = (LOG, LOG_PARTITIONS)
_RETRY_SECONDS = 5.0


@dataclass
class FoldStream:
    """A running fold: `stop` ends it, `await_end` waits for its end. ``query`` is the streaming query.

    A query that ends with an error that may pass, such as an outage of the storage, is started again.
    """

    query: StreamingQuery
    _start: Callable[[], StreamingQuery]
    _failures: list[OffsetsError]
    _barrier: BatchBarrier
    _folding: Folding
    _checkpoint: tempfile.TemporaryDirectory[str]
    _warnings: Warnings
    _stopped: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Stop between two batches."""
        self._stopped.set()
        try:
            self._barrier.close()
            self.query.stop()
            self._folding.finish()
        finally:
            self._close()

    def await_end(self) -> None:
        """Wait until the stream ends. Raises an OffsetsError if a failure ended it."""
        try:
            while (failure := self._failure()) is not None:
                if not may_pass(failure):
                    raise failure
                self._warnings.warn(f"{failure}; trying again")
                if self._stopped.wait(_RETRY_SECONDS):
                    return
                self._failures.clear()
                self.query = self._start()
                if self._stopped.is_set():  # meanwhile: `stop` has stopped the query before this one
                    self.query.stop()
            self._folding.finish()
        finally:
            self._close()

    def _failure(self) -> OffsetsError | None:
        """Wait until the query ends; returns the error that ended it, None after `stop`."""
        try:
            self.query.awaitTermination()
        except StreamingQueryException as exception:
            if self._failures:
                return self._failures[-1]
            if not self._barrier.closed:
                return raised_on_executor(exception) or _stopped(exception)
        return None

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
    store, failures, warnings = folding.store, list[OffsetsError](), Warnings(folding.warn, "the fold goes on")
    barrier = BatchBarrier()

    def fold(rows: DataFrame, _: int) -> None:
        try:
            with barrier.batch():
                folding.fold(store.in_session(rows.sparkSession))
                warnings.recovered()
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
    start = writer.trigger(processingTime=interval).start
    query = start()
    folding.start()
    return FoldStream(query, start, failures, barrier, folding, checkpoint, warnings)


def _stopped(error: Exception) -> StreamFailed:
    return StreamFailed(f"the fold of the log stopped: {first_line(error)}")


# --- the source


def log_versions(store: Store) -> dict[str, str]:
    """Return the options of the source for a store."""
    return {table.name: store.arrow_folder(table.name) for table in _TABLES}


class LogVersionSource(DataSource):
    """The source; its options are those of `log_versions`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the schema of the batches, which have no rows."""
        return "version bigint"

    def streamReader(self, schema: object) -> LogVersionReader:  # noqa: ARG002, N802 - Spark's
        """Return the reader."""
        return LogVersionReader([TableFolder(self.options[table.name], table) for table in _TABLES])


class LogVersionReader(DataSourceStreamReader):
    """Offsets of the source: versions by the names of the tables."""

    def __init__(self, tables: list[TableFolder]) -> None:
        self._tables = tables

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's
        """Return an offset before all versions: the first batch folds what the state lacks."""
        return {table.name: -1 for table in _TABLES}

    def latestOffset(  # noqa: N802 - Spark's
        self,
        start: dict[str, int] | None = None,  # noqa: ARG002 - before Spark 4.2 there are no arguments
        limit: ReadLimit | None = None,  # noqa: ARG002
    ) -> dict[str, int]:
        """Return the newest versions. Raises as `TableFolder.snapshot`."""
        return {each.table.name: each.snapshot().version for each in self._tables}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:  # noqa: ARG002
        """Return one task without rows."""
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:  # noqa: ARG002
        """Return no rows."""
        return iter(())
