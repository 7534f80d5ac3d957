"""Whether the state is what a replay of the log gives.

Tasks replay whole log partitions and compare the result with the rows of the state that count there. The replay is the
columnar one, which also wrote the state, or the specification (independent.py), which finds a fault of the other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.config import FoldSettings
from offsets_pipeline.delta.schemas import FOLD_PROGRESS, LOG
from offsets_pipeline.log.log_reader import LogRange, LogReader
from offsets_pipeline.log.metadata import cleaned_to, partition_count
from offsets_pipeline.semantics.effects import GROUP_COMMIT, GROUP_RECORD, OFFSET, PENDING, PROGRESS
from offsets_pipeline.semantics.group_rows import described
from offsets_pipeline.semantics.group_types import GROUP_REMOVING_TYPES
from offsets_pipeline.state.changes import in_key_order, partitions_of, state_rows
from offsets_pipeline.state.fold_progress import FoldProgress
from offsets_pipeline.state.independent import Specified, Unreplayed
from offsets_pipeline.state.merge_on_read import DESCRIBED, OFFSETS, RECORDS, STATE_TABLES, StateTable, named_rows
from offsets_pipeline.state.replay_job import ReplayStart, replay_log

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from offsets_pipeline.delta.table_folder import TableFolder
    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
    from offsets_pipeline.state.fold_progress import PartitionProgress
    from offsets_pipeline.store import Store

_EXAMPLES = 5


@dataclass
class Verification:
    """Numbers of what was compared; differences by table, and the first few of them in words."""

    log_partitions: int = 0
    records: int = 0
    offsets: int = 0
    groups: int = 0
    differences: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def add(self, other: Verification) -> None:
        """Take in the comparison of other log partitions."""
        self.log_partitions += other.log_partitions
        self.records += other.records
        self.offsets += other.offsets
        self.groups += other.groups
        for table, count in other.differences.items():
            self.differences[table] = self.differences.get(table, 0) + count
        self.examples += other.examples

    def note_progress(self, log_partition: int, of_log: object, of_state: object) -> None:
        """Note a log partition whose end or pending commits differ."""
        if of_log != of_state:
            self.differences[FOLD_PROGRESS.name] = self.differences.get(FOLD_PROGRESS.name, 0) + 1
            self.examples.append(
                f"{FOLD_PROGRESS.name}: log_partition {log_partition}: the log gives {of_log}, the state has {of_state}"
            )

    def compare(self, table: str, key: tuple[str, ...], expected: pa.Table, found: pa.Table) -> None:
        """Note rows that only one of the two has, rows that differ, and rows that ``found`` has more than once."""
        if expected.equals(found):
            return
        columns = [name for name in expected.column_names if name not in key]
        of_log = _by_key(expected, key, columns)
        copies = Counter(zip(*(found[name].to_pylist() for name in key), strict=True))
        of_state = _by_key(found, key, columns)
        differing = [
            at for at in of_log.keys() | of_state.keys() if of_log.get(at) != of_state.get(at) or copies[at] > 1
        ]
        if not differing:
            return
        self.differences[table] = self.differences.get(table, 0) + len(differing)
        for at in sorted(differing, key=repr)[:_EXAMPLES]:
            where = ", ".join(f"{name} {value!r}" for name, value in zip(key, at, strict=True))
            times = f" {copies[at]} times" if copies[at] > 1 else ""
            self.examples.append(
                f"{table}: {where}: the log gives {of_log.get(at, 'nothing')}, "
                f"the state has {of_state.get(at, 'nothing')}{times}"
            )


@dataclass(frozen=True)
class _Comparison:
    """Compares replayed log partitions with their state; picklable."""

    tables: Mapping[str, tuple[TableFolder, int]]  # with the version to read
    progress: Mapping[int, PartitionProgress]
    offsets_partitions: int
    semantics: CoordinatorSemantics
    cleaned_to: Mapping[int, int]

    def __call__(self, effects: Iterator[pa.RecordBatch]) -> tuple[set[int], Verification]:
        by_kind: dict[str, list[pa.RecordBatch]] = {}
        for batch in effects:
            if batch.num_rows:
                by_kind.setdefault(batch["kind"][0].as_py(), []).append(batch)
        replayed = partitions_of(by_kind.get(PROGRESS, []), by_kind.get(PENDING, []))
        result = self.compare(
            set(replayed),
            state_rows(OFFSETS, by_kind.get(OFFSET, [])),
            pa.concat_tables(state_rows(RECORDS, by_kind.get(kind, [])) for kind in (GROUP_RECORD, GROUP_COMMIT)),
        )
        for at, each in replayed.items():
            known = self.progress[at]
            result.records += each.records
            result.note_progress(at, _place(each.folded_to, each.pending), _place(known.folded_to, known.pending))
        return set(replayed), result

    def independently(self, tables: Iterator[pa.Table]) -> tuple[set[int], Verification]:
        """Replay rows of the log by the specification, and compare."""
        specified = Specified(tables, self.offsets_partitions, self.semantics)
        partitions = set(specified.states)
        result = Verification(log_partitions=len(partitions), records=specified.records)
        found = self._state(OFFSETS, partitions)
        live = found.filter(found["committed_offset"].is_valid())
        result.offsets = specified.offsets().num_rows
        expected, live = (
            _ordered(OFFSETS, each).drop_columns(["position"])  # the specification has no such number
            for each in (specified.offsets(), live)
        )
        result.compare(OFFSETS.name, OFFSETS.key, expected, live)
        groups = specified.groups()
        result.groups = groups.num_rows
        expected, described_groups = (
            _existing(_ordered(DESCRIBED, each)) for each in (groups, self._state(DESCRIBED, partitions))
        )
        result.compare(DESCRIBED.name, DESCRIBED.key, expected, described_groups)
        for at, state in specified.states.items():
            known = self.progress[at]
            result.note_progress(
                at, _place(*specified.progress(state)), _place(known.folded_to, _pending_places(known))
            )
        return partitions, result

    def compare(self, partitions: set[int], offsets: pa.Table, records: pa.Table) -> Verification:
        """Compare the replayed rows of these log partitions with the state."""
        result = Verification(log_partitions=len(partitions))
        of_state = self._state(OFFSETS, partitions)
        result.offsets = offsets.num_rows - offsets["committed_offset"].null_count
        result.compare(
            OFFSETS.name, OFFSETS.key, *(self._kept(_ordered(OFFSETS, each)) for each in (offsets, of_state))
        )
        known = _live if self.cleaned_to else _but_commits
        of_state = self._state(RECORDS, partitions)
        result.compare(RECORDS.name, RECORDS.key, *(known(_ordered(RECORDS, each)) for each in (records, of_state)))
        groups = pa.Table.from_batches(
            described(_ordered(RECORDS, records).to_batches(), self.offsets_partitions, self.semantics),
            DESCRIBED.file_schema(),
        )
        expected, found = (
            _existing(_ordered(DESCRIBED, each)) for each in (groups, self._state(DESCRIBED, partitions))
        )
        result.groups = expected.num_rows
        result.compare(DESCRIBED.name, DESCRIBED.key, expected, found)
        return result

    def _state(self, table: StateTable, partitions: set[int]) -> pa.Table:
        """The rows of the state of these log partitions that count."""
        schema = table.file_schema()
        if not partitions:
            return schema.empty_table()
        folder, version = self.tables[table.name]
        named = named_rows({at: self.progress[at].incarnation for at in partitions})
        where = f"{named} AND log_partition IN ({', '.join(map(str, sorted(partitions)))})"
        return folder.snapshot(version).query(table.newest(table.name, where)).read_all().cast(schema)

    def _kept(self, offsets: pa.Table) -> pa.Table:
        """The offsets without tombstones that a cleaning of the log may have removed (R23)."""
        if not self.cleaned_to:
            return offsets
        partition = offsets["log_partition"].to_numpy()
        cleaned = np.zeros(max(int(partition.max(initial=-1)), *self.cleaned_to) + 1, dtype=np.int64)
        cleaned[list(self.cleaned_to)] = list(self.cleaned_to.values())
        is_tombstone = offsets["committed_offset"].is_null().to_numpy()
        return offsets.filter(pa.array(~(is_tombstone & (offsets["record_offset"].to_numpy() < cleaned[partition]))))


def verify_store(store: Store, settings: FoldSettings | None = None, *, independent: bool = False) -> Verification:
    """Replay the log from its start, as far as it is folded, and compare the result with the state tables.

    With ``independent`` the specification replays, record by record: some 20 microseconds a record and core.
    Looks at no records that are appended meanwhile. A stream that folds meanwhile may cause a difference: stop it.
    """
    progress = FoldProgress.read(store.table(FOLD_PROGRESS.name))
    log = store.table(LOG.name)
    starts = dict.fromkeys(progress.partitions, 0)
    semantics = progress.semantics or store.properties.coordinator_semantics
    log_range = LogRange(starts, progress.folded_to, progress.log_incarnation)
    reader = LogReader(log, log_range, semantics, compacts=not independent)
    count = partition_count(store, progress.log_incarnation)
    files = [file for file in log.snapshot().files() if reader.range.may_hold(file)]
    folders = {each.name: store.table(each.name) for each in STATE_TABLES}
    comparison = _Comparison(
        {name: (folder, folder.snapshot().version) for name, folder in folders.items()},
        progress.partitions,
        count,
        semantics,
        cleaned_to(store, progress.log_incarnation),
    )
    driver_rows = (settings or FoldSettings()).driver_rows
    whole, compared = Verification(), set()
    if independent:
        results = replay_log(store.spark, reader, files, Unreplayed(), driver_rows, comparison.independently)
    else:
        start = ReplayStart(count, semantics)
        results = replay_log(store.spark, reader, files, start, driver_rows, comparison)
    for partitions, each in results:
        compared |= partitions
        whole.add(each)
    of_others = comparison.compare(
        progress.partitions.keys() - compared, OFFSETS.file_schema().empty_table(), RECORDS.file_schema().empty_table()
    )
    of_others.log_partitions = 0  # nothing is there to compare with, and nothing should be
    whole.add(of_others)
    for at in set(range(count) if progress.partitions else ()) - progress.partitions.keys():
        whole.note_progress(at, "a row", "none")
    del whole.examples[_EXAMPLES:]
    return whole


def _place(folded_to: int, pending: object) -> dict[str, object]:
    return {"folded_to": folded_to, "pending": pending}


def _pending_places(progress: PartitionProgress) -> set[tuple[object, ...]]:
    return {
        (each["producer_id"], each["group_id"], each["topic"], each["partition"], each["record_offset"])
        for each in progress.pending
    }


def _ordered(table: StateTable, rows: pa.Table) -> pa.Table:
    return in_key_order(table, rows.combine_chunks()).combine_chunks()


def _by_key(rows: pa.Table, key: tuple[str, ...], columns: list[str]) -> dict[tuple[Any, ...], dict[str, Any]]:
    keys = zip(*(rows[name].to_pylist() for name in key), strict=True)
    return dict(zip(keys, rows.select(columns).to_pylist(), strict=True))


def _existing(groups: pa.Table) -> pa.Table:
    return groups.filter(pc.not_equal(groups["state"], "Dead")).drop_columns(["record_offset"])


def _but_commits(records: pa.Table) -> pa.Table:
    """Rows of other types than 1: of commits the state only has what tells that a group exists, as `groups` shows."""
    return records.filter(pc.not_equal(records["record_type"], 1))


def _live(records: pa.Table) -> pa.Table:
    """The values that no later tombstone of their key or their group hides (R14), but for commits.

    A log that was cleaned has no others (R23).
    """
    removed: dict[tuple[int, str], int] = {}
    rows = _but_commits(records).to_pylist()
    for row in rows:
        if row["record_type"] in GROUP_REMOVING_TYPES and row["tombstone_offset"] is not None:
            at = row["log_partition"], row["group_id"]
            removed[at] = max(row["tombstone_offset"], removed.get(at, -1))
    live = []
    for row in rows:
        group_removed = removed.get((row["log_partition"], row["group_id"]), -1)
        hidden_to = max(-1 if row["tombstone_offset"] is None else row["tombstone_offset"], group_removed)
        if row["value_offset"] is not None and row["value_offset"] > hidden_to:
            live.append({**row, "tombstone_offset": None})
    return pa.Table.from_pylist(live, schema=records.schema)
