"""How far a columnar replay has come, and its result: facts about the state.

Writing a fact twice changes nothing (R15).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.semantics.facts import BINARY, GROUP_RECORD_COLUMNS, LONG, OFFSET_COLUMNS, schema_of
from offsets_pipeline.semantics.log_row import of_each_row

if TYPE_CHECKING:
    from offsets_pipeline.kafka.record.commit_columns import CommitColumns

#: The record type of the fact about a group's highest commit among the facts about its records (R14).
COMMIT_RECORD_TYPE = 1

#: The first and the last time that a table holds. Clients may send any time; others become one of these. They are
#: a day inside the range of `datetime` and SQL (0001-01-01 to 9999-12-31), so that they exist in every time zone.
EARLIEST_MS = -62_135_510_400_000
LATEST_MS = 253_402_214_399_999

OFFSET_SCHEMA = schema_of(OFFSET_COLUMNS)
#: A commit as in OFFSET_SCHEMA, and the record itself.
PENDING_SCHEMA = pa.schema([*OFFSET_SCHEMA, ("producer_id", LONG), ("key", BINARY), ("value", BINARY)])
RECORD_SCHEMA = schema_of(GROUP_RECORD_COLUMNS)


@dataclass(frozen=True)
class ReplayedPartition:
    """End of the replay of a log partition, its numbers of records, and its transactional commits without a marker."""

    folded_to: int
    records: int
    unknown_records: int = 0
    pending: list[dict[str, Any]] = field(default_factory=list)


class ReplayProgress:
    """Ends and record counts of the log partitions of a replay.

    ``folded_to`` has the first record offset of each log partition that is not folded yet; 0 if it is missing.
    """

    def __init__(self, folded_to: Mapping[int, int] | None = None) -> None:
        self.folded_to = dict(folded_to or {})
        self.end: dict[int, int] = {}
        self.records: dict[int, int] = {}
        self._unknown: set[tuple[int, int]] = set()
        self._quarantine: dict[tuple[int, int], dict[str, Any]] = {}

    def unfolded(self, table: pa.Table) -> pa.Table:
        """The rows of INPUT_SCHEMA that are not folded yet, and those that an earlier fold carries over."""
        partition, offset, records = (table[name].to_numpy() for name in ("log_partition", "record_offset", "records"))
        carried = records == 0
        behind = (offset < of_each_row(self.folded_to, partition)) & ~carried  # R15: folded before
        fresh = ~behind & ~carried
        for log_partition in np.unique(partition[fresh]).tolist():
            here = fresh & (partition == log_partition)
            self.end[log_partition] = max(self.end.get(log_partition, 0), int(offset[here].max()) + 1)
            self.records[log_partition] = self.records.get(log_partition, 0) + int(records[here].sum())
        return table.filter(pa.array(~behind)) if behind.any() else table

    def note_unread(
        self, log_partition: int, record_offset: int, key: bytes | None, value: bytes | None, reason: str | None = None
    ) -> None:
        """Put a record into quarantine. One without a reason has an unknown type, and is only counted (R6)."""
        if reason is None:
            self._unknown.add((log_partition, record_offset))
        else:
            place = {"log_partition": log_partition, "record_offset": record_offset}
            self._quarantine[log_partition, record_offset] = {**place, "reason": reason, "key": key, "value": value}

    def place(self) -> str:
        """The log partitions and record offsets so far, for an error message."""
        return "log partitions " + ", ".join(f"{at} up to record offset {end}" for at, end in sorted(self.end.items()))

    def quarantine(self) -> list[dict[str, Any]]:
        """The records that do not decode, for `Effects`."""
        return [row for _, row in sorted(self._quarantine.items())]

    def progress(self) -> dict[int, ReplayedPartition]:
        """Ends and record counts of the log partitions, without pending commits."""
        unknown = Counter(at for at, _ in self._unknown)
        return {at: ReplayedPartition(self.end[at], self.records[at], unknown[at]) for at in sorted(self.records)}


@dataclass(frozen=True)
class Effects:
    """The facts of a replay of whole log partitions, mostly a table of each kind, with the columns of its state table.

    - ``progress``: end and numbers of records of each log partition; ``pending`` has the commits.
    - ``quarantine``: records that do not decode (R6), in log order: log_partition, record_offset, reason, key, value.
    - ``pending``: transactional commits without a marker (R11).
    - ``offsets``: the highest visible record of each identity (R10), a tombstone with a null committed_offset. Rows of
      an identity compare by ``position``: the record offset, except under `classic` (R10c).
    - ``group_records``: the last value and the last tombstone of each key of groups' records.
    - ``group_commits``: the same for COMMIT_RECORD_TYPE: value_offset is the highest record offset of any commit of the
      group (R14). `classic`: the last record offset, as value_offset if the group surely has visible or pending
      offsets, else as tombstone_offset.
    - ``topics``: pairs of topic id and topic (R35).
    - ``connect_records``: rows of `connect_records`, of a topic of Kafka Connect.
    - ``share_partitions``: rows of `share_partition_facts`.
    """

    progress: dict[int, ReplayedPartition]
    quarantine: list[dict[str, Any]]
    pending: pa.Table
    offsets: pa.Table = field(default_factory=OFFSET_SCHEMA.empty_table)
    group_records: pa.Table = field(default_factory=RECORD_SCHEMA.empty_table)
    group_commits: pa.Table = field(default_factory=RECORD_SCHEMA.empty_table)
    topics: set[tuple[str, str]] = field(default_factory=set)
    connect_records: pa.Table = field(default_factory=lambda: pa.table({}))
    share_partitions: pa.Table = field(default_factory=lambda: pa.table({}))


def within_bounds(milliseconds: int) -> int:
    """Return the time, limited to EARLIEST_MS and LATEST_MS."""
    return min(max(milliseconds, EARLIEST_MS), LATEST_MS)


def timestamps(milliseconds: pa.Array) -> pa.Array:
    """Times as timestamps. A time before or after those that a table can hold becomes the first or last of these."""
    within = pc.max_element_wise(milliseconds, EARLIEST_MS, skip_nulls=False)
    within = pc.min_element_wise(within, LATEST_MS, skip_nulls=False)
    return pc.multiply(within, 1000).cast(pa.timestamp("us", tz="UTC"))


def in_milliseconds(rows: pa.Table | pa.RecordBatch) -> pa.Table:
    """Return rows with timestamps as milliseconds since 1970: Arrow imports pandas to make Python's times of them."""
    columns = [
        column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
        if pa.types.is_timestamp(column.type)
        else column
        for column in rows.columns
    ]
    return pa.Table.from_arrays(columns, names=rows.schema.names)


def commit_columns(commits: CommitColumns) -> dict[str, pa.Array]:
    """The fields of offset commits as columns of a table."""
    return {
        "group_id": commits.group_ids(),
        "topic": commits.topics(),
        "partition": pa.array(commits.partition, pa.int32()),
        "committed_offset": commits.required(commits.committed_offset, pa.int64()),
        "leader_epoch": commits.optional(commits.leader_epoch, pa.int32()),
        "metadata": commits.metadata(),
        "commit_timestamp": timestamps(commits.required(commits.commit_timestamp_ms, pa.int64())),
        "expire_timestamp": timestamps(commits.optional(commits.expire_timestamp_ms, pa.int64())),
        "topic_id": commits.topic_ids(),
    }
