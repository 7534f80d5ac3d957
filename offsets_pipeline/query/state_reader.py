"""Reads of the state tables without Spark: they take a fraction of the time in which a JVM starts."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from offsets_pipeline.clock import Clock, SystemClock
from offsets_pipeline.config.sections import QuestionSettings
from offsets_pipeline.delta import Snapshot, TableFolder
from offsets_pipeline.delta import query as query_tables
from offsets_pipeline.delta.filesystems import arrow_folder
from offsets_pipeline.delta.properties import IN_SCHEMA, StoreProperties
from offsets_pipeline.delta.schemas import FOLD_PROGRESS, LOG, LOG_PARTITIONS, TABLE_BY_NAME, catalog_name
from offsets_pipeline.delta.store_folder import no_store
from offsets_pipeline.errors import NoSuchTable
from offsets_pipeline.state.belonging import belonging
from offsets_pipeline.state.current import CurrentState, current_state
from offsets_pipeline.state.fold_progress import FoldProgress
from offsets_pipeline.state.merge_on_read import StateTable, state_tables_of

if TYPE_CHECKING:
    import pyarrow as pa

    from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics


class StateReader:
    """Reads the tables of the store in one folder. Each table keeps the version of its first read.

    Questions answer as of the end of the log: `current` folds up to ``at_most`` records that are not folded yet.

    Raises NoSuchStore if the folder is missing, NotAStore if it holds something else or a store of a newer format.
    Raises DamagedTable if the log is damaged, UnsupportedTable if it has a feature that this program does not support.
    """

    def __init__(
        self,
        location: str,
        at_most: int = QuestionSettings().max_unfolded_records,
        clock: Clock = SystemClock(),  # noqa: B008 - immutable
    ) -> None:
        #: when the reader opened the log, in milliseconds since 1970
        self.opened_ms = clock.now_ms()
        self._at_most = at_most
        self._location = location.rstrip("/")
        self._folder = arrow_folder(self._location)
        self._tables: dict[str, Snapshot] = {}
        self._folders: dict[str, TableFolder] = {}
        self._in_schema = False  # the log has the same name in both
        log = self._log()
        self._in_schema = IN_SCHEMA in log.properties
        self.properties = StoreProperties.from_table_properties(log.properties, self._location)

    @property
    def location(self) -> str:
        """The store's folder."""
        return self._location

    @property
    def cluster(self) -> str:
        """The name of the store's cluster: by default the name of its folder."""
        return self.properties.cluster(self._location)

    @property
    def offsets_partitions(self) -> int:
        """The number of log partitions of the state, R1's n; without a state, that of the store."""
        try:
            return len(self._progress().partitions) or self.properties.offsets_partitions
        except NoSuchTable:
            return self.properties.offsets_partitions

    @property
    def coordinator_semantics(self) -> CoordinatorSemantics:
        """The coordinator semantics of the state; before the first fold, those of the store."""
        return self._progress().semantics or self.properties.coordinator_semantics

    def table(self, name: str) -> Snapshot:
        """Return one table, as of the version of its first read."""
        if name not in self._tables:
            self._tables[name] = self._folder_of(name).snapshot()
        return self._tables[name]

    def stream(self, query: str, *names: str) -> pa.RecordBatchReader:
        """Return the result of a query over these tables as a stream of batches."""
        unfolded = self.current.tables(*names) if "current" in self.__dict__ else []
        published = [each.published.name for each in self._state_tables if each.name in names and each.published]
        return query_tables(query, *map(self.table, [*names, *published]), *unfolded)

    def select(self, query: str, *names: str) -> pa.Table:
        """Return the result of a query over these tables as one Arrow table."""
        return self.stream(query, *names).read_all()

    def rows(self, query: str, *names: str) -> list[dict[str, Any]]:
        """Return the result of a query as a list of rows; for small results."""
        found: list[dict[str, Any]] = self.select(query, *names).to_pylist()
        return found

    @cached_property
    def current(self) -> CurrentState:
        """The state as of the end of the log. Fixes the versions of the tables that it consists of.

        Raises NoSuchTable for a store without state tables.
        """
        facts = [each.name for each in self._state_tables]
        published = [each.published.name for each in self._state_tables if each.published is not None]
        while True:
            progress = self._progress()
            for name in (LOG.name, LOG_PARTITIONS.name):
                self.table(name)
            for name in (*facts, *published):
                self._tables[name] = belonging(self._folder_of(name), progress, is_named=True)
            if self._progress().says_same(progress):  # so nothing has dropped facts of theirs meanwhile
                self._tables[FOLD_PROGRESS.name] = progress.snapshot
                return current_state(self.table, self.properties, self._at_most)
            for name in (LOG.name, LOG_PARTITIONS.name):
                del self._tables[name]

    def newest(self, table: StateTable, where: str = "TRUE") -> str:
        """Return SQL for the rows of a state table that count, as of the end of the log; ``where`` restricts the key.

        A query gets the published table with the table of facts.
        """
        return self.current.newest(table, where)

    def topic_names(self) -> dict[str, str]:
        """Return the names of topic ids (R35)."""
        stored = {row["topic_id"]: row["topic"] for row in self.rows("SELECT topic_id, topic FROM topics", "topics")}
        told = self.current.topics.items()
        return stored | {topic_id: min(name, stored.get(topic_id, name)) for topic_id, name in told}

    @property
    def _state_tables(self) -> tuple[StateTable, ...]:
        return state_tables_of(self.properties.topic_kind)

    def _folder_of(self, name: str) -> TableFolder:
        if name not in self._folders:  # one that is looked at again reads only new commits
            folder = catalog_name(name) if self._in_schema else name
            self._folders[name] = TableFolder(f"{self._folder}/{folder}", TABLE_BY_NAME[name])
        return self._folders[name]

    def _progress(self) -> FoldProgress:
        return FoldProgress.read(self._folder_of(FOLD_PROGRESS.name))

    def _log(self) -> Snapshot:
        try:
            return self.table(LOG.name)
        except NoSuchTable:
            raise no_store(self._folder) from None
