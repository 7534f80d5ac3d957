"""Rows of the table `groups` from rows of `group_records`, as Arrow columns."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.foreign_errors import working_on
from offsets_pipeline.semantics.answering import DEAD
from offsets_pipeline.semantics.compaction import codes_of
from offsets_pipeline.semantics.effects import COMMIT_RECORD_TYPE, within_bounds
from offsets_pipeline.semantics.group_description import GroupDescription, GroupRecordRow, describe_group, live_records
from offsets_pipeline.semantics.group_types import CLASSIC
from offsets_pipeline.semantics.partitioning import are_misplaced, is_misplaced

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def described(records: pa.Table, offsets_partitions: int, semantics: CoordinatorSemantics) -> pa.Table:
    """Rows of SCHEMA, one for each group; a group that does not exist is Dead.

    ``records`` are rows of `group_records`, the rows of each group together.
    """
    starts = np.ones(records.num_rows + 1, dtype=np.bool_)  # of a group, and behind the last one
    starts[1:-1] = np.diff(codes_of(records["group_id"])) | np.diff(records["log_partition"].to_numpy())
    is_commit = pc.and_(pc.equal(records["record_type"], COMMIT_RECORD_TYPE), records["tombstone_offset"].is_null())
    is_simple = starts[:-1] & starts[1:] & is_commit.to_numpy().astype(np.bool_)
    simple = _simple_groups(records.filter(pa.array(is_simple)), offsets_partitions, semantics)
    others = records.filter(pa.array(~is_simple))
    rows = pa.concat_tables([simple, *_described_groups(others, offsets_partitions, semantics)])
    in_order = np.concatenate([np.flatnonzero(is_simple), np.flatnonzero(starts[:-1] & ~is_simple)])
    return rows.take(pa.array(np.argsort(in_order)))


def _simple_groups(commits: pa.Table, offsets_partitions: int, semantics: CoordinatorSemantics) -> pa.Table:
    """Groups with nothing but commits (R14): usually most groups, and all described alike."""
    alike = described_columns(describe_group(CLASSIC, {}))
    first = pa.array(np.zeros(commits.num_rows, dtype=np.int64))
    columns = {each.name: pa.array([alike.get(each.name)], each.type).take(first) for each in SCHEMA}
    columns |= {"log_partition": commits["log_partition"], "group_id": commits["group_id"].combine_chunks()}
    columns["record_offset"] = commits["value_offset"]
    columns["misplaced"] = are_misplaced(columns["group_id"], columns["log_partition"], offsets_partitions, semantics)
    return pa.table(columns, schema=SCHEMA)


def _described_groups(
    records: pa.Table, offsets_partitions: int, semantics: CoordinatorSemantics
) -> Iterator[pa.Table]:
    done: list[dict[str, object]] = []
    rows = (row for batch in records.to_batches(_BATCH_ROWS) for row in batch.to_pylist())
    for group, of_group in groupby(rows, itemgetter("log_partition", "group_id")):
        of_records = [GroupRecordRow._make(row[name] for name in GroupRecordRow._fields) for row in of_group]
        done.append(_described(group, of_records, offsets_partitions, semantics))
        if len(done) >= _BATCH_ROWS:
            yield pa.Table.from_pylist(done, schema=SCHEMA)
            done = []
    yield pa.Table.from_pylist(done, schema=SCHEMA)


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
