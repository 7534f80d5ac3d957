"""The log decoded: each record with its key and value as columns (`log_records`)."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from offsets_pipeline.common.arrow_values import conformed
from offsets_pipeline.kafka.record.commit_columns import BinaryColumn, CommitColumns
from offsets_pipeline.kafka.record.consumer_protocol import decode_assignment, decode_subscription
from offsets_pipeline.kafka.record.corrupt import CorruptRecord, UnknownRecordType
from offsets_pipeline.kafka.record.decode import VERSION_BYTES, decode_key, decode_value
from offsets_pipeline.kafka.record.message_types import RecordType
from offsets_pipeline.questions.history.history_schemas import LOG_RECORDS
from offsets_pipeline.semantics.compaction import are_commits
from offsets_pipeline.semantics.effects import commit_columns
from offsets_pipeline.semantics.group_types import record_key_of
from offsets_pipeline.semantics.log_row import as_bools

_SCHEMA = LOG_RECORDS.arrow_schema()
_CONTROL, _UNKNOWN_TYPE, _CORRUPT = "ControlRecord", "Unknown", "Corrupt"
#: Columns of the log, and the outcome, as the caller gives them.
COPIED = (
    *("log_partition", "log_incarnation", "record_offset", "record_timestamp"),
    *("producer_id", "producer_epoch", "control_type", "outcome"),
)
_NAMES = {each.value: "".join(part.capitalize() for part in each.name.split("_")) for each in RecordType}


def decoded_log(rows: pa.Table) -> pa.Table:
    """Rows of LOG_RECORDS, in the same order.

    ``rows`` has key, value, control_type and others of the columns COPIED; those that it lacks are null in the result.
    The outcome is committed, aborted or open.
    """
    keys = rows["key"].combine_chunks()
    is_commit = are_commits(keys) & as_bools(rows["control_type"].is_null())
    at = np.flatnonzero(is_commit)
    parsed = rows.select(["key", "value"]).take(pa.array(at))
    commits = CommitColumns(parsed["key"].combine_chunks(), parsed["value"].combine_chunks())
    at, commits = at[commits.valid], commits.take(np.flatnonzero(commits.valid))
    rest = np.delete(np.arange(rows.num_rows), at)
    decoded = [_commit_columns(rows.take(pa.array(at)), commits), _other_columns(rows.take(pa.array(rest)))]
    return pa.concat_tables(decoded).take(pa.array(np.argsort(np.concatenate([at, rest]))))


def _commit_columns(rows: pa.Table, commits: CommitColumns) -> pa.Table:
    columns = {
        "record_type": _versions(rows["key"]),
        "record_name": pa.repeat(pa.scalar(_NAMES[RecordType.OFFSET_COMMIT]), rows.num_rows),
        "tombstone": pa.array(commits.tombstone),
        **commit_columns(commits),
        "value_version": _versions(rows["value"]),
    }
    return _table(rows, columns)


def _other_columns(rows: pa.Table) -> pa.Table:
    """Group records, control records, and records that do not decode: they are few."""
    decoded = list(map(_record, *(rows[name].to_pylist() for name in ("key", "value", "control_type"))))
    names = {name for row in decoded for name in row}
    columns = {name: pa.array([row.get(name) for row in decoded], _SCHEMA.field(name).type) for name in names}
    return _table(rows, columns)


def _record(key: bytes | None, value: bytes | None, control_type: str | None) -> dict[str, Any]:
    row: dict[str, Any] = {"tombstone": value is None}
    if control_type is not None:
        return row | {"record_name": _CONTROL}
    if key is not None and len(key) >= VERSION_BYTES:
        row["record_type"] = int.from_bytes(key[:VERSION_BYTES], "big", signed=True)
    try:
        decoded = decode_key(key)
        row |= {"group_id": decoded.group_id, "key_json": _as_json(decoded.fields)}
        row |= {name: decoded.fields[name] for name in ("topic", "partition") if name in decoded.fields}
        row["member_id"] = record_key_of(decoded) or None
        if value is not None:
            found = decode_value(decoded.record_type, value)
            row |= {
                "value_version": found.version,
                "value_json": _as_json(_readable(decoded.record_type, found.fields)),
            }
    except UnknownRecordType as error:
        return row | {"record_name": _UNKNOWN_TYPE, "problem": str(error)}
    except CorruptRecord as error:
        return row | {"record_name": _CORRUPT, "problem": str(error)}
    return row | {"record_name": _NAMES[decoded.record_type]}


def _readable(record_type: int, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields with the subscriptions and assignments of a classic group's members decoded, where they decode."""
    if record_type != RecordType.GROUP_METADATA:
        return fields
    members = []
    for member in fields["members"]:
        subscription = decode_subscription(fields["protocol_type"], member["subscription"])
        assignment = decode_assignment(fields["protocol_type"], member["assignment"])
        known = {"subscription": subscription, "assignment": assignment}
        members.append(member | {name: each.fields for name, each in known.items() if each is not None})
    return {**fields, "members": members}


def _as_json(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False, default=lambda value: base64.b64encode(value).decode())


def _versions(column: pa.ChunkedArray) -> pa.Array:
    """The int16 at the start of each key or value; null where it is null."""
    raw = BinaryColumn(column.combine_chunks())
    return pa.array(raw.integers(">i2", raw.start), mask=~raw.present).cast(pa.int16())


def _table(rows: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    return conformed(pa.table({**dict(zip(rows.column_names, rows.columns, strict=True)), **columns}), _SCHEMA)
