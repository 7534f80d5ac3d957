"""Reading tables of a store without Spark: answers in a fraction of the time that a job takes to start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from offsets_pipeline.delta.filesystems import open_path
from offsets_pipeline.delta.protocol import DELETION_VECTORS, UNDO, unreadable, unwritable
from offsets_pipeline.errors import UnsupportedTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsets_pipeline.delta.schemas import Table


@dataclass(frozen=True)
class StoredFile:
    """A file of a table: its name there, bytes, rows as far as the table tells, and its place among partitions."""

    name: str
    size: int
    rows: int
    partition: Mapping[str, str] = field(default_factory=dict)


#: What reading raises where the storage is out of reach from here, a file is gone, or only Spark can read the table.
UNREADABLE = (DeltaError, OSError, pa.ArrowException, UnsupportedTable)


def newest_table(folder: str) -> DeltaTable:
    """The table in a folder, a path or a URI. Raises one of UNREADABLE."""
    return DeltaTable(folder)


def table_as_of(folder: str, version: int) -> DeltaTable:
    """The same, as of one of its versions."""
    return DeltaTable(folder, version=version)


def refuse_unreadable(table: DeltaTable) -> None:
    """Raise UnsupportedTable where the rows of the table are not just what its Parquet files hold."""
    protocol = _protocol(table)
    reason = unreadable(protocol, table.metadata().configuration)
    if reason is not None:
        raise UnsupportedTable(
            f"the files of {table.table_uri} cannot be read without Spark: the table requires {reason}; {UNDO}"
        )
    if DELETION_VECTORS in (protocol["readerFeatures"] or ()) and any(
        batch.num_rows for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors())
    ):
        raise UnsupportedTable(
            f"the files of {table.table_uri} cannot be read without Spark: rows of them were deleted without rewriting "
            f"them (deletion vectors); REORG TABLE delta.`{table.table_uri}` APPLY (PURGE) rewrites them"
        )


def unmet_by_writer(table: DeltaTable, made_as: Table) -> str | None:
    """What appending rows to a table of this program takes that the program does not do; None: it may append."""
    metadata = table.metadata()
    fields = {
        "configuration": metadata.configuration,
        "partitionColumns": metadata.partition_columns,
        "schemaString": table.schema().to_json(),
    }
    return unwritable(_protocol(table), fields, made_as)


def _protocol(table: DeltaTable) -> dict[str, Any]:
    """The fields of the table's action `protocol`."""
    found = table.protocol()
    return {
        "minReaderVersion": found.min_reader_version,
        "minWriterVersion": found.min_writer_version,
        "readerFeatures": found.reader_features,
        "writerFeatures": found.writer_features,
    }


def stored_files(table: DeltaTable) -> list[StoredFile]:
    """The files of a table. Raises UnsupportedTable as `refuse_unreadable`."""
    refuse_unreadable(table)
    actions = pa.table(table.get_add_actions())
    partitions = actions["partition"].to_pylist() if "partition" in actions.column_names else []
    partitions = partitions or [{}] * actions.num_rows
    return [
        StoredFile(path, size, rows or 0, {name: _in_protocol(value) for name, value in (partition or {}).items()})
        for path, size, rows, partition in zip(
            *(actions[name].to_pylist() for name in ("path", "size_bytes", "num_records")), partitions, strict=True
        )
    ]


def _in_protocol(value: object) -> str:
    """The value of a partition column as Delta's protocol has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def file_paths(table: DeltaTable) -> list[str]:
    """The files of a table as `open_path` takes them: a path as it is on disk, or a URI, which is encoded.

    Raises UnsupportedTable as `refuse_unreadable`.
    """
    refuse_unreadable(table)
    return [each if "://" in each else unquote(each) for each in table.file_uris()]


def whole(table: DeltaTable) -> pa.Table:
    """All rows of a small table without partitions; in pieces, none for no rows. Raises as `file_paths`."""
    pieces = []
    for file in file_paths(table):
        system, path = open_path(file)
        with system.open_input_file(path) as source:
            pieces.append(pq.ParquetFile(source, coerce_int96_timestamp_unit="us").read(use_threads=False))
    return pa.concat_tables(pieces) if pieces else pa.table({})


def answer(query: str, **tables: DeltaTable) -> pa.RecordBatchReader:
    """The answer to a query in DataFusion's SQL over these tables, by their names there."""
    builder = QueryBuilder()
    for name, table in tables.items():
        builder.register(name, table)
    return pa.RecordBatchReader.from_stream(builder.execute(query))


def quoted(text: str) -> str:
    """The text as a string literal in SQL."""
    return "'" + text.replace("'", "''") + "'"
