"""The specifications' replays of a log, record by record, as rows of the state tables."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from offsets_pipeline.fold.state.merge_on_read import CONNECT, DESCRIBED, OFFSETS
from offsets_pipeline.semantics import partition_state
from offsets_pipeline.semantics.connect_keys import state_value
from offsets_pipeline.semantics.effects import ReplayedPartition, within_bounds
from offsets_pipeline.semantics.group_facts import described_columns
from offsets_pipeline.semantics.table_replay import log_rows
from offsets_pipeline.semantics.topic_replay import connect_rows
from offsets_pipeline.semantics.topic_state import TopicPartitionState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
    from offsets_pipeline.semantics.topic_kind import TopicKind

Row = TypeVar("Row", bound=tuple[Any, ...])
#: Log partitions, and rows by the name of their state table.
Replayed = tuple[dict[int, ReplayedPartition], dict[str, pa.Table]]


def specified_groups(tables: Iterable[pa.Table], offsets_partitions: int, semantics: CoordinatorSemantics) -> Replayed:
    """The groups and the visible offsets by `PartitionState`, from all rows of some log partitions in any order.

    Positions of offsets and record offsets of groups are -1.
    """
    rows = _by_log_partition(chain.from_iterable(map(log_rows, tables)))
    states = {at: partition_state.replay(each, at, offsets_partitions, semantics) for at, each in rows.items()}
    partitions = {
        at: ReplayedPartition(
            state.end,
            len(rows[at]),
            pending=[
                {"producer_id": producer_id, "group_id": group_id, **where._asdict(), **offset._asdict()}
                for producer_id, of_producer in state.pending.items()
                for group_id, of_group in of_producer.items()
                for where, offset in of_group.items()
            ],
        )
        for at, state in states.items()
    }
    offsets = [
        {
            "log_partition": at,
            "group_id": group_id,
            **where._asdict(),
            **offset._asdict(),
            "commit_timestamp": _microseconds(offset.commit_timestamp_ms),
            "expire_timestamp": _microseconds(offset.expire_timestamp_ms),
            "position": -1,
            "misplaced": state.is_misplaced(group_id),
        }
        for at, state in states.items()
        for group_id, of_group in state.offsets.items()
        for where, offset in of_group.items()
    ]
    groups = [
        described_columns(group.description)
        | {"log_partition": at, "group_id": group_id, "record_offset": -1, "misplaced": state.is_misplaced(group_id)}
        for at, state in states.items()
        for group_id, group in state.groups.items()
    ]
    return partitions, {
        OFFSETS.name: pa.Table.from_pylist(offsets, schema=OFFSETS.row_schema()),
        DESCRIBED.name: pa.Table.from_pylist(groups, schema=DESCRIBED.row_schema()),
    }


def specified_topic(tables: Iterable[pa.Table], kind: TopicKind) -> Replayed:
    """The records of a topic of Kafka Connect by `TopicPartitionState`, from all rows of some log partitions."""
    rows = _by_log_partition(chain.from_iterable(map(connect_rows, tables)))
    states = {at: TopicPartitionState(kind) for at in rows}
    for at, of_partition in rows.items():
        for row in of_partition:
            states[at].replay(row)
    partitions = {
        at: ReplayedPartition(
            state.end,
            len(rows[at]),
            pending=[
                {"producer_id": producer_id, "key": raw_key.encode(), "record_offset": record.record_offset}
                for producer_id, of_producer in state.pending.items()
                for raw_key, record in of_producer.items()
            ],
        )
        for at, state in states.items()
    }
    records = [
        {
            "log_partition": at,
            "raw_key": raw_key,
            **record._asdict(),
            **record.key._asdict(),
            "record_type": record.key.record_type.value,
            "value": state_value(record.value),
        }
        for at, state in states.items()
        for raw_key, record in state.records.items()
    ]
    return partitions, {CONNECT.name: pa.Table.from_pylist(records, schema=CONNECT.row_schema())}


def _by_log_partition(rows: Iterable[Row]) -> dict[int, list[Row]]:
    """The rows of each log partition in the order of their record offsets; rows begin with both."""
    found: defaultdict[int, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=itemgetter(0, 1)):
        found[row[0]].append(row)
    return found


def _microseconds(milliseconds: int | None) -> int | None:
    return None if milliseconds is None else within_bounds(milliseconds) * 1000
