"""An owned store without a JVM: creating its tables, and opening it."""

from __future__ import annotations

import json
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offsets_pipeline.delta.properties import CREATION, OWNED, StoreProperties
from offsets_pipeline.delta.protocol import CONSTRAINT, DELTA_LOG, delta_type
from offsets_pipeline.delta.schemas import LOG, TABLES, Table
from offsets_pipeline.delta.storage import LocalStorage
from offsets_pipeline.errors import InvalidPartitionCount, NotAStore, NotCoordinator, StoreMismatch, WriteConflict
from offsets_pipeline.query.state import StateReader
from offsets_pipeline.semantics.partitioning import partition_for

if TYPE_CHECKING:
    from collections.abc import Mapping

_SCHEMA_PREFIX = "schema:"
#: What Delta asks of readers and writers of a plain table, and of one with constraints.
_READER, _WRITER, _WRITER_WITH_CONSTRAINTS = 1, 2, 3


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
        """Create an owned store in a local folder: the tables that `Store.create` makes, the log last.

        Where somebody else creates the same store at this moment, theirs is as good.

        Raises NotAStore where the place holds something else or is not local, StoreMismatch where it is a store of
        another kind or another number of log partitions, InvalidPartitionCount for a count below 1.
        """
        folder = _folder(location)
        properties = StoreProperties(OWNED, offsets_partitions)
        if offsets_partitions < 1:
            raise InvalidPartitionCount(f"a log has at least 1 partition, not {offsets_partitions}")
        if "://" in folder:
            raise NotAStore(f"{folder} is no local folder: create the store there with Spark, Store.create")
        path = Path(folder)
        children = {each.name for each in path.iterdir()} if path.exists() else set()
        if not children <= {table.name for table in TABLES} - {LOG.name}:
            if LOG.name not in children:
                raise NotAStore(f"{folder} is not empty and not a store: name a new or empty folder")
            return cls._as_made_by_another(folder, properties)
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda table: _create(path, table, {}), (each for each in TABLES if each is not LOG)))
        _create(path, LOG, properties.as_table_properties() | {CREATION: uuid.uuid4().hex})
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


def _create(folder: Path, table: Table, more: Mapping[str, str]) -> None:
    """Create a table, by its first commit; one that somebody else creates is as good."""
    place = folder / table.name
    (place / DELTA_LOG).mkdir(parents=True, exist_ok=True)
    now_ms = time.time_ns() // 1_000_000
    configuration = {**table.properties, **more}
    constrained = any(key.startswith(CONSTRAINT) for key in configuration)
    schema = {
        "type": "struct",
        "fields": [
            {
                "name": column.name,
                "type": delta_type(column.type),
                "nullable": column.nullable,
                "metadata": {"comment": column.comment},
            }
            for column in table.columns
        ],
    }
    commit_info = {
        "timestamp": now_ms,
        "operation": "CREATE TABLE",
        "operationParameters": {
            "partitionBy": json.dumps(table.partitioned_by),
            "clusterBy": "[]",
            "description": table.comment,
            "isManaged": "false",
            "properties": json.dumps(configuration),
        },
        "isBlindAppend": True,
        "engineInfo": "offsets_pipeline",
    }
    metadata = {
        "id": str(uuid.uuid4()),
        "description": table.comment,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": list(table.partitioned_by),
        "configuration": configuration,
        "createdTime": now_ms,
    }
    protocol = {
        "minReaderVersion": _READER,
        "minWriterVersion": _WRITER_WITH_CONSTRAINTS if constrained else _WRITER,
    }
    actions: list[dict[str, Any]] = [{"commitInfo": commit_info}, {"metaData": metadata}, {"protocol": protocol}]
    try:
        LocalStorage(str(place)).create(0, actions, durable=True)
    except WriteConflict:
        return
