"""The inputs of retention, read from the state tables (R18-R20): groups, committed offsets, open transactions.

They are as of the end of the log, as all answers (state/current.py).
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.compute as pc

from offsets_pipeline.query.as_of import pending_of
from offsets_pipeline.query.describe import pending_by_group
from offsets_pipeline.semantics.effects import in_milliseconds
from offsets_pipeline.semantics.group import Group
from offsets_pipeline.semantics.group_description import GroupRecordRow, live_records
from offsets_pipeline.semantics.partition_state import TopicPartition
from offsets_pipeline.semantics.partitioning import is_misplaced
from offsets_pipeline.semantics.retention import RetentionInputs
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.state.merge_on_read import OFFSETS, RECORDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from offsets_pipeline.history.log_history import LogHistory
    from offsets_pipeline.history.state_as_of import StateAsOf
    from offsets_pipeline.query.state_reader import StateReader
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics

_OFFSETS = ("log_partition", "group_id", "topic", "partition", "commit_timestamp", "expire_timestamp")
_RECORDS = ("log_partition", "group_id", "record_type", "record_key", "value_offset", "value", "tombstone_offset")
_ORDER = [("log_partition", "ascending"), ("group_id", "ascending")]
_BEHIND_ALL = (2**31, "")


class Times(NamedTuple):
    """The times of a committed offset that decide when it expires (R19), in milliseconds."""

    commit_timestamp_ms: int
    expire_timestamp_ms: int | None


def retention_inputs(reader: StateReader) -> Iterator[RetentionInputs]:
    """Yield the retention inputs of each group that exists, in the order of log partition and group id.

    Raises StoreMismatch for a store with a topic of Kafka Connect.
    """
    reader.properties.require_topic_kind(reader.location, TopicKind.CONSUMER_OFFSETS)
    offsets = reader.newest(OFFSETS, (*_OFFSETS, "committed_offset", "misplaced"))
    offsets = offsets.filter(pc.and_not(offsets["committed_offset"].is_valid(), offsets["misplaced"])).select(_OFFSETS)
    records = reader.newest(RECORDS, _RECORDS).sort_by(_ORDER)
    of_log = reader.current.offsets_partitions, reader.current.semantics
    yield from _inputs(offsets.sort_by(_ORDER).to_reader(), records.to_reader(), pending_by_group(reader), *of_log)


def retention_inputs_as_of(state: StateAsOf, history: LogHistory) -> Iterator[RetentionInputs]:
    """Yield the retention inputs of a state of the past."""
    offsets = state.commit_times.select(_OFFSETS).to_reader()
    records = state.records.select(_RECORDS).to_reader()
    of_log = history.current_log.offsets_partitions, history.semantics
    yield from _inputs(offsets, records, pending_of(state), *of_log)


def _inputs(
    offset_rows: pa.RecordBatchReader,
    record_rows: pa.RecordBatchReader,
    pending: Mapping[tuple[int, str], set[tuple[str, int]]],
    offsets_partitions: int,
    semantics: CoordinatorSemantics,
) -> Iterator[RetentionInputs]:
    """The inputs of the groups with these rows, which come in the order of log partition and group id."""
    offsets, records = _of_groups(offset_rows), _of_groups(record_rows)
    held_at, held = next(offsets, (_BEHIND_ALL, iter(())))
    for at, rows in records:
        while held_at < at:  # offsets that a group tombstone left behind (R14)
            held_at, held = next(offsets, (_BEHIND_ALL, iter(())))
        log_partition, group_id = at
        live = live_records(GroupRecordRow._make(row[2:]) for row in rows)
        if live is None or is_misplaced(group_id, log_partition, offsets_partitions, semantics):  # R1
            continue
        yield RetentionInputs(
            group_id,
            Group(*live),
            {TopicPartition(*row[2:4]): Times(*row[4:]) for row in held} if held_at == at else {},
            pending.get(at, set()),
        )


def _of_groups(rows: pa.RecordBatchReader) -> Iterator[tuple[tuple[int, str], Iterator[tuple[Any, ...]]]]:
    """Group rows by their first two columns, log partition and group id; timestamps become milliseconds."""
    return groupby(_tuples(rows), key=itemgetter(0, 1))


def _tuples(rows: pa.RecordBatchReader) -> Iterator[tuple[Any, ...]]:
    for batch in rows:
        yield from zip(*(column.to_pylist() for column in in_milliseconds(batch).columns), strict=True)
