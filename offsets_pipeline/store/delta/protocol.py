"""The part of Delta's protocol that this program uses: pure functions over the actions of a table's log.

The actions `protocol` and `metaData` of a table name the features that it requires of readers and writers. This program
opens a table's Parquet files, and writes commits, only if it has these features.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from offsets_pipeline.store.delta.data_file import DataFile
    from offsets_pipeline.store.delta.schemas import Table

Action = dict[str, Any]

DELTA_LOG = "_delta_log"
DELETION_VECTORS = "deletionVectors"
COLUMN_MAPPING = "delta.columnMapping.mode"
CONSTRAINT = "delta.constraints."  # and a name: a property that is a CHECK constraint
#: Ends the user metadata of a commit that was not synchronised.
NOT_DURABLE = " (not synchronised)"
#: What a message about a requirement advises.
UNDO = "undo it with Spark: ALTER TABLE ... SET TBLPROPERTIES, DROP CONSTRAINT or DROP FEATURE"

_READER_VERSION, _WRITER_VERSION = 3, 7
#: Reader features. With them a file's rows are the table's, unless a column is mapped or a file has deleted rows.
_READER_FEATURES = frozenset({"columnMapping", DELETION_VECTORS, "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
#: Writer features. An append of plain rows does nothing about them, unless `unwritable` finds one in use.
_WRITER_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",  # readers take what a commit only adds from its data files
        "checkConstraints",
        "columnMapping",
        DELETION_VECTORS,
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "inCommitTimestamp",
        "invariants",
        "timestampNtz",
        "vacuumProtocolCheck",
    }
)
_IN_COMMIT_TIMESTAMPS = "delta.enableInCommitTimestamps"
_ENGINE = "offsets_pipeline"
_HASH_DIGITS = 16
#: What Delta asks of readers and writers of a plain table, and of one with constraints.
_READER, _WRITER, _WRITER_WITH_CONSTRAINTS = 1, 2, 3
_OF_COLUMNS = ("delta.generationExpression", "delta.identity.", "delta.invariants")  # beginnings of a field's metadata
_PRIMITIVES = {
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp",
}


def commit_path(version: int) -> str:
    """The path of a commit's file within the table's folder."""
    return f"{DELTA_LOG}/{version:020d}.json"


def files_of(version: int, actions: Iterable[Action]) -> list[str]:
    """The paths of a commit's file and of the data files that it adds, within the table's folder."""
    return [commit_path(version), *(action["add"]["path"] for action in actions if "add" in action)]


def json_text(value: object) -> str:
    """JSON as a Delta log holds it, without escapes: deltalake reads escaped surrogate pairs as other characters."""
    return json.dumps(value, ensure_ascii=False)


def encoded(actions: Iterable[Action]) -> bytes:
    """The file of a commit of these actions."""
    return "\n".join(map(json_text, actions)).encode()


def creation(table: Table, properties: Mapping[str, str]) -> list[Action]:
    """The actions of version 0 of a table, with ``properties`` in addition to the table's own."""
    now_ms = time.time_ns() // 1_000_000
    configuration = {**table.properties, **properties}
    constrained = any(key.startswith(CONSTRAINT) for key in configuration)
    parameters = {
        "partitionBy": json_text(table.partitioned_by),
        "clusterBy": "[]",
        "description": table.comment,
        "isManaged": "false",
        "properties": json_text(configuration),
    }
    metadata = {
        "id": str(uuid.uuid4()),
        "description": table.comment,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json_text({"type": "struct", "fields": schema_fields(table)}),
        "partitionColumns": list(table.partitioned_by),
        "configuration": configuration,
        "createdTime": now_ms,
    }
    protocol = {"minReaderVersion": _READER, "minWriterVersion": _WRITER_WITH_CONSTRAINTS if constrained else _WRITER}
    return [
        _commit_info("CREATE TABLE", parameters, now_ms, is_blind=True),
        {"metaData": metadata},
        {"protocol": protocol},
    ]


def schema_fields(table: Table) -> list[dict[str, Any]]:
    """The fields of a table's schema string."""
    return [
        {
            "name": column.name,
            "type": delta_type(column.type),
            "nullable": column.nullable,
            "metadata": {"comment": column.comment},
        }
        for column in table.columns
    ]


def _commit_info(
    operation: str, parameters: Mapping[str, str], now_ms: int, *, is_blind: bool, **more: object
) -> Action:
    """The action that describes a commit in the table's history; its `txnId` makes each commit's file unique."""
    info = {
        "timestamp": now_ms,
        "operation": operation,
        "operationParameters": parameters,
        "isBlindAppend": is_blind,
        "engineInfo": _ENGINE,
        "txnId": str(uuid.uuid4()),
    }
    return {"commitInfo": info | more}


def info_of(actions: Iterable[Action]) -> dict[str, Any]:
    """The action `commitInfo` of a commit; empty without one."""
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})


def commit_hash(actions: Iterable[Action]) -> str:
    """Tells a commit from any other one of its version: it is made of `commitInfo`, where `txnId` is unique."""
    return hashlib.sha256(json_text(info_of(actions)).encode()).hexdigest()[:_HASH_DIGITS]


def is_durable(actions: Iterable[Action]) -> bool:
    """Whether the writer of a commit synchronised it, unless it says otherwise."""
    return not str(info_of(actions).get("userMetadata", "")).endswith(NOT_DURABLE)


def write_actions(
    add: Sequence[DataFile],
    remove: Sequence[DataFile],
    advance: Mapping[str, int],
    *,
    is_change: bool,
    operation: str,
    metadata: Mapping[str, Any] | None = None,
    user_metadata: str | None = None,
) -> list[Action]:
    """The actions of a commit. Raises ValueError if it adds and removes one file: readers differ on what is left."""
    both = {file.name for file in add} & {file.name for file in remove}
    if both:
        raise ValueError(f"a commit would add and remove {', '.join(sorted(both))}")
    now_ms = time.time_ns() // 1_000_000
    metrics = {
        "numFiles": len(add),
        "numRemovedFiles": len(remove),
        "numOutputRows": sum(file.rows for file in add),
        "numOutputBytes": sum(file.size for file in add),
    }
    mode = {"mode": "Overwrite" if remove else "Append", "partitionBy": "[]"}
    more: dict[str, object] = {"operationMetrics": {name: str(value) for name, value in metrics.items()}}
    if user_metadata is not None:
        more["userMetadata"] = user_metadata
    is_blind = not remove and metadata is None and not advance
    actions = [_commit_info(operation, mode, now_ms, is_blind=is_blind, **more)]
    if metadata is not None:
        actions.append({"metaData": metadata})
    actions += [
        {"txn": {"appId": application, "version": version, "lastUpdated": now_ms}}
        for application, version in advance.items()
    ]
    gone = {"deletionTimestamp": now_ms, "dataChange": is_change, "extendedFileMetadata": True}
    actions += [{"remove": file.removal() | gone} for file in remove]
    return actions + [{"add": file.add_action(is_change=is_change)} for file in add]


def parsed(text: bytes) -> list[Action]:
    """The actions of a commit's file; none of an empty one, as a loss of power may leave of a commit with acks=1."""
    return [json.loads(line) for line in text.splitlines() if line]


def delta_type(arrow_type: pa.DataType) -> str | dict[str, Any]:
    """The type's name in a table's schema. Raises KeyError for a type that Delta lacks."""
    if pa.types.is_decimal128(arrow_type):
        return f"decimal({arrow_type.precision},{arrow_type.scale})"
    if pa.types.is_list(arrow_type):
        return {"type": "array", "elementType": delta_type(arrow_type.value_type), "containsNull": True}
    if pa.types.is_map(arrow_type):
        return {
            "type": "map",
            "keyType": delta_type(arrow_type.key_type),
            "valueType": delta_type(arrow_type.item_type),
            "valueContainsNull": True,
        }
    if pa.types.is_struct(arrow_type):
        return {
            "type": "struct",
            "fields": [
                {"name": each.name, "type": delta_type(each.type), "nullable": each.nullable, "metadata": {}}
                for each in arrow_type
            ],
        }
    return _PRIMITIVES[arrow_type]


def changes_rules(actions: Sequence[Action]) -> bool:
    """Whether a commit changes what the table requires of its readers and writers."""
    return any("protocol" in action or "metaData" in action for action in actions)


def takes_rows(actions: Sequence[Action]) -> bool:
    """Whether a commit deletes or changes existing rows. A rearrangement of files (OPTIMIZE, a cleaning) does not."""
    return any(
        ("remove" in action and action["remove"]["dataChange"])
        or ("add" in action and action["add"].get("deletionVector") is not None)
        for action in actions
    )


def changes_rows(actions: Sequence[Action]) -> bool:
    """Whether a commit adds, changes or deletes rows. A rearrangement of files does not."""
    return takes_rows(actions) or any("add" in action and action["add"]["dataChange"] for action in actions)


def is_own(actions: Sequence[Action]) -> bool:
    """Whether this program made a commit."""
    return info_of(actions).get("engineInfo") == _ENGINE


def unreadable(protocol: Mapping[str, Any], configuration: Mapping[str, str]) -> str | None:
    """Return the table's requirement of a reader of its Parquet files that this program lacks; None if there is none.

    ``protocol`` are the fields of the action of that name. Ignores deletion vectors, which are properties of files.
    """
    if protocol["minReaderVersion"] > _READER_VERSION:
        return f"reader version {protocol['minReaderVersion']}"
    unknown = sorted(set(protocol.get("readerFeatures") or ()) - _READER_FEATURES)
    if unknown:
        return f"the reader feature {unknown[0]!r}"
    if configuration.get(COLUMN_MAPPING, "none") != "none":
        return f"column mapping ({COLUMN_MAPPING})"
    return None


def unwritable(protocol: Mapping[str, Any], metadata: Mapping[str, Any], table: Table) -> str | None:
    """Return the table's requirement of an append of plain rows that this program lacks; None if it may append.

    ``protocol`` and ``metadata`` are the fields of these actions, ``table`` is this program's definition of the table.
    """
    reason = unreadable(protocol, metadata["configuration"])
    if reason is not None:
        return reason
    if protocol["minWriterVersion"] > _WRITER_VERSION:
        return f"writer version {protocol['minWriterVersion']}"
    unknown = sorted(set(protocol.get("writerFeatures") or ()) - _WRITER_FEATURES)
    if unknown:
        return f"the writer feature {unknown[0]!r}"
    return next(_in_use(metadata, table), None)


def _in_use(metadata: Mapping[str, Any], table: Table) -> Iterator[str]:
    configuration = metadata["configuration"]
    if configuration.get(_IN_COMMIT_TIMESTAMPS) == "true":
        yield f"the writer feature 'inCommitTimestamp' ({_IN_COMMIT_TIMESTAMPS})"
    for name, condition in sorted(configuration.items()):
        if name.startswith(CONSTRAINT) and table.properties.get(name) != condition:
            yield f"the constraint {name.removeprefix(CONSTRAINT)} ({condition})"
    if tuple(metadata["partitionColumns"]) != table.partitioned_by:
        yield f"partition columns ({', '.join(metadata['partitionColumns'])})"
    fields = {field["name"]: field for field in json.loads(metadata["schemaString"])["fields"]}
    yield from _of_columns(fields, table)


def _of_columns(fields: dict[str, dict[str, Any]], table: Table) -> Iterator[str]:
    for name, field in fields.items():
        for key in sorted(field["metadata"]):
            if key.startswith(_OF_COLUMNS):
                yield f"{key} of column {name}"
    for column in table.columns:
        if column.name not in fields:
            yield f"a schema without the column {column.name}"
        elif (found := fields.pop(column.name)["type"]) != delta_type(column.type):
            yield f"the type {found} of column {column.name}"
    for name, field in fields.items():
        if not field["nullable"]:
            yield f"a value of column {name}"
