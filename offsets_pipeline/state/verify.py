"""Whether the state is what a replay of the log gives.

Tasks replay whole log partitions and compare the result with the rows of the state that count there. The replay is the
columnar one, which also wrote the state, or the specification (independent.py), which finds a fault of the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.config.sections import FoldSettings
from offsets_pipeline.delta.schemas import FOLD_PROGRESS, LOG
from offsets_pipeline.log.log_range import LogRange
from offsets_pipeline.log.log_reader import LogReader
from offsets_pipeline.log.metadata import cleaned_to, partition_count
from offsets_pipeline.semantics.answering import DEAD
from offsets_pipeline.semantics.effects import GROUP_COMMIT, GROUP_RECORD, OFFSET, PENDING, PROGRESS, effects_by_kind
from offsets_pipeline.semantics.group_rows import described
from offsets_pipeline.semantics.group_types import GROUP_REMOVING_TYPES
from offsets_pipeline.state.belonging import belonging
from offsets_pipeline.state.by_topic_kind import replay_start
from offsets_pipeline.state.changes import partitions_of, state_rows
from offsets_pipeline.state.fold_progress import FoldProgress
from offsets_pipeline.state.independent import Specified, Unreplayed
from offsets_pipeline.state.merge_on_read import DESCRIBED, OFFSETS, RECORDS, state_tables_of
from offsets_pipeline.state.replay_job import replay_log
from offsets_pipeline.state.verification import EXAMPLES, StateRows, Verification, ordered, place
from offsets_pipeline.state.verify_topic import TopicComparison

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
    from offsets_pipeline.state.fold_progress import PartitionProgress
    from offsets_pipeline.store import Store


@dataclass(frozen=True)
class _Comparison(StateRows):
    """Compares replayed log partitions with their state; picklable."""

    offsets_partitions: int
    semantics: CoordinatorSemantics
    cleaned_to: Mapping[int, int]

    def __call__(self, effects: Iterator[pa.RecordBatch]) -> tuple[set[int], Verification]:
        by_kind = effects_by_kind(effects)
        replayed = partitions_of(by_kind[PROGRESS], by_kind[PENDING])
        result = self.compare(
            set(replayed),
            state_rows(OFFSETS, by_kind[OFFSET]),
            pa.concat_tables(state_rows(RECORDS, by_kind[kind]) for kind in (GROUP_RECORD, GROUP_COMMIT)),
        )
        for at, each in replayed.items():
            known = self.progress[at]
            result.records += each.records
            result.note_progress(at, place(each.folded_to, each.pending), place(known.folded_to, known.pending))
        return set(replayed), result

    def independently(self, tables: Iterator[pa.Table]) -> tuple[set[int], Verification]:
        """Replay rows of the log by the specification, and compare."""
        specified = Specified(tables, self.offsets_partitions, self.semantics)
        partitions = set(specified.states)
        result = Verification(log_partitions=len(partitions), records=specified.records)
        found = self.state(OFFSETS, partitions)
        live = found.filter(found["committed_offset"].is_valid())
        result.offsets = specified.offsets().num_rows
        expected, live = (
            ordered(OFFSETS, each).drop_columns(["position"])  # the specification has no such number
            for each in (specified.offsets(), live)
        )
        result.compare(OFFSETS.name, OFFSETS.key, expected, live)
        groups = specified.groups()
        result.groups = groups.num_rows
        expected, described_groups = (
            _existing(ordered(DESCRIBED, each)) for each in (groups, self.state(DESCRIBED, partitions))
        )
        result.compare(DESCRIBED.name, DESCRIBED.key, expected, described_groups)
        for at, state in specified.states.items():
            known = self.progress[at]
            result.note_progress(at, place(*specified.progress(state)), place(known.folded_to, _pending_places(known)))
        return partitions, result

    def compare(self, partitions: set[int], offsets: pa.Table, records: pa.Table) -> Verification:
        """Compare the replayed rows of these log partitions with the state."""
        result = Verification(log_partitions=len(partitions))
        of_state = self.state(OFFSETS, partitions)
        result.offsets = offsets.num_rows - offsets["committed_offset"].null_count
        result.compare(OFFSETS.name, OFFSETS.key, *(self._kept(ordered(OFFSETS, each)) for each in (offsets, of_state)))
        known = _live if self.cleaned_to else _but_commits
        of_state = self.state(RECORDS, partitions)
        result.compare(RECORDS.name, RECORDS.key, *(known(ordered(RECORDS, each)) for each in (records, of_state)))
        groups = pa.Table.from_batches(
            described(ordered(RECORDS, records).to_batches(), self.offsets_partitions, self.semantics),
            DESCRIBED.row_schema(),
        )
        expected, found = (_existing(ordered(DESCRIBED, each)) for each in (groups, self.state(DESCRIBED, partitions)))
        result.groups = expected.num_rows
        result.compare(DESCRIBED.name, DESCRIBED.key, expected, found)
        return result

    def without_records(self, partitions: set[int]) -> Verification:
        """Compare log partitions that have no records with the state, which should have no rows of them."""
        return self.compare(partitions, OFFSETS.row_schema().empty_table(), RECORDS.row_schema().empty_table())

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
    Ignores records that are appended during the run. A fold during the run may cause a difference: stop the stream.

    Raises DamagedTable if a table does not belong to the progress.
    """
    progress = FoldProgress.read(store.table(FOLD_PROGRESS.name))
    log = store.table(LOG.name)
    starts = {at: replace(each, folded_to=0, pending=[]) for at, each in progress.partitions.items()}
    semantics = progress.semantics or store.properties.coordinator_semantics
    log_range = LogRange(dict.fromkeys(starts, 0), progress.folded_to, progress.log_incarnation)
    count = partition_count(store, progress.log_incarnation)
    start = replay_start(store.properties, count, semantics, starts)
    reader = LogReader(log, log_range, start.schema, None if independent else start.compact)
    files = [file for file in log.snapshot().files() if reader.range.may_hold(file)]
    names = [name for each in state_tables_of(store.properties.topic_kind) for name in each.names]
    known = {name: belonging(store.table(name), progress) for name in dict.fromkeys([*names, *progress.versions])}
    tables = {name: (store.table(name), known[name].version) for name in names}
    cleaned = cleaned_to(store, progress.log_incarnation)
    comparison: _Comparison | TopicComparison
    if store.properties.topic_kind.is_connect:
        comparison = TopicComparison(tables, progress.partitions, store.properties.topic_kind)
    else:
        comparison = _Comparison(tables, progress.partitions, count, semantics, cleaned)
    driver_rows = (settings or FoldSettings()).driver_rows
    whole, compared = Verification(), set()
    if independent:
        results = replay_log(
            store.spark, reader, files, Unreplayed(start.schema), driver_rows, comparison.independently
        )
    else:
        results = replay_log(store.spark, reader, files, start, driver_rows, comparison)
    for partitions, each in results:
        compared |= partitions
        whole.add(each)
    of_others = comparison.without_records(progress.partitions.keys() - compared)
    of_others.log_partitions = 0  # nothing is there to compare with, and nothing should be
    whole.add(of_others)
    for at in set(range(count) if progress.partitions else ()) - progress.partitions.keys():
        whole.note_progress(at, "a row", "none")
    del whole.examples[EXAMPLES:]
    return whole


def _pending_places(progress: PartitionProgress) -> set[tuple[object, ...]]:
    return {
        (each["producer_id"], each["group_id"], each["topic"], each["partition"], each["record_offset"])
        for each in progress.pending
    }


def _existing(groups: pa.Table) -> pa.Table:
    """The groups that exist; a published one says nothing by an empty protocol, as a broker does (R34)."""
    existing = groups.filter(pc.not_equal(groups["state"], DEAD)).drop_columns(["record_offset"])
    protocol = pc.fill_null(existing["protocol"], "")
    return existing.set_column(existing.schema.get_field_index("protocol"), "protocol", protocol)


def _but_commits(records: pa.Table) -> pa.Table:
    """Rows of types other than 1. Of commits the state keeps only the proof of a group, which `groups` shows."""
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
