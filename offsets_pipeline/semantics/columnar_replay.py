"""The columnar replay: rows of the log in, facts about the state out (R10-R16).

`Replay` takes rows of log partitions, a batch at a time and in any order, and holds the rows that can still matter: the
last value and the last tombstone of each key of visible commits, by raw bytes; undecided transactional commits until
their markers come; the last value and tombstone of each group record. It decodes strings only for the rows that are
left at the end. Stream and reload both call it, and add no semantics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.foreign_errors import working_on
from offsets_pipeline.record.commit_columns import CommitColumns, parse_commits
from offsets_pipeline.record.corrupt import CorruptRecord, UnknownRecordType
from offsets_pipeline.record.decode import decode_value
from offsets_pipeline.semantics.classic_offsets import TOMBSTONE_RANK, classic_offsets
from offsets_pipeline.semantics.compaction import (
    are_commits,
    codes_of,
    highest_of_each,
    last_of_each,
    last_values_and_tombstones,
    paired,
)
from offsets_pipeline.semantics.coordinator_semantics import MODERN
from offsets_pipeline.semantics.effects import OFFSET_SCHEMA, PENDING_SCHEMA, Effects, commit_columns
from offsets_pipeline.semantics.group_facts import GroupFacts
from offsets_pipeline.semantics.known_keys import decode_known_key
from offsets_pipeline.semantics.log_row import ABORT, COMMIT
from offsets_pipeline.semantics.partitioning import are_misplaced
from offsets_pipeline.semantics.replay_progress import ReplayProgress
from offsets_pipeline.semantics.transactions import (
    ABORTED,
    COMMITTED,
    OPEN,
    Endings,
    endings,
    outcomes_within,
    still_open,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

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
        pa.field("backfill", pa.bool_(), nullable=False),
        pa.field("records", pa.int64(), nullable=False),
    ]
)

_COMPACT_AT_ROWS = 1_000_000
_COMMIT_COLUMNS = ["log_partition", "record_offset", "key", "value", "producer_id"]
_MARKER_COLUMNS = ["log_partition", "record_offset", "producer_id", "control_type"]
_NO_COMMITS = pa.Table.from_batches([], INPUT_SCHEMA).select(_COMMIT_COLUMNS)
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
        self._plain: list[pa.Table] = []
        self._compacted_rows = 0
        self._transactional: list[pa.Table] = []
        self._markers: list[pa.Table] = []
        self._groups = GroupFacts()

    # --- taking rows in

    def add(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Take rows of INPUT_SCHEMA, of any log partitions, in any order."""
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
        table = self._progress.unfolded(table)
        if not table.num_rows:
            return
        outcome = outcomes_within(table)
        control = table["control_type"].is_valid()
        if pc.any(control).as_py():
            ends = pc.and_(pc.is_in(table["control_type"], pa.array([COMMIT, ABORT])), table["producer_id"].is_valid())
            self._markers.append(table.filter(ends).select(_MARKER_COLUMNS))
            data = pc.invert(control)
            table, outcome = table.filter(data), outcome[data.to_numpy().astype(np.bool_)]
        commits = are_commits(table["key"])
        if commits.all():
            self._add_commits(table, outcome)
        else:
            self._add_commits(table.filter(pa.array(commits)), outcome[commits])
            self._add_others(table.filter(pa.array(~commits)))
        waiting = sum(each.num_rows for each in self._plain) - self._compacted_rows
        if waiting > max(_COMPACT_AT_ROWS, self._compacted_rows):
            self._compact()

    def _add_commits(self, table: pa.Table, outcome: npt.NDArray[np.int8]) -> None:
        if not table.num_rows:
            return
        table = table.select(_COMMIT_COLUMNS).combine_chunks()
        commits = _parsed(table)
        self._groups.topics.update(commits.topic_names())
        if not commits.valid.all():
            self._add_others(table.filter(pa.array(~commits.valid)))  # R6: it finds the reason for the quarantine
            table, outcome = table.filter(pa.array(commits.valid)), outcome[commits.valid]
        if self._semantics.is_classic:
            transactional = _mask(table["producer_id"].is_valid())
            self._transactional.append(table.filter(pa.array(transactional)))
            self._plain.append(table.filter(pa.array(~transactional)))
            return
        # R12: a tombstone applies at once, also one with a producer id
        transactional = _mask(pc.and_(table["producer_id"].is_valid(), table["value"].is_valid()))
        if transactional.any():
            self._note_aborted(table.filter(pa.array(transactional & (outcome == ABORTED))))
            self._transactional.append(table.filter(pa.array(transactional & (outcome == OPEN))))
            table = table.filter(pa.array(~transactional | (outcome == COMMITTED)))
        self._plain.append(table)

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
            self._progress.note_unknown(log_partition, record_offset)  # R6
        except CorruptRecord as corrupt:
            self._progress.note_corrupt(log_partition, record_offset, key, value, str(corrupt))
        else:
            self._groups.add(log_partition, record_offset, decoded, value, fields)

    def _compact(self) -> None:
        table = pa.concat_tables(self._plain).combine_chunks()
        self._plain = [table.take(pa.array(last_values_and_tombstones(table))).combine_chunks()]
        self._compacted_rows = self._plain[0].num_rows

    def place(self) -> str:
        """The log partitions and record offsets added so far, for an error message."""
        return self._progress.place()

    # --- giving effects out

    def effects(self) -> Effects:
        """The facts about the state after all added rows."""
        offsets, pending = self._classic_offsets() if self._semantics.is_classic else self._modern_offsets()
        return Effects(
            progress=self._progress.progress(),
            quarantine=self._progress.quarantine(),
            pending=pending,
            offsets=offsets,
            group_records=self._groups.records(),
            group_commits=self._groups.commits(),
            topics=self._groups.topics,
        )

    def _classic_offsets(self) -> tuple[pa.Table, pa.Table]:
        """The last commit or tombstone of each identity, and the pending commits."""
        if self._plain:
            self._compact()
        table = pa.concat_tables([_NO_COMMITS, *self._plain, *self._transactional])
        # pending commits of a log partition without new records stay pending
        table = table.filter(pc.is_in(table["log_partition"], pa.array(list(self._progress.records), pa.int32())))
        table = table.combine_chunks()
        commits = _parsed(table)
        offset, partition = table["record_offset"].to_numpy(), table["log_partition"].to_numpy()
        identity = paired(codes_of(commits.identities()), partition)
        producer = codes_of(table["producer_id"].fill_null(-1))
        in_transaction = _mask(table["producer_id"].is_valid())
        found = classic_offsets(
            identity, offset, commits.tombstone, in_transaction, producer, _endings(table, self._markers)
        )
        visible = np.flatnonzero(found.visible)
        rank = np.where(commits.tombstone, TOMBSTONE_RANK, offset)
        last = visible[highest_of_each(identity[visible], found.position[visible], rank[visible])]
        pending = np.flatnonzero(found.pending)
        holds = np.zeros(len(offset), dtype=np.bool_)
        holds[last] = ~commits.tombstone[last]
        holds[pending] = True
        starts = [self._progress.folded_to.get(at, 0) for at in range(int(partition.max(initial=-1)) + 1)]
        carried = offset < np.array(starts, dtype=np.int64)[partition]
        changed = np.flatnonzero(found.visible | found.pending | carried)  # others change nothing about their group
        ends = {at: self._progress.end[at] for at in self._progress.records}
        self._groups.add_holders(partition[changed], commits.take(changed).group_ids(), holds[changed], ends)
        last = last[~(commits.tombstone & carried)[last]]  # the state has these tombstones
        return (
            self._commit_rows(OFFSET_SCHEMA, table, commits, last, found.position),
            self._commit_rows(PENDING_SCHEMA, table, commits, pending, found.position),
        )

    def _modern_offsets(self) -> tuple[pa.Table, pa.Table]:
        """The same as `_classic_offsets`."""
        pending = self._resolve_transactions() if self._transactional else _NO_COMMITS
        if self._plain:
            self._compact()
        table = self._plain[0] if self._plain else _NO_COMMITS
        commits = _parsed(table)
        values = np.flatnonzero(~commits.tombstone)
        self._note_group_commits(commits.take(values), table.take(pa.array(values)))
        identity = paired(codes_of(commits.identities()), table["log_partition"].to_numpy())
        offsets = table["record_offset"].to_numpy()
        # R10, R13: a tombstone is a row as any other; it hides older rows, if there are any
        last = last_of_each(identity, offsets)
        visible = self._commit_rows(OFFSET_SCHEMA, table, commits, last, offsets)
        parsed = _parsed(pending)
        self._note_group_commits(parsed, pending)
        tombstones = np.flatnonzero(commits.tombstone)
        open_rows = still_open(pending, parsed, table.take(pa.array(tombstones)), commits.take(tombstones))
        position = pending["record_offset"].to_numpy()
        return visible, self._commit_rows(PENDING_SCHEMA, pending, parsed, open_rows, position)

    def _resolve_transactions(self) -> pa.Table:
        """Add commits with a COMMIT marker to the plain ones; returns the commits of open transactions."""
        table = pa.concat_tables(self._transactional).combine_chunks()
        # pending commits of a log partition without new records stay pending
        table = table.filter(pc.is_in(table["log_partition"], pa.array(list(self._progress.records), pa.int32())))
        outcome = _endings(table, self._markers).outcome
        self._plain.append(table.filter(pa.array(outcome == COMMITTED)))
        self._note_aborted(table.filter(pa.array(outcome == ABORTED)))
        return table.filter(pa.array(outcome == OPEN))

    def _note_aborted(self, table: pa.Table) -> None:
        """R14: an aborted commit makes its group all the same; of each key the last one says so."""
        if table.num_rows:
            code = paired(codes_of(table["key"]), table["log_partition"].to_numpy())
            last = table.take(pa.array(last_of_each(code, table["record_offset"].to_numpy())))
            self._note_group_commits(_parsed(last), last)

    def _note_group_commits(self, commits: CommitColumns, table: pa.Table) -> None:
        if table.num_rows:
            self._groups.add_commits(
                table["log_partition"].to_numpy(), commits.group_ids(), table["record_offset"].to_numpy()
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


def _parsed(table: pa.Table) -> CommitColumns:
    return parse_commits(table["key"].combine_chunks(), table["value"].combine_chunks())


def _endings(table: pa.Table, markers: list[pa.Table]) -> Endings:
    """The outcome of each row, if ``markers`` are all that may end its transaction."""
    columns = table.select(_MARKER_COLUMNS[:-1]).append_column("control_type", pa.nulls(table.num_rows, pa.string()))
    return endings(pa.concat_tables([columns, *markers])).taken(np.arange(table.num_rows))


def _mask(column: pa.ChunkedArray) -> Bools:
    return np.asarray(column.to_numpy(), dtype=np.bool_)
