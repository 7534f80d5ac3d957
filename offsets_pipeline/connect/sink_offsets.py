"""Offsets of sink connectors, altered and reset in the shape of KIP-875: they are those of a consumer group (R32)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from offsets_pipeline.common.input_text import INT32_MAX, whole_number
from offsets_pipeline.connect.offset_management import ALTERED, NOTHING_GIVEN, RESET
from offsets_pipeline.errors import (
    BadConnectRequest,
    GroupSubscribedToTopic,
    NonEmptyGroup,
    NoSuchGroup,
    OffsetsError,
    UnknownMemberId,
)
from offsets_pipeline.kafka.broker import groups_client

if TYPE_CHECKING:
    from offsets_pipeline.coordinator.coordinator import Coordinator
    from offsets_pipeline.kafka.broker.cluster import Cluster


class LiveGroups:
    """Groups of a live cluster, with methods of `Coordinator`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def commit_offsets(self, group_id: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit offsets of a group. Raises as `commit_group_offsets`."""
        with_metadata = {where: (offset, "") for where, offset in offsets.items()}
        groups_client.commit_group_offsets(self._cluster, group_id, with_metadata)

    def delete_offsets(self, group_id: str, partitions: Collection[tuple[str, int]]) -> None:
        """Delete offsets of a group. Raises the first error, after the other offsets are deleted."""
        for error in groups_client.delete_group_offsets(self._cluster, group_id, partitions).values():
            raise error

    def delete_groups(self, group_ids: Collection[str]) -> Mapping[str, OffsetsError]:
        """Delete groups; returns errors by group id."""
        offsets = groups_client.fetch_group_offsets(self._cluster, group_ids)
        return groups_client.delete_groups(self._cluster, offsets)[0]


class SinkOffsets:
    """Requests about the offsets of a sink connector, as those of `OffsetManagement` about a source connector.

    The connector's tasks have to be stopped: while its group has members, each request raises NonEmptyGroup.
    """

    def __init__(self, groups: Coordinator | LiveGroups, group_id: str) -> None:
        self._groups = groups
        self._group_id = group_id

    def alter(self, connector: str, offsets: Iterable[Mapping[str, Any]]) -> str:
        """Add and replace offsets; returns Connect's message. An offset of None deletes one.

        Raises BadConnectRequest for wrong offsets, NoSuchGroup if an offset is to be deleted and there is no group.
        """
        wanted = dict(map(_parsed, offsets))
        if not wanted:
            raise BadConnectRequest(NOTHING_GIVEN)
        new = {where: offset for where, offset in wanted.items() if offset is not None}
        with self._without_members(connector):
            if new:
                self._groups.commit_offsets(self._group_id, new)
            if len(new) < len(wanted):
                self._groups.delete_offsets(self._group_id, wanted.keys() - new.keys())
        return ALTERED

    def reset(self, connector: str) -> str:
        """Delete all offsets, with the group; returns Connect's message. Idempotent."""
        with self._without_members(connector), suppress(NoSuchGroup):
            error = self._groups.delete_groups([self._group_id]).get(self._group_id)
            if error is not None:
                raise error
        return RESET

    @contextmanager
    def _without_members(self, connector: str) -> Iterator[None]:
        try:
            yield
        except (NonEmptyGroup, UnknownMemberId, GroupSubscribedToTopic) as error:
            raise NonEmptyGroup(
                f"cannot change the offsets of connector {connector}: its group {self._group_id} has members; stop the "
                "connector, and try again when its tasks have ended"
            ) from error


def _parsed(pair: Mapping[str, Any]) -> tuple[tuple[str, int], int | None]:
    """The topic partition and the offset of a pair. As in Connect, numbers may be texts. Raises BadConnectRequest."""
    partition, offset = pair["partition"] or {}, pair["offset"]
    try:
        where = _name(partition["kafka_topic"]), whole_number(str(partition["kafka_partition"]), INT32_MAX)
        return where, None if offset is None else whole_number(str(offset["kafka_offset"]))
    except (KeyError, ValueError):
        raise BadConnectRequest(
            f"{dict(pair)} is no offset of a sink connector: write "
            '{"partition": {"kafka_topic": "orders", "kafka_partition": 0}, "offset": {"kafka_offset": 42}}'
        ) from None


def _name(topic: object) -> str:
    if topic is None or topic == "":
        raise ValueError
    return str(topic)
