"""Spark, stores and readers for commands. Spark is imported on first use: most questions need none."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

from offsets_pipeline.cli.output import show_status
from offsets_pipeline.errors import NoSuchStore
from offsets_pipeline.semantics.retention import MS_PER_MINUTE, Retention
from offsets_pipeline.semantics.topic_kind import TopicKind
from offsets_pipeline.store.delta.properties import OWNED, SCHEMA_PREFIX, StoreProperties, require_different_clusters
from offsets_pipeline.store.delta.s3_access import is_s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.coordinator.coordinator import Coordinator
    from offsets_pipeline.coordinator.owned_store import OwnedStore
    from offsets_pipeline.questions.history.log_history import LogHistory
    from offsets_pipeline.questions.query.state_reader import StateReader
    from offsets_pipeline.store.store import Store
    from offsets_pipeline.store.store_snapshot import StoreSnapshot


def start_spark(settings: Settings, *, is_small: bool = False) -> SparkSession:
    """Start Spark; ``is_small``: as for `build_session`. Raises DependencyMissing."""
    from pyspark.logger import PySparkLogger

    from offsets_pipeline.store.session import build_session

    os.environ["TZ"] = "UTC"  # PySpark makes local times of timestamps
    time.tzset()
    show_status("starting Spark ...")
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True  # they print errors that the command prints too
    return build_session("offsets", settings, is_small=is_small)


def spark_when_needed(settings: Settings, *locations: str | None, is_small: bool = False) -> Callable[[], SparkSession]:
    """A function that returns the session, and starts Spark when it is first called: input is checked before.

    ``locations`` are the stores that Spark is to open; ``is_small``: as for `build_session`. Raises DependencyMissing.
    """
    if any(location and is_s3(location) for location in locations):
        from offsets_pipeline.store.session import check_s3

        check_s3(settings)
    return cache(partial(start_spark, settings, is_small=is_small))


def open_store(location: str, settings: Settings) -> Store:
    """Open a store; starts Spark when it is first needed, at once for a schema.

    Raises NoSuchStore, NotAStore, DependencyMissing.
    """
    from offsets_pipeline.store.store import Store

    return Store.open(spark_when_needed(settings, location), location)


def open_to_import(
    location: str, settings: Settings, offsets_partitions: int | None, group_ids: Iterable[str] | None = None
) -> Coordinator:
    """Open a coordinator of these groups, or of all, for imported offsets; creates the store if nothing is there.

    Raises StoreMismatch for another number of log partitions than ``offsets_partitions``, and the errors of
    `OwnedStore.open` and `create_owned`.
    """
    from offsets_pipeline.coordinator.owned_store import OwnedStore

    try:
        owned = OwnedStore.open(open_folder(location, settings))
    except NoSuchStore:
        owned = create_owned(location, settings, offsets_partitions or settings.log.offsets_partitions)
    else:
        if offsets_partitions is not None:
            owned = OwnedStore.create(owned.location, offsets_partitions)
    # imported offsets go to the log, even if commits go to ZooKeeper
    to_log = replace(settings.coordinator, offsets_storage="kafka", dual_commit_enabled=False)
    return open_coordinator(owned, replace(settings, coordinator=to_log), group_ids)


def create_owned(
    location: str,
    settings: Settings,
    offsets_partitions: int,
    topic_kind: TopicKind = TopicKind.CONSUMER_OFFSETS,
    cluster_id: str | None = None,
    *,
    must_be_new: bool = False,
) -> OwnedStore:
    """Create an owned store, as `OwnedStore.create`. In a schema Spark creates the tables.

    Raises CatalogMissing if the session's catalog ends with the session, and as `Store.create`.
    """
    from offsets_pipeline.coordinator.owned_store import OwnedStore

    if location.startswith(SCHEMA_PREFIX):
        from offsets_pipeline.store.session import require_lasting_catalog
        from offsets_pipeline.store.store import Store

        spark = start_spark(settings)
        require_lasting_catalog(spark, location.removeprefix(SCHEMA_PREFIX), f"create store {location}")
        properties = StoreProperties(OWNED, offsets_partitions, cluster_id, topic_kind=topic_kind)
        store = Store.create(spark, location, properties)
        location, must_be_new = store.folder(), must_be_new and not store.created_here
    return OwnedStore.create(location, offsets_partitions, topic_kind, cluster_id, must_be_new=must_be_new)


def open_coordinator(store: OwnedStore, settings: Settings, group_ids: Iterable[str] | None) -> Coordinator:
    """Open a coordinator that loads only the log partitions of these groups, or all."""
    from offsets_pipeline.coordinator.coordinator import Coordinator

    partitions = None if group_ids is None else {store.partition_for(group_id) for group_id in group_ids}
    return Coordinator.open(store, settings, partitions=partitions, housekeeping=False)


def open_reader(location: str, settings: Settings, at_most: int | None = None) -> StateReader:
    """Open a store for reading, without Spark unless a catalog has to be asked. Raises NoSuchStore, NotAStore.

    ``at_most``: largest number of records that the reader folds; None: as set.
    """
    from offsets_pipeline.questions.query.state_reader import StateReader

    folder = open_folder(location, settings)
    return StateReader(folder, settings.questions.max_unfolded_records if at_most is None else at_most)


def open_folder(location: str, settings: Settings) -> str:
    """The folder of a store: asks the catalog for that of a schema, with Spark. Raises NoSuchStore, NotAStore."""
    if location.startswith(SCHEMA_PREFIX):  # only the catalog knows the folder of its tables
        return open_store(location, settings).folder()
    return location


def open_readers(locations: Sequence[str], settings: Settings) -> dict[str, StateReader]:
    """Open stores for reading, by location. Raises as `open_reader`, StoreMismatch if two have one cluster name."""
    readers = {location: open_reader(location, settings) for location in dict.fromkeys(locations)}
    require_different_clusters({location: reader.cluster for location, reader in readers.items()})
    return readers


def open_logs(locations: Sequence[str], settings: Settings) -> dict[str, LogHistory]:
    """Open the logs of stores, by location. Raises as `LogHistory`, StoreMismatch if two have one cluster name."""
    from offsets_pipeline.questions.history.log_history import LogHistory

    logs = {location: LogHistory(open_folder(location, settings)) for location in dict.fromkeys(locations)}
    require_different_clusters({location: log.cluster for location, log in logs.items()})
    return logs


def retention_of(store: StoreSnapshot, settings: Settings, minutes: int | None) -> Retention:
    """The settings of retention. Those of a broker are known from the user's minutes, or from the store's note."""
    ours = settings.coordinator
    known = store.properties.retention or Retention(
        ours.offsets_retention_minutes * MS_PER_MINUTE,
        ours.offsets_retention_check_interval_ms,
        is_known=store.properties.kind == OWNED,
    )
    return known if minutes is None else Retention(minutes * MS_PER_MINUTE, known.check_interval_ms, is_known=True)


def open_beside(location: str, reader: StateReader, settings: Settings) -> list[StateReader]:
    """Open the stores of a Connect worker's other topics (`stores_beside`).

    Leaves out stores that do not exist, or are of another kind.
    """
    from offsets_pipeline.connect.connector_views import stores_beside

    def find(other: str) -> StateReader | None:
        try:
            return open_reader(other, settings)
        except NoSuchStore:
            return None

    return stores_beside(location, reader.properties, find)
