"""The result of a columnar replay: facts about the state. Writing a fact twice changes nothing (R15).

All facts are rows of one table, so that one Spark job delivers them. ``kind`` says which fact a row is. Columns that a
kind does not name are null.

=============  =====================================================================================================
kind           columns, beside log_partition and log_incarnation
=============  =====================================================================================================
offset         the highest visible record of an identity (R10), a tombstone with a null committed_offset; position: by
               which rows of an identity compare, the record offset but under `classic` (R10c)
pending        a transactional commit without a marker yet (R11): as offset, and producer_id, key, value
group_record   the last value and the last tombstone of a key of a group's records: group_id, record_type,
               record_key (member id, regular expression or ""), value_offset, value, tombstone_offset
group_commit   as group_record, record_type 1: value_offset is the highest record offset of any commit (R14). `classic`:
               the last record offset, as value_offset if offsets of the group are visible or pending for sure, else as
               tombstone_offset
topic          topic_id, topic: the name of a topic id (R35)
quarantine     record_offset, key, value, reason (R6)
progress       folded_to, records, unknown_records, and replay_from_start: records came in behind the folded position
=============  =====================================================================================================
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offsets_pipeline.record.commit_columns import CommitColumns

OFFSET = "offset"
PENDING = "pending"
GROUP_RECORD = "group_record"
GROUP_COMMIT = "group_commit"
TOPIC = "topic"
QUARANTINE = "quarantine"
PROGRESS = "progress"

#: The record type of the fact about a group's highest commit among the facts about its records (R14).
COMMIT_RECORD_TYPE = 1

#: The first and the last time that a table holds. Clients may send any time; others become one of these. They are
#: a day inside the range of `datetime` and SQL (0001-01-01 to 9999-12-31), so that they exist in every time zone.
EARLIEST_MS = -62_135_510_400_000
LATEST_MS = 253_402_214_399_999


def within_bounds(milliseconds: int) -> int:
    """Return the time, limited to EARLIEST_MS and LATEST_MS."""
    return min(max(milliseconds, EARLIEST_MS), LATEST_MS)


def timestamps(milliseconds: pa.Array) -> pa.Array:
    """Timestamps; a time that no table holds becomes the first or the last one that a table holds."""
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


EFFECT_SCHEMA = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("log_partition", pa.int32(), nullable=False),
        pa.field("group_id", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("committed_offset", pa.int64()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("metadata", pa.string()),
        pa.field("commit_timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("expire_timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("topic_id", pa.string()),
        pa.field("record_offset", pa.int64()),
        pa.field("position", pa.int64()),
        pa.field("misplaced", pa.bool_()),
        pa.field("producer_id", pa.int64()),
        pa.field("record_type", pa.int16()),
        pa.field("record_key", pa.string()),
        pa.field("value_offset", pa.int64()),
        pa.field("tombstone_offset", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("reason", pa.string()),
        pa.field("folded_to", pa.int64()),
        pa.field("records", pa.int64()),
        pa.field("unknown_records", pa.int64()),
        pa.field("replay_from_start", pa.bool_()),
    ]
)


def effects_by_kind(effects: Iterable[pa.RecordBatch]) -> defaultdict[str, list[pa.RecordBatch]]:
    """The batches of effects that have rows, by their kind; none for another kind."""
    found: defaultdict[str, list[pa.RecordBatch]] = defaultdict(list)
    for batch in effects:
        if batch.num_rows:
            found[batch["kind"][0].as_py()].append(batch)
    return found


def effect_rows(kind: str, rows: int, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    """Rows of one kind, as EFFECT_SCHEMA; columns missing from ``columns`` are null."""
    arrays = []
    for field in EFFECT_SCHEMA:
        if field.name == "kind":
            arrays.append(pa.repeat(pa.scalar(kind), rows))
        elif field.name in columns:
            arrays.append(columns[field.name].cast(field.type))
        else:
            arrays.append(pa.nulls(rows, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=EFFECT_SCHEMA)
