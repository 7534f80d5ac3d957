"""Commits, fetches and deletions of offsets in the log (R17, R24-R27)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from offsets_pipeline.coordinator import commits, groups
from offsets_pipeline.coordinator.requests import NO_MEMBER, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from concurrent.futures import Future

    from offsets_pipeline.coordinator.appender import Request
    from offsets_pipeline.coordinator.commits import FetchedOffset
    from offsets_pipeline.coordinator.core import CoordinatorCore
    from offsets_pipeline.coordinator.requests import MemberOfGroup, OffsetCommit
    from offsets_pipeline.semantics.partition_state import CommittedOffset, PartitionState, TopicPartition

    #: Asks whether to commit a partition, given its committed offset in the log or None.
    IsWanted = Callable[[TopicPartition, CommittedOffset | None], bool]


class PendingCommit(Protocol):
    """A commit that was submitted."""

    @property
    def done(self) -> Future[None]:
        """The future of the commit."""

    def result(self) -> None:
        """Wait for the commit. Raises its error, or RequestTimedOut at its deadline."""


class LogOffsets:
    """The offsets of a coordinator's groups."""

    def __init__(self, core: CoordinatorCore) -> None:
        self._core = core

    def close(self) -> None:
        """Disconnect from any other storage of offsets."""

    def refuse_transactions(self) -> None:
        """Raise InvalidRequest if the offsets are kept where there are no transactions."""

    def commit(self, commit: OffsetCommit, acks: int | None, timeout_ms: int | None) -> PendingCommit:
        """Submit a commit."""

        def change(state: PartitionState, now_ms: int) -> Outcome[None]:
            return commits.commit_offsets(state, commit, now_ms, self._core.settings)

        return self._core.submit_change("commit of group", commit.group_id, change, timeout_ms, acks, shared=True)

    def commit_if(self, commit: OffsetCommit, is_wanted: IsWanted, timeout_ms: int | None) -> Request:
        """Submit a commit of those offsets for which ``is_wanted`` holds right before the append."""

        def change(state: PartitionState, now_ms: int) -> Outcome[set[TopicPartition]]:
            held = state.offsets_of(commit.group_id)
            wanted = {where: each for where, each in commit.offsets.items() if is_wanted(where, held.get(where))}
            outcome = commits.commit_offsets(state, replace(commit, offsets=wanted), now_ms, self._core.settings)
            return Outcome(outcome.records, set(wanted), outcome.error)

        return self._core.submit_change("commit of group", commit.group_id, change, timeout_ms)

    def fetch(
        self,
        group_id: str,
        partitions: Collection[TopicPartition] | None,
        member: MemberOfGroup,
        *,
        require_stable: bool,
    ) -> dict[TopicPartition, FetchedOffset]:
        """See `Coordinator.fetch_offsets`."""
        with self._core.answering():
            state = self._core.state_for(group_id)
            return commits.fetch_offsets(state, group_id, partitions, member, require_stable=require_stable)

    def fetch_all(self, *, require_stable: bool) -> dict[str, dict[TopicPartition, FetchedOffset]]:
        """See `Coordinator.fetch_all_offsets`."""
        with self._core.answering():
            return {
                group_id: commits.fetch_offsets(state, group_id, None, NO_MEMBER, require_stable=require_stable)
                for state in self._core.loaded_states()
                for group_id in state.groups
                if state.group_with_offsets(group_id) and state.offsets_of(group_id)
            }

    def delete(self, group_id: str, partitions: Collection[TopicPartition], timeout_ms: int | None) -> int:
        """See `Coordinator.delete_offsets`."""
        deleted: int = self._core.submit_change(
            "delete offsets", group_id, lambda state, _: groups.delete_offsets(state, group_id, partitions), timeout_ms
        ).result()
        return deleted

    def remove_group(self, group_id: str, timeout_ms: int | None) -> Callable[[], int]:
        """Submit the deletion of a group and its offsets. Raises InvalidGroupId.

        The answer waits for the deletion, and returns the number of deleted offsets. It raises NoSuchGroup,
        NonEmptyGroup.
        """
        return self._core.submit_change(
            "delete group", group_id, lambda state, _: groups.delete_group(state, group_id), timeout_ms
        ).result
