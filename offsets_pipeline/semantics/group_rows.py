"""Rows of the table `groups` from rows of `group_records`, as Arrow batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from offsets_pipeline.foreign_errors import working_on
from offsets_pipeline.semantics.answering import DEAD
from offsets_pipeline.semantics.effects import within_bounds
from offsets_pipeline.semantics.group_description import GroupDescription, GroupRecordRow, describe_group, live_records
from offsets_pipeline.semantics.partitioning import is_misplaced

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics

_MEMBER = pa.struct(
    [
        ("member_id", pa.string()),
        ("instance_id", pa.string()),
        ("rack_id", pa.string()),
        ("client_id", pa.string()),
        ("client_host", pa.string()),
        ("session_timeout_ms", pa.int32()),
        ("rebalance_timeout_ms", pa.int32()),
        ("member_epoch", pa.int32()),
        ("subscribed_topics", pa.list_(pa.string())),
        ("subscribed_regex", pa.string()),
        (
            "assignment",
            pa.list_(pa.struct([("topic", pa.string()), ("topic_id", pa.string()), ("partition", pa.int32())])),
        ),
    ]
)

#: A row of the table `groups`, without its partition columns.
SCHEMA = pa.schema(
    [
        pa.field("log_partition", pa.int32(), nullable=False),
        pa.field("group_id", pa.string(), nullable=False),
        pa.field("group_type", pa.string()),
        pa.field("state", pa.string(), nullable=False),
        pa.field("protocol_type", pa.string()),
        pa.field("protocol", pa.string()),
        pa.field("generation", pa.int32()),
        pa.field("group_epoch", pa.int32()),
        pa.field("assignment_epoch", pa.int32()),
        pa.field("leader", pa.string()),
        pa.field("state_timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("members", pa.list_(_MEMBER)),
        pa.field("record_offset", pa.int64(), nullable=False),
        pa.field("misplaced", pa.bool_(), nullable=False),
    ]
)

_BATCH_ROWS = 2_000


def described(
    records: Iterable[pa.RecordBatch], offsets_partitions: int, semantics: CoordinatorSemantics
) -> Iterator[pa.RecordBatch]:
    """Rows of SCHEMA, one for each group; a group that does not exist is Dead.

    ``records`` are rows of `group_records`, the rows of each group together.
    """
    done: list[dict[str, object]] = []
    group: tuple[int, str] | None = None
    of_group: list[GroupRecordRow] = []
    for batch in records:
        for row in batch.to_pylist():
            at = (row["log_partition"], row["group_id"])
            if at != group:
                if group is not None:
                    done.append(_described(group, of_group, offsets_partitions, semantics))
                group, of_group = at, []
            of_group.append(
                GroupRecordRow(
                    row["record_type"], row["record_key"], row["value_offset"], row["value"], row["tombstone_offset"]
                )
            )
        if len(done) >= _BATCH_ROWS:
            yield pa.RecordBatch.from_pylist(done, schema=SCHEMA)
            done = []
    if group is not None:
        done.append(_described(group, of_group, offsets_partitions, semantics))
    if done:
        yield pa.RecordBatch.from_pylist(done, schema=SCHEMA)


def _described(
    group: tuple[int, str], records: list[GroupRecordRow], offsets_partitions: int, semantics: CoordinatorSemantics
) -> dict[str, object]:
    log_partition, group_id = group
    newest = max(offset for row in records for offset in (row.value_offset, row.tombstone_offset) if offset is not None)
    common = {
        "log_partition": log_partition,
        "group_id": group_id,
        "record_offset": newest,
        "misplaced": is_misplaced(group_id, log_partition, offsets_partitions, semantics),
    }
    with working_on(lambda: f"group {group_id!r} of log partition {log_partition}, up to record offset {newest}"):
        live = live_records(records)
        description = None if live is None else describe_group(*live)
    return common | ({"state": DEAD} if description is None else described_columns(description))


def state_columns(description: GroupDescription) -> dict[str, object]:
    """State, protocol, epochs and leader of a group that exists, as columns of `groups` and of `group_history`."""
    return {
        "group_type": description.group_type,
        "state": description.state,
        "protocol_type": description.protocol_type,
        "protocol": description.protocol,
        "generation": description.generation,
        "group_epoch": description.group_epoch,
        "assignment_epoch": description.assignment_epoch,
        "leader": description.leader,
    }


def described_columns(description: GroupDescription) -> dict[str, object]:
    """The columns of a row of `groups` that describe a group which exists."""
    since = description.state_timestamp_ms
    return {
        **state_columns(description),
        "state_timestamp": None if since is None else within_bounds(since) * 1000,
        "members": [
            {**vars(member), "assignment": [vars(partition) for partition in member.assignment]}
            for member in description.members
        ],
    }
