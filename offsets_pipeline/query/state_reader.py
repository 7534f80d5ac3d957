"""Reads of the state tables without Spark: they take a fraction of the time in which a JVM starts."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from offsets_pipeline.clock import Clock, SystemClock
from offsets_pipeline.config.sections import QuestionSettings
from offsets_pipeline.delta import Snapshot, TableFolder
from offsets_pipeline.delta.data_file import ALL_ROWS
from offsets_pipeline.delta.filesystems import arrow_folder
from offsets_pipeline.delta.properties import IN_SCHEMA, StoreProperties
from offsets_pipeline.delta.schemas import FOLD_PROGRESS, LOG, LOG_PARTITIONS, TABLE_BY_NAME, TOPICS, catalog_name
from offsets_pipeline.delta.store_folder import no_store
from offsets_pipeline.errors import NoSuchTable
from offsets_pipeline.state.belonging import belonging
from offsets_pipeline.state.current import CurrentState, current_state
from offsets_pipeline.state.fold_progress import FoldProgress
from offsets_pipeline.state.merge_on_read import StateTable, state_tables_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from offsets_pipeline.delta.data_file import Only
    from offsets_pipeline.query.relations import Relations
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

    @cached_property
    def relations(self) -> Relations:
        """The tables of the store for queries in DuckDB's SQL, none of which a user wrote."""
        from offsets_pipeline.query.relations import Relations  # noqa: PLC0415 - importing DuckDB takes 0.1 s

        return Relations(self)

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

    def newest(self, table: StateTable, columns: Sequence[str], only: Only = ALL_ROWS) -> pa.Table:
        """Return columns of the rows of a state table that count, in no order, as of the end of the log.

        ``only`` restricts them to values of columns of the key, or of columns that all rows of a key share.
        """
        return self.current.newest(table, columns, only, self.table)

    def topic_names(self) -> dict[str, str]:
        """Return the names of topic ids (R35)."""
        stored = {row["topic_id"]: row["topic"] for row in self.table(TOPICS.name).rows().to_pylist()}
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
