"""Rows of the state in memory, for publishing: facts and published rows, and those that count of both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from offsets_pipeline.semantics.log_row import of_partitions
from offsets_pipeline.state.merge_on_read import by_incarnation

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from offsets_pipeline.delta.data_file import DataFile
    from offsets_pipeline.delta.table_folder import TableFolder
    from offsets_pipeline.state.merge_on_read import StateTable

_MOST_PARTITIONS = 100_000  # of a log, for files of other programs without statistics
#: One core: publishing runs beside folds.
_CONFIGURATION: dict[str, str | bool | int | float | list[str]] = {"threads": 1}


def facts_of(
    table: StateTable,
    folder: TableFolder,
    files: Sequence[DataFile],
    incarnations: Mapping[int, int],
    partitions: Collection[int],
) -> pa.Table:
    """The facts in files of these incarnations, given by log partition, in no order; with `folded_to`.

    Raises as `TableFolder.open_file`, which all functions here do.
    """
    schema = pa.schema([*table.row_schema(), folder.table.arrow_schema().field("folded_to")])
    found = [schema.empty_table()]
    for incarnation, named in by_incarnation({at: incarnations[at] for at in partitions}).items():
        own = [file for file in files if file.partition["incarnation"] == str(incarnation)]
        found.append(rows_of(folder, own, named).select(schema.names))
    return pa.concat_tables(found)


def merged(table: StateTable, facts: pa.Table, published: pa.Table | None) -> pa.Table:
    """The rows that count of these facts and published rows, sorted by their key."""
    with duckdb.connect(config=_CONFIGURATION) as connection:
        connection.register("facts", facts)
        if published is not None:
            connection.register("published", published)
        rows = table.newest("facts", None if published is None else "published", "ANTI JOIN")
        found = connection.sql(f"SELECT * FROM ({rows}) n ORDER BY {', '.join(table.key)}").to_arrow_table()
    return found.cast(table.row_schema())


def rows_of(folder: TableFolder, files: Sequence[DataFile], partitions: Collection[int]) -> pa.Table:
    """The rows of files that are of these log partitions, without the partition columns of the table."""
    wanted = set(partitions)
    schema = pa.schema([each for each in folder.table.arrow_schema() if each.name not in folder.table.partitioned_by])
    found = [schema.empty_table()]
    for file in files:
        if log_partitions_in(file) & wanted:
            with folder.open_file(file) as parquet:
                rows = parquet.read(use_threads=False).select(schema.names).cast(schema)
            found.append(rows if log_partitions_in(file) <= wanted else of_partitions(rows, wanted))
    return pa.concat_tables(found)


def named_files(files: Iterable[DataFile], incarnations: Mapping[int, int]) -> list[DataFile]:
    """Published files, and those of facts of the incarnations that count."""
    named = {str(each) for each in incarnations.values()}
    return [file for file in files if not file.partition or file.partition["incarnation"] in named]


def log_partitions_in(file: DataFile) -> set[int]:
    """The log partitions that a file may have rows of."""
    if not {"log_partition"} <= file.lowest.keys() & file.highest.keys():
        return set(range(_MOST_PARTITIONS))
    return set(range(file.lowest["log_partition"], file.highest["log_partition"] + 1))
