"""Reads of the state tables without Spark: they take a fraction of the time in which a JVM starts."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from offsets_pipeline.clock import Clock, SystemClock
from offsets_pipeline.config.sections import QuestionSettings
from offsets_pipeline.delta import Snapshot, TableFolder
from offsets_pipeline.delta import query as query_tables
from offsets_pipeline.delta.filesystems import arrow_folder
from offsets_pipeline.delta.properties import StoreProperties
from offsets_pipeline.delta.schemas import FOLD_PROGRESS, LOG, LOG_PARTITIONS, TABLE_BY_NAME
from offsets_pipeline.delta.store_folder import no_store
from offsets_pipeline.errors import NoSuchTable
from offsets_pipeline.semantics.coordinator_semantics import CoordinatorSemantics
from offsets_pipeline.state.current import CurrentState, current_state
from offsets_pipeline.state.merge_on_read import StateTable, state_tables_of

if TYPE_CHECKING:
    import pyarrow as pa


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
        self.properties = StoreProperties.from_table_properties(self._log().properties, self._location)

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
            return len(self._incarnations()) or self.properties.offsets_partitions
        except NoSuchTable:
            return self.properties.offsets_partitions

    @property
    def coordinator_semantics(self) -> CoordinatorSemantics:
        """The coordinator semantics of the state; before the first fold, those of the store."""
        rows = self.rows("SELECT coordinator_semantics FROM fold_progress LIMIT 1", "fold_progress")
        of_state = (CoordinatorSemantics(row["coordinator_semantics"]) for row in rows)
        return next(of_state, self.properties.coordinator_semantics)

    def table(self, name: str) -> Snapshot:
        """Return one table, as of the version of its first read."""
        if name not in self._tables:
            self._tables[name] = TableFolder(f"{self._folder}/{name}", TABLE_BY_NAME[name]).snapshot()
        return self._tables[name]

    def stream(self, query: str, *names: str) -> pa.RecordBatchReader:
        """Return the result of a query over these tables as a stream of batches."""
        unfolded = self.current.tables(*names) if "current" in self.__dict__ else []
        return query_tables(query, *map(self.table, names), *unfolded)

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
        names = [LOG.name, LOG_PARTITIONS.name, *(each.name for each in state_tables_of(self.properties.topic_kind))]
        while True:
            incarnations = self._incarnations()
            for name in names:
                self.table(name)
            kept = self._tables.pop(FOLD_PROGRESS.name)
            if self._incarnations() == incarnations:  # so no compaction has dropped their rows meanwhile
                self._tables[FOLD_PROGRESS.name] = kept
                return current_state(self.table, self.properties, self._at_most)
            for name in names:
                del self._tables[name]

    def named(self, *_: str) -> str:
        """Return the SQL condition for the rows of the incarnations that count (state/merge_on_read.py)."""
        return self.current.named

    def newest(self, table: StateTable, where: str) -> str:
        """Return SQL for the rows of a state table that count, as of the end of the log.

        ``where`` is `named`, and maybe more about the key.
        """
        return self.current.newest(table, where)

    def topic_names(self) -> dict[str, str]:
        """Return the names of topic ids (R35)."""
        stored = {row["topic_id"]: row["topic"] for row in self.rows("SELECT topic_id, topic FROM topics", "topics")}
        told = self.current.topics.items()
        return stored | {topic_id: min(name, stored.get(topic_id, name)) for topic_id, name in told}

    def _incarnations(self) -> dict[int, int]:
        rows = self.rows("SELECT log_partition, incarnation FROM fold_progress", "fold_progress")
        return {row["log_partition"]: row["incarnation"] for row in rows}

    def _log(self) -> Snapshot:
        try:
            return self.table(LOG.name)
        except NoSuchTable:
            raise no_store(self._folder) from None
