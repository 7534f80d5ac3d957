"""Owned stores for tests, and their logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from offsets_pipeline.common.clock import FixedClock
from offsets_pipeline.common.config import Settings
from offsets_pipeline.common.config.sections import CoordinatorSettings
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.owned_log import OwnedLog, Record
from offsets_pipeline.semantics.log_row import LogRow
from tests.replays import Replayed, replay

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

NOW_MS = 1_795_000_000_000
#: A deletion vector within the log, which Spark wrote: of a file's rows the second is deleted.
SECOND_ROW = {
    "storageType": "i",
    "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000005c8Xg0rr91",
    "sizeInBytes": 34,
    "cardinality": 1,
}


def opened(
    store: Path | str,
    clock: FixedClock | None = None,
    partitions: Collection[int] | None = None,
    *,
    housekeeping: bool = False,
    **settings: Any,  # noqa: ANN401 - of any type
) -> Coordinator:
    """A coordinator, by default without its background thread, so that tests decide when it acts."""
    return Coordinator.open(
        store,
        Settings(coordinator=CoordinatorSettings(**settings)),
        partitions=partitions,
        clock=clock or FixedClock(NOW_MS),
        housekeeping=housekeeping,
    )


def log_of(store: Path | str) -> dict[int, list[LogRow]]:
    """The rows of the log by log partition, in order."""
    names = LogRow._fields
    table = DeltaTable(f"{store}/log").to_pyarrow_table(columns=list(names))
    rows: dict[int, list[LogRow]] = {}
    for row in table.sort_by("record_offset").select(list(names)).to_pylist():
        rows.setdefault(row["log_partition"], []).append(LogRow(**row))
    return rows


def references_of(store: Path | str, offsets_partitions: int) -> dict[int, Replayed]:
    """State by the reference replay of the log."""
    return {partition: replay(rows, partition, offsets_partitions) for partition, rows in log_of(store).items()}


def append(store: Path | str, records: Iterable[Record], offsets_partitions: int) -> None:
    """Append records as another process does."""
    log = OwnedLog(str(store), offsets_partitions, "a test")
    log.open((), [].append)
    log.write(log.prepare(list(records), NOW_MS), durable=False)


def append_rows(store: Path | str, rows: Iterable[LogRow], offsets_partitions: int) -> None:
    """Append rows, without their record offsets, as another process does."""
    append(
        store,
        [
            Record(
                row.log_partition,
                row.key,  # type: ignore[arg-type]
                row.value,
                row.producer_id,
                None if row.producer_id is None else 0,
                row.control_type,
            )
            for row in rows
        ],
        offsets_partitions,
    )
