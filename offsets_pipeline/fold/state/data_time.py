"""Data time of log partitions: the time up to which a log has all of its records (R36). No Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.common.arrow_values import array_of
from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.fold.state.merge_on_read import ended, last_of_each
from offsets_pipeline.ingest.topic_positions.sample_table import last_sample_times, table_of
from offsets_pipeline.semantics.effects import in_milliseconds
from offsets_pipeline.store.delta.data_file import COMPLETE
from offsets_pipeline.store.delta.properties import OWNED, SNAPSHOT
from offsets_pipeline.store.log.log_scan import TIMES, written_us

if TYPE_CHECKING:
    from offsets_pipeline.store.delta.snapshot import Snapshot

#: Rows of `log_partitions` by log partition, with times in ms.
Notes = Mapping[int, Mapping[str, Any]]


def notes_of(rows: pa.Table, log_incarnation: int) -> Notes:
    """Return those of one log incarnation among the rows of `log_partitions`."""
    notes = in_milliseconds(rows).to_pylist()
    return {each["log_partition"]: each for each in notes if each["log_incarnation"] == log_incarnation}


def data_ms_of(
    kind: str, location: str, log: Snapshot, notes: Notes, log_incarnation: int, opened_ms: int
) -> dict[int, int]:
    """Return the data time of each log partition of an incarnation in ms; none of an owned log, which is as of now.

    ``kind`` and ``location`` are those of the store. ``opened_ms``: when ``log`` was opened.
    """
    if kind == OWNED:
        return {}
    if kind == SNAPSHOT:  # each one looks at all groups, and samples all topics
        newest = newest_records(log, log_incarnation)
        at_ms = max([*newest.values(), *last_sample_times(table_of(location))], default=0)
        return dict.fromkeys(newest, min(at_ms, opened_ms))
    read_at = {at: each["read_at"] for at, each in notes.items() if each["read_at"] is not None}
    if not read_at and notes:  # segment files
        files_ms = max(each["updated_at"] for each in notes.values())
        return dict.fromkeys(notes, files_ms)
    # an older record is not above any of these times
    newest = newest_records(log, log_incarnation, min(read_at.values(), default=None))
    appended_ms = log.transaction(COMPLETE) if read_at else 0
    times = {at: max(newest.get(at, 0), read_at.get(at, 0), appended_ms) for at in {*newest, *read_at}}
    return {at: min(each, opened_ms) for at, each in times.items()}


def newest_records(
    log: Snapshot, log_incarnation: int, appended_ms: int | None = None, ends: Mapping[int, int] | None = None
) -> dict[int, int]:
    """Return by log partition the newest time in ms of an incarnation's records; none is later than its append.

    ``appended_ms``: of those appended after this time. ``ends``: of those before a record offset, by log partition.
    """
    only: dict[str, list[int]] = {"log_incarnation": [log_incarnation]}
    if ends is not None:
        only["log_partition"] = sorted(ends)
    files = log.files()
    if appended_ms is not None:
        first = shown_time(appended_ms)  # as statistics have it, in whole milliseconds
        files = [file for file in files if file.highest.get("appended_at", first) >= first]
    newest: dict[int, int] = {}
    for each in log.tables(["log_partition", "record_offset", *TIMES], only, files):
        rows = each.filter(each["record_timestamp"].is_valid())
        if ends is not None:
            rows = rows.filter(pc.less(rows["record_offset"], ended(rows, ends)))
        if appended_ms is not None:
            appended_us = rows["appended_at"].cast(pa.int64())
            rows = rows.filter(pc.greater(appended_us, array_of([appended_ms * 1000])[0]))
        rows = rows.select(["log_partition"]).append_column("time_us", written_us(rows))
        for row in last_of_each(rows, ["log_partition"], [rows["time_us"]]).to_pylist():
            at, at_ms = row["log_partition"], row["time_us"] // 1000
            newest[at] = max(newest.get(at, at_ms), at_ms)
    return newest
