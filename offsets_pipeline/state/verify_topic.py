"""Compare the state of a topic of Kafka Connect with a replay of its log, as verify.py does for groups."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

import pyarrow as pa

from offsets_pipeline.connect.connect_keys import state_value
from offsets_pipeline.connect.topic_replay import RECORD, connect_rows
from offsets_pipeline.connect.topic_state import TopicPartitionState
from offsets_pipeline.semantics.effects import PENDING, PROGRESS, effects_by_kind
from offsets_pipeline.state.changes import partitions_of, state_rows
from offsets_pipeline.state.merge_on_read import CONNECT
from offsets_pipeline.state.verification import StateRows, Verification, ordered, place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from offsets_pipeline.semantics.topic_kind import TopicKind

_Pending = set[tuple[int, bytes, int]]


@dataclass(frozen=True)
class TopicComparison(StateRows):
    """Compares replayed log partitions with their state; picklable."""

    kind: TopicKind

    def __call__(self, effects: Iterator[pa.RecordBatch]) -> tuple[set[int], Verification]:
        """Compare what the columnar replay gives."""
        by_kind = effects_by_kind(effects)
        replayed = partitions_of(by_kind[PROGRESS], by_kind[PENDING])
        result = self.compare(set(replayed), state_rows(CONNECT, by_kind[RECORD]))
        for at, each in replayed.items():
            result.records += each.records
            pending = {(row["producer_id"], row["key"], row["record_offset"]) for row in each.pending}
            self._note_progress(result, at, each.folded_to, pending)
        return set(replayed), result

    def independently(self, tables: Iterator[pa.Table]) -> tuple[set[int], Verification]:
        """Replay rows of the log by the specification, and compare."""
        states, records = specified(tables, self.kind)
        result = self.compare(set(states), specified_rows(states.values()))
        result.records = records
        for at, state in states.items():
            pending = {
                (producer_id, raw_key.encode(), record.record_offset)
                for producer_id, of_producer in state.pending.items()
                for raw_key, record in of_producer.items()
            }
            self._note_progress(result, at, state.end, pending)
        return set(states), result

    def without_records(self, partitions: set[int]) -> Verification:
        """Compare log partitions that have no records with the state, which should have no rows of them."""
        return self.compare(partitions, CONNECT.row_schema().empty_table())

    def compare(self, partitions: set[int], records: pa.Table) -> Verification:
        """Compare the replayed rows of these log partitions with the state."""
        found = ordered(CONNECT, self.state(CONNECT, partitions))
        result = Verification(log_partitions=len(partitions))
        result.offsets = records.num_rows - records["value"].null_count
        result.compare(CONNECT.name, CONNECT.key, ordered(CONNECT, records), found)
        return result

    def _note_progress(self, result: Verification, at: int, end: int, pending: _Pending) -> None:
        known = self.progress[at]
        of_state = {(row["producer_id"], row["key"], row["record_offset"]) for row in known.pending}
        result.note_progress(at, place(end, pending), place(known.folded_to, of_state))


def specified(tables: Iterable[pa.Table], kind: TopicKind) -> tuple[dict[int, TopicPartitionState], int]:
    """Return the states by log partition, by the specification, from all rows in any order; and the row count."""
    rows = sorted((row for table in tables for row in connect_rows(table)), key=itemgetter(0, 1))
    states: dict[int, TopicPartitionState] = {}
    for row in rows:
        states.setdefault(row.log_partition, TopicPartitionState(row.log_partition, kind)).replay(row)
    return states, len(rows)


def specified_rows(states: Iterable[TopicPartitionState]) -> pa.Table:
    """The records of these log partitions as rows of `connect_records`."""
    return pa.Table.from_pylist(
        [
            {
                "log_partition": state.log_partition,
                "raw_key": raw_key,
                **record.key._asdict(),
                "record_type": record.key.record_type.value,
                "value": state_value(record.value),
                "record_timestamp": record.record_timestamp,
                "record_offset": record.record_offset,
            }
            for state in states
            for raw_key, record in state.records.items()
        ],
        schema=CONNECT.row_schema(),
    )
