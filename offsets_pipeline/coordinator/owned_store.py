"""Create and open an owned store without a JVM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offsets_pipeline.errors import NotAStore, NotCoordinator, StoreMismatch
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.filesystems import resolved_folder
from offsets_pipeline.store.delta.properties import OWNED, SCHEMA_PREFIX, StoreProperties
from offsets_pipeline.store.delta.store_folder import create_tables, properties_of

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class OwnedStore:
    """An existing owned store: its folder or URI, and its fixed properties.

    >>> from offsets_pipeline import OwnedStore
    >>> OwnedStore.create("owned", 50).partition_for("billing")
    9
    """

    location: str
    properties: StoreProperties

    def partition_for(self, group_id: str) -> int:
        """The log partition of a group (R1)."""
        return partition_for(group_id, self.properties.offsets_partitions)

    @classmethod
    def open(
        cls, location: str | Path, topic_kind: TopicKind = TopicKind.CONSUMER_OFFSETS, *others: TopicKind
    ) -> OwnedStore:
        """Open the owned store at a folder, whose log is of one of these kinds.

        The folder of a schema is `Store.open(spark, "schema:NAME").folder()`.

        Raises NoSuchStore if the folder does not exist, NotAStore if it holds something else, NotCoordinator for a
        mirrored store (R4), StoreMismatch for an owned store with another kind of log.
        """
        folder = _folder(location)
        properties = properties_of(folder)
        if properties.kind != OWNED:
            raise NotCoordinator(
                f"cannot write to {folder}: in a {properties.kind} store only the broker writes (R4); "
                "create an owned store in another folder, or change the cluster's groups: delete-group, delete-offsets "
                "and reset-offsets take --bootstrap-server"
            )
        properties.require_topic_kind(folder, topic_kind, *others)
        return cls(folder, properties)

    @classmethod
    def create(
        cls,
        location: str | Path,
        offsets_partitions: int,
        topic_kind: TopicKind = TopicKind.CONSUMER_OFFSETS,
        cluster_id: str | None = None,
        *,
        must_be_new: bool = False,
    ) -> OwnedStore:
        """Create an owned store in a folder: the tables that `Store.create` makes, the log last.

        ``offsets_partitions`` is the number of log partitions: Kafka's `offsets.topic.num.partitions`.
        Returns the store if it exists with these properties, unless it ``must_be_new``.

        Raises NotAStore if the folder holds something else, StoreMismatch if it is a store of another kind, with
        another number of log partitions, or not new, InvalidPartitionCount for an impossible one, UnsafeStorage if the
        storage has no atomic put-if-absent.
        """
        folder = _folder(location)
        properties = StoreProperties(OWNED, offsets_partitions, cluster_id, topic_kind=topic_kind)
        if not create_tables(folder, properties) and must_be_new:
            raise StoreMismatch(
                f"cannot create a store in {folder}: it has an owned store of {offsets_partitions} log partitions "
                "already; use it as it is, or name another folder"
            )
        return cls(folder, properties)


def _folder(location: str | Path) -> str:
    text = str(location)
    if text.startswith(SCHEMA_PREFIX):
        raise NotAStore(
            f"cannot open store {text}: a coordinator does not read Spark's catalog; name the folder of its tables: "
            f'Store.open(spark, "{text}").folder()'
        )
    return resolved_folder(text)
