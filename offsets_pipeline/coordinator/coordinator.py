"""The coordinator of an owned log, in Kafka's words (R24-R28)."""

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
    """Where a group's questions go: its log partition, where that stands here, and who else has it loaded."""

    log_partition: int
    status: LoadStatus
    loaded_by: list[Instance]


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in a list."""

    group_id: str
    group_type: str
    state: str
    protocol_type: str


@dataclass(frozen=True, slots=True)
class ExpiryReport:
    """What a run expired in one log partition, and why not all that was due: then the next run tries again (R22)."""

    log_partition: int
    groups: list[ExpiredGroup]
    error: Exception | None = None


class Coordinator(TransactionalCoordinator):
    """Keeps the groups and offsets of an owned store; `open` makes one. Any thread may use it.

    Every call answers as of the log's end, which it looks up first. Any number of processes may have the same log
    partitions loaded: each notices what the others append. Whatever is asked may raise NotCoordinator and
    CoordinatorLoadInProgress (R28), InvalidGroupId, CoordinatorNotAvailable, and, where something is written,
    RequestTimedOut.
    """

    def find_coordinator(self, group_id: str) -> FoundCoordinator:
        """The log partition of a group, and who has it loaded."""
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

        ``member`` says who commits, ``retention_time_ms`` when they expire, ``acks`` what is waited for (R27; None:
        the settings). With acks=0 nothing is, and nothing is raised but for what cannot be asked: `gauges` counts what
        was lost.

        Raises NoSuchGroup, UnknownMemberId, FencedInstanceId, IllegalGeneration, StaleMemberEpoch,
        RebalanceInProgress (R25); OffsetMetadataTooLarge, where the other partitions are committed all the same;
        OffsetOutOfRange, UnknownTopicOrPartition, InvalidCommitOffsetSize.
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
        """`commit_offsets`, not waiting: the future tells how it went. Commits of a group are appended in order."""
        return self._commit(group_id, offsets, member, retention_time_ms, acks, timeout_ms).done

    def fetch_offsets(
        self,
        group_id: str,
        partitions: Iterable[tuple[str, int]] | None = None,
        *,
        require_stable: bool = False,
        member: MemberOfGroup = NOBODY,
    ) -> dict[TopicPartition, FetchedOffset]:
        """The committed offsets of a group: of these partitions, or of all that have one (R17).

        Of a partition without one the answer's offset is None; with ``require_stable`` its error is
        UnstableOffsetCommit while an open transaction holds a commit for it. Raises UnknownMemberId, StaleMemberEpoch
        for a member that names itself.
        """
        validated_group_id(group_id)
        chosen = None if partitions is None else [validated_partition(where) for where in partitions]
        with self._lock:
            state = self._state_for(group_id)
            return commits.fetch_offsets(state, group_id, chosen, member, require_stable=require_stable)

    def fetch_all_offsets(self, *, require_stable: bool = False) -> dict[str, dict[TopicPartition, FetchedOffset]]:
        """The committed offsets of every group of the log partitions that are loaded here."""
        with self._lock:
            return {
                group_id: commits.fetch_offsets(state, group_id, None, NOBODY, require_stable=require_stable)
                for state in self._loaded_states()
                for group_id in state.groups
                if state.group_with_offsets(group_id) and state.offsets_of(group_id)
            }

    def delete_offsets(
        self, group_id: str, partitions: Iterable[tuple[str, int]], *, timeout_ms: int | None = None
    ) -> int:
        """Delete offsets of a group; returns how many there were (R26).

        Raises NoSuchGroup, NonEmptyGroup; InvalidGroupId for an empty group id too; GroupSubscribedToTopic, where the
        other offsets are deleted all the same.
        """
        validated_group_id(group_id, may_be_empty=False)
        chosen = [validated_partition(where) for where in partitions]
        deleted: int = self._change_group(
            "delete offsets", group_id, lambda state, _: deletion.delete_offsets(state, group_id, chosen), timeout_ms
        )
        return deleted

    def store_group(self, group: GroupMetadata, *, timeout_ms: int | None = None) -> None:
        """Store the metadata of a classic group, whole.

        Raises IllegalGeneration where a later generation is stored, NonEmptyGroup for an active group of another
        kind, InvalidCommitOffsetSize.
        """
        self._change_group(
            "store group",
            group.group_id,
            lambda state, now_ms: groups.store_group(state, group, now_ms, self._settings),
            timeout_ms,
        )

    def add_group(self, group: GroupMetadata, *, timeout_ms: int | None = None) -> bool:
        """Store a group unless there is one of its name; whether it was stored."""
        is_new: bool = self._change_group(
            "add group",
            group.group_id,
            lambda state, now_ms: groups.add_group(state, group, now_ms, self._settings),
            timeout_ms,
        )
        return is_new

    def get_group(self, group_id: str) -> GroupDescription | None:
        """The group as it is; None where there is none."""
        validated_group_id(group_id)
        with self._lock:
            group = self._state_for(group_id).group(group_id)
            return None if group is None else group.description

    def remove_group(self, group_id: str, *, timeout_ms: int | None = None) -> int:
        """Delete a group with its offsets; returns how many those were (R26). Raises NoSuchGroup, NonEmptyGroup."""
        return int(self._wait_for(self._remove(group_id, timeout_ms)))

    def delete_groups(
        self, group_ids: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, OffsetsError | None]:
        """Delete groups, each on its own: by group id, why it was not deleted, or None."""
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
        """The groups of the log partitions that are loaded here, in one of these states, of these types (none: any)."""
        with self._lock:
            listings = [
                GroupListing(group_id, group.kind, group.description.state, group.description.protocol_type)
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
        """The groups as they are, each on its own: by group id, the group or why it cannot be described."""
        answers: dict[str, GroupDescription | OffsetsError] = {}
        for group_id in group_ids:
            try:
                answers[group_id] = self.get_group(group_id) or NoSuchGroup(f"no group {group_id!r}")
            except OffsetsError as error:
                answers[group_id] = error
        return answers

    def forecast(self, group_id: str, retention_ms: int | None = None) -> list[Expiry]:
        """When each offset of a group expires if nothing more comes in, and by which rule (R18-R20)."""
        validated_group_id(group_id)
        with self._lock:
            held = retention.holdings_of(self._state_for(group_id), group_id)
            return [] if held is None else retention.forecast(held, self._retention_ms(retention_ms)).expiries

    def forecast_partition(self, log_partition: int, retention_ms: int | None = None) -> list[GroupForecast]:
        """What becomes of the groups of a log partition, and of their offsets, if nothing more comes in (R18-R21)."""
        with self._lock:
            self._refuse_if_closed()
            self._catch_up()
            state = self._partitions.state(log_partition)
            holdings = (retention.holdings_of(state, group_id) for group_id in state.groups)
            return [retention.forecast(each, self._retention_ms(retention_ms)) for each in holdings if each]

    def expire(
        self, log_partition: int, now_ms: int | None = None, *, timeout_ms: int | None = None
    ) -> list[ExpiredGroup]:
        """Append the tombstones of what has expired in a log partition (R18-R22); returns what that is.

        A group's are in one append, many groups' in several: ``timeout_ms`` is for each.
        """
        return [each for part in self._expire(log_partition, now_ms, timeout_ms) for each in part]

    def try_to_expire(self, log_partition: int, now_ms: int | None = None) -> ExpiryReport:
        """`expire`, telling of what goes wrong instead of raising it: the next run tries again (R22)."""
        found: list[ExpiredGroup] = []
        try:
            for part in self._expire(log_partition, now_ms, None):
                found += part
        except OffsetsError as error:
            return ExpiryReport(log_partition, found, error)
        return ExpiryReport(log_partition, found)

    def expire_loaded(self, now_ms: int | None = None) -> list[ExpiryReport]:
        """`expire` of every log partition that is loaded here; one that fails does not keep the others (R22)."""
        with self._lock:
            loaded = [state.log_partition for state in self._partitions.loaded()]
        return [self.try_to_expire(log_partition, now_ms) for log_partition in loaded]

    def _expire(self, log_partition: int, now_ms: int | None, timeout_ms: int | None) -> Iterator[list[ExpiredGroup]]:
        """What each append expired, when it is in the log."""
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
                _LOG.warning("log partition %s: not all is expired: %s", report.log_partition, report.error)

    def _retention_ms(self, retention_ms: int | None) -> int:
        if retention_ms is not None:
            return retention_ms
        return self._settings.offsets_retention_minutes * retention.MS_PER_MINUTE

    def _loaded_states(self) -> list[PartitionState]:
        """The states of all that is loaded, caught up. Raises CoordinatorLoadInProgress while any is being loaded."""
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
        commit = OffsetCommit(validated_group_id(group_id), as_offsets(offsets), member, retention_time_ms)
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
        log_partition = self.partition_for(validated_group_id(group_id))
        claims: dict[Hashable, bool] = {("partition", log_partition): SHARED, ("group", group_id): EXCLUSIVE}
        return self._submit(
            f"{what} {group_id!r}",
            lambda now_ms: change(self._partitions.state(log_partition), now_ms),
            lambda: claims,
            timeout_ms,
        )
