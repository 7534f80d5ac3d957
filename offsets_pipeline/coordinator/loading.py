"""Which log partitions are loaded: Unloaded, Loading, Loaded (R28), each on its own.

Loading replays the log into a state of its own and publishes it when it is whole. What comes into the log meanwhile is
held, and replayed behind it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.errors import CoordinatorLoadInProgress, NotCoordinator, UnexpectedActiveGroup
from offsets_pipeline.semantics.compaction import compact_early
from offsets_pipeline.semantics.partition_state import PartitionState
from offsets_pipeline.semantics.table_replay import replay_table

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


class LoadStatus(Enum):
    """Where a log partition stands (R28)."""

    UNLOADED = "Unloaded"
    LOADING = "Loading"
    LOADED = "Loaded"


@dataclass
class _Partition:
    """``load`` counts the loads: one that was unloaded meanwhile must not publish. ``held``: rows for behind it."""

    status: LoadStatus = LoadStatus.UNLOADED
    state: PartitionState | None = None
    load: int = 0
    held: list[pa.Table] = field(default_factory=list)
    load_ms: float | None = None


class Partitions:
    """The log partitions of a coordinator; one thread at a time."""

    def __init__(self, offsets_partitions: int, load_buffer_bytes: int) -> None:
        self._offsets_partitions = offsets_partitions
        self._load_buffer_bytes = load_buffer_bytes
        self._partitions = [_Partition() for _ in range(offsets_partitions)]

    def status(self, log_partition: int) -> LoadStatus:
        """Where a log partition stands."""
        return self._partition(log_partition).status

    def state(self, log_partition: int) -> PartitionState:
        """The state of a log partition. Raises NotCoordinator, CoordinatorLoadInProgress where it is not loaded."""
        partition = self._partition(log_partition)
        if partition.status is LoadStatus.LOADING:
            raise CoordinatorLoadInProgress(f"log partition {log_partition} is being loaded: ask again")
        if partition.state is None:
            raise NotCoordinator(f"log partition {log_partition} is not loaded here: load it, or ask where it is")
        return partition.state

    def loaded(self) -> Iterator[PartitionState]:
        """The states of all log partitions that are loaded."""
        return (partition.state for partition in self._partitions if partition.state is not None)

    def not_unloaded(self) -> list[int]:
        """The numbers of all that are loaded, or being loaded."""
        return [number for number, each in enumerate(self._partitions) if each.status is not LoadStatus.UNLOADED]

    def load_ms(self) -> dict[int, float]:
        """How long it took to load each log partition that is loaded, in milliseconds."""
        times = {number: partition.load_ms for number, partition in enumerate(self._partitions)}
        return {number: each for number, each in times.items() if each is not None}

    def replay(self, rows: pa.Table) -> None:
        """Take what came into the log: rows with the log's columns, of each log partition in order."""
        numbers = rows["log_partition"].to_numpy()
        for number in np.unique(numbers).tolist():
            partition = self._partitions[number]
            if partition.status is LoadStatus.UNLOADED:
                continue
            of_partition = rows if numbers[0] == numbers[-1] else rows.filter(pc.equal(rows["log_partition"], number))
            if partition.status is LoadStatus.LOADING:
                partition.held.append(of_partition)
            elif partition.state is not None:
                replay_table(partition.state, of_partition)

    def begin_load(self, numbers: Collection[int]) -> Loading:
        """Begin to load log partitions; one that is being loaded begins anew."""
        tokens = {}
        for number in sorted(set(numbers)):
            partition = self._partition(number)
            partition.load += 1
            tokens[number] = partition.load
            partition.status = LoadStatus.LOADING
            partition.held = []
        return Loading(tokens, self._offsets_partitions, self._load_buffer_bytes)

    def wanted(self, loading: Loading) -> set[int]:
        """The log partitions of a load that nobody unloaded, or began to load again, meanwhile."""
        return {number for number, token in loading.tokens.items() if self._is_current(number, token)}

    def publish(self, loading: Loading) -> None:
        """Let the load's states answer; of log partitions that were unloaded meanwhile nothing is published.

        Raises UnexpectedActiveGroup where the log removed a group that was active in what was loaded before: then
        that stays, and nothing is published.
        """
        wanted = self.wanted(loading)
        for number in wanted:
            partition = self._partitions[number]
            for rows in partition.held:
                replay_table(loading.states[number], rows)
                if partition.state is not None:
                    replay_table(partition.state, rows)
            partition.held = []
        for number in wanted:
            _refuse_lost_groups(self._partitions[number].state, loading.states[number])
        for number in wanted:
            partition = self._partitions[number]
            partition.state, partition.status = loading.states[number], LoadStatus.LOADED
            partition.load_ms = (time.monotonic() - loading.begun) * 1000

    def forget(self, loading: Loading) -> None:
        """Let a load take nothing from what was loaded before: that came from records which are gone."""
        for number in self.wanted(loading):
            self._partitions[number].state = None

    def give_up(self, loading: Loading) -> None:
        """End a load that failed: what was loaded before answers again."""
        for number in self.wanted(loading):
            partition = self._partitions[number]
            if partition.state is not None:
                for rows in partition.held:
                    replay_table(partition.state, rows)
            partition.status = LoadStatus.UNLOADED if partition.state is None else LoadStatus.LOADED
            partition.held = []

    def unload(self, number: int) -> None:
        """Forget a log partition; a load of it that is under way will not publish it."""
        partition = self._partition(number)
        self._partitions[number] = _Partition(load=partition.load + 1)

    def _is_current(self, number: int, token: int) -> bool:
        partition = self._partitions[number]
        return partition.status is LoadStatus.LOADING and partition.load == token

    def _partition(self, number: int) -> _Partition:
        if not 0 <= number < len(self._partitions):
            raise NotCoordinator(f"there is no log partition {number}: they are 0 to {len(self._partitions) - 1}")
        return self._partitions[number]


class Loading:
    """A load of some log partitions that is under way; used without holding up anybody."""

    def __init__(self, tokens: dict[int, int], offsets_partitions: int, buffer_bytes: int) -> None:
        self.tokens = tokens
        self.begun = time.monotonic()
        self.states = {number: PartitionState(number, offsets_partitions) for number in tokens}
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._compact_at_bytes = buffer_bytes

    def add(self, rows: pa.Table) -> None:
        """Take rows of the log, in any order: they are compacted by raw key, and decoded in the end (R10)."""
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes > self._compact_at_bytes:
            self._compact()
            # what stays grows with the keys, not with the log: not to look at it too often, it may double
            self._compact_at_bytes = max(self._compact_at_bytes, 2 * self._held_bytes)

    def replay(self) -> None:
        """Replay what was added."""
        if not self._held:
            return
        self._compact()
        rows = self._held[0].sort_by([("log_partition", "ascending"), ("record_offset", "ascending")])
        for number, state in self.states.items():
            replay_table(state, rows.filter(pc.equal(rows["log_partition"], number)))

    def _compact(self) -> None:
        rows = _compacted(pa.concat_tables(self._held))
        self._held, self._held_bytes = [rows], rows.nbytes


def _compacted(rows: pa.Table) -> pa.Table:
    """The rows without commits that later ones of the same raw key make superfluous."""
    names = rows.schema.names
    rows = rows.append_column("backfill", pa.repeat(pa.scalar(False), rows.num_rows))
    rows = rows.append_column("records", pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows))
    return compact_early(rows, {}).select(names)


def _refuse_lost_groups(before: PartitionState | None, after: PartitionState) -> None:
    if before is None:
        return
    lost = [name for name, group in before.groups.items() if name not in after.groups and not group.is_empty]
    if lost:
        raise UnexpectedActiveGroup(
            f"group {min(lost)!r} is active here, and log partition {after.log_partition} removed it: "
            "unload the partition, then load it"
        )
