"""The shape of a row of the log, free of Spark: what the record layer delivers and the fold reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow.compute as pc

if TYPE_CHECKING:
    import pyarrow as pa

COMMIT = "COMMIT"
ABORT = "ABORT"


class LogRow(NamedTuple):
    """One record of the log, as plain Python holds it.

    ``producer_id`` is set for records of a transaction and for control records, and only for those: the id of
    an idempotent producer without a transaction means nothing to a replay (R11).
    """

    log_partition: int
    record_offset: int
    key: bytes | None
    value: bytes | None
    producer_id: int | None = None
    control_type: str | None = None


def place_of(rows: pa.RecordBatch | pa.Table) -> str:
    """Where rows lie that have the columns log_partition and record_offset, for a message."""
    if not rows.num_rows:
        return "no rows"
    partitions, offsets = (pc.min_max(rows[name]).as_py() for name in ("log_partition", "record_offset"))
    many = partitions["min"] != partitions["max"]
    at = f"log partitions {partitions['min']} to {partitions['max']}" if many else f"log partition {partitions['min']}"
    return f"{at}, record offsets {offsets['min']} to {offsets['max']}"
