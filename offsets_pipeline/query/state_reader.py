"""Reading the state tables without Spark: answers in a fraction of the time that a JVM takes to start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offsets_pipeline.delta import Snapshot, TableFolder
from offsets_pipeline.delta import query as query_tables
from offsets_pipeline.delta.filesystems import arrow_folder
from offsets_pipeline.delta.properties import StoreProperties
from offsets_pipeline.delta.schemas import LOG, TABLES
from offsets_pipeline.delta.store_folder import no_store
from offsets_pipeline.errors import NoSuchTable
from offsets_pipeline.state.merge_on_read import named_rows

if TYPE_CHECKING:
    import pyarrow as pa

_BY_NAME = {table.name: table for table in TABLES}


class StateReader:
    """Reads tables of the store in one folder, each as of when it was first asked for.

    Raises NoSuchStore if nothing is there, NotAStore if something else is there or a store of a newer format,
    DamagedTable if the log is damaged, UnsupportedTable if it has a feature that this program does not support.
    """

    def __init__(self, location: str) -> None:
        self._location = location.rstrip("/")
        self._folder = arrow_folder(self._location)
        self._tables: dict[str, Snapshot] = {}
        self.properties = StoreProperties.from_table_properties(self._log().properties, self._location)

    @property
    def location(self) -> str:
        """The store's folder."""
        return self._location

    @property
    def offsets_partitions(self) -> int:
        """The number of log partitions, R1's n."""
        return self.properties.offsets_partitions

    def table(self, name: str) -> Snapshot:
        """One table, as of when it was first asked for."""
        if name not in self._tables:
            self._tables[name] = TableFolder(f"{self._folder}/{name}", _BY_NAME[name]).snapshot()
        return self._tables[name]

    def stream(self, query: str, *names: str) -> pa.RecordBatchReader:
        """The result of a query over these tables, a batch at a time."""
        return query_tables(query, *map(self.table, names))

    def select(self, query: str, *names: str) -> pa.Table:
        """The result of a query over these tables."""
        return self.stream(query, *names).read_all()

    def rows(self, query: str, *names: str) -> list[dict[str, Any]]:
        """The result of a query whose answer is small."""
        found: list[dict[str, Any]] = self.select(query, *names).to_pylist()
        return found

    def named(self, *names: str) -> str:
        """SQL condition for the rows of these tables that `fold_progress` names (state/merge_on_read.py).

        From here on the tables are read as of a moment at which they held all rows of these incarnations.
        """
        while True:
            incarnations = self._incarnations()
            for name in names:
                self.table(name)
            kept = self._tables.pop("fold_progress")
            if self._incarnations() == incarnations:  # so no compaction dropped rows of these meanwhile
                self._tables["fold_progress"] = kept
                return named_rows(incarnations)
            for name in names:
                del self._tables[name]

    def _incarnations(self) -> dict[int, int]:
        rows = self.rows("SELECT log_partition, incarnation FROM fold_progress", "fold_progress")
        return {row["log_partition"]: row["incarnation"] for row in rows}

    def _log(self) -> Snapshot:
        try:
            return self.table(LOG.name)
        except NoSuchTable:
            raise no_store(self._folder) from None
