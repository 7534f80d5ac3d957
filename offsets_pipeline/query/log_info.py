"""Where each log partition stands: its bounds, how far it is folded, what is in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offsets_pipeline.query.state import StateReader


@dataclass(frozen=True)
class LogPartitionInfo:
    """One log partition.

    ``start`` and ``end`` are its log start and log end offsets; ``folded_to`` is the first record offset not folded
    yet, None before the first fold; ``records`` are those that the log holds; ``pending`` counts commits of open
    transactions. From ``cleaned_to`` on the history is complete, before it a cleaning may have removed records; None:
    none ever did.
    """

    log_partition: int
    start: int
    end: int
    folded_to: int | None
    records: int
    quarantined: int
    unknown: int
    pending: int
    cleaned_to: int | None


def log_info(reader: StateReader) -> list[LogPartitionInfo]:
    """All log partitions of the store, in order; also those that nothing was ever written to."""
    bounds = {row["log_partition"]: row for row in reader.rows("SELECT * FROM log_partitions", "log_partitions")}
    in_log = {
        row["log_partition"]: row
        for row in reader.rows(
            "SELECT log_partition, count(*) AS records, min(record_offset) AS first, max(record_offset) AS last "
            "FROM log GROUP BY log_partition",
            "log",
        )
    }
    folded = {
        row["log_partition"]: row
        for row in reader.rows(
            "SELECT log_partition, folded_to, unknown_records, cardinality(pending) AS pending FROM fold_progress",
            "fold_progress",
        )
    }
    quarantined = {
        row["log_partition"]: row["n"]
        for row in reader.rows(
            "SELECT log_partition, count(*) AS n FROM quarantine GROUP BY log_partition", "quarantine"
        )
    }
    answers = []
    for partition in range(reader.offsets_partitions):
        held = in_log.get(partition, {"records": 0, "first": 0, "last": -1})
        bound = bounds.get(partition, {"start_offset": held["first"], "end_offset": 0})
        fold = folded.get(partition, {"folded_to": None, "unknown_records": 0, "pending": 0})
        answers.append(
            LogPartitionInfo(
                log_partition=partition,
                start=bound["start_offset"],
                end=max(bound["end_offset"], held["last"] + 1),
                folded_to=fold["folded_to"],
                records=held["records"],
                quarantined=quarantined.get(partition, 0),
                unknown=fold["unknown_records"],
                pending=fold["pending"] or 0,
                cleaned_to=bound.get("cleaned_to"),
            )
        )
    return answers
