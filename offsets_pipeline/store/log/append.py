"""Appending to the table `log`: each append notices the appends before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from offsets_pipeline.common.foreign_errors import working_on
from offsets_pipeline.semantics.log_row import place_of
from offsets_pipeline.store.delta.data_file import APPLICATION, CLEANED, COMPLETE, COMPRESSION, LATE, DataFile, late_in
from offsets_pipeline.store.delta.schemas import LOG, LOG_INCARNATION
from offsets_pipeline.store.log.file_writer import LogFilePlace, LogFileWriter, log_partitions_of
from offsets_pipeline.store.log.task_results import task_results

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from offsets_pipeline.common.clock import Clock
    from offsets_pipeline.store.store import Store


#: A function of batches of records in columns of the log, which runs where the records are; picklable.
RecordsFold = Callable[[Iterable["pa.RecordBatch"]], Any]


@dataclass(frozen=True)
class Append:
    """An append to the log: the version that it made, and the number of its records.

    ``fold`` was called with the records, in each task or in the driver; ``folded`` is what it returned.
    """

    version: int
    records: int
    fold: RecordsFold | None = None
    folded: Sequence[Any] = ()


class LogAppender:
    """Appends on the condition that no other append was committed since this object was made.

    Two writers that append the same records at the same time would write them twice. ``compression``: Parquet's codec
    of the files. Raises UnsupportedTable if the table has a feature that this program does not write.
    """

    def __init__(self, store: Store, compression: str = COMPRESSION) -> None:
        self._compression = compression
        self._table = store.table(LOG.name)
        self._seen = self._table.snapshot()
        self._table.refuse_unwritable(self._seen)
        #: Delta transaction version of the next append. A gap means that another writer appended.
        self.number = self._seen.transaction(APPLICATION) + 1

    @property
    def nothing(self) -> Append:
        """The append of no records: it commits nothing."""
        return Append(self._seen.version, 0)

    def place(self, clock: Clock, log_incarnation: int = LOG_INCARNATION) -> LogFilePlace:
        """Where tasks write files for `append_files`."""
        return LogFilePlace(self._table.folder, clock.now_ms(), log_incarnation, self._compression)

    def append_files(self, files: Sequence[DataFile], complete_ms: int | None = None) -> Append:
        """Append the files that tasks wrote at `place`, in one commit.

        ``complete_ms`` is the time up to which this append completes the log; None: unknown (R36).

        Raises WriteConflict if another append was committed first; then nothing is written and the files are removed.
        Raises as `TableFolder.commit`.
        """
        advance = {APPLICATION: self.number}
        if complete_ms is not None:
            advance[COMPLETE] = max(complete_ms, self._seen.transaction(COMPLETE))
        version = self._table.commit(files, seen=self._seen, advance=advance)
        return Append(version, sum(file.rows for file in files))

    def append_late(self, rows: DataFrame, place: LogFilePlace, written: Sequence[DataFile] = ()) -> Append:
        """Append rows that precede existing records of their log partition (`backfill`), in one commit.

        ``rows`` has the columns of a source, or all. ``written`` are files of other rows, for the same commit. Raises
        WriteConflict as `append_files`, and also if a cleaning was committed first: the cleaning may have removed
        records that the caller compared with these rows.
        """

        def write(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[list[DataFile], set[int]]]:
            writer, late = LogFileWriter(place), set[int]()
            for batch in batches:
                for of_partition in log_partitions_of(batch):
                    with working_on(partial(place_of, of_partition)):
                        writer.write(of_partition)
                late.update(batch["log_partition"].unique().to_pylist())
            yield writer.close(), late

        shared = rows.withColumn("backfill", F.lit(True)).repartition("log_partition")
        results = task_results(shared.sortWithinPartitions("log_partition", "record_offset"), write)
        files = [*written, *(file for of_task, _ in results for file in of_task)]
        number = self._seen.transaction(LATE) + 1
        late = {late_in(at): number for _, late in results for at in late}
        advance = {APPLICATION: self.number, LATE: number, **late}
        version = self._table.commit(files, seen=self._seen, advance=advance, unless_advanced=[CLEANED])
        return Append(version, sum(file.rows for file in files))
