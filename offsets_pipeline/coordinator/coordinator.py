"""The coordinator of an owned log, with calls named as in Kafka (R24-R28)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from offsets_pipeline.coordinator import commits, deletion, groups
from offsets_pipeline.coordinator.appender import EXCLUSIVE, SHARED
from offsets_pipeline.coordinator.core import ACKS_NONE
from offsets_pipeline.coordinator.expiring import ExpiringCoordinator
from offsets_pipeline.coordinator.requests import (
    NO_MEMBER,
    GroupMetadata,
    MemberOfGroup,
    OffsetCommit,
    Outcome,
    as_offsets,
    validated_group_id,
    validated_partition,
)
from offsets_pipeline.errors import GroupSubscribedToTopic, NoSuchGroup, OffsetsError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
    from concurrent.futures import Future

    from offsets_pipeline.coordinator.appender import Request
    from offsets_pipeline.coordinator.commits import FetchedOffset
    from offsets_pipeline.coordinator.loading import LoadStatus
    from offsets_pipeline.coordinator.registry import Instance
    from offsets_pipeline.coordinator.requests import OffsetAndMetadata, OffsetsByPartition
    from offsets_pipeline.semantics.group_description import GroupDescription
    from offsets_pipeline.semantics.partition_state import CommittedOffset, PartitionState, TopicPartition


@dataclass(frozen=True, slots=True)
class FoundCoordinator:
    """A group's log partition, its load status here, and all coordinators that have it loaded."""

    log_partition: int
    status: LoadStatus
    loaded_by: list[Instance]


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in the answer of `list_groups`."""

    group_id: str
    group_type: str
    state: str
    protocol_type: str


class Coordinator(ExpiringCoordinator):
    """The groups and offsets of an owned store. Open it with `open`. It is thread-safe.

    A call on groups or offsets first catches up with the log's end. Any number of processes may load the same log
    partitions: each reads the appends of the others.

    Such a call may raise NotCoordinator and CoordinatorLoadInProgress (R28), InvalidGroupId, CoordinatorNotAvailable. A
    call that appends may also raise RequestTimedOut.
    """

    def find_coordinator(self, group_id: str) -> FoundCoordinator:
        """Return the log partition of a group, and the coordinators that have it loaded."""
        with self._refusals.counted():
            log_partition = self.partition_for(validated_group_id(group_id))
        loaded_by = self._registry.instances_with(log_partition, self._clock.now_ms())
        return FoundCoordinator(log_partition, self.status(log_partition), loaded_by)

    def commit_offsets(
        self,
        group_id: str,
        offsets: OffsetsByPartition,
        *,
        member: MemberOfGroup = NO_MEMBER,
        retention_time_ms: int | None = None,
        acks: int | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Commit offsets by (topic, partition).

        ``member`` is the member that commits. The offsets expire ``retention_time_ms`` after the commit (None: by the
        settings). ``acks`` is 0, 1 or -1 for all (R27; None: by the settings). With acks=0 the call returns when the
        request is queued. Later errors are not raised: `gauges` counts these commits as lost.

        Raises NoSuchGroup, UnknownMemberId, FencedInstanceId, IllegalGeneration, StaleMemberEpoch,
        RebalanceInProgress (R25); OffsetMetadataTooLarge, after the other partitions are committed; OffsetOutOfRange,
        UnknownTopicOrPartition, InvalidCommitOffsetSize, InvalidRequest, InvalidRequiredAcks.
        """
        request, done = self._commit(group_id, offsets, member, retention_time_ms, acks, timeout_ms)
        if self._acks(acks) != ACKS_NONE:
            self._wait_for(request, done)

    def commit_offsets_async(
        self,
        group_id: str,
        offsets: OffsetsByPartition,
        *,
        member: MemberOfGroup = NO_MEMBER,
        retention_time_ms: int | None = None,
        acks: int | None = None,
        timeout_ms: int | None = None,
    ) -> Future[None]:
        """Run `commit_offsets` without waiting; returns a future. Commits of a group are appended in order."""
        return self._commit(group_id, offsets, member, retention_time_ms, acks, timeout_ms)[1]

    def commit_offsets_if(
        self,
        group_id: str,
        offsets: OffsetsByPartition,
        is_wanted: Callable[[TopicPartition, CommittedOffset | None], bool],
        *,
        timeout_ms: int | None = None,
    ) -> Future[set[TopicPartition]]:
        """Commit those offsets for which ``is_wanted`` holds, given the committed offset in the log or None.

        Asks right before the append, so no commit of another process is between. Never writes to ZooKeeper. Returns a
        future of the committed partitions; its errors are those of `commit_offsets`.
        """
        commit = OffsetCommit(validated_group_id(group_id), as_offsets(offsets))
        log_partition = self.partition_for(group_id)

        def handler(now_ms: int) -> Outcome[set[TopicPartition]]:
            state = self._partitions.state(log_partition)
            held = state.offsets_of(group_id)
            wanted = {where: each for where, each in commit.offsets.items() if is_wanted(where, held.get(where))}
            outcome = commits.commit_offsets(state, replace(commit, offsets=wanted), now_ms, self._settings)
            return Outcome(outcome.records, set(wanted), outcome.error)

        def claims() -> Mapping[Hashable, bool]:
            return {**self._commit_claims(group_id), ("group", group_id): EXCLUSIVE}

        request = self._submit(f"commit of group {group_id!r}", handler, claims, timeout_ms)
        request.done.add_done_callback(self._counted(len(commit.offsets), acks=None))
        return request.done

    def fetch_offsets(
        self,
        group_id: str,
        partitions: Iterable[tuple[str, int]] | None = None,
        *,
        require_stable: bool = False,
        member: MemberOfGroup = NO_MEMBER,
    ) -> dict[TopicPartition, FetchedOffset]:
        """Return the committed offsets of a group: of these partitions, or of all with a committed offset (R17).

        The offset in the answer is None for a partition without a committed offset. With ``require_stable``, the answer
        has the error UnstableOffsetCommit while an open transaction holds a commit for the partition.

        Raises UnknownMemberId, StaleMemberEpoch or IllegalGeneration if ``member`` does not match the group.
        """
        with self._answering():
            validated_group_id(group_id)
            chosen = None if partitions is None else [validated_partition(where) for where in partitions]
            state = self._state_for(group_id)
            found = commits.fetch_offsets(state, group_id, chosen, member, require_stable=require_stable)
        return found if self._zookeeper is None else self._zookeeper.higher_of(group_id, chosen, found)

    def fetch_all_offsets(self, *, require_stable: bool = False) -> dict[str, dict[TopicPartition, FetchedOffset]]:
        """Return the committed offsets of every group in the loaded log partitions, by group id."""
        with self._answering():
            states = {state.log_partition: state for state in self._loaded_states()}
            found = {
                group_id: commits.fetch_offsets(state, group_id, None, NO_MEMBER, require_stable=require_stable)
                for state in states.values()
                for group_id in state.groups
                if state.group_with_offsets(group_id) and state.offsets_of(group_id)
            }
        if self._zookeeper is not None:
            for group_id in self._zookeeper.group_ids():
                if self.partition_for(group_id) in states:
                    found[group_id] = self._zookeeper.higher_of(group_id, None, found.get(group_id, {}))
        return {group_id: offsets for group_id, offsets in found.items() if offsets}

    def delete_offsets(
        self, group_id: str, partitions: Iterable[tuple[str, int]], *, timeout_ms: int | None = None
    ) -> int:
        """Delete offsets of a group; returns the number of deleted offsets (R26).

        Raises NoSuchGroup, NonEmptyGroup; InvalidGroupId for an empty group id too; GroupSubscribedToTopic, after the
        other offsets are deleted.
        """
        with self._refusals.counted():
            validated_group_id(group_id, may_be_empty=False)
            chosen = [validated_partition(where) for where in partitions]
        kept: set[str] = set()

        def change(state: PartitionState, _now_ms: int) -> Outcome[int]:
            group = state.group(group_id)
            kept.update(where.topic for where in chosen if group is not None and group.is_subscribed_to(where.topic))
            return deletion.delete_offsets(state, group_id, chosen)

        deleted = 0
        try:
            deleted = self._change_group("delete offsets", group_id, change, timeout_ms)
        except NoSuchGroup:
            if self._zookeeper is None or not self._zookeeper.has_group(group_id):
                raise
        except GroupSubscribedToTopic:
            if self._zookeeper is not None:
                self._zookeeper.delete_offsets(group_id, (where for where in chosen if where.topic not in kept))
            raise
        return deleted if self._zookeeper is None else max(deleted, self._zookeeper.delete_offsets(group_id, chosen))

    def store_group(self, group: GroupMetadata, *, timeout_ms: int | None = None) -> None:
        """Store the complete metadata of a classic group.

        Raises IllegalGeneration if a later generation is stored, NonEmptyGroup for an active group of another type,
        InvalidCommitOffsetSize.
        """
        self._change_group(
            "store group",
            group.group_id,
            lambda state, now_ms: groups.store_group(state, group, now_ms, self._settings),
            timeout_ms,
        )

    def add_group(self, group: GroupMetadata, *, timeout_ms: int | None = None) -> bool:
        """Store a group unless a group of that name exists. Returns whether it was stored."""
        is_new: bool = self._change_group(
            "add group",
            group.group_id,
            lambda state, now_ms: groups.add_group(state, group, now_ms, self._settings),
            timeout_ms,
        )
        return is_new

    def get_group(self, group_id: str) -> GroupDescription | None:
        """Return the group's description; None if there is no such group."""
        with self._answering():
            validated_group_id(group_id)
            group = self._state_for(group_id).group(group_id)
            return None if group is None else group.description

    def remove_group(self, group_id: str, *, timeout_ms: int | None = None) -> int:
        """Delete a group and its offsets; returns the number of offsets (R26). Raises NoSuchGroup, NonEmptyGroup."""
        return self._removed(group_id, self._remove(group_id, timeout_ms))

    def delete_groups(
        self, group_ids: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, OffsetsError | None]:
        """Delete groups, each on its own. Returns by group id the error, or None if the group was deleted."""
        requests: dict[str, Request | OffsetsError] = {}
        for group_id in dict.fromkeys(group_ids):
            try:
                requests[group_id] = self._remove(group_id, timeout_ms)
            except OffsetsError as error:
                requests[group_id] = error
        answers: dict[str, OffsetsError | None] = {}
        for group_id, request in requests.items():
            try:
                answers[group_id] = request if isinstance(request, OffsetsError) else None
                if not isinstance(request, OffsetsError):
                    self._removed(group_id, request)
            except OffsetsError as error:
                answers[group_id] = error
        return answers

    def list_groups(
        self, *, states: Collection[str] = (), types: Collection[str] = (), protocol_types: Collection[str] = ()
    ) -> list[GroupListing]:
        """Return the groups in the loaded log partitions with these states, types and protocol types (empty: any)."""
        with self._answering():
            listings = [
                GroupListing(group_id, group.group_type, group.description.state, group.description.protocol_type)
                for state in self._loaded_states()
                for group_id, group in state.groups.items()
            ]
        return sorted(
            (
                each
                for each in listings
                if (not states or each.state in states)
                and (not types or each.group_type in types)
                and (not protocol_types or each.protocol_type in protocol_types)
            ),
            key=lambda each: each.group_id,
        )

    def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription | OffsetsError]:
        """Return by group id the group's description, or the error for that group."""
        answers: dict[str, GroupDescription | OffsetsError] = {}
        for group_id in group_ids:
            try:
                answers[group_id] = self.get_group(group_id) or NoSuchGroup(f"no group {group_id!r}")
            except OffsetsError as error:
                answers[group_id] = error
        return answers

    def _loaded_states(self) -> list[PartitionState]:
        """Catch up, and return the loaded states. Raises CoordinatorLoadInProgress if a log partition is loading."""
        self._refuse_if_closed()
        self._catch_up()
        return [self._partitions.state(number) for number in self._partitions.not_unloaded()]

    def _commit(
        self,
        group_id: str,
        offsets: OffsetsByPartition,
        member: MemberOfGroup,
        retention_time_ms: int | None,
        acks: int | None,
        timeout_ms: int | None,
    ) -> tuple[Request, Future[None]]:
        """Submit a commit; returns the request, and the future of its answer."""
        with self._refusals.counted():
            commit = OffsetCommit(validated_group_id(group_id), as_offsets(offsets), member, retention_time_ms)
            self._acks(acks)
        log_partition = self.partition_for(group_id)
        accepted: dict[TopicPartition, OffsetAndMetadata] = {}
        if self._zookeeper is not None:
            self._zookeeper.refuse_names(group_id, commit.offsets)

        def handler(now_ms: int) -> Outcome[None]:
            state = self._partitions.state(log_partition)
            accepted.clear()  # of an earlier attempt to append
            outcome = commits.commit_offsets(state, commit, now_ms, self._settings)
            accepted.update(commits.accepted_offsets(commit, self._settings))
            if self._settings.commits_to_log:
                return outcome
            # a fetch answers the higher offset: one below that of the log has to be in the log, too
            lowered = replace(commit, offsets=commits.lowered_offsets(state, group_id, accepted))
            return replace(outcome, records=commits.commit_offsets(state, lowered, now_ms, self._settings).records)

        what = f"commit of group {group_id!r}"
        request = self._submit(what, handler, lambda: self._commit_claims(group_id), timeout_ms, acks)
        done = request.done
        if self._zookeeper is not None:
            done = self._zookeeper.commit_after(done, what, group_id, lambda: accepted, request.deadline_ns)
        done.add_done_callback(self._counted(len(commit.offsets), self._acks(acks)))
        return request, done

    def _remove(self, group_id: str, timeout_ms: int | None) -> Request:
        if self._zookeeper is not None:
            self._zookeeper.refuse_active(group_id)
        return self._submit_change(
            "delete group", group_id, lambda state, _: deletion.delete_group(state, group_id), timeout_ms
        )

    def _removed(self, group_id: str, request: Request) -> int:
        """Wait for a removal, and remove the group from ZooKeeper; returns the number of deleted offsets."""
        deleted = 0
        try:
            deleted = int(self._wait_for(request))
        except NoSuchGroup:
            if self._zookeeper is None or not self._zookeeper.has_group(group_id):
                raise
        return deleted if self._zookeeper is None else max(deleted, self._zookeeper.delete_group(group_id))

    def _change_group(
        self, what: str, group_id: str, change: Callable[[PartitionState, int], Outcome[Any]], timeout_ms: int | None
    ) -> Any:  # noqa: ANN401 - what the change answers
        return self._wait_for(self._submit_change(what, group_id, change, timeout_ms))

    def _submit_change(
        self, what: str, group_id: str, change: Callable[[PartitionState, int], Outcome[Any]], timeout_ms: int | None
    ) -> Request:
        with self._refusals.counted():
            log_partition = self.partition_for(validated_group_id(group_id))
        claims: dict[Hashable, bool] = {("partition", log_partition): SHARED, ("group", group_id): EXCLUSIVE}
        return self._submit(
            f"{what} {group_id!r}",
            lambda now_ms: change(self._partitions.state(log_partition), now_ms),
            lambda: claims,
            timeout_ms,
        )
