"""Appending to the table `log`: one writer at a time, noticed by the others."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from offsets_pipeline.delta.data_file import WrittenFile
from offsets_pipeline.delta.schemas import LOG, LOG_EPOCH
from offsets_pipeline.errors import working_on
from offsets_pipeline.guarded import GuardedWriter
from offsets_pipeline.log.file_writer import LogFilePlace, LogFileWriter, log_partitions_of
from offsets_pipeline.semantics.log_row import place_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.store import Store


class LogAppender:
    """Appends on the condition that nobody else appended since it was made.

    Two that append the same records at once would write them twice.
    """

    def __init__(self, store: Store) -> None:
        self._guarded = GuardedWriter(store, LOG)

    @property
    def number(self) -> int:
        """The number of the append: who knows that of the last one knows whether there was another between."""
        return self._guarded.number

    def place(self, clock: Clock, log_epoch: int = LOG_EPOCH) -> LogFilePlace | None:
        """Where tasks may write files for `append_files`; None where only a DataFrame can be appended."""
        files = self._guarded.files
        return None if files is None else LogFilePlace(files.folder, clock.now_ms(), log_epoch)

    def append_files(self, files: Sequence[WrittenFile]) -> int:
        """Append what tasks wrote to files at `place`, all of it or nothing; returns how many records.

        Raises WriteConflict when somebody else appended meanwhile: then the files belong to nobody, and VACUUM
        removes them.
        """
        assert self._guarded.files is not None  # noqa: S101 - there is a place
        return self._guarded.files.append(files)

    def append(self, rows: DataFrame) -> int:
        """Append rows with the columns of the table `log`; returns how many.

        Raises WriteConflict when somebody else appended meanwhile: then nothing was written.
        """
        return self._guarded.append(rows.select(LOG.names()))

    def append_late(self, rows: DataFrame, clock: Clock, log_epoch: int = LOG_EPOCH) -> int:
        """Append rows of which some lie behind others of their log partition (`backfill`); else as `append`.

        A cleaning that came first may have removed what they were compared with: raises WriteConflict then, too. Where
        only a DataFrame can be appended, nobody can clean.
        """
        place, commit = self.place(clock, log_epoch), self._guarded.files
        if place is None or commit is None:
            return self.append(rows)

        def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            writer = LogFileWriter(place)
            for batch in batches:
                for of_partition in log_partitions_of(batch):
                    with working_on(partial(place_of, of_partition)):
                        writer.write(of_partition)
            written = pa.array([file.as_text() for file in writer.close()], pa.string())
            yield pa.RecordBatch.from_arrays([written], names=["file"])

        shared = rows.select(LOG.names()).repartition("log_partition")
        files = shared.sortWithinPartitions("log_partition", "record_offset").mapInArrow(write, "file string")
        return commit.append([WrittenFile.of_text(row["file"]) for row in files.collect()], late=True)
