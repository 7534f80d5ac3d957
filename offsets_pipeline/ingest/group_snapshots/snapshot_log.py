"""The log of a snapshot store: the changes from each look at a cluster's groups to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.common.closing import Closing
from offsets_pipeline.coordinator.appender import EXCLUSIVE, PARTITION
from offsets_pipeline.coordinator.core import CoordinatorCore
from offsets_pipeline.coordinator.owned_log import Record
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.coordinator.record_encoding import (
    commit_record,
    group_key,
    group_tombstones,
    offset_tombstone,
)
from offsets_pipeline.coordinator.requests import OffsetAndMetadata, Outcome
from offsets_pipeline.errors import NoSuchStore, NotAStore, StoreMismatch
from offsets_pipeline.semantics.partition_state import CommittedOffset, Group, PartitionState, TopicPartition
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.store.delta.filesystems import absolute_path
from offsets_pipeline.store.delta.properties import SCHEMA_PREFIX, SNAPSHOT, StoreProperties
from offsets_pipeline.store.delta.store_folder import create_tables, properties_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from offsets_pipeline.common.clock import Clock
    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.coordinator.appender import Claims, Request
    from offsets_pipeline.ingest.group_snapshots.group_snapshot import GroupSnapshot, GroupValues

_COMMIT_VERSION = 3
_TIMEOUT_MS = 300_000


class SnapshotLog(Closing):
    """The open log of a snapshot store, of a new one if there is none. Close it with `close`, or use it in ``with``."""

    def __init__(
        self,
        location: str,
        ask_cluster_id: Callable[[], str | None],
        offsets_partitions: int | None,
        settings: Settings,
        clock: Clock,
    ) -> None:
        """Check the store before asking the cluster for its id.

        Raises StoreMismatch if the store is of another kind or cluster, NotAStore, UnsafeStorage and the errors of
        `CoordinatorCore.start`.
        """
        if location.startswith(SCHEMA_PREFIX):
            raise NotAStore(f"cannot write snapshots to {location}: name the folder of the store")
        folder = absolute_path(location)
        try:
            properties = properties_of(folder)
        except NoSuchStore:
            count = offsets_partitions or settings.log.offsets_partitions
            create_tables(folder, StoreProperties(SNAPSHOT, count, ask_cluster_id()))
            properties = properties_of(folder)
        if properties.kind != SNAPSHOT:
            raise StoreMismatch(
                f"cannot write snapshots to {location}: it is a store of the kind {properties.kind}; name a new folder"
            )
        if offsets_partitions not in {None, properties.offsets_partitions}:
            raise StoreMismatch(
                f"{location} has {properties.offsets_partitions} log partitions, not {offsets_partitions}; leave out "
                "--offsets-partitions"
            )
        cluster_id = ask_cluster_id()
        if cluster_id is not None and properties.cluster_id not in {None, cluster_id}:
            raise StoreMismatch(
                f"cannot write snapshots of cluster {cluster_id} to {location}: it has those of cluster "
                f"{properties.cluster_id}; name another folder"
            )
        self._core = CoordinatorCore(OwnedStore(folder, properties), settings, clock)
        self._core.start(None)
        self.store = self._core.store

    def close(self) -> None:
        """Append the waiting requests, then end. Idempotent."""
        self._core.close()

    def group_ids(self) -> list[str]:
        """The groups of the last snapshot."""
        with self._core.lock:
            self._core.catch_up()
            return [group_id for state in self._core.partitions.loaded() for group_id in state.groups]

    def append(self, groups: Mapping[str, GroupSnapshot]) -> int:
        """Append the changes to these groups; returns the number of records. A group that is missing here is gone.

        The records of one group are in one append. Raises RequestTimedOut, StoreReplaced, UnsupportedTable.
        """
        n = self.store.properties.offsets_partitions
        by_partition: dict[int, dict[str, GroupSnapshot]] = {}
        for group_id, group in groups.items():
            by_partition.setdefault(partition_for(group_id, n), {})[group_id] = group
        requests = [self._submit_changes(at, by_partition.get(at, {})) for at in range(n)]
        return sum(int(request.result()) for request in requests)

    def _submit_changes(self, log_partition: int, groups: Mapping[str, GroupSnapshot]) -> Request:
        def handler(now_ms: int) -> Outcome[int]:
            records = list(_changes(self._core.partitions.state(log_partition), groups, now_ms))
            return Outcome(records, len(records))

        claims: Claims = {(PARTITION, log_partition): EXCLUSIVE}
        return self._core.submit(f"changes of log partition {log_partition}", handler, lambda: claims, _TIMEOUT_MS)


def _changes(state: PartitionState, groups: Mapping[str, GroupSnapshot], now_ms: int) -> Iterator[Record]:
    """The records that turn the state into these groups."""
    at = state.log_partition
    for group_id, gone in state.groups.items():
        if group_id not in groups:
            for where in state.offsets.get(group_id, {}):
                yield offset_tombstone(at, group_id, where)
            yield from group_tombstones(at, group_id, gone)
    for group_id, group in groups.items():
        held, known = state.groups.get(group_id), state.offsets.get(group_id, {})
        records, offsets = {} if held is None else held.records, known
        if held is not None and _is_replaced(held, group):
            yield from group_tombstones(at, group_id, held)
            records, offsets = {}, known if group.values else {}  # R14: only a commit creates a simple group
        if group.values is not None:
            yield from _group_changes(at, group_id, records, group.values)
        yield from _offset_changes(at, group_id, offsets, group, now_ms)
        for where in known:
            if where not in group.offsets:
                yield offset_tombstone(at, group_id, where)


def _is_replaced(held: Group, group: GroupSnapshot) -> bool:
    """Whether the group that the log has was deleted, or has changed its type (R14)."""
    return group.values is not None and bool(held.records) and (not group.values or held.group_type != group.group_type)


def _group_changes(at: int, group_id: str, known: GroupValues, wanted: GroupValues) -> Iterator[Record]:
    for name, value in wanted.items():
        if known.get(name) != value:
            yield Record(at, group_key(name[0], group_id, name[1]), value)
    for name in sorted(known.keys() - wanted.keys()):
        yield Record(at, group_key(name[0], group_id, name[1]), None)


def _offset_changes(
    at: int, group_id: str, known: Mapping[TopicPartition, CommittedOffset], group: GroupSnapshot, now_ms: int
) -> Iterator[Record]:
    for (topic, partition), answer in group.offsets.items():
        where = TopicPartition(topic, partition)
        held = known.get(where)
        if held is None or (held.committed_offset, held.leader_epoch, held.metadata) != answer:
            yield commit_record(at, group_id, where, OffsetAndMetadata(*answer), now_ms, version=_COMMIT_VERSION)
