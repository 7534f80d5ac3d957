"""A coordinator's offsets in ZooKeeper: the settings `offsets_storage` and `dual_commit_enabled` of old consumers.

A commit is written to ZooKeeper after the log has accepted it. While commits go to ZooKeeper, a fetch answers the
higher of the two offsets, as old consumers do during a migration (docs/adr/0023).
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from offsets_pipeline.coordinator.commits import FetchedOffset
from offsets_pipeline.errors import (
    NonEmptyGroup,
    OffsetMetadataTooLarge,
    OffsetsError,
    RequestTimedOut,
    ZooKeeperFailed,
)
from offsets_pipeline.semantics.partition_state import TopicPartition
from offsets_pipeline.zookeeper import consumer_nodes
from offsets_pipeline.zookeeper.consumer_nodes import GroupNodes, offset_path

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from offsets_pipeline.config.sections import ZooKeeperSettings
    from offsets_pipeline.coordinator.requests import OffsetAndMetadata
    from offsets_pipeline.zookeeper.client import ZooKeeperClient

_LOG = logging.getLogger(__name__)


class ZooKeeperOffsets:
    """The offsets of all groups in one ZooKeeper. Thread-safe; it connects with the first request.

    Each request may raise ZooKeeperFailed or ConfigError.
    """

    def __init__(self, settings: ZooKeeperSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._connected: ZooKeeperClient | None = None
        # one thread writes, so that later commits of this process are written later
        self._writer = ThreadPoolExecutor(1, "offsets-zookeeper")

    def close(self) -> None:
        """Write the waiting commits, then end the session."""
        self._writer.shutdown()
        with self._lock:
            if self._connected is not None:
                self._connected.close()

    def commit_after(
        self,
        logged: Future[None],
        what: str,
        group_id: str,
        accepted: Callable[[], Mapping[TopicPartition, OffsetAndMetadata]],
        deadline_ns: int,
    ) -> Future[None]:
        """Write a commit to ZooKeeper when the log has it; returns a future of both.

        ``accepted`` returns the offsets that the log accepted. If the log refused the commit, the future has the log's
        error, and ZooKeeper gets no offset. After ``deadline_ns`` nothing is written.
        """
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()

        def write() -> None:
            try:
                self._write(group_id, accepted(), deadline_ns)
            except OffsetsError as error:
                failed = ZooKeeperFailed(f"{what}: not all of it is in ZooKeeper: {error}; commit again")
                failed.__cause__ = error
                done.set_exception(failed)
            except Exception as error:  # noqa: BLE001 - the caller gets it
                done.set_exception(error)
            else:
                _finish(done, logged)

        def on_logged(_: Future[None]) -> None:
            if logged.cancelled():
                done.set_exception(RequestTimedOut(f"{what}: timed out; it was not written"))
            elif isinstance(logged.exception(), OffsetMetadataTooLarge | None):  # the other offsets were accepted
                self._writer.submit(write)
            else:
                _finish(done, logged)

        logged.add_done_callback(on_logged)
        return done

    def refuse_names(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Raise InvalidGroupId or UnknownTopicOrPartition if no node of ZooKeeper can have the name."""
        for where in partitions:
            offset_path(group_id, where)

    def _write(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline_ns: int) -> None:
        if time.monotonic_ns() > deadline_ns:
            raise ZooKeeperFailed("ZooKeeper did not take earlier commits in time")
        if offsets:
            self._client().write({offset_path(group_id, where): b"%d" % offsets[where].offset for where in offsets})

    def higher_of(
        self,
        group_id: str,
        partitions: Collection[TopicPartition] | None,
        in_log: Mapping[TopicPartition, FetchedOffset],
    ) -> dict[TopicPartition, FetchedOffset]:
        """Return the answer to a fetch: the higher offset of the log and of ZooKeeper.

        ZooKeeper holds no metadata and no leader epoch. A node without a valid offset makes its partition's answer an
        error.
        """
        nodes = self._nodes(group_id, partitions)
        answers = dict(in_log)
        for where, node in nodes.offsets.items():
            held = answers.get(where, FetchedOffset(None))
            if held.error is None and (held.offset is None or node.offset > held.offset):
                answers[where] = FetchedOffset(node.offset)
        for path, reason in nodes.skipped:
            topic, _, partition = path.removeprefix(f"{consumer_nodes.offsets_path(group_id)}/").partition("/")
            failed = ZooKeeperFailed(f"cannot read the offset in node {path} of ZooKeeper: {reason}")
            try:
                where = TopicPartition(topic, consumer_nodes.partition_of(partition))
            except ValueError:
                _LOG.warning("%s", failed)  # no partition has this name
            else:
                answers[where] = FetchedOffset(None, error=failed)
        return answers

    def group_ids(self) -> list[str]:
        """Return the ids of the groups with nodes in ZooKeeper."""
        return consumer_nodes.group_ids(self._client())

    def has_group(self, group_id: str) -> bool:
        """Return whether ZooKeeper has an offset of the group."""
        nodes = self._nodes(group_id, None)
        return bool(nodes.offsets or nodes.skipped)

    def refuse_active(self, group_id: str) -> None:
        """Raise NonEmptyGroup if consumers of the group are registered in ZooKeeper."""
        named = [group_id] if consumer_nodes.is_node_name(group_id) else []
        group = next(consumer_nodes.read_groups(self._client(), named), GroupNodes(group_id))
        if group.consumer_ids:
            raise NonEmptyGroup(
                f"group {group_id!r} has {len(group.consumer_ids)} consumers in ZooKeeper; stop them first"
            )

    def delete_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> int:
        """Delete offsets of a group; returns their number."""
        return self._client().delete(consumer_nodes.offset_paths(group_id, partitions))

    def delete_group(self, group_id: str) -> int:
        """Delete all nodes of a group; returns the number of its offsets."""
        return consumer_nodes.delete_group(self._client(), group_id)

    def _nodes(self, group_id: str, partitions: Collection[TopicPartition] | None) -> GroupNodes:
        return consumer_nodes.read_offsets(self._client(), group_id, partitions)

    def _client(self) -> ZooKeeperClient:
        from offsets_pipeline.zookeeper.client import ZooKeeperClient  # noqa: PLC0415 - most coordinators need none

        with self._lock:
            if self._connected is None:
                self._connected = ZooKeeperClient(self._settings)
            return self._connected


def _finish(done: Future[None], logged: Future[None]) -> None:
    """Answer as the log does: it may have refused a part of the request."""
    error = logged.exception()
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
