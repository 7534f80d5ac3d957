"""A row of the log, as the record layer delivers it and the replays read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Collection

COMMIT = "COMMIT"
ABORT = "ABORT"

#: Why a coordinator of this program wrote a tombstone: the last word of `source` in its log. Kafka's API names.
DELETE_GROUPS, OFFSET_DELETE, EXPIRY = "DeleteGroups", "OffsetDelete", "Expiration"


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
