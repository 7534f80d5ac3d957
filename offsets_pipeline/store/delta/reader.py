"""Reads the metadata and the files of one version of a table through `deltalake`, and quotes names in queries."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from offsets_pipeline.common.input_text import is_utf8, shown
from offsets_pipeline.errors import InvalidRequest, UnsupportedTable
from offsets_pipeline.store.delta.data_file import DataFile
from offsets_pipeline.store.delta.filesystems import encoded_uri, refuse_encoded
from offsets_pipeline.store.delta.protocol import DELETION_VECTORS
from offsets_pipeline.store.delta.s3_access import connection_options, is_s3, object_store_options

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


_LISTINGS, _LISTING_SECONDS = 20, 0.01
_GAP = "Expected contiguous commit files"  # as deltalake says

#: Errors of reading: the storage is out of reach, a file is gone, or the table has a feature that is not supported.
UNREADABLE = (DeltaError, OSError, pa.ArrowException, UnsupportedTable)


def open_table(folder: str, version: int | None = None) -> DeltaTable:
    """Return a version of the table in a folder, a path or a URI; by default the newest.

    Raises one of UNREADABLE, and as `refuse_encoded`.

    A list of files that is made while another process commits may lack a commit and hold the next one. So a gap counts
    as damage only if it is still there after some attempts.
    """
    if "://" not in folder:
        refuse_encoded(folder)
    options = connection_options() | object_store_options() if is_s3(folder) else None
    for attempt in range(_LISTINGS):
        try:
            return DeltaTable(encoded_uri(folder), version=version, storage_options=options)
        except DeltaError as error:
            if _GAP not in str(error) or attempt == _LISTINGS - 1:
                raise
            time.sleep(_LISTING_SECONDS)
    raise AssertionError("unreachable")


def has_deletion_vectors(table: DeltaTable) -> bool:
    """Return whether files of the table contain deleted rows."""
    return DELETION_VECTORS in (table.protocol().reader_features or ()) and any(
        batch.num_rows for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors())
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


def stored_files(table: DeltaTable) -> list[DataFile]:
    """Return the files of a table."""
    # neither pa.table() nor times as Python has them: for both Arrow imports pandas, which takes as long as an answer
    actions = pa.RecordBatchReader.from_stream(table.get_add_actions()).read_all()

    def column(name: str) -> list[Any]:
        return actions[name].to_pylist() if name in actions.column_names else [None] * actions.num_rows

    def bounds(name: str) -> list[dict[str, Any]]:
        if name not in actions.column_names:
            return [{}] * actions.num_rows
        struct = actions[name].combine_chunks()
        columns = (_statistics(pc.struct_field(struct, each.name)) for each in struct.type)
        names = [each.name for each in struct.type]
        known = [
            {key: each for key, each in zip(names, row, strict=True) if each is not None}
            for row in zip(*columns, strict=True)
        ]
        return known or [{}] * actions.num_rows

    return [
        DataFile(path, size, rows or 0, low, high, _in_protocol(partition or {}))
        for path, size, rows, partition, low, high in zip(
            *(column(name) for name in ("path", "size_bytes", "num_records", "partition")),
            bounds("min"),
            bounds("max"),
            strict=True,
        )
    ]


def _statistics(bounds: pa.Array) -> list[Any]:
    """Bounds as Delta's statistics have them: timestamps as texts, see `in_statistics`."""
    if not pa.types.is_timestamp(bounds.type):
        listed: list[Any] = bounds.to_pylist()
        return listed
    # without a time zone: Arrow reads a database of all to convert one
    times = bounds.cast(pa.timestamp("ms", bounds.type.tz), safe=False).cast(pa.int64()).cast(pa.timestamp("ms"))
    return [each and f"{each[:10]}T{each[11:]}Z" for each in times.cast(pa.string()).to_pylist()]


def _in_protocol(partition: Mapping[str, object]) -> dict[str, str]:
    """Values of partition columns as Delta's protocol writes them."""
    return {name: str(each).lower() if isinstance(each, bool) else str(each) for name, each in partition.items()}


def names_in_order(names: Collection[str]) -> list[str]:
    """Return the names in order, each once. Raises InvalidRequest for a name that UTF-8 cannot hold."""
    for each in names:
        if not is_utf8(each):
            raise InvalidRequest(f"{shown(each)} is not a name: it has an unpaired surrogate, which UTF-8 cannot hold")
    return sorted(set(names))


def quoted(text: str) -> str:
    """Return the text as a string literal in SQL. Raises InvalidRequest as `names_in_order`."""
    return "'" + names_in_order([text])[0].replace("'", "''") + "'"
