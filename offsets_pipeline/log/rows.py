"""The shape of a row of the log, free of Spark: what the record layer delivers and the fold reads."""

from __future__ import annotations

from typing import NamedTuple

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
