"""The specification's replay of a log, record by record, as rows of the state tables."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

import pyarrow as pa

from offsets_pipeline.semantics.effects import within_bounds
from offsets_pipeline.semantics.group_rows import described_columns
from offsets_pipeline.semantics.log_row import LogRow
from offsets_pipeline.semantics.partition_state import PartitionState
from offsets_pipeline.state.merge_on_read import DESCRIBED, OFFSETS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics


@dataclass(frozen=True)
class Unreplayed:
    """A replay that returns rows of the log unchanged, with the columns of ``schema``."""

    schema: pa.Schema
    pending = pa.table({})

    def compact(self, table: pa.Table) -> pa.Table:
        """Return the table unchanged."""
        return table

    def replay(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """The tables."""
        yield from tables


class Specified:
    """State of some log partitions by the specification, from all of their rows in any order."""

    def __init__(self, tables: Iterable[pa.Table], offsets_partitions: int, semantics: CoordinatorSemantics) -> None:
        rows = [
            LogRow(*row)
            for table in tables
            for row in zip(*(table[name].to_pylist() for name in LogRow._fields), strict=True)
        ]
        rows.sort(key=itemgetter(0, 1))
        self.records = len(rows)
        self.states: dict[int, PartitionState] = {}
        for row in rows:
            if row.log_partition not in self.states:
                self.states[row.log_partition] = PartitionState(
                    row.log_partition, offsets_partitions, semantics=semantics
                )
            self.states[row.log_partition].replay(row)

    def offsets(self) -> pa.Table:
        """The visible offsets as rows of `offset_facts`; their positions are -1."""
        return pa.Table.from_pylist(
            [
                {
                    "log_partition": at,
                    "group_id": group_id,
                    "topic": where.topic,
                    "partition": where.partition,
                    "committed_offset": offset.committed_offset,
                    "leader_epoch": offset.leader_epoch,
                    "metadata": offset.metadata,
                    "commit_timestamp": _microseconds(offset.commit_timestamp_ms),
                    "expire_timestamp": _microseconds(offset.expire_timestamp_ms),
                    "topic_id": offset.topic_id,
                    "record_offset": offset.record_offset,
                    "position": -1,
                    "misplaced": state.is_misplaced(group_id),
                }
                for at, state in self.states.items()
                for group_id, offsets in state.offsets.items()
                for where, offset in offsets.items()
            ],
            schema=OFFSETS.row_schema(),
        )

    def groups(self) -> pa.Table:
        """The groups that exist as rows of `groups`; their record offsets are -1."""
        return pa.Table.from_pylist(
            [
                described_columns(group.description)
                | {
                    "log_partition": at,
                    "group_id": group_id,
                    "record_offset": -1,
                    "misplaced": state.is_misplaced(group_id),
                }
                for at, state in self.states.items()
                for group_id, group in state.groups.items()
            ],
            schema=DESCRIBED.row_schema(),
        )

    @staticmethod
    def progress(state: PartitionState) -> tuple[int, set[tuple[object, ...]]]:
        """The end of a log partition, and its pending commits: producer, group, topic, partition, record offset."""
        return state.end, {
            (producer_id, group_id, *where, offset.record_offset)
            for producer_id, groups in state.pending.items()
            for group_id, offsets in groups.items()
            for where, offset in offsets.items()
        }


def _microseconds(milliseconds: int | None) -> int | None:
    return None if milliseconds is None else within_bounds(milliseconds) * 1000
