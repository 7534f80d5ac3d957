"""Parquet files of the table `log`, written by tasks without Spark's row by row way, for one commit to take in.

Nothing checks the table's constraints again when a commit adds these files, so this module keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from offsets_pipeline.delta.data_file import COMPRESSION, AddFile, in_statistics, new_file_name
from offsets_pipeline.delta.filesystems import open_path
from offsets_pipeline.delta.schemas import LOG, LOG_EPOCH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyarrow import fs

_ROW_GROUP_BYTES = 128 * 1024 * 1024  # in memory: a million rows of a usual log
_SMALL_ROW_GROUP_BYTES = 4 * 1024 * 1024  # smaller ones are not worth the reader's while
_FILE_BYTES = 512 * 1024 * 1024
# Above it the keys of a row group would be written one by one: a million records have some ten thousand keys.
_DICTIONARY_BYTES = 64 * 1024 * 1024
_ASCENDING = {"record_offset": "DELTA_BINARY_PACKED", "record_timestamp": "DELTA_BINARY_PACKED"}
_DISTINCT = {*_ASCENDING, "value"}  # hardly two alike: a dictionary of them is wasted work
_PLACE = ("log_partition", "record_offset")
_BOUNDED = (*_PLACE, "log_epoch", "appended_at")  # of what the table asks statistics of
#: All columns of the table, as its files have them.
SCHEMA = LOG.arrow_schema()


@dataclass(frozen=True)
class LogFilePlace:
    """Where tasks write to: the table's folder, a path or a URI that Arrow understands; and when, in milliseconds.

    ``log_epoch`` is that of the rows, where they do not say it themselves.
    """

    folder: str
    appended_at_ms: int
    log_epoch: int = LOG_EPOCH


class LogFileWriter:
    """Writes rows of a task to files in the table's folder.

    They come in the order of log partition and record offset, with all columns or those that a source tells, and get
    into row groups of one log partition where that is large. What the table says of its rows holds: Arrow lets no null
    into a column that takes none, a negative place is refused here, and control types are those of `record/columns.py`.
    """

    def __init__(self, place: LogFilePlace) -> None:
        self._place = place
        self._system, self._folder = open_path(place.folder)
        self._waiting: list[pa.RecordBatch] = []
        self._file: _OpenFile | None = None
        self._written: list[AddFile] = []

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows of one log partition."""
        if not rows.num_rows:
            return
        waiting = sum(each.nbytes for each in self._waiting)
        goes_on = not self._waiting or self._waiting[-1]["log_partition"][0] == rows["log_partition"][0]
        if waiting > (_ROW_GROUP_BYTES if goes_on else _SMALL_ROW_GROUP_BYTES):
            self._end_row_group()
        self._waiting.append(rows)

    def close(self) -> list[AddFile]:
        """Write what still waits; returns all files."""
        self._end_row_group()
        self._end_file()
        return self._written

    def _end_row_group(self) -> None:
        if not self._waiting:
            return
        if self._file is None:
            self._file = _OpenFile(self._system, self._folder)
        rows, self._waiting = pa.Table.from_batches(self._waiting), []
        if self._file.write(_with_constants(rows, self._place)) > _FILE_BYTES:
            self._end_file()

    def _end_file(self) -> None:
        if self._file is not None:
            self._written.append(self._file.close())
            self._file = None


class _OpenFile:
    """A file that is being written."""

    def __init__(self, system: fs.FileSystem, folder: str) -> None:
        self._name = new_file_name()
        self._sink = system.open_output_stream(f"{folder}/{self._name}")
        self._parquet = pq.ParquetWriter(
            self._sink,
            SCHEMA,
            compression=COMPRESSION,
            use_dictionary=[name for name in SCHEMA.names if name not in _DISTINCT],
            dictionary_pagesize_limit=_DICTIONARY_BYTES,
            column_encoding=_ASCENDING,
            write_statistics=list(_PLACE),
            store_schema=False,
        )
        self._rows = 0
        self._bounds: list[dict[str, int | str]] = []

    def write(self, rows: pa.Table) -> int:
        """Add a row group; returns how many bytes the file has."""
        bounds = [pc.min_max(rows[name]) for name in _BOUNDED]
        self._bounds += [
            {name: in_statistics(each[which]) for name, each in zip(_BOUNDED, bounds, strict=True)}
            for which in ("min", "max")
        ]
        lowest = {name: bound["min"].as_py() for name, bound in zip(_PLACE, bounds, strict=False)}
        if min(lowest.values()) < 0:
            raise ValueError(f"a record lies in no log partition: {lowest}")
        self._parquet.write_table(rows, row_group_size=rows.num_rows)
        self._rows += rows.num_rows
        return int(self._sink.tell())

    def close(self) -> AddFile:
        """End the file."""
        self._parquet.close()
        size = int(self._sink.tell())
        self._sink.close()
        lowest, highest = (
            {name: choose(each[name] for each in self._bounds) for name in _BOUNDED} for choose in (min, max)
        )
        return AddFile(self._name, size, self._rows, lowest, highest)


def log_partitions_of(rows: pa.RecordBatch | pa.Table) -> Iterator[pa.RecordBatch]:
    """Rows in the order of log partition, as `LogFileWriter` takes them: those of one log partition at a time."""
    partition = rows["log_partition"].to_numpy()
    bounds = [0, *(np.flatnonzero(np.diff(partition)) + 1).tolist(), rows.num_rows]
    for start, end in pairwise(bounds):
        part = rows.slice(start, end - start)
        yield from part.to_batches() if isinstance(part, pa.Table) else [part]


def _with_constants(rows: pa.Table, place: LogFilePlace) -> pa.Table:
    """The rows with all columns: what no source tells is the same for all."""
    constants = {"appended_at": place.appended_at_ms * 1000, "log_epoch": place.log_epoch, "backfill": False}
    columns = [
        rows[field.name].cast(field.type)
        if field.name in rows.column_names
        else pa.repeat(pa.scalar(constants[field.name]).cast(field.type), rows.num_rows)
        for field in SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)
