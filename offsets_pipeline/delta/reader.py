"""Reading one version of a table through `deltalake`: its files, its rows, and queries in SQL."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from offsets_pipeline.delta.filesystems import open_path
from offsets_pipeline.delta.protocol import DELETION_VECTORS, UNDO, unreadable
from offsets_pipeline.delta.s3_access import connection_options, is_s3, object_store_options
from offsets_pipeline.errors import InvalidRequest, UnsupportedTable
from offsets_pipeline.input_text import is_utf8, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_BATCH_ROWS = 65_536
_LISTINGS, _LISTING_SECONDS = 20, 0.01
_GAP = "Expected contiguous commit files"  # as deltalake says


@dataclass(frozen=True)
class StoredFile:
    """A file of a table: its path in the table's folder, size in bytes, rows, partition values and statistics.

    ``rows`` is 0 and ``lowest`` and ``highest`` are empty if the table keeps no statistics of the file.
    """

    name: str
    size: int
    rows: int
    partition: Mapping[str, str] = field(default_factory=dict)
    lowest: Mapping[str, Any] = field(default_factory=dict)
    highest: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_action(cls, action: Mapping[str, Any]) -> StoredFile:
        """Return the file that an `add` action adds."""
        stats = json.loads(action.get("stats") or "{}")
        return cls(
            action["path"],
            action["size"],
            stats.get("numRecords", 0),
            action.get("partitionValues") or {},
            stats.get("minValues", {}),
            stats.get("maxValues", {}),
        )

    def removal(self) -> dict[str, Any]:
        """Return what a `remove` action says of the file."""
        return {"path": self.name, "size": self.size, "partitionValues": dict(self.partition)}


#: Errors of reading: the storage is out of reach, a file is gone, or the table has a feature that is not supported.
UNREADABLE = (DeltaError, OSError, pa.ArrowException, UnsupportedTable)


def newest_table(folder: str) -> DeltaTable:
    """Return the newest version of the table in a folder, a path or a URI. Raises one of UNREADABLE.

    A list of files that is made while another process commits may lack a commit and hold the next one. So a gap counts
    as damage only if it is still there after some attempts.
    """
    for attempt in range(_LISTINGS):
        try:
            return _opened(folder)
        except DeltaError as error:
            if _GAP not in str(error) or attempt == _LISTINGS - 1:
                raise
            time.sleep(_LISTING_SECONDS)
    raise AssertionError("unreachable")


def table_as_of(folder: str, version: int) -> DeltaTable:
    """Return a version of the table. Raises one of UNREADABLE."""
    return _opened(folder, version)


def _opened(folder: str, version: int | None = None) -> DeltaTable:
    options = connection_options() | object_store_options() if is_s3(folder) else None
    return DeltaTable(folder, version=version, storage_options=options)


def refuse_unreadable(table: DeltaTable) -> None:
    """Raise UnsupportedTable if the table's rows differ from the contents of its Parquet files."""
    protocol = protocol_of(table)
    reason = unreadable(protocol, table.metadata().configuration)
    if reason is not None:
        raise with_feature(str(table.table_uri), reason)
    if DELETION_VECTORS in (protocol["readerFeatures"] or ()) and any(
        batch.num_rows for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors())
    ):
        raise with_deletion_vectors(str(table.table_uri))


def with_feature(folder: str, feature: str) -> UnsupportedTable:
    """Return the error about a table that requires a feature of its readers."""
    return UnsupportedTable(f"cannot read the table {folder} without Spark: it requires {feature}; {UNDO}")


def with_deletion_vectors(folder: str) -> UnsupportedTable:
    """Return the error about a table whose files still contain deleted rows."""
    return UnsupportedTable(
        f"cannot read the table {folder} without Spark: its files have deleted rows that were not rewritten "
        f"(deletion vectors); run REORG TABLE delta.`{folder}` APPLY (PURGE)"
    )


def metadata_of(table: DeltaTable) -> dict[str, Any]:
    """Return the fields of the table's action `metaData`."""
    found = table.metadata()
    fields = {
        "id": str(found.id),
        "name": found.name,
        "description": found.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": table.schema().to_json(),
        "partitionColumns": list(found.partition_columns),
        "configuration": dict(found.configuration),
        "createdTime": found.created_time,
    }
    return {name: value for name, value in fields.items() if value is not None}


def protocol_of(table: DeltaTable) -> dict[str, Any]:
    """Return the fields of the table's action `protocol`."""
    found = table.protocol()
    return {
        "minReaderVersion": found.min_reader_version,
        "minWriterVersion": found.min_writer_version,
        "readerFeatures": found.reader_features,
        "writerFeatures": found.writer_features,
    }


def stored_files(table: DeltaTable) -> list[StoredFile]:
    """Return the files of a table. Raises UnsupportedTable as `refuse_unreadable`."""
    refuse_unreadable(table)
    # neither pa.table() nor times as Python has them: for both Arrow imports pandas, which takes as long as an answer
    actions = pa.RecordBatchReader.from_stream(table.get_add_actions()).read_all()

    def column(name: str) -> list[Any]:
        return actions[name].to_pylist() if name in actions.column_names else [None] * actions.num_rows

    def bounds(name: str) -> list[dict[str, Any]]:
        if name not in actions.column_names:
            return [{}] * actions.num_rows
        struct = actions[name].combine_chunks()
        kept = [field.name for field in struct.type if not pa.types.is_timestamp(field.type)]
        values = zip(*(pc.struct_field(struct, each).to_pylist() for each in kept), strict=True) if kept else ()
        known = [{key: each for key, each in zip(kept, row, strict=True) if each is not None} for row in values]
        return known or [{}] * actions.num_rows

    return [
        StoredFile(path, size, rows or 0, _in_protocol(partition or {}), low, high)
        for path, size, rows, partition, low, high in zip(
            *(column(name) for name in ("path", "size_bytes", "num_records", "partition")),
            bounds("min"),
            bounds("max"),
            strict=True,
        )
    ]


def _in_protocol(partition: Mapping[str, object]) -> dict[str, str]:
    """Values of partition columns as Delta's protocol writes them."""
    return {name: str(each).lower() if isinstance(each, bool) else str(each) for name, each in partition.items()}


def file_paths(table: DeltaTable) -> list[str]:
    """Return the files of a table for `open_path`: a local path, or an encoded URI.

    Raises UnsupportedTable as `refuse_unreadable`.
    """
    refuse_unreadable(table)
    return [each if "://" in each else unquote(each) for each in table.file_uris()]


def whole(table: DeltaTable) -> pa.Table:
    """Return all rows of a small table without partitions. Raises as `file_paths`."""
    pieces = [_rows_of(file) for file in file_paths(table)]
    return pa.concat_tables(pieces) if pieces else pa.table({})


def _rows_of(path: str) -> pa.Table:
    system, name = open_path(path)
    with system.open_input_file(name) as source:
        return pq.ParquetFile(source, coerce_int96_timestamp_unit="us").read(use_threads=False)


def batches_of(path: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Return columns of a Parquet file, 65,536 rows at a time."""
    system, name = open_path(path)
    with system.open_input_file(name) as source, pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as file:
        yield from file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False)


def answer(query: str, tables: Mapping[str, DeltaTable]) -> pa.RecordBatchReader:
    """Return the answer to a query in DataFusion's SQL over these tables, by their names there."""
    builder = QueryBuilder()
    for name, table in tables.items():
        builder.register(name, table)
    return pa.RecordBatchReader.from_stream(builder.execute(query))


def quoted(text: str) -> str:
    """Return the text as a string literal in SQL. Raises InvalidRequest for a text that UTF-8 cannot hold."""
    if not is_utf8(text):
        raise InvalidRequest(f"{shown(text)} is not a name: it has an unpaired surrogate, which UTF-8 cannot hold")
    return "'" + text.replace("'", "''") + "'"


def timestamp_of(time_ms: int) -> str:
    """Return a time in milliseconds since 1970 as a timestamp in DataFusion's SQL."""
    return f"arrow_cast({time_ms * 1000}, 'Timestamp(Microsecond, Some(\"UTC\"))')"
