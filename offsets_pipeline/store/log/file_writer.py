"""Writes Parquet files of the table `log` with Arrow, in tasks; one commit then adds the files to the table.

Arrow writes columns; Spark would write row by row. A commit does not check the table's constraints on these files, so
this module enforces them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.common.arrow_values import conformed
from offsets_pipeline.semantics.compaction import gathered
from offsets_pipeline.semantics.log_row import in_log_order
from offsets_pipeline.store.delta.data_file import COMPRESSION, DataFile, NewFile
from offsets_pipeline.store.delta.s3_errors import writing
from offsets_pipeline.store.delta.schemas import LOG, LOG_INCARNATION
from offsets_pipeline.store.log.log_scan import LogScan

if TYPE_CHECKING:
    from offsets_pipeline.store.delta.table_folder import TableFolder

_ROW_GROUP_BYTES = 128 * 1024 * 1024  # in memory: a million rows of a usual log
_SMALL_ROW_GROUP_BYTES = 4 * 1024 * 1024  # smaller row groups cost a reader more than they save
_FILE_BYTES = 512 * 1024 * 1024
#: Size of the rows that are sorted together in memory: enough for the rows of many small files.
SORT_BYTES = 64 * 1024 * 1024
# Above this size Parquet stops to use a dictionary for keys. A million records have some ten thousand distinct keys.
_DICTIONARY_BYTES = 64 * 1024 * 1024
_ASCENDING = {"record_offset": "DELTA_BINARY_PACKED", "record_timestamp": "DELTA_BINARY_PACKED"}
_DISTINCT = {*_ASCENDING, "value"}  # values rarely repeat: a dictionary saves nothing
_PLACE = ["log_partition", "record_offset"]
#: All columns of the table, as its files have them.
SCHEMA = LOG.arrow_schema()
_OPTIONS: Mapping[str, Any] = {
    "use_dictionary": [name for name in SCHEMA.names if name not in _DISTINCT],
    "dictionary_pagesize_limit": _DICTIONARY_BYTES,
    "column_encoding": _ASCENDING,
    "write_statistics": _PLACE,
}


@dataclass(frozen=True)
class LogFilePlace:
    """Where tasks write files, and the values of columns that a source lacks.

    ``folder``: the table's folder, a path or URI as Arrow understands it. ``appended_at_ms``: milliseconds since 1970.
    ``log_incarnation``: the log incarnation of rows without this column. ``compression``: Parquet's codec of the files.
    """

    folder: str
    appended_at_ms: int
    log_incarnation: int = LOG_INCARNATION
    compression: str = COMPRESSION


class LogFileWriter:
    """Writes the rows of a task to files in the table's folder.

    The caller passes rows in the order of log partition and record offset, with all columns or those of a source. A
    large log partition gets its own row groups.

    Enforces the table's constraints: Arrow refuses a null in a required column, and this class refuses a negative log
    partition or record offset. Control types come from `kafka/record/columns.py`.
    """

    def __init__(self, place: LogFilePlace) -> None:
        self._place = place
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._files: list[NewFile] = []
        self._file: NewFile | None = None  # the one that is open
        self._written: list[DataFile] = []

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows of one log partition."""
        if not rows.num_rows:
            return
        goes_on = not self._waiting or self._waiting[-1]["log_partition"][0] == rows["log_partition"][0]
        if self._waiting_bytes > (_ROW_GROUP_BYTES if goes_on else _SMALL_ROW_GROUP_BYTES):
            self._end_row_group()
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes

    def write_all(self, tables: Iterable[pa.Table]) -> list[DataFile]:
        """Write tables, which have rows in any order, and close: sorts the rows of SORT_BYTES at a time."""
        for rows in gathered(tables, size_bytes=SORT_BYTES):
            for of_partition in log_partitions_of(in_log_order(rows).combine_chunks()):
                self.write(of_partition)
        return self.close()

    def close(self) -> list[DataFile]:
        """Write the remaining rows; returns all files."""
        self._end_row_group()
        self._end_file()
        return self._written

    def discard(self) -> None:
        """Remove all files, after a failure. A file that cannot be removed is left to a vacuum."""
        for file in self._files:
            file.discard()

    def _end_row_group(self) -> None:
        if not self._waiting:
            return
        rows = pa.Table.from_batches(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        constants = {
            "appended_at": self._place.appended_at_ms * 1000,
            "log_incarnation": self._place.log_incarnation,
            "backfill": False,
        }
        # a KeyError if the source lacks another column: it would be null in the log
        rows = rows.select([name for name in SCHEMA.names if name in rows.column_names or name not in constants])
        lowest = {name: pc.min(rows[name]).as_py() for name in _PLACE}
        if min(lowest.values()) < 0:
            raise ValueError(f"a record has log partition {lowest}")
        with writing(self._place.folder):
            if self._file is None:
                self._file = NewFile(self._place.folder, LOG, {}, self._place.compression, _OPTIONS)
                self._files.append(self._file)
            size_bytes = self._file.write(conformed(rows, SCHEMA, constants), rows.num_rows)
        if size_bytes > _FILE_BYTES:
            self._end_file()

    def _end_file(self) -> None:
        if self._file is not None:
            with writing(self._place.folder):
                self._written.append(self._file.close())
            self._file = None


def rewritten(folder: TableFolder, compression: str, files: list[DataFile]) -> list[DataFile]:
    """Write the rows of these files of the table to new ones with this codec of Parquet; returns the new files.

    Raises DamagedTable if a file is missing or corrupt, StorageFailed; then no new file is left.
    """
    writer = LogFileWriter(LogFilePlace(folder.folder, 0, compression=compression))
    try:
        return writer.write_all(LogScan(folder, SCHEMA).rows(files))
    except BaseException:
        writer.discard()
        raise


def log_partitions_of(
    rows: pa.RecordBatch | pa.Table, columns: Sequence[str] = ("log_partition",)
) -> Iterator[pa.RecordBatch]:
    """Split rows, sorted by these columns, where one of them changes, into batches as `LogFileWriter` takes them."""
    changes = np.any([np.diff(rows[name].to_numpy()) for name in columns], axis=0)
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), rows.num_rows]
    for start, end in pairwise(bounds):
        part = rows.slice(start, end - start)
        yield from part.to_batches() if isinstance(part, pa.Table) else [part]
