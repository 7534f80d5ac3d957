"""The row-wise replay's state as tests read it: offsets by whole identity, and values of group records decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from offsets_pipeline.kafka.record.decode import decode_value
from offsets_pipeline.semantics import partition_state, table_replay
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.semantics.group_types import SHARE
from offsets_pipeline.semantics.partition_state import CommittedOffset, PartitionState, TopicPartition
from offsets_pipeline.semantics.partitioning import partition_for
from tests.logs import input_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pytest

    from offsets_pipeline.semantics.columnar_replay import Replay
    from offsets_pipeline.semantics.log_row import LogRow
    from tests.logs import Identity


@dataclass(frozen=True)
class DecodedGroup:
    """A group, its records decoded."""

    group_type: str
    records: dict[tuple[int, str], dict[str, Any]]


@dataclass(frozen=True)
class Replayed:
    """All that a replay of one log partition knows."""

    log_partition: int
    offsets_partitions: int
    offsets: dict[Identity, CommittedOffset]
    pending: dict[int, dict[Identity, CommittedOffset]]
    groups: dict[str, DecodedGroup]
    topic_names: dict[str, str]
    quarantined: dict[int, str]
    unknown_records: int
    end: int
    current: dict[Identity, CommittedOffset]
    unstable: set[Identity]

    @classmethod
    def of(cls, state: PartitionState) -> Replayed:
        """A group in the state. ``current`` and ``unstable``: the offsets that fetches return (R14, R17)."""
        share = {group_id for group_id, group in state.groups.items() if group.group_type == SHARE}
        answering = [group_id for group_id in state.groups if state.group_with_offsets(group_id) is not None]
        assert not share & set(answering)
        unstable = {(group_id, *where) for group_id in answering for where in state.pending_of(group_id)}
        assert all(
            state.is_pending(group_id, TopicPartition(topic, partition)) for group_id, topic, partition in unstable
        )
        return cls(
            log_partition=state.log_partition,
            offsets_partitions=state.offsets_partitions,
            offsets=_flat(state.offsets),
            pending={producer_id: _flat(groups) for producer_id, groups in state.pending.items()},
            groups={
                group_id: DecodedGroup(
                    group.group_type,
                    {name: decode_value(name[0], raw).fields for name, raw in group.records.items()},
                )
                for group_id, group in state.groups.items()
            },
            topic_names=state.topic_names,
            quarantined=state.quarantined,
            unknown_records=state.unknown_records,
            end=state.end,
            current={
                (group_id, *where): offset
                for group_id in state.offsets.keys() - share
                for where, offset in state.offsets_of(group_id).items()
            },
            unstable=unstable,
        )

    def answers(self, group_id: str) -> bool:
        """Whether the group exists, in the log partition that questions go to (R1, R14)."""
        return group_id in self.groups and partition_for(group_id, self.offsets_partitions) == self.log_partition


def _flat(groups: dict[str, partition_state.Offsets]) -> dict[Identity, CommittedOffset]:
    return {(group_id, *where): offset for group_id, offsets in groups.items() for where, offset in offsets.items()}


def replay(
    rows: Iterable[LogRow], log_partition: int, offsets_partitions: int, semantics: CoordinatorSemantics = MODERN
) -> Replayed:
    """The specification's state after these rows."""
    return Replayed.of(partition_state.replay(rows, log_partition, offsets_partitions, semantics))


def references(
    rows: Iterable[LogRow], offsets_partitions: int, semantics: CoordinatorSemantics = MODERN
) -> dict[int, Replayed]:
    """The specification's state of each log partition."""
    by_partition: dict[int, list[LogRow]] = {}
    for row in sorted(rows, key=lambda row: row.record_offset):
        by_partition.setdefault(row.log_partition, []).append(row)
    return {at: replay(of_one, at, offsets_partitions, semantics) for at, of_one in by_partition.items()}


def named_topics(states: Iterable[Replayed]) -> dict[str, str]:
    """Names of topic ids from the records of all log partitions (R35)."""
    told = sorted(pair for state in states for pair in state.topic_names.items())
    return dict(reversed(told))  # the lesser of two


def effects_of(replayed: Replay) -> dict[str, list[Any]]:
    """All effects of a replay by columns, by kind, as rows; topics and log partitions as pairs."""
    effects = vars(replayed.effects())
    plain = {
        "progress": sorted(effects["progress"].items()),
        "quarantine": effects["quarantine"],
        "topics": sorted(effects["topics"]),
    }
    return {kind: plain[kind] if kind in plain else in_microseconds(effects[kind]).to_pylist() for kind in effects}


def in_microseconds(rows: pa.Table) -> pa.Table:
    """The rows with times as numbers: a damaged timestamp may lie beyond what `datetime` can hold."""
    fields = [each.with_type(pa.int64()) if pa.types.is_timestamp(each.type) else each for each in rows.schema]
    return rows.cast(pa.schema(fields))


def replayed_as_columns(
    rows: Sequence[LogRow],
    log_partition: int,
    offsets_partitions: int,
    monkeypatch: pytest.MonkeyPatch,
    semantics: CoordinatorSemantics = MODERN,
) -> PartitionState:
    """The same by columns, however few rows there are."""
    state = PartitionState(log_partition, offsets_partitions, semantics=semantics)
    with monkeypatch.context() as patch:
        patch.setattr(table_replay, "_FEW", 0)
        table_replay.replay_table(state, input_table(rows))
    return state
