"""An owned store without a JVM: creating its tables, and opening it."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from offsets_pipeline.delta.filesystems import children
from offsets_pipeline.delta.properties import CREATION, OWNED, StoreProperties
from offsets_pipeline.delta.schemas import LOG, TABLES
from offsets_pipeline.delta.table_folder import TableFolder
from offsets_pipeline.errors import InvalidPartitionCount, NotAStore, NotCoordinator, StoreMismatch
from offsets_pipeline.query.state import StateReader
from offsets_pipeline.semantics.partitioning import partition_for

_SCHEMA_PREFIX = "schema:"


@dataclass(frozen=True)
class OwnedStore:
    """An existing owned store: its folder, or the URI of one, and what is fixed with it."""

    location: str
    properties: StoreProperties

    def partition_for(self, group_id: str) -> int:
        """The log partition of a group (R1)."""
        return partition_for(group_id, self.properties.offsets_partitions)

    @classmethod
    def open(cls, location: str | Path) -> OwnedStore:
        """Open the owned store at a folder.

        Raises NoSuchStore where there is nothing, NotAStore where there is something else, NotCoordinator for a
        mirrored store (R4).
        """
        folder = _folder(location)
        properties = StateReader(folder).properties
        if properties.kind != OWNED:
            raise NotCoordinator(
                f"{folder} is a mirrored store: a broker is its coordinator, and only it may write (R4); "
                "create an owned store in another folder"
            )
        return cls(folder, properties)

    @classmethod
    def create(cls, location: str | Path, offsets_partitions: int) -> OwnedStore:
        """Create an owned store in a folder: the tables that `Store.create` makes, the log last.

        If another process creates the same store at the same time, returns that store.

        Raises NotAStore if the folder holds something else, StoreMismatch if it is a store of another kind or with
        another number of log partitions, InvalidPartitionCount for a count below 1, UnsafeStorage.
        """
        folder = _folder(location)
        properties = StoreProperties(OWNED, offsets_partitions)
        if offsets_partitions < 1:
            raise InvalidPartitionCount(f"a log has at least 1 partition, not {offsets_partitions}")
        try:
            found = children(folder)
        except NotADirectoryError:
            raise NotAStore(f"{folder} is a file: name a new or empty folder") from None
        if not found <= {table.name for table in TABLES} - {LOG.name}:
            if LOG.name not in found:
                raise NotAStore(f"{folder} is not empty and not a store: name a new or empty folder")
            return cls._as_made_by_another(folder, properties)
        with ThreadPoolExecutor() as threads:
            others = (TableFolder(f"{folder}/{each.name}", each) for each in TABLES if each is not LOG)
            list(threads.map(TableFolder.create, others))
        mark = {CREATION: uuid.uuid4().hex}
        TableFolder(f"{folder}/{LOG.name}", LOG).create(properties.as_table_properties() | mark)
        return cls._as_made_by_another(folder, properties)

    @classmethod
    def _as_made_by_another(cls, folder: str, properties: StoreProperties) -> OwnedStore:
        found = StateReader(folder).properties
        if found != properties:
            raise StoreMismatch(f"{folder} is a store already, with other properties: name another folder")
        return cls(folder, found)


def _folder(location: str | Path) -> str:
    text = str(location)
    if text.startswith(_SCHEMA_PREFIX):
        raise NotAStore(f"{text}: only Spark's catalog knows where that lies; name the folder of the store")
    return text.rstrip("/") if "://" in text else str(Path(text).resolve())
