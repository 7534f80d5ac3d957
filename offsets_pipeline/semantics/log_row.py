"""A row of the log, as the record layer delivers it and the replays read it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.kafka.record.corrupt import CorruptRecord, UnknownRecordType
from offsets_pipeline.kafka.record.decode import VERSION_BYTES, decode_key
from offsets_pipeline.kafka.record.wire import encode_utf8

if TYPE_CHECKING:
    import numpy.typing as npt

    from offsets_pipeline.kafka.record.records import Bools, Int64s

COMMIT = "COMMIT"
ABORT = "ABORT"

#: Why a coordinator of this program wrote a tombstone: the last word of `source` in its log. Kafka's API names.
DELETE_GROUPS, OFFSET_DELETE, EXPIRY = "DeleteGroups", "OffsetDelete", "Expiration"

#: Malformed UTF-8 in a key decodes to this character, so that several keys have one group id.
_REPLACEMENT = "\ufffd"
_LENGTH_BYTES = 2


class LogRow(NamedTuple):
    """One record of the log.

    ``producer_id`` is set only for records of a transaction and for control records: a replay ignores the id of an
    idempotent producer without a transaction (R11).
    """

    log_partition: int
    record_offset: int
    key: bytes | None
    value: bytes | None
    producer_id: int | None = None
    control_type: str | None = None


def place_of(rows: pa.RecordBatch | pa.Table) -> str:
    """The log partitions and record offsets of rows with these two columns, for an error message."""
    if not rows.num_rows:
        return "no rows"
    partitions, offsets = (pc.min_max(rows[name]).as_py() for name in ("log_partition", "record_offset"))
    many = partitions["min"] != partitions["max"]
    at = f"log partitions {partitions['min']} to {partitions['max']}" if many else f"log partition {partitions['min']}"
    return f"{at}, record offsets {offsets['min']} to {offsets['max']}"


def of_partitions(rows: pa.Table, partitions: Collection[int]) -> pa.Table:
    """The rows of these log partitions; ``rows`` has the column log_partition."""
    wanted = np.isin(rows["log_partition"].to_numpy(), list(partitions))
    return rows if wanted.all() else rows.filter(pa.array(wanted))


def of_each_row(offsets: Mapping[int, int], log_partition: npt.NDArray[np.int32], missing: int = 0) -> Int64s:
    """The offset of the log partition of each row; ``missing`` for a log partition without one."""
    each = np.full(max(int(log_partition.max(initial=-1)), *offsets, -1) + 1, missing, dtype=np.int64)
    each[list(offsets)] = list(offsets.values())
    found: Int64s = each[log_partition]
    return found


def in_log_order(rows: pa.Table) -> pa.Table:
    """The rows in the order of log partition and record offset."""
    return rows.sort_by([("log_partition", "ascending"), ("record_offset", "ascending")])


def of_groups(rows: pa.Table, group_ids: Collection[str]) -> pa.Table:
    """The records of these groups, and all control records; ``rows`` has the columns key and control_type."""
    wanted = are_keys_of(rows["key"], group_ids) | as_bools(rows["control_type"].is_valid())
    return rows if wanted.all() else rows.filter(pa.array(wanted))


def are_keys_of(keys: pa.ChunkedArray, group_ids: Collection[str]) -> Bools:
    """Whether each key is of one of these groups."""
    keys = keys.combine_chunks()
    if not all(map(has_one_prefix, group_ids)):
        encoded = keys.dictionary_encode()
        is_of = np.array([*(_group_of(key) in group_ids for key in encoded.dictionary.to_pylist()), False], np.bool_)
        decoded: Bools = is_of[pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)]
        return decoded
    found = np.zeros(len(keys), dtype=np.bool_)
    for group_id in group_ids:
        prefix = group_prefix(group_id)
        starts = pc.binary_slice(keys, VERSION_BYTES, VERSION_BYTES + len(prefix))
        found |= pc.is_in(starts, pa.array([prefix], starts.type)).to_numpy(zero_copy_only=False)
    return found


def group_prefix(group_id: str) -> bytes:
    """The bytes between the type and the rest of a key: the group id with its length (R5)."""
    text = encode_utf8(group_id)
    return len(text).to_bytes(_LENGTH_BYTES, "big") + text


def has_one_prefix(group_id: str) -> bool:
    """Whether all keys of the group have its `group_prefix`."""
    return _REPLACEMENT not in group_id


def _group_of(key: bytes) -> str | None:
    try:
        return decode_key(key).group_id
    except (CorruptRecord, UnknownRecordType):
        return None


def as_bools(column: pa.ChunkedArray) -> Bools:
    """A column of true and false, without nulls, for numpy."""
    return np.asarray(column.to_numpy(), dtype=np.bool_)


def codes_of(keys: pa.Array | pa.ChunkedArray) -> Int64s:
    """A small integer for each key; equal keys have equal integers."""
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    encoded = keys.dictionary_encode()
    return np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)
