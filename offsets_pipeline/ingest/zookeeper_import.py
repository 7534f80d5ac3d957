"""Imports the offsets of Kafka's first consumers from ZooKeeper nodes into an owned store.

The commit timestamp is the time of the import, so no offset expires at once. The commit's metadata keep the time at
which the consumer committed to ZooKeeper (docs/adr/0023). Members are never imported (R25).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from offsets_pipeline.common.clock import parse_time_ms, shown_time
from offsets_pipeline.coordinator.requests import OffsetAndMetadata
from offsets_pipeline.coordinator.zookeeper.consumer_nodes import ROOT, GroupNodes, NodeOffset, SkippedNode
from offsets_pipeline.errors import (
    IllegalGeneration,
    InvalidCommitOffsetSize,
    InvalidGroupId,
    InvalidTime,
    NoSuchGroup,
    OffsetsError,
    RebalanceInProgress,
    StaleMemberEpoch,
    UnknownMemberId,
    UnknownTopicOrPartition,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from offsets_pipeline.coordinator.coordinator import Coordinator
    from offsets_pipeline.semantics.partition_state import CommittedOffset, TopicPartition

#: Reasons for which the coordinator refuses the offsets of one group.
_REFUSALS = (
    IllegalGeneration,
    InvalidCommitOffsetSize,
    InvalidGroupId,
    NoSuchGroup,
    RebalanceInProgress,
    StaleMemberEpoch,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
_METADATA = re.compile(r"zookeeper(?: mtime=(\S+))?")
#: Commits of many groups wait together, so the last one needs long.
_TIMEOUT_MS = 600_000
_GROUPS_IN_FLIGHT = 200
_MAX_COMMIT_BYTES = 500_000
_BYTES_OF_OFFSET = 200  # of a record, without the names of group and topic


class Decision(Enum):
    """Decision of an import about an offset."""

    IMPORT = "import"
    UP_TO_DATE = "up to date"
    KEEP = "keep"


@dataclass
class ImportedGroup:
    """The result for one group. ``kept`` counts partitions with a later commit in the store, which stays."""

    nodes: GroupNodes
    imported: int = 0
    up_to_date: int = 0
    kept: int = 0
    skipped: list[SkippedNode] = field(default_factory=list)


def import_offsets(coordinator: Coordinator, groups: Iterable[GroupNodes]) -> Iterator[ImportedGroup]:
    """Commit the offsets of these groups, and yield the result of each.

    Running it again commits only offsets that are missing or newer. It never sets an offset back that was committed to
    the store since. Raises the errors of `Coordinator.commit_offsets`, except those that refuse one group.
    """
    waiting: deque[_Import] = deque()
    for nodes in groups:
        waiting.append(_Import(coordinator, nodes))
        if len(waiting) >= _GROUPS_IN_FLIGHT:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def decide(node: NodeOffset, held: CommittedOffset | None) -> Decision:
    """Return what to do with an offset, given the committed offset of the store."""
    if held is None:
        return Decision.IMPORT
    imported = _METADATA.fullmatch(held.metadata)
    before_ms = None
    try:
        if imported is not None and imported[1] is not None:
            before_ms = parse_time_ms(imported[1])
    except InvalidTime:
        imported = None
    if imported is None:  # committed to the store: only a later commit to ZooKeeper moves it, and only forward
        later = node.modified_ms is not None and node.modified_ms > held.commit_timestamp_ms
        return Decision.IMPORT if later and node.offset > held.committed_offset else Decision.KEEP
    if node.modified_ms is None or before_ms is None:
        newer = node.offset > held.committed_offset
    else:
        newer = (node.modified_ms, node.offset != held.committed_offset) > (before_ms, False)
    return Decision.IMPORT if newer else Decision.UP_TO_DATE


def metadata_of(node: NodeOffset) -> str:
    """Return the metadata of an imported commit: where it comes from, and since when it is there."""
    return "zookeeper" if node.modified_ms is None else f"zookeeper mtime={shown_time(node.modified_ms)}"


class _Import:
    """The running import of one group: some commits, so that none is too large."""

    def __init__(self, coordinator: Coordinator, nodes: GroupNodes) -> None:
        self._result = ImportedGroup(nodes, skipped=list(nodes.skipped))
        self._decisions: dict[TopicPartition, Decision] = {}
        self._commits: list[Future[set[TopicPartition]]] = []
        try:
            self._commits += [
                coordinator.commit_offsets_if(nodes.group_id, each, self._is_wanted, timeout_ms=_TIMEOUT_MS)
                for each in self._batches()
            ]
        except _REFUSALS as error:
            self._refuse(error)

    def result(self) -> ImportedGroup:
        """Wait for the commits."""
        result = self._result
        for commit in self._commits:
            try:
                commit.result()
            except _REFUSALS as error:
                self._refuse(error)
                return result
        found = list(self._decisions.values())
        result.imported, result.up_to_date, result.kept = (found.count(each) for each in Decision)
        return result

    def _batches(self) -> Iterator[dict[TopicPartition, OffsetAndMetadata]]:
        group_id, size = self._result.nodes.group_id, 0
        batch: dict[TopicPartition, OffsetAndMetadata] = {}
        for where, node in self._result.nodes.offsets.items():
            bytes_of_offset = _BYTES_OF_OFFSET + 4 * (len(group_id) + len(where.topic))
            if batch and size + bytes_of_offset > _MAX_COMMIT_BYTES:
                yield batch
                batch, size = {}, 0
            size += bytes_of_offset
            batch[where] = OffsetAndMetadata(node.offset, metadata=metadata_of(node))
        if batch:
            yield batch

    def _is_wanted(self, where: TopicPartition, held: CommittedOffset | None) -> bool:
        self._decisions[where] = decide(self._result.nodes.offsets[where], held)
        return self._decisions[where] is Decision.IMPORT

    def _refuse(self, error: OffsetsError) -> None:
        self._result.skipped.append(SkippedNode(f"{ROOT}/{self._result.nodes.group_id}", str(error)))
