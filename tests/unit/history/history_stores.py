"""Stores with a log alone, for questions about the past: recorded logs and random ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.store.delta.properties import StoreProperties
from offsets_pipeline.store.delta.schemas import LOG_PARTITIONS
from tests.log_tables import APPENDED_MS, LOG_SCHEMA, capture_log, log_store
from tests.logs import capture_partitions, capture_semantics

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from random import Random

    from offsets_pipeline.semantics.log_row import LogRow
    from offsets_pipeline.semantics.retention import Retention

#: Milliseconds of the first record of a random log, and the time of each: by log partition and record offset.
START_MS = 1_795_000_000_000
Times = Mapping[tuple[int, int], int | None]


def times_of(partitions: Mapping[int, Sequence[LogRow]], chosen: Random) -> Times:
    """Times that mostly ascend within a log partition; some are missing, some are older than the one before."""
    times: dict[tuple[int, int], int | None] = {}
    for at, rows in partitions.items():
        now_ms = START_MS
        for row in rows:
            now_ms += chosen.choice([0, 1, 5, 1000])
            times[at, row.record_offset] = chosen.choice([now_ms] * 8 + [now_ms - 1500, None])
    return times


def table_of(rows: Sequence[LogRow], times: Times, log_incarnation: int = 0, source: str = "a test") -> pa.Table:
    """Rows of the table `log`."""
    found = [
        row._asdict()
        | {
            "record_timestamp": None if (at := times[row.log_partition, row.record_offset]) is None else at * 1000,
            "producer_epoch": None if row.producer_id is None else 0,
            "source": source,
            "appended_at": APPENDED_MS * 1000,
            "log_incarnation": log_incarnation,
            "backfill": False,
        }
        for row in rows
    ]
    columns = [pa.array([row[each.name] for row in found], each.type) for each in LOG_SCHEMA]
    return pa.Table.from_arrays(columns, schema=LOG_SCHEMA)


def random_store(
    location: Path,
    partitions: Mapping[int, Sequence[LogRow]],
    times: Times,
    offsets_partitions: int,
    *,
    semantics: CoordinatorSemantics = MODERN,
    cleaned_to: Mapping[int, int] | None = None,
    kind: str = "mirrored",
    source: str = "a test",
) -> str:
    """A store with these rows in several files; ``cleaned_to`` is noted as a cleaning notes it."""
    rows = [row for of_one in partitions.values() for row in of_one]
    appends = [table_of(rows[start : start + 40], times, source=source) for start in range(0, len(rows), 40)]
    log_store(location, offsets_partitions, appends)
    properties = StoreProperties(kind, offsets_partitions, coordinator_semantics=semantics)
    DeltaTable(location / "log").alter.set_table_properties(properties.as_table_properties(), raise_if_not_exists=False)
    noted: list[dict[str, Any]] = [
        {
            "log_partition": at,
            "log_incarnation": 0,
            "start_offset": 0,
            "end_offset": of_one[-1].record_offset + 1,
            "updated_at": 0,
            "cleaned_to": (cleaned_to or {}).get(at),
        }
        for at, of_one in partitions.items()
        if of_one
    ]
    write_deltalake(
        location / "log_partitions", pa.Table.from_pylist(noted, LOG_PARTITIONS.arrow_schema()), mode="append"
    )
    return str(location)


def capture_store(location: Path, name: str, retention: Retention | None = None) -> str:
    """A store with a recorded log, of the semantics of the broker that wrote it, and with a noted retention."""
    log_store(location, capture_partitions(name), [capture_log(name)])
    properties = StoreProperties(
        "mirrored", capture_partitions(name), coordinator_semantics=capture_semantics(name), retention=retention
    )
    DeltaTable(location / "log").alter.set_table_properties(properties.as_table_properties(), raise_if_not_exists=False)
    return str(location)
