"""A coordinator's offsets: in the log, or in the log and in ZooKeeper (R17, R24-R27).

Old consumers have the settings `offsets_storage` and `dual_commit_enabled`. A commit is written to ZooKeeper after the
log has accepted it. While commits go to ZooKeeper, a fetch answers the higher of the two offsets, as old consumers do
during a migration (docs/adr/0023).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, TypeVar

from offsets_pipeline.coordinator import handlers
from offsets_pipeline.coordinator.handlers import FetchedOffset
from offsets_pipeline.coordinator.requests import NO_MEMBER, MemberOfGroup, OffsetAndMetadata, OffsetCommit, Outcome
from offsets_pipeline.coordinator.zookeeper import consumer_nodes
from offsets_pipeline.coordinator.zookeeper.consumer_nodes import GroupNodes, offset_path
from offsets_pipeline.errors import (
    GroupSubscribedToTopic,
    InvalidRequest,
    NonEmptyGroup,
    NoSuchGroup,
    OffsetMetadataTooLarge,
    OffsetsError,
    RequestTimedOut,
    ZooKeeperFailed,
)
from offsets_pipeline.semantics.partition_state import CommittedOffset, PartitionState, TopicPartition

if TYPE_CHECKING:
    from offsets_pipeline.common.config.sections import ZooKeeperSettings
    from offsets_pipeline.coordinator.appender import Request
    from offsets_pipeline.coordinator.core import CoordinatorCore
    from offsets_pipeline.coordinator.requests import Place
    from offsets_pipeline.coordinator.zookeeper.client import ZooKeeperClient

    #: Asks whether to commit a partition, given its committed offset in the log or None.
    IsWanted = Callable[[TopicPartition, CommittedOffset | None], bool]

_LOG = logging.getLogger(__name__)
_Response = TypeVar("_Response")


class LogOffsets:
    """The offsets of a coordinator's groups."""

    def __init__(self, core: CoordinatorCore) -> None:
        self._core = core

    def close(self) -> None:
        """Disconnect from any other storage of offsets."""

    def refuse_transactions(self) -> None:
        """Raise InvalidRequest if the offsets are kept where there are no transactions."""

    def commit(self, commit: OffsetCommit, acks: int | None, timeout_ms: int | None) -> Request | DualRequest[None]:
        """Submit a commit."""

        def change(state: PartitionState, now_ms: int) -> Outcome[None]:
            return handlers.commit_offsets(state, commit, now_ms, self._core.settings)

        return self._core.submit_change("commit of group", commit.group_id, change, timeout_ms, acks, shared=True)

    def commit_if(self, commit: OffsetCommit, is_wanted: IsWanted, timeout_ms: int | None) -> Request:
        """Submit a commit of those offsets for which ``is_wanted`` holds right before the append."""

        def change(state: PartitionState, now_ms: int) -> Outcome[set[TopicPartition]]:
            held = state.offsets_of(commit.group_id)
            wanted = {where: each for where, each in commit.offsets.items() if is_wanted(where, held.get(where))}
            outcome = handlers.commit_offsets(state, replace(commit, offsets=wanted), now_ms, self._core.settings)
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
            return handlers.fetch_offsets(state, group_id, partitions, member, require_stable=require_stable)

    def fetch_all(self, *, require_stable: bool) -> dict[str, dict[TopicPartition, FetchedOffset]]:
        """See `Coordinator.fetch_all_offsets`."""
        with self._core.answering():
            return {
                group_id: handlers.fetch_offsets(state, group_id, None, NO_MEMBER, require_stable=require_stable)
                for state in self._core.loaded_states()
                for group_id in state.groups
                if state.group_with_offsets(group_id) and state.offsets_of(group_id)
            }

    def delete(self, group_id: str, partitions: Collection[Place], timeout_ms: int | None) -> int:
        """See `Coordinator.delete_offsets`."""
        deleted: int = self._core.submit_change(
            "delete offsets",
            group_id,
            lambda state, _: handlers.delete_offsets(state, group_id, partitions),
            timeout_ms,
        ).result()
        return deleted

    def remove_group(self, group_id: str, timeout_ms: int | None) -> Request | DualRequest[int]:
        """Submit the deletion of a group and its offsets; its result is the number of deleted offsets.

        Raises InvalidGroupId. The result may be NoSuchGroup, NonEmptyGroup.
        """
        return self._removal(group_id, timeout_ms)

    def _removal(self, group_id: str, timeout_ms: int | None) -> Request:
        return self._core.submit_change(
            "delete group", group_id, lambda state, _: handlers.delete_group(state, group_id), timeout_ms
        )


class ZooKeeperOffsets(LogOffsets):
    """Offsets in the log and in one ZooKeeper. It connects with the first request.

    Each request may raise ZooKeeperFailed or ConfigError.
    """

    def __init__(self, core: CoordinatorCore, settings: ZooKeeperSettings) -> None:
        super().__init__(core)
        self._settings = settings
        self._lock = threading.Lock()
        self._connected: ZooKeeperClient | None = None
        self._writer = _Writer()

    def close(self) -> None:
        """Write the waiting commits, then end the session."""
        with suppress(RuntimeError):  # closed before
            self._writer.submit(self._disconnect)
        self._writer.shutdown(wait=self._writer.thread is not threading.current_thread())  # a callback may close

    def refuse_transactions(self) -> None:
        """Raise InvalidRequest."""
        raise InvalidRequest(
            "cannot commit offsets in a transaction to ZooKeeper; set offsets_storage to kafka and "
            "dual_commit_enabled to false"
        )

    def commit(self, commit: OffsetCommit, acks: int | None, timeout_ms: int | None) -> DualRequest[None]:
        """Submit a commit to the log; ZooKeeper follows with the offsets that the log has accepted.

        Raises InvalidGroupId or UnknownTopicOrPartition if no node of ZooKeeper can have the name.
        """
        paths = {where: offset_path(commit.group_id, where) for where in commit.offsets}
        accepted: dict[TopicPartition, OffsetAndMetadata] = {}
        settings = self._core.settings

        def change(state: PartitionState, now_ms: int) -> Outcome[None]:
            accepted.clear()  # of an earlier attempt to append
            outcome = handlers.commit_offsets(state, commit, now_ms, settings)
            accepted.update(handlers.accepted_offsets(commit, settings))
            if settings.commits_to_log:
                return outcome
            # a fetch answers the higher offset: one below that of the log has to be in the log, too
            lowered = replace(commit, offsets=handlers.lowered_offsets(state, commit.group_id, accepted))
            return replace(outcome, records=handlers.commit_offsets(state, lowered, now_ms, settings).records)

        request = self._core.submit_change("commit of group", commit.group_id, change, timeout_ms, acks, shared=True)

        def write(logged: Future[None]) -> None:
            refused = logged.exception()
            if not isinstance(refused, OffsetMetadataTooLarge | None):
                raise refused
            try:
                if not request.seconds_left():
                    raise ZooKeeperFailed("ZooKeeper did not take earlier commits in time")
                if accepted:
                    self._client().write({paths[where]: b"%d" % each.offset for where, each in accepted.items()})
            except OffsetsError as error:
                failed = f"{request.what}: not all of it is in ZooKeeper: {error}; commit again"
                raise ZooKeeperFailed(failed) from error
            if refused is not None:  # the other offsets were accepted
                raise refused

        return DualRequest(request, write, self._writer)

    def fetch(
        self,
        group_id: str,
        partitions: Collection[TopicPartition] | None,
        member: MemberOfGroup,
        *,
        require_stable: bool,
    ) -> dict[TopicPartition, FetchedOffset]:
        """Return the higher offset of the log and of ZooKeeper.

        ZooKeeper holds no metadata and no leader epoch. A node without a valid offset makes its partition's answer an
        error.
        """
        in_log = super().fetch(group_id, partitions, member, require_stable=require_stable)
        return self._higher_of(group_id, partitions, in_log)

    def fetch_all(self, *, require_stable: bool) -> dict[str, dict[TopicPartition, FetchedOffset]]:
        """Return the higher offsets of each group in the loaded log partitions."""
        found = super().fetch_all(require_stable=require_stable)
        with self._core.answering():
            loaded = {state.log_partition for state in self._core.loaded_states()}
        for group_id in consumer_nodes.group_ids(self._client()):
            if self._core.store.partition_for(group_id) in loaded:
                found[group_id] = self._higher_of(group_id, None, found.get(group_id, {}))
        return {group_id: offsets for group_id, offsets in found.items() if offsets}

    def delete(self, group_id: str, partitions: Collection[Place], timeout_ms: int | None) -> int:
        """Delete offsets of a group; returns their number in the log or in ZooKeeper, the larger one."""
        subscribed: set[str] = set()

        def change(state: PartitionState, _now_ms: int) -> Outcome[int]:
            group = state.group(group_id)
            if group is not None:
                subscribed.update(topic for topic, _ in partitions if group.is_subscribed_to(topic))
            return handlers.delete_offsets(state, group_id, partitions)

        request = self._core.submit_change("delete offsets", group_id, change, timeout_ms)

        def delete(logged: Future[int]) -> int:
            """Delete the nodes of offsets of a group, which may be in ZooKeeper alone."""
            try:
                in_log = logged.result()
            except GroupSubscribedToTopic:
                self._delete(group_id, [where for where in partitions if where[0] not in subscribed])
                raise
            except NoSuchGroup:
                nodes = self._nodes(group_id, None)
                if not (nodes.offsets or nodes.skipped):
                    raise
                in_log = 0
            return max(in_log, self._delete(group_id, partitions))

        return DualRequest(request, delete, self._writer).result()

    def remove_group(self, group_id: str, timeout_ms: int | None) -> DualRequest[int]:
        """Submit the deletion of a group; its nodes in ZooKeeper follow.

        Raises NonEmptyGroup also if consumers of the group are registered in ZooKeeper.
        """
        if ids := consumer_nodes.consumer_ids(self._client(), group_id):
            raise NonEmptyGroup(f"group {group_id!r} has {len(ids)} consumers in ZooKeeper; stop them first")

        def delete(logged: Future[int]) -> int:
            refused = logged.exception()
            if not isinstance(refused, NoSuchGroup | None):
                raise refused
            in_zookeeper = consumer_nodes.delete_group(self._client(), group_id)
            if refused is not None and in_zookeeper is None:
                raise refused
            return max(in_zookeeper or 0, 0 if refused is not None else logged.result())

        return DualRequest(self._removal(group_id, timeout_ms), delete, self._writer)

    def _delete(self, group_id: str, places: Collection[Place]) -> int:
        chosen = {TopicPartition(topic, partition) for topic, partition in places if partition is not None}
        topics = {topic for topic, partition in places if partition is None}
        if topics:
            chosen |= {where for where in self._higher_of(group_id, None, {}) if where.topic in topics}
        return self._client().delete(consumer_nodes.offset_paths(group_id, sorted(chosen)))

    def _higher_of(
        self,
        group_id: str,
        partitions: Collection[TopicPartition] | None,
        in_log: Mapping[TopicPartition, FetchedOffset],
    ) -> dict[TopicPartition, FetchedOffset]:
        nodes = self._nodes(group_id, partitions)
        answers = dict(in_log)
        for where, node in nodes.offsets.items():
            held = answers.get(where, FetchedOffset(None))
            if held.error is None and (held.offset is None or node.offset > held.offset):
                answers[where] = FetchedOffset(node.offset)
        for path, reason in nodes.skipped:
            _, _, _, _, *of_offset = path.split("/")  # topic and partition
            failed = ZooKeeperFailed(f"cannot read the offset in node {path} of ZooKeeper: {reason}")
            if len(of_offset) < len(TopicPartition._fields):  # it hides all nodes below
                raise failed
            try:
                where = TopicPartition(of_offset[0], consumer_nodes.partition_of(of_offset[1]))
            except ValueError:
                _LOG.warning("%s", failed)  # no partition has this name
                continue
            if where not in nodes.unset:
                answers[where] = FetchedOffset(None, error=failed)
        return answers

    def _nodes(self, group_id: str, partitions: Collection[TopicPartition] | None) -> GroupNodes:
        return consumer_nodes.read_offsets(self._client(), group_id, partitions)

    def _disconnect(self) -> None:
        with self._lock:
            if self._connected is not None:
                self._connected.close()

    def _client(self) -> ZooKeeperClient:
        from offsets_pipeline.coordinator.zookeeper.client import ZooKeeperClient  # noqa: PLC0415 - most coordinators need none

        with self._lock:
            if self._connected is None:
                self._connected = ZooKeeperClient(self._settings)
            return self._connected


class _Writer(ThreadPoolExecutor):
    """Writes to ZooKeeper in one thread, so that later requests of this process are written later."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        super().__init__(1, "offsets-zookeeper", self._begin)

    def _begin(self) -> None:
        self.thread = threading.current_thread()


class DualRequest(Generic[_Response]):
    """A request to the log, and then to ZooKeeper. ``done`` is the future of both.

    ``follow`` is the part of ZooKeeper. ``writer`` calls it with the answer of the log, in the order of the log, and
    what it returns or raises is the answer of both. It is not called if the log never got the request.
    """

    def __init__(self, logged: Request, follow: Callable[[Future[_Response]], _Response], writer: _Writer) -> None:
        self._logged = logged
        self._follow = follow
        self._writer = writer
        self.done: Future[_Response] = Future()
        self.done.set_running_or_notify_cancel()
        logged.done.add_done_callback(self._after_log)

    def _after_log(self, logged: Future[_Response]) -> None:
        if logged.cancelled():
            self.done.set_exception(RequestTimedOut(f"{self._logged.what}: timed out; it was not written"))
            return
        try:
            self._writer.submit(self._in_zookeeper, logged)
        except RuntimeError:  # a callback closed the coordinator
            failed = ZooKeeperFailed(f"{self._logged.what}: closed before it was in ZooKeeper; ask another coordinator")
            self.done.set_exception(failed)

    def _in_zookeeper(self, logged: Future[_Response]) -> None:
        try:
            self.done.set_result(self._follow(logged))
        except Exception as error:  # noqa: BLE001 - the caller gets it
            self.done.set_exception(error)

    def result(self) -> _Response:
        """Wait for both. Raises the error, RequestTimedOut, or ZooKeeperFailed at the deadline.

        Raises InvalidRequest in a callback of another request: it would wait for itself.
        """
        try:
            return self._logged.result_of(self.done, self._writer.thread)
        except RequestTimedOut:
            if self.done.done() or not self._logged.done.done() or self._logged.done.cancelled():
                raise
            raise ZooKeeperFailed(f"{self._logged.what}: ZooKeeper has not answered in time; ask again") from None
