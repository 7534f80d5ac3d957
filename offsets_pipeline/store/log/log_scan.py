"""Reads rows of files of the table `log` with Arrow: all, or a range of record offsets; in tasks, or without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.common.foreign_errors import working_on
from offsets_pipeline.semantics.log_row import of_each_row
from offsets_pipeline.store.delta.data_file import DataFile, bounds_of_group
from offsets_pipeline.store.delta.schemas import LOG, LOG_INCARNATION

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from offsets_pipeline.kafka.record.records import Bools
    from offsets_pipeline.store.delta.table_folder import TableFolder

#: The columns that tell whether a row is within a range.
PLACE = ("log_partition", "record_offset", "log_incarnation")
#: The columns that tell when a record was written.
TIMES = ("record_timestamp", "appended_at")
#: `written_us` in SQL of DuckDB.
WRITTEN_US = f"epoch_us(least({', '.join(TIMES)}))"
#: The column `key` with each distinct key once.
KEY = pa.field("key", pa.dictionary(pa.int32(), pa.binary()))
#: A column that a scan can add: the position of a row in its file.
POSITION = pa.field("position", pa.int32(), nullable=False)
_COLUMNS = LOG.arrow_schema()
#: Columns whose values repeat: a filter and a cast of distinct values take less time, also for a plain column.
_REPEATED = ["key", "source"]
_END = 2**63 - 1
_BUFFER_BYTES = 1024 * 1024
_THREADS = 8  # which mostly wait for the storage
_LAST = ("log_incarnation", "log_partition", "record_offset_max")


def written_us(rows: pa.Table) -> pa.ChunkedArray:
    """When each record was written, in microseconds since 1970, by the columns TIMES (R36).

    That is its timestamp, or the time of its append if that is earlier, as the clock of a broker may be ahead. A record
    without a timestamp has the time of its append.
    """
    return pc.min_element_wise(*(rows[name].cast(pa.int64()) for name in TIMES))


@dataclass(frozen=True)
class LogRange:
    """A range of record offsets in each log partition, in one incarnation of the log.

    ``starts``: first record offset; a reader skips log partitions without one. None: all log partitions, from their
    start. ``ends``: record offset after the last; without one the range has no end.
    """

    starts: Mapping[int, int] | None
    ends: Mapping[int, int] = field(default_factory=dict)
    log_incarnation: int = LOG_INCARNATION

    def may_hold(self, file: DataFile) -> bool:
        """Whether a file may hold records of the range, by its statistics."""
        return self.may_hold_between(file.lowest, file.highest)

    def may_hold_between(self, lowest: Mapping[str, Any], highest: Mapping[str, Any]) -> bool:
        """Whether rows with these bounds of columns may be in the range. A column without bounds excludes no row."""
        if (
            not lowest.get("log_incarnation", self.log_incarnation)
            <= self.log_incarnation
            <= highest.get("log_incarnation", self.log_incarnation)
        ):
            return False
        if self.starts is None:
            return True
        first, last = lowest.get("record_offset", 0), highest.get("record_offset", _END)
        return any(
            lowest.get("log_partition", at) <= at <= highest.get("log_partition", at)
            and start <= last
            and first < self.ends.get(at, _END)
            for at, start in self.starts.items()
        )

    def mask(self, rows: pa.Table) -> Bools:
        """A mask of the rows within the range; ``rows`` has the columns PLACE."""
        partition, offset = rows["log_partition"].to_numpy(), rows["record_offset"].to_numpy()
        wanted: Bools = rows["log_incarnation"].to_numpy() == self.log_incarnation
        if self.starts is not None:
            wanted &= of_each_row(self.starts, partition, missing=_END) <= offset
        if self.ends:
            wanted &= offset < of_each_row(self.ends, partition, missing=_END)
        return wanted


@dataclass(frozen=True)
class LogScan:
    """A scan of files of the table `log`; picklable.

    ``schema`` has the columns and types of the result: files of several writers differ in types. ``range``: the rows to
    read; None: all. ``block_rows``: the most rows to read at once, through a small buffer of each column; None: whole
    row groups. ``use_threads``: decode columns in parallel.
    """

    log: TableFolder
    schema: pa.Schema
    range: LogRange | None = None
    block_rows: int | None = None
    use_threads: bool = False

    def rows(self, files: Iterable[DataFile]) -> Iterator[pa.Table]:
        """Yield the rows of these files, file by file, in the order of the rows in a file.

        Skips files and row groups by their statistics. Raises DamagedTable and StorageFailed as
        `TableFolder.open_file`, TaskFailed with the file for a column that cannot have the type of ``schema``.
        """
        for file in files:
            if self.range is None or self.range.may_hold(file):
                yield from self.rows_at(file, None)

    def rows_at(self, file: DataFile, keep: Bools | None) -> Iterator[pa.Table]:
        """Yield the rows of a file at the positions at which ``keep`` is true; skips row groups without one.

        None keeps all rows. Raises as `rows`.
        """
        options: dict[str, Any] = {} if self.block_rows is None else {"buffer_size": _BUFFER_BYTES}
        options["read_dictionary"] = [name for name in _REPEATED if name in self.schema.names]
        with self.log.open_file(file, **options) as parquet:
            for first, rows in self._blocks(parquet, file.partition, keep):
                with working_on(lambda: f"the file {self.log.folder}/{file.name} from row {first} on"):  # noqa: B023
                    selected = self._selected(rows, first, file.partition, keep)
                if selected.num_rows:
                    yield selected

    def last_offsets(self, file: DataFile) -> list[tuple[int, int, int]]:
        """Log incarnation, log partition and last record offset of parts of a file; see `ends_by_incarnation`."""
        of_file = file.lowest, file.highest
        last = _last_offset(*of_file)
        if last is not None:
            return [last]
        found = []
        with self.log.open_file(file) as parquet:
            for number in range(parquet.num_row_groups):
                bounds = bounds_of_group(parquet.metadata.row_group(number), PLACE)
                last = _last_offset(*({**of, **each} for of, each in zip(of_file, bounds, strict=True)))
                if last is not None:
                    found.append(last)
                    continue
                names = [name for name in PLACE if name not in file.partition]
                group = parquet.read_row_group(number, columns=names, use_threads=False)
                rows = self._selected(group, 0, file.partition, None)
                by_place = rows.group_by(["log_incarnation", "log_partition"]).aggregate([("record_offset", "max")])
                found += zip(*(by_place[name].to_pylist() for name in _LAST), strict=True)
        return found

    def _blocks(
        self, parquet: pq.ParquetFile, of_folder: Mapping[str, str], keep: Bools | None
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yield the position of the first row of each block, and the block."""
        names = dict.fromkeys([*self.schema.names, *(PLACE if self.range is not None else ())])
        columns = [name for name in names if name not in of_folder and name != POSITION.name]
        first = 0
        for group in range(parquet.num_row_groups):
            metadata = parquet.metadata.row_group(group)
            end = first + metadata.num_rows
            if (self.range is None or self.range.may_hold_between(*bounds_of_group(metadata, PLACE))) and (
                keep is None or keep[first:end].any()
            ):
                if self.block_rows is None:
                    yield first, parquet.read_row_group(group, columns=columns, use_threads=self.use_threads)
                else:
                    at = first
                    for batch in parquet.iter_batches(
                        self.block_rows, [group], columns=columns, use_threads=self.use_threads
                    ):
                        yield at, pa.Table.from_batches([batch])
                        at += batch.num_rows
            first = end

    def _selected(self, rows: pa.Table, first: int, of_folder: Mapping[str, str], keep: Bools | None) -> pa.Table:
        """The rows of a block that are wanted, with ``schema``."""
        end = first + rows.num_rows
        wanted = np.ones(rows.num_rows, dtype=np.bool_) if keep is None else keep[first:end]
        for name, value in of_folder.items():  # partition values, if the table's owner partitioned it
            constant = pa.scalar(value).cast(_COLUMNS.field(name).type)
            rows = rows.append_column(name, pa.repeat(constant, rows.num_rows))
        if POSITION in self.schema:
            rows = rows.append_column(POSITION, pa.array(np.arange(first, end, dtype=np.int32)))
        if self.range is not None:
            wanted = wanted & self.range.mask(rows)
        if not wanted.all():
            rows = rows.filter(pa.array(wanted))
        return pa.Table.from_arrays([rows[each.name].cast(each.type) for each in self.schema], schema=self.schema)


def ends_by_incarnation(log: TableFolder) -> dict[int, dict[int, int]]:
    """By log incarnation and log partition, the record offset after the last record of the table `log`.

    Statistics answer for a file or row group of one log partition, as `LogFileWriter` makes them of a long log; of
    others the columns PLACE are read. Raises DamagedTable and StorageFailed as `TableFolder.open_file`.
    """
    scan = LogScan(log, pa.schema([_COLUMNS.field(name) for name in PLACE]))
    found: dict[int, dict[int, int]] = {}
    with ThreadPoolExecutor(_THREADS) as threads:
        for lasts in threads.map(scan.last_offsets, log.snapshot().files()):
            for log_incarnation, at, last in lasts:
                ends = found.setdefault(log_incarnation, {})
                ends[at] = max(last + 1, ends.get(at, 0))
    return found


def _last_offset(lowest: Mapping[str, Any], highest: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """The place of the last of rows with these bounds of columns; None if the bounds do not tell it."""
    if not all(name in lowest and name in highest for name in PLACE):
        return None
    if any(lowest[name] != highest[name] for name in ("log_incarnation", "log_partition")):
        return None
    return highest["log_incarnation"], highest["log_partition"], highest["record_offset"]
