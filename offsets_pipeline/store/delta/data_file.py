"""Parquet files in a table's folder. A file belongs to the table once a commit adds it; tasks write them too."""

from __future__ import annotations

import json
import time
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from offsets_pipeline.common.arrow_values import array_of
from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.errors import UnsupportedTable
from offsets_pipeline.store.delta.filesystems import open_path
from offsets_pipeline.store.delta.protocol import json_text

if TYPE_CHECKING:
    from offsets_pipeline.store.delta.schemas import Table

    #: Values of columns, in ascending order: of the rows that a reader wants.
    Only = Mapping[str, Sequence[int] | Sequence[str]]

ALL_ROWS: Only = MappingProxyType({})
#: The application whose transactions (Delta's `txn` actions) number the appends to a log and the writes of progress.
APPLICATION = "offsets"
#: Delta application id of appends to the log of a followed topic. Its version is a time in ms since 1970: from this
#: append on, the log has all records of the topic up to then.
COMPLETE = "offsets-complete"
#: Delta application id of appends of late records, which precede other records of a log. Such an append advances
#: `late_in` of each log partition with late records to the same version. A fold advances it in `fold_progress` to the
#: version that it has folded.
LATE = "offsets-past"
#: Delta application id of cleanings of the log. An append of late records and a reload check for them.
CLEANED = "offsets-cleaned"

#: Delta application id of folds, in `fold_progress`: a version of the table `log` whose records are all folded.
FOLDED = "offsets-folded"

_READ_ROWS = 8_192
#: Rows of a row group of the state: a query for one group then reads one or two of them.
ROW_GROUP_ROWS = 50_000
#: Measured on the log: three fifths of the size of snappy, for a quarter more time to write (docs/adr/0007).
COMPRESSION = "zstd"
#: For a few rows: settings that make large files small take longer than the rows do.
FAST = "snappy"


def late_in(log_partition: int) -> str:
    """Return the Delta application id of appends of late records to one log partition."""
    return f"{LATE}-{log_partition}"


@dataclass(frozen=True)
class DataFile:
    """A file in a table's folder that a commit has added, or will add; ``name`` is its path within the folder.

    ``size`` is in bytes. ``lowest`` and ``highest`` bound columns, in the order of the table's statistics. ``rows`` is
    0 and both are empty if the table keeps no statistics of the file. ``partition`` holds the values of the partition
    columns as Delta's protocol writes them.
    """

    name: str
    size: int
    rows: int
    lowest: Mapping[str, Any] = field(default_factory=dict)
    highest: Mapping[str, Any] = field(default_factory=dict)
    partition: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_action(cls, action: Mapping[str, Any]) -> DataFile:
        """Return the file that an `add` action adds."""
        stats = json.loads(action.get("stats") or "{}")
        return cls(
            action["path"],
            action["size"],
            stats.get("numRecords", 0),
            stats.get("minValues", {}),
            stats.get("maxValues", {}),
            action.get("partitionValues") or {},
        )

    def add_action(self, *, is_change: bool) -> dict[str, Any]:
        """Return the fields of the `add` action, with statistics. ``is_change``: the file brings new rows."""
        stats = {
            "numRecords": self.rows,
            "minValues": self.lowest,
            "maxValues": self.highest,
            "nullCount": dict.fromkeys(self.lowest, 0),
        }
        return {
            "path": self.name,
            "partitionValues": self.partition,
            "size": self.size,
            "modificationTime": int(time.time() * 1000),
            "dataChange": is_change,
            "stats": json_text(stats),
        }

    def removal(self) -> dict[str, Any]:
        """Return the fields of the `remove` action."""
        return {"path": self.name, "size": self.size, "partitionValues": dict(self.partition)}

    def may_hold(self, only: Only) -> bool:
        """Return whether the file may have rows with one of the values of each column, by its statistics."""
        return all(_between(only, self.lowest, self.highest).values())


class NewFile:
    """A Parquet file of new rows in a table's folder, with a name that no other task or attempt has.

    ``options`` are those of `pyarrow.parquet.ParquetWriter`. Raises OSError, also in the methods; UnsupportedTable for
    a partition that is no single folder.
    """

    def __init__(
        self, folder: str, table: Table, partition: Mapping[str, str], compression: str, options: Mapping[str, Any]
    ) -> None:
        if any("/" in value for value in partition.values()):
            raise UnsupportedTable(f"cannot write to {folder}: a value of a partition column has a /, as in a path")
        self._system, path = open_path(folder)
        place = "".join(f"{column}={value}/" for column, value in partition.items())
        if place and isinstance(self._system, fs.LocalFileSystem):  # elsewhere folders come with their files
            self._system.create_dir(f"{path}/{place}", recursive=True)
        self._name = f"{place}part-{uuid.uuid4()}.{compression}.parquet"
        self._path = f"{path}/{self._name}"
        self._partition = dict(partition)
        self._options = {"compression": compression, "store_schema": False, **options}
        self._bounded = table.bounded
        self._rows, self._lowest, self._highest = 0, dict[str, Any](), dict[str, Any]()
        self._sink = self._system.open_output_stream(self._path)
        self._parquet: Any = None  # from the first rows on

    def write(self, rows: pa.Table, row_group_rows: int | None = None) -> int:
        """Add rows, in row groups of this size; returns the size of the file so far, in bytes."""
        if self._parquet is None:
            self._parquet = pq.ParquetWriter(self._sink, rows.schema, **self._options)
        self._parquet.write_table(rows, row_group_rows)
        self._rows += rows.num_rows
        for name in self._bounded if rows.num_rows else ():
            bounds = pc.min_max(rows[name])
            lowest, highest = in_statistics(bounds["min"]), in_statistics(bounds["max"])
            self._lowest[name] = min(lowest, self._lowest.get(name, lowest))
            self._highest[name] = max(highest, self._highest.get(name, highest))
        return int(self._sink.tell())

    def close(self) -> DataFile:
        """Finish the file, which has rows; returns it with its statistics."""
        self._parquet.close()
        size = int(self._sink.tell())
        self._sink.close()
        return DataFile(self._name, size, self._rows, self._lowest, self._highest, self._partition)

    def discard(self) -> None:
        """Remove the file after a failure; one that cannot be removed is left to a vacuum."""
        for part in filter(None, (self._parquet, self._sink)):
            with suppress(OSError, pa.ArrowException):  # an object store has the file only once it is closed
                part.close()
        with suppress(OSError):
            self._system.delete_file(self._path)


def dictionary_columns(schema: pa.Schema) -> list[str] | bool:
    """Return the columns to write with a dictionary: texts and bytes, which repeat. True: all.

    Numbers take more space and time with one. All columns have one if some are nested: those have few numbers.
    """
    if any(pa.types.is_nested(each.type) for each in schema):
        return True
    return [each.name for each in schema if not pa.types.is_primitive(each.type)]


def rows_with(parquet: pq.ParquetFile, columns: Sequence[str], only: Only) -> pa.Table:
    """Return columns of the rows of a file that have one of the values of each column of ``only``.

    Reads only row groups that may have such rows by their statistics.
    """
    if not only:
        return parquet.read(columns, use_threads=False)
    found = list(_groups_with(parquet, columns, only))
    return pa.concat_tables(found) if found else parquet.read_row_groups([], columns, use_threads=False)


def with_values(rows: pa.Table, only: Only) -> pa.Table:
    """Return the rows that have one of the values of each column of ``only``."""
    return rows.filter(_have_values(rows, only)) if only else rows


def _groups_with(parquet: pq.ParquetFile, columns: Sequence[str], only: Only) -> Iterator[pa.Table]:
    for number in range(parquet.num_row_groups):
        wanted = _between(only, *bounds_of_group(parquet.metadata.row_group(number), only))
        if all(wanted.values()):
            yield from _rows_of_group(parquet, number, columns, wanted)


def _rows_of_group(parquet: pq.ParquetFile, number: int, names: Sequence[str], only: Only) -> Iterator[pa.Table]:
    keys = parquet.read_row_group(number, list(only), use_threads=False)
    wanted = _have_values(keys, only).combine_chunks()
    keys = keys.select([name for name in only if name in names])
    others = [name for name in names if name not in only]
    left = pc.sum(wanted).as_py()  # None of an empty row group
    start = 0
    # the rows lie together: the rest of the row group need not be decoded
    for batch in parquet.iter_batches(_READ_ROWS, [number], others, use_threads=False) if left else ():
        of_batch = wanted.slice(start, batch.num_rows)
        rows = pa.Table.from_batches([batch]).filter(of_batch)
        for name, column in zip(
            keys.column_names, keys.slice(start, batch.num_rows).filter(of_batch).columns, strict=True
        ):
            rows = rows.append_column(name, column)
        yield rows
        start, left = start + batch.num_rows, left - rows.num_rows
        if not left:
            return


def _have_values(rows: pa.Table, only: Only) -> pa.ChunkedArray:
    values = {name: array_of(each) for name, each in only.items()}
    # other programs write texts in other types
    return reduce(pc.and_, (pc.is_in(rows[name].cast(each.type), each) for name, each in values.items()))


def _between(only: Only, lowest: Mapping[str, Any], highest: Mapping[str, Any]) -> Only:
    """The values that rows between these bounds may have; a column may have no bounds."""
    found = dict(only)
    for name in only.keys() & lowest.keys() & highest.keys():
        values = only[name]
        found[name] = values[bisect_left(values, lowest[name]) : bisect_right(values, highest[name])]
    return found


def bounds_of_group(group: pq.RowGroupMetaData, columns: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the lowest and the highest values of those of the columns that a row group has statistics of."""
    chunks = map(group.column, range(group.num_columns))
    found = {each.path_in_schema: each.statistics for each in chunks if each.path_in_schema in columns}
    known = {name: each for name, each in found.items() if each is not None and each.has_min_max}
    return {name: each.min for name, each in known.items()}, {name: each.max for name, each in known.items()}


def in_statistics(bound: pa.Scalar) -> int | str:
    """Return a bound as Delta's statistics have it: a timestamp as text in the same order."""
    if not pa.types.is_timestamp(bound.type):
        found: int | str = bound.as_py()
        return found
    return shown_time(int(bound.value) // 1000)
