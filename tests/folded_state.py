"""The state of a log, folded by the program's own writer into tables in memory, and compared with the reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from offsets_pipeline.fold.state import changes as replay_module
from offsets_pipeline.fold.state.changes import ReplayStart, StateWriter
from offsets_pipeline.fold.state.fold_progress import PartitionProgress, progressed
from offsets_pipeline.fold.state.fold_rest import FactsInMemory
from offsets_pipeline.fold.state.merge_on_read import OFFSETS, RECORDS, STATE_TABLES
from offsets_pipeline.fold.state.stored_rows import StoredRows
from offsets_pipeline.kafka.record.decode import decode_value
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.semantics.effects import EARLIEST_MS, LATEST_MS
from offsets_pipeline.semantics.group_description import GroupRecordRow, live_records
from offsets_pipeline.semantics.partition_state import CommittedOffset
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.store.delta.data_file import ALL_ROWS, with_values
from tests.logs import NO_TOPIC_ID, Identity, input_table
from tests.replays import Replayed, in_microseconds, named_topics

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from offsets_pipeline.fold.state.merge_on_read import StateTable
    from offsets_pipeline.semantics.log_row import LogRow
    from offsets_pipeline.store.delta.data_file import Only

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class FoldedState:
    """What the state tables hold: the rows that count, by log partition and key, with times in microseconds.

    ``quarantine`` has the reasons by log partition and record offset.
    """

    offsets_partitions: int
    semantics: CoordinatorSemantics = MODERN
    offsets: dict[tuple[int, Identity], dict[str, Any]] = field(default_factory=dict)
    group_records: dict[tuple[int, str, int, str], GroupRecordRow] = field(default_factory=dict)
    topics: dict[str, str] = field(default_factory=dict)
    quarantine: dict[int, dict[int, str]] = field(default_factory=dict)
    progress: dict[int, PartitionProgress] = field(default_factory=dict)

    @property
    def folded_to(self) -> dict[int, int]:
        """The first record offset that is not folded, of each log partition with folded records."""
        return {at: each.folded_to for at, each in self.progress.items() if each.folded_to}

    def take_rows(self, offsets: pa.Table, group_records: pa.Table) -> None:
        """Hold these rows of `offset_facts` and `group_records`, which have each key once."""
        offset_rows, record_rows = in_microseconds(offsets).to_pylist(), group_records.to_pylist()
        self.offsets = {
            (row["log_partition"], (row["group_id"], row["topic"], row["partition"])): row for row in offset_rows
        }
        self.group_records = {
            (row["log_partition"], row["group_id"], row["record_type"], row["record_key"]): GroupRecordRow(
                *(row[name] for name in GroupRecordRow._fields)
            )
            for row in record_rows
        }
        assert len(self.offsets) == len(offset_rows)
        assert len(self.group_records) == len(record_rows)

    def groups(self) -> dict[tuple[int, str], tuple[str, dict[tuple[int, str], bytes]]]:
        """The groups that exist, their kind and the last values of their records."""
        records: dict[tuple[int, str], list[GroupRecordRow]] = {}
        for (log_partition, group_id, _, _), row in self.group_records.items():
            records.setdefault((log_partition, group_id), []).append(row)
        found = {at: live_records(rows) for at, rows in records.items()}
        return {at: live for at, live in found.items() if live is not None}


class StateInMemory(FoldedState):
    """Folds batches as a fold in the driver does, into tables of facts in memory."""

    def __init__(self, offsets_partitions: int, semantics: CoordinatorSemantics = MODERN) -> None:
        super().__init__(offsets_partitions, semantics)
        self.progress = {at: PartitionProgress(at, semantics=semantics) for at in range(offsets_partitions)}
        self._tables = {each.name: FactsInMemory(each.table) for each in STATE_TABLES}

    def fold(self, rows: Sequence[LogRow], chunk_rows: int = 1_000_000) -> None:
        """Fold a batch, which the replay takes in ``chunk_rows`` at a time and without an early compaction."""
        table = input_table(rows)
        chunks = [table.slice(start, chunk_rows) for start in range(0, table.num_rows, chunk_rows)]
        start = ReplayStart(self.offsets_partitions, self.semantics).continued(self.progress)
        incarnations = {at: each.incarnation for at, each in self.progress.items()}
        known = _KnownInMemory({}, {}, incarnations, {name: each.rows for name, each in self._tables.items()})
        writer = StateWriter(start, self._tables, incarnations, known)
        with patch.object(replay_module, "_ADD_ROWS", 1):  # it gathers no chunks
            changes = writer.changes(chunks)
        self.progress = progressed(self.progress, changes.partitions, 0)
        for row in changes.quarantine:
            self.quarantine.setdefault(row["log_partition"], {}).setdefault(row["record_offset"], row["reason"])
        for topic_id, topic in changes.topics:
            self.topics[topic_id] = min(topic, self.topics.get(topic_id, topic))
        facts = (self._tables[each.name].rows.select(each.columns) for each in (OFFSETS, RECORDS))
        self.take_rows(*(each.newest_rows(rows, None) for each, rows in zip((OFFSETS, RECORDS), facts, strict=True)))


@dataclass(frozen=True)
class _KnownInMemory(StoredRows):
    """The facts in memory by table, in place of those in files."""

    rows: Mapping[str, pa.Table]

    def facts(self, table: StateTable, columns: Sequence[str], only: Only = ALL_ROWS) -> pa.Table:
        return with_values(self.rows[table.name], only).select(columns)

    def published(self, table: StateTable, columns: Sequence[str], only: Only = ALL_ROWS) -> None:
        """Nothing is published."""


def assert_same(state: FoldedState, expected: Mapping[int, Replayed], earlier: Iterable[Replayed] = ()) -> None:
    """Assert that the state equals the reference, with topic names that ``earlier`` log incarnations held."""
    assert state.folded_to == {at: each.end for at, each in expected.items()}
    assert state.topics == named_topics([*expected.values(), *earlier])
    for at, reference in expected.items():
        live = {
            identity: _committed(row)
            for (partition, identity), row in state.offsets.items()
            if partition == at and row["committed_offset"] is not None
        }
        assert live == {identity: _stored(offset) for identity, offset in reference.offsets.items()}
        rows = state.progress[at].pending
        pending = {(row["producer_id"], _identity(row)): _committed(_pending(row)) for row in rows}
        assert len(pending) == len(rows)
        assert pending == {
            (producer_id, identity): _stored(offset)
            for producer_id, offsets in reference.pending.items()
            for identity, offset in offsets.items()
        }
        groups = {group_id: group for (partition, group_id), group in state.groups().items() if partition == at}
        assert {group_id: (kind, _decoded(values)) for group_id, (kind, values) in groups.items()} == {
            group_id: (group.group_type, group.records) for group_id, group in reference.groups.items()
        }
        assert state.quarantine.get(at, {}) == reference.quarantined
        assert state.progress[at].unknown_records == reference.unknown_records
    for (at, (group_id, _, _)), row in state.offsets.items():
        is_away = partition_for(group_id, state.offsets_partitions) != at
        assert row["misplaced"] == (is_away and not state.semantics.is_classic)  # R1


def _identity(row: Mapping[str, Any]) -> Identity:
    return row["group_id"], row["topic"], row["partition"]


def _committed(row: Mapping[str, Any]) -> CommittedOffset:
    return CommittedOffset(
        record_offset=row["record_offset"],
        committed_offset=row["committed_offset"],
        leader_epoch=row["leader_epoch"],
        metadata=row["metadata"],
        commit_timestamp_ms=row["commit_timestamp"] // 1000,
        expire_timestamp_ms=None if row["expire_timestamp"] is None else row["expire_timestamp"] // 1000,
        topic_id=row["topic_id"],
    )


def _pending(row: Mapping[str, Any]) -> dict[str, Any]:
    """A pending commit with the columns of an offset: some are in its value alone."""
    value = decode_value(1, row["value"]).fields
    topic_id, expire = value.get("topic_id"), value.get("expire_timestamp")
    return {
        **row,
        "commit_timestamp": (row["commit_timestamp"] - _EPOCH) // timedelta(microseconds=1),
        "expire_timestamp": None if expire is None else _within(expire) * 1000,
        "topic_id": None if topic_id == NO_TOPIC_ID else topic_id,
    }


def _stored(offset: CommittedOffset) -> CommittedOffset:
    """The offset with timestamps that a table can hold."""
    expire = offset.expire_timestamp_ms
    return offset._replace(
        commit_timestamp_ms=_within(offset.commit_timestamp_ms),
        expire_timestamp_ms=None if expire is None else _within(expire),
    )


def _within(timestamp_ms: int) -> int:
    return min(max(timestamp_ms, EARLIEST_MS), LATEST_MS)


def _decoded(values: Mapping[tuple[int, str], bytes]) -> dict[tuple[int, str], dict[str, Any]]:
    return {name: decode_value(name[0], value).fields for name, value in values.items()}
