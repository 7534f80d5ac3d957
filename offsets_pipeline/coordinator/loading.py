"""The load status of each log partition: Unloaded, Loading or Loaded (R28).

A load replays the log into a new state, and publishes it when it is complete. Rows that arrive during the load are
held, and replayed before the state is published.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsets_pipeline.errors import CoordinatorLoadInProgress, NotCoordinator, UnexpectedActiveGroup
from offsets_pipeline.semantics.compaction import compact_early
from offsets_pipeline.semantics.log_row import in_log_order
from offsets_pipeline.semantics.partition_state import PartitionState
from offsets_pipeline.semantics.table_replay import replay_table

if TYPE_CHECKING:
    from offsets_pipeline.semantics.group_description import GroupDescription

    #: Called for each group of a loaded log partition, with its id and its description.
    OnGroupLoaded = Callable[[str, GroupDescription], None]
    #: Called for each log partition at the end of its load, with the error if it was not loaded.
    OnPartitionLoaded = Callable[[int, Exception | None], None]

_LOG = logging.getLogger(__name__)

_COMPACT_AT_BYTES = 5_242_880  # rows of the log that a load holds before it compacts them


class LoadStatus(Enum):
    """The load status of a log partition (R28)."""

    UNLOADED = "Unloaded"
    LOADING = "Loading"
    LOADED = "Loaded"


@dataclass
class _Partition:
    """``load`` counts loads, so that an outdated load is not published. ``held``: rows that arrived during a load."""

    status: LoadStatus = LoadStatus.UNLOADED
    state: PartitionState | None = None
    load: int = 0
    held: list[pa.Table] = field(default_factory=list)
    load_ms: float | None = None


class Partitions:
    """The log partitions of a coordinator. Not thread-safe."""

    def __init__(self, offsets_partitions: int) -> None:
        self._offsets_partitions = offsets_partitions
        self._partitions = [_Partition() for _ in range(offsets_partitions)]

    def status(self, log_partition: int) -> LoadStatus:
        """Return the load status of a log partition. Raises NotCoordinator if there is no such log partition."""
        return self._partition(log_partition).status

    def state(self, log_partition: int) -> PartitionState:
        """Return the state of a log partition. Raises CoordinatorLoadInProgress, NotCoordinator if it is not loaded."""
        partition = self._partition(log_partition)
        if partition.status is LoadStatus.LOADING:
            raise CoordinatorLoadInProgress(f"log partition {log_partition} is loading; retry")
        if partition.state is None:
            raise NotCoordinator(
                f"log partition {log_partition} is not loaded here; load it, or ask the coordinator that has it"
            )
        return partition.state

    def loaded(self) -> Iterator[PartitionState]:
        """Return the states of all log partitions that have one."""
        return (state for partition in self._partitions if (state := partition.state) is not None)

    def not_unloaded(self) -> list[int]:
        """Return the log partitions that are loaded or loading."""
        return [number for number, each in enumerate(self._partitions) if each.status is not LoadStatus.UNLOADED]

    def load_ms(self) -> dict[int, float]:
        """Return the duration of the last load in milliseconds, by log partition."""
        times = {number: partition.load_ms for number, partition in enumerate(self._partitions)}
        return {number: each for number, each in times.items() if each is not None}

    def replay(self, rows: pa.Table) -> None:
        """Apply new rows of the log. They have the log's columns, sorted by log partition and record offset."""
        numbers = rows["log_partition"].to_numpy()
        for number in np.unique(numbers).tolist():
            partition = self._partitions[number]
            if partition.status is LoadStatus.UNLOADED:
                continue  # its rows need not be looked for
            of_partition = rows if numbers[0] == numbers[-1] else rows.filter(pc.equal(rows["log_partition"], number))
            if partition.status is LoadStatus.LOADING:
                partition.held.append(of_partition)
            elif partition.state is not None:
                replay_table(partition.state, of_partition)

    def begin_load(self, numbers: Collection[int]) -> Loading:
        """Begin to load log partitions. An earlier load of them that is still running becomes outdated."""
        tokens = {}
        for number in sorted(set(numbers)):
            partition = self._partition(number)
            partition.load += 1
            tokens[number] = partition.load
            partition.status = LoadStatus.LOADING
            partition.held = []
        return Loading(tokens, self._offsets_partitions)

    def wanted(self, loading: Loading) -> set[int]:
        """Return the log partitions of a load that were not unloaded, nor loaded again, since it began."""
        return {number for number, token in loading.tokens.items() if self._is_current(number, token)}

    def publish(self, loading: Loading) -> set[int]:
        """Publish the states of a load, and return their log partitions.

        Skips log partitions that were unloaded or loaded again since the load began.

        Raises UnexpectedActiveGroup if the log removed a group that is active in the state before the load. Publishes
        nothing then, and the state before the load stays.
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
        return wanted

    def forget(self, loading: Loading) -> None:
        """Drop the states before the load, because the log no longer has all their records."""
        for number in self.wanted(loading):
            self._partitions[number].state = None

    def give_up(self, loading: Loading) -> None:
        """End a failed load. The states before the load answer requests again."""
        for number in self.wanted(loading):
            partition = self._partitions[number]
            if partition.state is not None:
                for rows in partition.held:
                    replay_table(partition.state, rows)
            partition.status = LoadStatus.UNLOADED if partition.state is None else LoadStatus.LOADED
            partition.held = []

    def unload(self, number: int) -> None:
        """Unload a log partition. A running load of it becomes outdated, and will not be published."""
        partition = self._partition(number)
        self._partitions[number] = _Partition(load=partition.load + 1)

    def _is_current(self, number: int, token: int) -> bool:
        partition = self._partitions[number]
        return partition.status is LoadStatus.LOADING and partition.load == token

    def _partition(self, number: int) -> _Partition:
        if not 0 <= number < len(self._partitions):
            raise NotCoordinator(f"no log partition {number}: the store has 0 to {len(self._partitions) - 1}")
        return self._partitions[number]


class Loading:
    """A running load of some log partitions. `add` and `replay` need no lock."""

    def __init__(self, tokens: dict[int, int], offsets_partitions: int) -> None:
        self.tokens = tokens
        self.begun = time.monotonic()
        self.states = {number: PartitionState(number, offsets_partitions) for number in tokens}
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._compact_at_bytes = _COMPACT_AT_BYTES

    def add(self, rows: pa.Table) -> None:
        """Add rows of the log, in any order. Compacts them by raw key when they take too much memory (R10)."""
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes > self._compact_at_bytes:
            self._compact()
            # compacted rows grow with the number of keys; a doubled limit avoids a compaction at every call
            self._compact_at_bytes = max(self._compact_at_bytes, 2 * self._held_bytes)

    def replay(self, check: Callable[[], None] = lambda: None) -> None:
        """Replay the added rows into `states`. Calls ``check`` before each log partition; it may raise to cancel."""
        if not self._held:
            return
        self._compact()
        rows = in_log_order(self._held[0])
        for number, state in self.states.items():
            check()
            replay_table(state, rows.filter(pc.equal(rows["log_partition"], number)))

    def _compact(self) -> None:
        rows = _compacted(pa.concat_tables(self._held))
        self._held, self._held_bytes = [rows], rows.nbytes


@dataclass(frozen=True)
class LoadCallbacks:
    """The callbacks of a load. They run in the thread of the load, without a lock: they may call the coordinator.

    A callback that raises is logged. The load stays valid, and the other callbacks run.
    """

    group: OnGroupLoaded | None = None
    partition: OnPartitionLoaded | None = None

    def ended(
        self, log_partition: int, groups: Iterable[tuple[str, GroupDescription]] = (), error: Exception | None = None
    ) -> None:
        """Call the callbacks of a log partition whose load ended: for each of its groups, then for itself."""
        if self.group is not None:
            for group_id, description in groups:
                _call(partial(self.group, group_id, description), f"group {group_id!r}")
        if self.partition is not None:
            _call(partial(self.partition, log_partition, error), f"log partition {log_partition}")


def _call(callback: Callable[[], None], about: str) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001 - an error of a callback does not undo the load
        _LOG.exception("a callback after the load of %s failed", about)


def _compacted(rows: pa.Table) -> pa.Table:
    """Return the rows without commits that later commits of the same raw key supersede."""
    names = rows.schema.names
    rows = rows.append_column("records", pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows))
    return compact_early(rows, {}).select(names)


def _refuse_lost_groups(before: PartitionState | None, after: PartitionState) -> None:
    if before is None:
        return
    lost = [name for name, group in before.groups.items() if name not in after.groups and not group.is_empty]
    if lost:
        raise UnexpectedActiveGroup(
            f"log partition {after.log_partition} deletes group {min(lost)!r}, which is active here; "
            "unload the log partition, then load it"
        )
