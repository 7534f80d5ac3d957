"""Targets of a query's offsets: a group of an owned store, or a consumer group of a broker.

A target connects with the first commit, and is used by one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.kafka.broker.cluster import Cluster
from offsets_pipeline.kafka.broker.group_offsets_client import commit_group_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.coordinator.requests import OffsetAndMetadata
    from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
    from offsets_pipeline.semantics.partition_state import TopicPartition


class StoreTarget:
    """An owned store."""

    def __init__(self, location: str | Path, settings: Settings | None) -> None:
        self.name = str(location)
        self._location = location
        self._settings = settings
        self._coordinator: Coordinator | None = None

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit offsets and wait until they are written. Raises as `Coordinator.open` and `commit_offsets`."""
        if self._coordinator is None:
            store = OwnedStore.open(self._location)
            self._coordinator = Coordinator.open(
                store, self._settings, partitions={store.partition_for(group_id)}, housekeeping=False
            )
        self._coordinator.commit_offsets(group_id, offsets)

    def close(self) -> None:
        """Disconnect; the next commit connects again."""
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is not None:
            coordinator.close()


class BrokerTarget:
    """A cluster of brokers."""

    def __init__(self, options: KafkaOptions) -> None:
        self.name = options.bootstrap_server
        self._cluster = Cluster(options)

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit offsets and wait until they are written. Raises the errors of `commit_group_offsets`."""
        commit_group_offsets(
            self._cluster, group_id, {where: (each.offset, each.metadata) for where, each in offsets.items()}
        )

    def close(self) -> None:
        """Disconnect; the next commit connects again."""
        self._cluster.close()
