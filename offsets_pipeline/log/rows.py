"""The shape of a row of the log, free of Spark: what the record layer delivers and the fold reads."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

COMMIT = "COMMIT"
ABORT = "ABORT"

#: The columns of a log row that the fold reads; the Delta table adds where and when a row came from.
LOG_ROW_SCHEMA = pa.schema(
    [
        pa.field("log_partition", pa.int32(), nullable=False),
        pa.field("record_offset", pa.int64(), nullable=False),
        pa.field("record_timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("producer_id", pa.int64()),
        pa.field("producer_epoch", pa.int16()),
        pa.field("control_type", pa.string()),
    ]
)


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
