"""Reading the state tables without Spark: answers in a fraction of the time that a JVM takes to start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import fs

from offsets_pipeline.delta.properties import StoreProperties
from offsets_pipeline.delta.reader import answer
from offsets_pipeline.delta.schemas import LOG
from offsets_pipeline.errors import NoSuchStore, NotAStore, UnsupportedTable, first_line
from offsets_pipeline.state.merge_on_read import named_rows

if TYPE_CHECKING:
    from collections.abc import Sequence


class StateReader:
    """Reads tables of the store in one folder, each as of when it was first asked for.

    Raises NoSuchStore where there is nothing, NotAStore where there is something else, or a store of a newer
    format, UnsupportedTable where only Spark can read the log.
    """

    def __init__(self, location: str) -> None:
        self._location = location.rstrip("/")
        self._tables: dict[str, DeltaTable] = {}
        self.properties = self._properties()

    @property
    def location(self) -> str:
        """The store's folder."""
        return self._location

    @property
    def offsets_partitions(self) -> int:
        """The number of log partitions, R1's n."""
        return self.properties.offsets_partitions

    def table(self, name: str) -> DeltaTable:
        """One table, for its own statistics."""
        if name not in self._tables:
            self._tables[name] = DeltaTable(f"{self._location}/{name}")
        return self._tables[name]

    def stream(self, query: str, *names: str) -> pa.RecordBatchReader:
        """The result of a query over these tables, a batch at a time."""
        return answer(query, **{name: self.table(name) for name in names})

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

    def _properties(self) -> StoreProperties:
        try:
            configuration = self.table(LOG.name).metadata().configuration
        except (TableNotFoundError, OSError):
            raise self._no_store() from None
        except DeltaError as error:
            raise UnsupportedTable(
                f"the table {self._location}/{LOG.name} cannot be read without Spark: {first_line(error)}"
            ) from error
        return StoreProperties.from_table_properties(configuration, self._location)

    def _no_store(self) -> NoSuchStore | NotAStore:
        if "://" not in self._location:
            kind = fs.LocalFileSystem().get_file_info(self._location).type
            if kind == fs.FileType.File or (kind == fs.FileType.Directory and self._children()):
                return NotAStore(
                    f"{self._location} is not a store: it has no table named log; name the folder of a store"
                )
        return NoSuchStore(f"no store at {self._location}: ingest a log into it first, or check the path")

    def _children(self) -> Sequence[Any]:
        children: Sequence[Any] = fs.LocalFileSystem().get_file_info(fs.FileSelector(self._location))
        return children
