"""The coordinator of an owned log, with calls named as in Kafka (R24-R28)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from offsets_pipeline.coordinator import commits, deletion, expiration, groups
from offsets_pipeline.coordinator.appender import EXCLUSIVE, SHARED
from offsets_pipeline.coordinator.core import ACKS_NONE
from offsets_pipeline.coordinator.requests import (
    NOBODY,
    GroupMetadata,
    MemberOfGroup,
    OffsetCommit,
    as_offsets,
    validated_group_id,
    validated_partition,
)
from offsets_pipeline.coordinator.transactional import TransactionalCoordinator
from offsets_pipeline.errors import NoSuchGroup, OffsetsError
from offsets_pipeline.semantics import retention

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
    from concurrent.futures import Future

    from offsets_pipeline.coordinator.appender import Request
    from offsets_pipeline.coordinator.commits import FetchedOffset
    from offsets_pipeline.coordinator.expiration import Expired
    from offsets_pipeline.coordinator.loading import LoadStatus
    from offsets_pipeline.coordinator.registry import Instance
    from offsets_pipeline.coordinator.requests import OffsetsByPartition, Outcome
    from offsets_pipeline.semantics.group_description import GroupDescription
    from offsets_pipeline.semantics.partition_state import PartitionState, TopicPartition
    from offsets_pipeline.semantics.retention import ExpiredGroup, Expiry, GroupForecast

_LOG = logging.getLogger(__name__)


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


@dataclass(frozen=True, slots=True)
class ExpiryReport:
    """The groups with expired offsets in one log partition. After an ``error`` the next run expires the rest (R22)."""

    log_partition: int
    groups: list[ExpiredGroup]
    error: Exception | None = None


class Coordinator(TransactionalCoordinator):
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
        loaded_by = self._registry.who_has(log_partition, self._clock.now_ms())
        return FoundCoordinator(log_partition, self.status(log_partition), loaded_by)

    def commit_offsets(
        self,
        group_id: str,
        offsets: OffsetsByPartition,
        *,
        member: MemberOfGroup = NOBODY,
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
        request = self._commit(group_id, offsets, member, retention_time_ms, acks, timeout_ms)
        if self._acks(acks) != ACKS_NONE:
            self._wait_for(request)

    def commit_offsets_async(
        self,
        group_id: str,
        offsets: OffsetsByPartition,
        *,
        member: MemberOfGroup = NOBODY,
        retention_time_ms: int | None = None,
        acks: int | None = None,
        timeout_ms: int | None = None,
    ) -> Future[None]:
        """Run `commit_offsets` without waiting; returns a future. Commits of a group are appended in order."""
        return self._commit(group_id, offsets, member, retention_time_ms, acks, timeout_ms).done

    def fetch_offsets(
        self,
        group_id: str,
        partitions: Iterable[tuple[str, int]] | None = None,
        *,
        require_stable: bool = False,
        member: MemberOfGroup = NOBODY,
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
            return commits.fetch_offsets(state, group_id, chosen, member, require_stable=require_stable)

    def fetch_all_offsets(self, *, require_stable: bool = False) -> dict[str, dict[TopicPartition, FetchedOffset]]:
        """Return the committed offsets of every group in the loaded log partitions, by group id."""
        with self._answering():
            return {
                group_id: commits.fetch_offsets(state, group_id, None, NOBODY, require_stable=require_stable)
                for state in self._loaded_states()
                for group_id in state.groups
                if state.group_with_offsets(group_id) and state.offsets_of(group_id)
            }

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
        deleted: int = self._change_group(
            "delete offsets", group_id, lambda state, _: deletion.delete_offsets(state, group_id, chosen), timeout_ms
        )
        return deleted

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
        return int(self._wait_for(self._remove(group_id, timeout_ms)))

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
                    self._wait_for(request)
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

    def forecast(self, group_id: str, retention_ms: int | None = None) -> list[Expiry]:
        """Return when each offset of a group expires if no record follows, and by which rule (R18-R20)."""
        with self._answering():
            validated_group_id(group_id)
            held = retention.holdings_of(self._state_for(group_id), group_id)
            return [] if held is None else retention.forecast(held, self._retention_ms(retention_ms)).expiries

    def forecast_partition(self, log_partition: int, retention_ms: int | None = None) -> list[GroupForecast]:
        """Return the forecasts for the groups of a log partition and their offsets, if no record follows (R18-R21)."""
        with self._answering():
            self._refuse_if_closed()
            self._catch_up()
            state = self._partitions.state(log_partition)
            holdings = (retention.holdings_of(state, group_id) for group_id in state.groups)
            return [retention.forecast(each, self._retention_ms(retention_ms)) for each in holdings if each]

    def expire(
        self, log_partition: int, now_ms: int | None = None, *, timeout_ms: int | None = None
    ) -> list[ExpiredGroup]:
        """Append tombstones for the expired offsets and groups of a log partition (R18-R22); returns these groups.

        The tombstones of one group are in one append, those of many groups in several. ``timeout_ms`` applies to each
        append.
        """
        return [each for part in self._expire(log_partition, now_ms, timeout_ms) for each in part]

    def try_to_expire(self, log_partition: int, now_ms: int | None = None) -> ExpiryReport:
        """Run `expire`, but return an error in the report instead of raising it. The next run tries again (R22)."""
        found: list[ExpiredGroup] = []
        try:
            for part in self._expire(log_partition, now_ms, None):
                found += part
        except OffsetsError as error:
            return ExpiryReport(log_partition, found, error)
        return ExpiryReport(log_partition, found)

    def expire_loaded(self, now_ms: int | None = None) -> list[ExpiryReport]:
        """Run `try_to_expire` for every loaded log partition. A failure of one does not stop the others (R22)."""
        with self._lock:
            loaded = [state.log_partition for state in self._partitions.loaded()]
        return [self.try_to_expire(log_partition, now_ms) for log_partition in loaded]

    def _expire(self, log_partition: int, now_ms: int | None, timeout_ms: int | None) -> Iterator[list[ExpiredGroup]]:
        """Yield the groups with expired offsets, append by append, each after its append."""
        group_ids: list[str] = []
        done = 0

        def handler(now: int) -> Outcome[Expired]:
            state = self._partitions.state(log_partition)
            if not done:  # the groups as of the first append
                group_ids[:] = state.groups
            at_ms = now if now_ms is None else now_ms
            return expiration.expire(state, islice(group_ids, done, None), at_ms, self._retention_ms(None))

        claims: dict[Hashable, bool] = {("partition", log_partition): EXCLUSIVE}
        while True:
            request = self._submit(f"expire log partition {log_partition}", handler, lambda: claims, timeout_ms)
            expired: Expired = self._wait_for(request)
            with self._lock:
                self._counts.expired_offsets += sum(len(each.expired) for each in expired.groups)
                self._counts.expired_groups += sum(each.is_removed for each in expired.groups)
            yield expired.groups
            done += expired.looked_at
            if done >= len(group_ids):
                return

    def _expire_loaded(self, now_ms: int) -> None:
        for report in self.expire_loaded(now_ms):
            if report.error is not None:
                _LOG.warning("cannot expire all offsets of log partition %s: %s", report.log_partition, report.error)

    def _retention_ms(self, retention_ms: int | None) -> int:
        if retention_ms is not None:
            return retention_ms
        return self._settings.offsets_retention_minutes * retention.MS_PER_MINUTE

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
    ) -> Request:
        with self._refusals.counted():
            commit = OffsetCommit(validated_group_id(group_id), as_offsets(offsets), member, retention_time_ms)
            self._acks(acks)
        log_partition = self.partition_for(group_id)

        def handler(now_ms: int) -> Outcome[None]:
            return commits.commit_offsets(self._partitions.state(log_partition), commit, now_ms, self._settings)

        request = self._submit(
            f"commit of group {group_id!r}", handler, lambda: self._commit_claims(group_id), timeout_ms, acks
        )
        request.done.add_done_callback(self._counted(len(commit.offsets), self._acks(acks)))
        return request

    def _remove(self, group_id: str, timeout_ms: int | None) -> Request:
        return self._submit_change(
            "delete group", group_id, lambda state, _: deletion.delete_group(state, group_id), timeout_ms
        )

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
