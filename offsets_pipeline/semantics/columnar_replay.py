"""The columnar replay: rows of the log in, facts about the state out (R10-R16).

`Replay` takes rows of log partitions, a batch at a time and in any order, and holds the rows that can still matter: the
last value and the last tombstone of each key of visible commits, by raw bytes; undecided transactional commits until
their markers come; the last value and tombstone of each group record. It decodes strings only for the rows that are
left at the end. Stream and reload both call it, and add no semantics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.common.foreign_errors import working_on
from offsets_pipeline.kafka.record.commit_columns import CommitColumns
from offsets_pipeline.kafka.record.corrupt import CorruptRecord, UnknownRecordType
from offsets_pipeline.kafka.record.decode import decode_value
from offsets_pipeline.semantics.compaction import (
    are_commits,
    highest_of_each,
    last_of_each,
    last_values_and_tombstones,
    paired,
)
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.semantics.effects import OFFSET_SCHEMA, PENDING_SCHEMA, Effects, ReplayProgress, commit_columns
from offsets_pipeline.semantics.group_facts import GroupFacts
from offsets_pipeline.semantics.group_types import decode_known_key
from offsets_pipeline.semantics.log_row import ABORT, COMMIT, as_bools, codes_of, of_each_row, of_partitions
from offsets_pipeline.semantics.partitioning import are_misplaced
from offsets_pipeline.semantics.transactions import (
    COMMITTED,
    OPEN,
    TOMBSTONE_RANK,
    Endings,
    classic_offsets,
    endings,
    endings_within,
)

if TYPE_CHECKING:
    from offsets_pipeline.kafka.record.records import Bools, Int64s

#: The columns of the log that the replay reads, and ``records``: the number of records that a row stands for. It is
#: above 1 after an early compaction, and 0 for a pending commit of an earlier fold, which comes in again although its
#: record offset is below the folded position.
INPUT_SCHEMA = pa.schema(
    [
        pa.field("log_partition", pa.int32(), nullable=False),
        pa.field("record_offset", pa.int64(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("producer_id", pa.int64()),
        pa.field("control_type", pa.string()),
        pa.field("records", pa.int64(), nullable=False),
    ]
)

_COMPACT_AT_ROWS = 1_000_000
_COMPACT_AT_BYTES = 512 * 1024 * 1024  # of rows with much metadata: Arrow's binary columns end at 2 GiB
_COMMIT_COLUMNS = ["log_partition", "record_offset", "key", "value", "producer_id", "outcome"]
_MARKER_COLUMNS = ["log_partition", "record_offset", "producer_id", "control_type"]
_NO_COMMITS = INPUT_SCHEMA.append(pa.field("outcome", pa.int8())).empty_table().select(_COMMIT_COLUMNS)
_RESULT_ROWS = 250_000  # whose strings are made at once


class Replay:
    """Replays some log partitions of one log, as the coordinator of ``semantics`` does.

    ``folded_to`` has the first record offset of each log partition that is not folded yet; 0 if it is missing. Rows
    below it are skipped (R15). ``offsets_partitions`` is n of R1.
    """

    def __init__(
        self,
        offsets_partitions: int,
        folded_to: Mapping[int, int] | None = None,
        semantics: CoordinatorSemantics = MODERN,
    ) -> None:
        self._offsets_partitions = offsets_partitions
        self._progress = ReplayProgress(folded_to)
        self._semantics = semantics
        self._commits: list[pa.Table] = []
        self._new_rows = self._new_bytes = self._compacted_rows = 0  # of `_commits`
        self._markers: list[pa.Table] = []
        self._groups = GroupFacts()

    # --- taking rows in

    def add(self, table: pa.Table) -> None:
        """Take rows of INPUT_SCHEMA, of any log partitions, in any order."""
        table = self._progress.unfolded(table)
        if not table.num_rows:
            return
        table = table.append_column("outcome", pa.array(endings_within(table).outcome))
        control = table["control_type"].is_valid()
        if pc.any(control).as_py():
            ends = pc.and_(pc.is_in(table["control_type"], pa.array([COMMIT, ABORT])), table["producer_id"].is_valid())
            self._markers.append(table.filter(ends).select(_MARKER_COLUMNS))
            table = table.filter(pc.invert(control))
        commits = are_commits(table["key"])
        if not commits.all():
            self._add_others(table.filter(pa.array(~commits)))
            table = table.filter(pa.array(commits))
        self._commits.append(table.select(_COMMIT_COLUMNS))
        self._new_rows += table.num_rows
        self._new_bytes += table.nbytes
        if self._new_rows > max(_COMPACT_AT_ROWS, self._compacted_rows) or self._new_bytes > _COMPACT_AT_BYTES:
            self._compact()

    def _add_others(self, table: pa.Table) -> None:
        """Add group records, and records that do not decode, one by one: they are few."""
        columns = (table[name].to_pylist() for name in ("log_partition", "record_offset", "key", "value"))
        log_partition = record_offset = -1
        with working_on(lambda: f"log partition {log_partition}, record offset {record_offset}"):
            for log_partition, record_offset, key, value in zip(*columns, strict=True):
                self._add_other(log_partition, record_offset, key, value)

    def _add_other(self, log_partition: int, record_offset: int, key: bytes | None, value: bytes | None) -> None:
        try:
            decoded = decode_known_key(key, self._semantics)
            fields = None if value is None else decode_value(decoded.record_type, value).fields
        except UnknownRecordType:
            self._progress.note_unread(log_partition, record_offset, key, value)  # R6
        except CorruptRecord as corrupt:
            self._progress.note_unread(log_partition, record_offset, key, value, str(corrupt))
        else:
            self._groups.add(log_partition, record_offset, decoded, value, fields)

    def _decoded(self) -> tuple[pa.Table, CommitColumns]:
        """The commits so far that decode, and their fields: of most replays each commit is decoded once."""
        table = pa.concat_tables([_NO_COMMITS, *self._commits]).combine_chunks()
        commits = CommitColumns(table["key"].combine_chunks(), table["value"].combine_chunks())
        self._groups.topics.update(commits.topic_names())
        if not commits.valid.all():
            self._add_others(table.filter(pa.array(~commits.valid)))  # R6: it finds the reason for the quarantine
            valid = np.flatnonzero(commits.valid)
            table, commits = table.take(pa.array(valid)), commits.take(valid)
        return table, commits

    def _in_transaction(self, table: pa.Table) -> Bools:
        in_transaction = table["producer_id"].is_valid()
        if not self._semantics.is_classic:
            in_transaction = pc.and_(in_transaction, table["value"].is_valid())  # R12: a tombstone applies at once
        return as_bools(in_transaction)

    def _compact(self) -> None:
        """Keep the commits that can still matter."""
        table, commits = self._decoded()
        waits = self._in_transaction(table)
        visible = ~waits
        if not self._semantics.is_classic:
            self._note_groups(table, commits)
            outcome = table["outcome"].to_numpy()
            visible |= outcome == COMMITTED
            waits &= outcome == OPEN
        visible_rows = np.flatnonzero(visible)
        last = visible_rows[last_values_and_tombstones(table.take(pa.array(visible_rows)))]
        kept = np.concatenate([last, np.flatnonzero(waits)])
        self._commits = [table.take(pa.array(kept)).combine_chunks()]
        self._new_rows, self._new_bytes, self._compacted_rows = 0, 0, len(kept)

    def place(self) -> str:
        """The log partitions and record offsets added so far, for an error message."""
        return self._progress.place()

    # --- giving effects out

    def effects(self) -> Effects:
        """The facts about the state after all added rows. Call it once."""
        # pending commits of a log partition without new records stay pending
        self._commits = [of_partitions(each, self._progress.records) for each in self._commits]
        table, commits = self._decoded()
        identity = paired(codes_of(commits.identities()), table["log_partition"].to_numpy())
        decide = self._classic_offsets if self._semantics.is_classic else self._modern_offsets
        last, pending, position = decide(table, commits, identity)
        return Effects(
            progress=self._progress.progress(),
            quarantine=self._progress.quarantine(),
            pending=self._commit_rows(PENDING_SCHEMA, table, commits, pending, position),
            offsets=self._commit_rows(OFFSET_SCHEMA, table, commits, last, position),
            group_records=self._groups.records(),
            group_commits=self._groups.commits(),
            topics=self._groups.topics,
        )

    def _modern_offsets(
        self, table: pa.Table, commits: CommitColumns, identity: Int64s
    ) -> tuple[Int64s, Int64s, Int64s]:
        """The last row of each identity, the rows of pending commits, and the positions of all rows."""
        self._note_groups(table, commits)
        offset = table["record_offset"].to_numpy()
        in_transaction, outcome = self._in_transaction(table), _endings(table, self._markers).outcome
        # R10, R13: a tombstone is a row as any other; it hides older rows, if there are any
        visible = np.flatnonzero(~in_transaction | (outcome == COMMITTED))
        last = visible[last_of_each(identity[visible], offset[visible])]
        waiting = np.flatnonzero(in_transaction & (outcome == OPEN))
        removed = np.full(int(identity.max(initial=-1)) + 1, -1, dtype=np.int64)
        np.maximum.at(removed, identity[commits.tombstone], offset[commits.tombstone])
        waiting = waiting[offset[waiting] > removed[identity[waiting]]]  # R12: a later tombstone removed the others
        transaction = paired(identity[waiting], codes_of(table["producer_id"].take(pa.array(waiting))))
        return last, waiting[last_of_each(transaction, offset[waiting])], offset

    def _classic_offsets(
        self, table: pa.Table, commits: CommitColumns, identity: Int64s
    ) -> tuple[Int64s, Int64s, Int64s]:
        """The same as `_modern_offsets`."""
        offset, partition = table["record_offset"].to_numpy(), table["log_partition"].to_numpy()
        producer = codes_of(table["producer_id"].fill_null(-1))
        in_transaction, ends = self._in_transaction(table), _endings(table, self._markers)
        found = classic_offsets(identity, offset, commits.tombstone, in_transaction, producer, ends)
        visible = np.flatnonzero(found.visible)
        rank = np.where(commits.tombstone, TOMBSTONE_RANK, offset)
        last = visible[highest_of_each(identity[visible], found.position[visible], rank[visible])]
        pending = np.flatnonzero(found.pending)
        holds = np.zeros(len(offset), dtype=np.bool_)
        holds[last] = ~commits.tombstone[last]
        holds[pending] = True
        carried = offset < of_each_row(self._progress.folded_to, partition)
        changed = np.flatnonzero(found.visible | found.pending | carried)  # others change nothing about their group
        ends_of = {at: self._progress.end[at] for at in self._progress.records}
        self._groups.add_holders(partition[changed], commits.take(changed).group_ids(), holds[changed], ends_of)
        last = last[~(commits.tombstone & carried)[last]]  # the state has these tombstones
        return last, pending, found.position

    def _note_groups(self, table: pa.Table, commits: CommitColumns) -> None:
        """R14: a pending or aborted commit makes its group, too."""
        values = np.flatnonzero(~commits.tombstone)
        self._groups.add_commits(
            table["log_partition"].to_numpy()[values],
            commits.take(values).group_ids(),
            table["record_offset"].to_numpy()[values],
        )

    def _commit_rows(
        self, schema: pa.Schema, table: pa.Table, commits: CommitColumns, rows: Int64s, position: Int64s
    ) -> pa.Table:
        """Some of the commits in OFFSET_SCHEMA or PENDING_SCHEMA."""
        parts = [schema.empty_table()]
        for start in range(0, len(rows), _RESULT_ROWS):
            some = rows[start : start + _RESULT_ROWS]
            part = table.take(pa.array(some))
            columns = commit_columns(commits.take(some))
            columns["position"] = pa.array(position[some])
            columns["misplaced"] = are_misplaced(
                columns["group_id"], part["log_partition"], self._offsets_partitions, self._semantics
            )
            arrays = [columns[name] if name in columns else part[name] for name in schema.names]
            parts.append(pa.table(arrays, schema=schema))
        return pa.concat_tables(parts)


def _endings(table: pa.Table, markers: list[pa.Table]) -> Endings:
    """The outcome of each row, if ``markers`` are all that may end its transaction."""
    columns = table.select(_MARKER_COLUMNS[:-1]).append_column("control_type", pa.nulls(table.num_rows, pa.string()))
    return endings(pa.concat_tables([columns, *markers])).taken(np.arange(table.num_rows))
