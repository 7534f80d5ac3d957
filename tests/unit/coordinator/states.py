"""Comparing a coordinator's state with the reference replay's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from offsets_pipeline.record.decode import decode_value
from offsets_pipeline.semantics import specification, table_replay
from offsets_pipeline.semantics.partition_state import CommittedOffset, PartitionState, TopicPartition
from offsets_pipeline.semantics.table_replay import replay_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pytest

    from offsets_pipeline.semantics.log_row import LogRow

ROW_SCHEMA = pa.schema(
    {
        "log_partition": pa.int32(),
        "record_offset": pa.int64(),
        "key": pa.binary(),
        "value": pa.binary(),
        "producer_id": pa.int64(),
        "control_type": pa.string(),
    }
)


def table_of(rows: Sequence[LogRow]) -> pa.Table:
    columns = [pa.array([getattr(row, field.name) for row in rows], field.type) for field in ROW_SCHEMA]
    return pa.Table.from_arrays(columns, schema=ROW_SCHEMA)


def replayed(rows: Iterable[LogRow], log_partition: int, offsets_partitions: int) -> PartitionState:
    state = PartitionState(log_partition, offsets_partitions)
    for row in rows:
        state.replay(row)
    return state


def replayed_as_columns(
    rows: Sequence[LogRow], log_partition: int, offsets_partitions: int, monkeypatch: pytest.MonkeyPatch
) -> PartitionState:
    state = PartitionState(log_partition, offsets_partitions)
    with monkeypatch.context() as patch:
        patch.setattr(table_replay, "_FEW", 0)
        replay_table(state, table_of(rows))
    return state


def as_reference(state: PartitionState) -> dict[str, Any]:
    """What the state says, in the words of `specification.ReferenceState`."""
    return {
        "offsets": {
            (group_id, *where): _offset(offset)
            for group_id, offsets in state.offsets.items()
            for where, offset in offsets.items()
        },
        "pending": {
            (producer_id, group_id, *where): _offset(offset)
            for producer_id, groups in state.pending.items()
            for group_id, offsets in groups.items()
            for where, offset in offsets.items()
        },
        "groups": {
            group_id: (group.kind, {name: decode_value(name[0], raw).fields for name, raw in group.records.items()})
            for group_id, group in state.groups.items()
        },
        "quarantined": state.quarantined,
        "unknown_records": state.unknown_records,
        "end": state.end,
        "current": {
            (group_id, *where): _offset(offset)
            for group_id in state.groups
            if state.group_with_offsets(group_id) is not None
            for where, offset in state.offsets_of(group_id).items()
        },
        "unstable": {
            (group_id, *where)
            for group_id in state.groups
            if state.group_with_offsets(group_id) is not None
            for where in state.pending_of(group_id)
            if state.is_pending(group_id, where)
        },
    }


def of_reference(state: specification.ReferenceState) -> dict[str, Any]:
    return {
        "offsets": state.offsets,
        "pending": {
            (producer_id, *identity): offset
            for producer_id, offsets in state.pending.items()
            for identity, offset in offsets.items()
        },
        "groups": {group_id: (group.kind, group.records) for group_id, group in state.groups.items()},
        "quarantined": state.quarantined,
        "unknown_records": state.unknown_records,
        "end": state.folded_to,
        "current": state.current_offsets(),
        "unstable": state.unstable(),
    }


def _offset(offset: CommittedOffset) -> specification.CommittedOffset:
    return specification.CommittedOffset(**offset._asdict())


def calls(*asked: Callable[[], object]) -> tuple[Callable[[], object], ...]:
    """What is asked, for a loop over it."""
    return asked


def at(topic: str = "t", partition: int = 0) -> TopicPartition:
    return TopicPartition(topic, partition)
