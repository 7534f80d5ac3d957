"""A store: one folder or catalog schema with the tables of one log and of the state folded from it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from pyspark import inheritable_thread_target
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.pandas.types import from_arrow_type

from offsets_pipeline.errors import NoSuchStore, NotAStore, StoreMismatch, WriteConflict
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from offsets_pipeline.store.delta.filesystems import (
    arrow_folder,
    children,
    open_path,
    resolved_folder,
    without_file_scheme,
)
from offsets_pipeline.store.delta.properties import (
    CREATION,
    IN_SCHEMA,
    OWNED,
    SCHEMA_PREFIX,
    StoreProperties,
    require_format,
)
from offsets_pipeline.store.delta.retry import with_retries
from offsets_pipeline.store.delta.schemas import (
    LATER_TABLES,
    LOG,
    LOG_PARTITIONS,
    TABLE_BY_NAME,
    Table,
    catalog_name,
    tables_of,
)
from offsets_pipeline.store.delta.store_folder import are_in_use, create_tables, log_of, require_same, set_properties
from offsets_pipeline.store.delta.table_folder import TableFolder
from offsets_pipeline.store.session import wait_for_tasks
from offsets_pipeline.store.store_snapshot import LogIncarnation, log_incarnations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from offsets_pipeline.semantics.retention import Retention

    #: A Spark session, or a function that returns it and starts it if it is not running.
    SparkSource = SparkSession | Callable[[], SparkSession]

# Delta's errors while another process creates the table: its folder exists, and its first commit is not visible yet.
_BEING_CREATED = (
    "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION",
    "DELTA_TABLE_NOT_FOUND",
    "DELTA_CONCURRENT",
    "DELTA_METADATA_CHANGED",
    "DELTA_PROTOCOL_CHANGED",
)


def session_of(spark: SparkSource) -> SparkSession:
    """The session; starts it if ``spark`` is a function that does. Raises DependencyMissing."""
    return spark() if callable(spark) else spark


class Store:
    """An existing store; use `Store.open`, `Store.find` or `Store.create`."""

    def __init__(self, spark: SparkSource, location: str, properties: StoreProperties) -> None:
        self._spark = spark
        self.location = location
        self.properties = properties
        #: Whether this object created the store.
        self.created_here = False
        self._tables: dict[str, TableFolder] = {}

    @property
    def spark(self) -> SparkSession:
        """The Spark session. Raises DependencyMissing if it has to be started."""
        return session_of(self._spark)

    @classmethod
    def open(cls, spark: SparkSource, location: str) -> Store:
        """Open the store at a folder, or at ``schema:NAME``. Starts no Spark job, and for a folder no session.

        Raises:
            NoSuchStore: there is nothing at this place.
            NotAStore: the place holds something else.
            DamagedTable: the log is damaged.
        """
        location = normalised(location)
        if not location.startswith(SCHEMA_PREFIX):
            found = log_of(arrow_folder(location)).properties
            if IN_SCHEMA in found:
                raise NotAStore(
                    f"cannot open store {location} by its folder: its tables are a schema's; name schema:NAME"
                )
            return cls(spark, location, StoreProperties.from_table_properties(found, arrow_folder(location)))
        try:
            folder = _folder_in_catalog(session_of(spark), location, LOG.name)
        except AnalysisException:
            if _has_no_store_yet(session_of(spark), location):
                raise NoSuchStore(
                    f"no store at {location}; ingest a log, run offsets create for an owned store, or check its name"
                ) from None
            raise NotAStore(f"cannot open store {location}: it has no table named log; name a store's schema") from None
        properties = TableFolder(without_file_scheme(folder), LOG).snapshot().properties
        return cls(spark, location, StoreProperties.from_table_properties(properties, location))

    @classmethod
    def find(cls, spark: SparkSource, location: str) -> Store | None:
        """Open the store, as `open`; returns None if there is nothing."""
        try:
            return cls.open(spark, location)
        except NoSuchStore:
            return None

    @classmethod
    def create(cls, spark: SparkSource, location: str, properties: StoreProperties) -> Store:
        """Create the tables of a new store; the log comes last: until it is there, `open` finds no store.

        If another process creates the same store at the same time, returns that store. Spark's catalog creates the
        tables of a schema; the tables of a folder need no Spark job. Starts the session first: without it the store
        would stay empty.

        Raises:
            DependencyMissing: Spark cannot start.
            NoSuchStore: the name of the schema is not valid.
            NotAStore: the place holds something else.
            StoreMismatch: the place holds a store with other properties.
            InvalidPartitionCount: as `StoreProperties.require_partition_count`.
            UnsafeStorage, StorageFailed: as `create_tables`.
        """
        location = normalised(location)
        store = cls(session_of(spark), location, properties)
        if location.startswith(SCHEMA_PREFIX):
            return store._create_schema()
        store.created_here = create_tables(arrow_folder(location), properties)
        return store

    def _create_schema(self) -> Store:
        schema, log = self.location.removeprefix(SCHEMA_PREFIX), self.table_name(LOG.name)
        self.properties.require_partition_count()
        if not _has_no_store_yet(self.spark, self.location):
            if not self.spark.catalog.tableExists(log):
                raise NotAStore(
                    f"cannot create a store in {self.location}: it is not empty; name a new or empty schema"
                )
            return self._as_made_by_another()
        self.spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        with ThreadPoolExecutor() as threads:  # the creation of a table mostly waits
            create = inheritable_thread_target(self.spark)(self._create_table)
            list(threads.map(create, (table for table in self.tables if table is not LOG)))
        mark = uuid.uuid4().hex
        self._create_table(LOG, self.properties.as_table_properties() | {CREATION: mark, IN_SCHEMA: "true"})
        if self.table(LOG.name).snapshot().properties.get(CREATION) != mark:
            return self._as_made_by_another()
        self.created_here = True
        return self

    def discard(self, appends: int = 0) -> None:
        """Remove the store after a failed first ingest, if this object created it.

        ``appends`` is the number of the ingest's own appends. Keeps a store to which another writer has appended, and
        what else is in its bucket. Raises OSError and as `TableFolder.snapshot` if the storage fails.
        """
        if not self.created_here or self.version(LOG.name) > appends:
            return
        wait_for_tasks()  # else files that they write later would be left, as of a store that has lost its log
        if self.is_schema:
            self.spark.sql(f"DROP SCHEMA {self.location.removeprefix(SCHEMA_PREFIX)} CASCADE")
            return
        system, path = open_path(arrow_folder(self.location))
        if "/" in path:
            system.delete_dir(path)
            return
        for name in children(self.location) & TABLE_BY_NAME.keys():  # the store is a bucket, which stays
            system.delete_dir(f"{path}/{name}")

    def _as_made_by_another(self) -> Store:
        found = Store.open(self.spark, self.location)
        require_same(self.location, found.properties, self.properties)
        return found

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables of the store, the log last."""
        return tables_of(self.properties.topic_kind)

    def require(self, kind: str) -> None:
        """Raise StoreMismatch if the store is of another kind (R4)."""
        if self.properties.kind != kind:
            raise StoreMismatch(
                f"{self.location} is {_with_article(self.properties.kind)} store, "
                f"but this command needs {_with_article(kind)} one; name another store"
            )

    def require_semantics(self, semantics: CoordinatorSemantics | None) -> None:
        """Raise StoreMismatch if other coordinator semantics than the store's are asked for; None asks for none."""
        known = self.properties.coordinator_semantics
        if semantics not in (None, known):
            raise StoreMismatch(
                f"{self.location} has {known} coordinator semantics, not {semantics}: "
                f"`offsets reload --coordinator-semantics {semantics}` changes them"
            )

    def require_format(self) -> None:
        """Raise NotAStore if the store has got another format since it was opened. Costs one look at the log."""
        require_format(self.table(LOG.name).snapshot().properties, self.location)

    def table_name(self, name: str) -> str:
        """The table's name in SQL."""
        return sql_name(self.location, catalog_name(name) if self.is_schema else name)

    def read(self, name: str) -> DataFrame:
        """The table as a DataFrame; each action reads the newest version."""
        return self.spark.table(self.table_name(name))

    def table(self, name: str) -> TableFolder:
        """The table for reads and writes without Spark; returns the same object each time."""
        if name not in self._tables:
            self._tables[name] = TableFolder(self.arrow_folder(name), TABLE_BY_NAME[name])
        return self._tables[name]

    def arrow_folder(self, name: str) -> str:
        """The table's folder as a path or a URI that Arrow understands."""
        if name in {table.name for table in LATER_TABLES}:  # no catalog has these
            return f"{arrow_folder(self.folder())}/{name}"
        if self.is_schema:
            return without_file_scheme(_folder_in_catalog(self.spark, self.location, catalog_name(name)))
        return f"{arrow_folder(self.location)}/{name}"

    def version(self, name: str) -> int:
        """The table's newest version."""
        return self.table(name).snapshot().version

    @property
    def is_schema(self) -> bool:
        """Whether the store is a schema of the catalog, not a folder."""
        return self.location.startswith(SCHEMA_PREFIX)

    def folder(self) -> str:
        """The folder of the store's tables, as Spark understands it; for a schema, the parent folder of its log."""
        if not self.is_schema:
            return self.location
        return _folder_in_catalog(self.spark, self.location, LOG.name).rpartition("/")[0]

    def log_incarnations(self) -> list[LogIncarnation]:
        """The complete incarnations of the log, in order, as of now."""
        return log_incarnations(self.table(LOG_PARTITIONS.name).snapshot().rows(), self.properties)

    def current_log(self) -> LogIncarnation:
        """The newest complete incarnation of the log."""
        return self.log_incarnations()[-1]

    def with_topic(
        self,
        cluster_id: str | None,
        topic_id: str | None,
        name: str,
        partitions: int,
        retention: Retention | None = None,
    ) -> Store:
        """Write the topic of the log to the store's properties; returns the store with these properties.

        An id or a retention of None keeps the known one. A retention that is known keeps the time of its first reading.
        """
        known = self.properties
        return self._with_properties(
            replace(
                known,
                cluster_id=cluster_id or known.cluster_id,
                topic_id=topic_id or known.topic_id,
                topic_name=name,
                offsets_partitions=partitions,
                retention=known.retention if retention in (None, known.retention) else retention,
            )
        )

    def with_semantics(self, semantics: CoordinatorSemantics) -> Store:
        """Write the coordinator semantics to the store's properties; returns the store with these properties.

        The state keeps its own until a reload replaces it.

        Raises StoreMismatch for `classic` and an owned store, whose coordinator behaves as that of Kafka 4.x, or a
        store of a topic of Kafka Connect.
        """
        if semantics.is_classic and (self.properties.kind == OWNED or not self.properties.topic_kind.has_groups):
            what = "its topic has no records of groups"
            if self.properties.kind == OWNED:
                what = f"it is an owned store, and its coordinator is {MODERN}"
            raise StoreMismatch(f"cannot replay {self.location} as {semantics}: {what}")
        return self._with_properties(replace(self.properties, coordinator_semantics=semantics))

    def _with_properties(self, properties: StoreProperties) -> Store:
        known = self.properties.as_table_properties().items()
        new = dict(properties.as_table_properties().items() - known)  # another process may have changed the others
        if not new:
            return self
        set_properties(self.table(LOG.name), new, "a change of the store's properties")
        return self._same(self._spark, properties)

    def in_session(self, spark: SparkSession) -> Store:
        """The same store in another Spark session; each streaming query has its own."""
        return self._same(spark, self.properties)

    def refreshed(self) -> Store:
        """The same store with its present properties. Raises as `open`."""
        properties = self.table(LOG.name).snapshot().properties
        return self._same(self._spark, StoreProperties.from_table_properties(properties, self.location))

    def _same(self, spark: SparkSource, properties: StoreProperties) -> Store:
        store = Store(spark, self.location, properties)
        store._tables = self._tables
        return store

    def _create_table(self, table: Table, more: Mapping[str, str] = MappingProxyType({})) -> None:
        """Create a table in the catalog; the door creates those of a folder."""
        columns = (
            f"`{each.name}` {from_arrow_type(each.type).simpleString()}"
            f"{'' if each.nullable else ' NOT NULL'} COMMENT {_quoted(each.comment)}"
            for each in table.columns
        )
        properties = (f"{_quoted(key)} = {_quoted(value)}" for key, value in {**table.properties, **more}.items())
        partitioned = f"PARTITIONED BY ({', '.join(table.partitioned_by)})" if table.partitioned_by else ""
        statement = (
            f"CREATE TABLE IF NOT EXISTS {self.table_name(table.name)} ({', '.join(columns)}) USING delta "
            f"{partitioned} COMMENT {_quoted(table.comment)} TBLPROPERTIES ({', '.join(properties)})"
        )

        def create() -> None:
            try:
                self.spark.sql(statement)
            except PySparkException as error:
                if self.spark.catalog.tableExists(self.table_name(table.name)):
                    return  # another process is creating the same store
                if not (error.getCondition() or "").startswith(_BEING_CREATED):
                    raise
                raise WriteConflict(f"another process is creating {self.table_name(table.name)}") from error

        with_retries(create, f"the creation of {self.table_name(table.name)}")


def _with_article(kind: str) -> str:
    return f"an {kind}" if kind == OWNED else f"a {kind}"


def normalised(location: str) -> str:
    """The location in its normal form: an absolute path or a URI that is not encoded, and no slash at the end.

    Raises ConfigError as `arrow_folder`.
    """
    return location.rstrip("/") if location.startswith(SCHEMA_PREFIX) else resolved_folder(location)


def sql_name(location: str, table: str) -> str:
    """The SQL name of a table of the store at ``location``, which is a folder or ``schema:NAME``."""
    if location.startswith(SCHEMA_PREFIX):
        schema = location.removeprefix(SCHEMA_PREFIX)
        if not re.fullmatch(r"\w+(\.\w+)*", schema):
            raise NoSuchStore(f"{schema!r} is not a schema name: use letters, digits, _ and dots")
        return f"{schema}.{table}"
    return f"delta.`{location.replace('`', '``')}/{table}`"


def _folder_in_catalog(spark: SparkSession, location: str, name: str) -> str:
    """The folder of a table in a schema, as Spark names it. Raises AnalysisException if there is no such table."""
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {sql_name(location, name)}").collect()
    return next(str(row["data_type"]) for row in reversed(rows) if row["col_name"] == "Location")


def _quoted(text: str) -> str:
    """A text as a literal of SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _has_no_store_yet(spark: SparkSession, location: str) -> bool:
    """Whether a schema is missing, or has only tables of a store, without a log, that nothing has been written to."""
    schema = location.removeprefix(SCHEMA_PREFIX)
    if not spark.catalog.databaseExists(schema):
        return True
    # In place of `catalog.listTables`, which loads each table; temporary views belong to the session.
    found = {each.tableName for each in spark.sql(f"SHOW TABLES IN {schema}").collect() if not each.isTemporary}
    known = {catalog_name(name): table for name, table in TABLE_BY_NAME.items() if table is not LOG}
    return found <= known.keys() and not are_in_use(
        TableFolder(without_file_scheme(_folder_in_catalog(spark, location, name)), known[name]) for name in found
    )
