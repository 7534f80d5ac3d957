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

_STATISTICS = "delta.dataSkippingStatsColumns"
_ORDERED = (pa.types.is_integer, pa.types.is_string, pa.types.is_timestamp)
_READ_ROWS = 8_192
_ROW_GROUP_ROWS = 50_000  # of the state: a query for one group then reads one or two row groups
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


def new_file_name(compression: str) -> str:
    """Return a unique file name; no two tasks or attempts get the same."""
    return f"part-{uuid.uuid4()}.{compression}.parquet"


def _bounded_columns(table: Table) -> list[str]:
    """Return the columns that files of a table keep statistics of: numbers, texts and times without nulls."""
    listed = table.properties.get(_STATISTICS)
    names = None if listed is None else set(listed.split(","))
    return [
        column.name
        for column in table.columns
        if not column.nullable
        and column.name not in table.partitioned_by
        and (column.name in names if names is not None else any(is_of(column.type) for is_of in _ORDERED))
    ]


def written_file(
    folder: str, table: Table, rows: pa.Table, partition: Mapping[str, str], compression: str, *, few_rows: bool
) -> DataFile:
    """Write rows to a new file in a table's folder; removes the file again if that fails and the storage lets it.

    With ``few_rows`` the file takes the least time to write. Raises OSError, UnsupportedTable for a partition that is
    no single folder.
    """
    system, path = open_path(folder)
    if any("/" in value for value in partition.values()):
        raise UnsupportedTable(f"cannot write to {folder}: a value of a partition column has a /, as in a path")
    place = "".join(f"{column}={value}/" for column, value in partition.items())
    if place and isinstance(system, fs.LocalFileSystem):  # elsewhere folders come with their files
        system.create_dir(f"{path}/{place}", recursive=True)
    name = place + new_file_name(compression)
    dictionary = [] if few_rows else _dictionary_columns(rows.schema)
    size_of_group = None if few_rows else _ROW_GROUP_ROWS
    try:
        with system.open_output_stream(f"{path}/{name}") as sink:
            pq.write_table(
                rows, sink, size_of_group, compression=compression, store_schema=False, use_dictionary=dictionary
            )
            size = int(sink.tell())
    except BaseException:
        with suppress(OSError):  # VACUUM removes it
            if system.get_file_info(f"{path}/{name}").type == fs.FileType.File:
                system.delete_file(f"{path}/{name}")
        raise
    bounds = {each: pc.min_max(rows[each]) for each in _bounded_columns(table)} if rows.num_rows else {}
    lowest, highest = (
        {column: in_statistics(each[which]) for column, each in bounds.items()} for which in ("min", "max")
    )
    return DataFile(name, size, rows.num_rows, lowest, highest, dict(partition))


def _dictionary_columns(schema: pa.Schema) -> list[str] | bool:
    """The columns to write with a dictionary: texts and bytes, which repeat. Numbers take more space and time with one.

    All columns if some are nested: those have few numbers.
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
