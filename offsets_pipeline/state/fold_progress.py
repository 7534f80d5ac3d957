"""The table `fold_progress`: the end of the folded log, the one place where two folds compete.

It has a row for each log partition from the first fold on. A fold reads it, appends rows to the state tables, and then
swaps it: the swap fails if another fold came first. So what a dead or beaten fold appended is either right or, if its
incarnation is not named here, not read (docs/adr/0008).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.delta.data_file import APPLICATION
from offsets_pipeline.delta.schemas import FOLD_PROGRESS, LOG_INCARNATION
from offsets_pipeline.errors import WriteConflict
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsets_pipeline.delta.snapshot import Snapshot
    from offsets_pipeline.delta.table_folder import TableFolder
    from offsets_pipeline.state.changes import ReplayedPartition

_SCHEMA = FOLD_PROGRESS.arrow_schema()
#: Incarnation of the state before the first fold: no row has it.
NO_INCARNATION = 0
#: Incarnation of log partitions that a question replays from their start. No table of a store has it.
UNSTORED_INCARNATION = 2**31 - 1
_SWAPS = 20  # attempts of a compaction beside folds


@dataclass(frozen=True)
class PartitionProgress:
    """A row of `fold_progress`.

    ``incarnation`` is the state's, ``log_incarnation`` the log's. ``folded_to`` is the first record offset that is not
    folded yet. ``compacted_to``, by state table: its base rows are of records before this one. ``pending`` are the
    transactional commits without a marker (R11). ``folded_at_us`` is the time of the last fold in microseconds since
    1970.
    """

    log_partition: int
    log_incarnation: int = LOG_INCARNATION
    incarnation: int = NO_INCARNATION
    semantics: CoordinatorSemantics = MODERN
    folded_to: int = 0
    compacted_to: Mapping[str, int] = field(default_factory=lambda: compacted_to(0))
    records: int = 0
    unknown_records: int = 0
    folded_at_us: int = 0
    pending: list[dict[str, Any]] = field(default_factory=list)


class FoldProgress:
    """The table `fold_progress` as of one version. `swap` replaces it, unless another fold was first."""

    def __init__(self, table: TableFolder, snapshot: Snapshot, partitions: Mapping[int, PartitionProgress]) -> None:
        self._table = table
        self._snapshot = snapshot
        self.partitions = dict(partitions)

    @classmethod
    def read(cls, table: TableFolder) -> Self:
        """Read the newest version."""
        snapshot = table.snapshot()
        return cls(table, snapshot, progress_of(snapshot))

    @property
    def log_incarnation(self) -> int:
        """Incarnation of the log that the state answers for."""
        return max((each.log_incarnation for each in self.partitions.values()), default=LOG_INCARNATION)

    @property
    def incarnation(self) -> int:
        """The newest incarnation of the state."""
        return max((each.incarnation for each in self.partitions.values()), default=NO_INCARNATION)

    @property
    def semantics(self) -> CoordinatorSemantics | None:
        """The coordinator semantics of the state; None before the first fold."""
        return next((each.semantics for each in self.partitions.values()), None)

    @property
    def incarnations(self) -> dict[int, int]:
        """The incarnation of the state by log partition."""
        return {at: each.incarnation for at, each in self.partitions.items()}

    @property
    def folded_to(self) -> dict[int, int]:
        """The first record offset of each log partition that is not folded yet."""
        return {at: each.folded_to for at, each in self.partitions.items()}

    def swap(self, partitions: Mapping[int, PartitionProgress]) -> None:
        """Commit these rows in place of all.

        Raises WriteConflict if another fold has swapped since this was read. A compaction is not in the way.
        """
        try:
            self._commit(partitions)
        except WriteConflict:
            newest = FoldProgress.read(self._table)
            if _compacted(self.partitions, newest.partitions) != newest.partitions:
                raise
            newest.swap(_compacted(partitions, newest.partitions))

    def compact_to(self, table: str, ends: Mapping[int, int]) -> None:
        """Raise `compacted_to` of a state table in these log partitions, before it gets base files with later rows.

        A log partition with a newer incarnation keeps its own: the base files are not of that. Raises WriteConflict if
        folds came first too often.
        """
        raised = {
            at: replace(each, compacted_to=compacted_to(0) | {table: ends.get(at, 0)})
            for at, each in self.partitions.items()
        }
        for attempt in range(_SWAPS):
            newest = FoldProgress.read(self._table)
            moved = _compacted(newest.partitions, raised)
            try:
                if moved != newest.partitions:
                    newest.swap(moved)
                break
            except WriteConflict:
                if attempt == _SWAPS - 1:
                    raise

    def _commit(self, partitions: Mapping[int, PartitionProgress]) -> None:
        rows = [
            {
                "log_partition": at,
                "log_incarnation": each.log_incarnation,
                "incarnation": each.incarnation,
                "coordinator_semantics": each.semantics.value,
                "folded_to": each.folded_to,
                "compacted_to": dict(each.compacted_to),
                "records": each.records,
                "unknown_records": each.unknown_records,
                "pending": each.pending,
                "folded_at": each.folded_at_us,
            }
            for at, each in sorted(partitions.items())
        ]
        self._table.commit(
            add=[self._table.write_file(pa.Table.from_pylist(rows, schema=_SCHEMA))],
            remove=self._snapshot.files(),
            seen=self._snapshot,
            advance={APPLICATION: self._snapshot.transaction(APPLICATION) + 1},
        )


def progress_of(snapshot: Snapshot) -> dict[int, PartitionProgress]:
    """The rows of a version of `fold_progress`, by log partition."""
    rows = snapshot.rows()
    folded_at = rows["folded_at"].cast(pa.int64()).to_pylist()
    rows = rows.drop_columns(["folded_at"])
    if not any(pc.list_value_length(rows["pending"]).to_pylist()):
        rows = rows.drop_columns(["pending"])  # they have times, and Arrow imports pandas to convert one
    found = zip(rows.to_pylist(), folded_at, strict=True)
    return {row["log_partition"]: _partition(row, folded_at_us) for row, folded_at_us in found}


def progressed(
    before: Mapping[int, PartitionProgress], replayed: Mapping[int, ReplayedPartition], now_ms: int
) -> dict[int, PartitionProgress]:
    """The progress of the log partitions of ``before`` behind a replay that started there."""
    moved = dict(before)
    for at, each in replayed.items():
        if at in before and each.records:
            moved[at] = replace(
                before[at],
                folded_to=each.folded_to,
                records=before[at].records + each.records,
                unknown_records=before[at].unknown_records + each.unknown_records,
                pending=each.pending,
                folded_at_us=now_ms * 1000,
            )
    return moved


def compacted_to(record_offset: int) -> dict[str, int]:
    """`compacted_to` of a log partition in which this is the end of the base rows of every state table."""
    return {each.name: record_offset for each in _SCHEMA.field("compacted_to").type}


def _compacted(
    partitions: Mapping[int, PartitionProgress], others: Mapping[int, PartitionProgress]
) -> dict[int, PartitionProgress]:
    """These partitions with the higher `compacted_to` of both; an incarnation takes none from another one."""
    found = dict(partitions)
    for at in partitions.keys() & others.keys():
        if partitions[at].incarnation == others[at].incarnation:
            one, other = partitions[at].compacted_to, others[at].compacted_to
            found[at] = replace(partitions[at], compacted_to={name: max(one[name], other[name]) for name in one})
    return found


def _partition(row: Mapping[str, Any], folded_at_us: int) -> PartitionProgress:
    return PartitionProgress(
        log_partition=row["log_partition"],
        log_incarnation=row["log_incarnation"],
        incarnation=row["incarnation"],
        semantics=CoordinatorSemantics(row["coordinator_semantics"]),
        folded_to=row["folded_to"],
        compacted_to=row["compacted_to"],
        records=row["records"],
        unknown_records=row["unknown_records"],
        folded_at_us=folded_at_us,
        pending=row.get("pending") or [],
    )
