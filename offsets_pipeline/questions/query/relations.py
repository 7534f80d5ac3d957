"""Relations of a store's tables in DuckDB: over the Parquet files of their versions, and over rows in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.errors import DamagedTable
from offsets_pipeline.store.delta.data_file import ALL_ROWS
from offsets_pipeline.store.delta.filesystems import open_path
from offsets_pipeline.store.delta.reader import damage_of, explained, quoted
from offsets_pipeline.store.delta.schemas import FOLD_PROGRESS, LOG, LOG_PARTITIONS, TOPICS, Table

if TYPE_CHECKING:
    from offsets_pipeline.fold.state.merge_on_read import StateTable
    from offsets_pipeline.questions.query.state_reader import StateReader
    from offsets_pipeline.store.delta.data_file import DataFile, Only
    from offsets_pipeline.store.delta.snapshot import Snapshot

_SMALL = (FOLD_PROGRESS.name, LOG_PARTITIONS.name, TOPICS.name)  # tables that are read as a whole
_CONFIGURATION: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
}
#: What DuckDB and Arrow raise.
ERRORS = (duckdb.Error, pa.ArrowException, OSError)
#: Of these, those for a file that is missing or corrupt, among other errors.
_READ_ERRORS = (duckdb.IOException, duckdb.InvalidInputException, duckdb.InternalException, pa.ArrowException, OSError)
_GLOB = re.compile(r"[*?\[\]{}]")


def _is_of_reading(error: Exception) -> bool:
    """Whether an error may come from a file that cannot be read. Of corrupt pages DuckDB raises its bare base class."""
    return isinstance(error, _READ_ERRORS) or type(error) is duckdb.Error


def connected() -> duckdb.DuckDBPyConnection:
    """Return a connection to a new database in memory, which loads no extensions and takes times as UTC."""
    connection = duckdb.connect(":memory:", config=_CONFIGURATION)
    connection.execute("SET TimeZone = 'UTC'")
    return connection


class Relations:
    """The tables of a reader's store as relations of a connection, by default one of its own.

    The names of all relations start with ``prefix``. ``made`` has those that exist, ``paths`` the files that they read.
    """

    def __init__(
        self, reader: StateReader, connection: duckdb.DuckDBPyConnection | None = None, prefix: str = ""
    ) -> None:
        self.prefix = prefix
        self.paths: list[str] = []
        self.made: set[str] = set()
        self.reader = reader
        self._connection = connected() if connection is None else connection
        self._snapshots: list[Snapshot] = []

    def select(self, query: str) -> pa.Table:
        """Return the rows of a query over the relations.

        Raises DamagedTable if a file is missing or corrupt, StorageFailed if the storage fails.
        """
        with self._reading():
            return self._connection.sql(query).to_arrow_table()

    def newest(self, table: StateTable) -> str:
        """Return the relation of the rows of a state table that count, as of the end of the log."""
        relation = f"{self.prefix}newest_{table.name}"
        if relation not in self.made:
            current = self.reader.current
            facts = self.stored(table.table, f"{relation}_facts")
            if table.name in current.folded:
                folded = self.registered(f"{relation}_folded", current.folded[table.name])
                facts = f"(FROM {facts} UNION ALL BY NAME FROM {folded})"
            counting, published = current.published(), None
            if table.published is not None and counting:
                rows = self.stored(table.published, f"{relation}_published")
                published = f"(FROM {rows} WHERE log_partition IN ({', '.join(map(str, counting))}))"
            self.create(relation, table.newest(f"(FROM {facts} WHERE {current.facts(table)})", published))
        return relation

    def stored(self, table: Table, relation: str | None = None) -> str:
        """Return the relation of all rows of a table. Raises NoSuchTable."""
        relation = self.prefix + table.name if relation is None else relation
        if relation not in self.made:
            snapshot = self.reader.table(table.name)
            if table.name in _SMALL:
                return self.registered(relation, snapshot.rows())
            self.create(relation, self._rows_of(snapshot, snapshot.files(), relation))
        return relation

    def log(self, since_ms: int = 0, only: Only = ALL_ROWS) -> str:
        """Return SQL for the rows of the log's current incarnation that have the values ``only``, for one query.

        Skips files whose rows were all appended before ``since_ms``. Other rows may be earlier.
        """
        only, since = {"log_incarnation": [self.reader.current_log.number], **only}, shown_time(since_ms)
        log = self.reader.table(LOG.name)
        files = [
            each for each in log.files() if each.may_hold(only) and each.highest.get("appended_at", since) >= since
        ]
        has_values = " AND ".join(f"{name} IN ({', '.join(map(str, values))})" for name, values in only.items())
        return f"(SELECT * FROM ({self._rows_of(log, files, 'some_of_log')}) l WHERE {has_values})"

    def _rows_of(self, snapshot: Snapshot, files: Sequence[DataFile], name: str) -> str:
        """SQL for the rows of files of a table; ``name`` is for relations that it needs."""
        self._snapshots.append(snapshot)
        by_partition: dict[tuple[tuple[str, str], ...], list[str]] = {}
        for file in files:
            by_partition.setdefault(tuple(sorted(file.partition.items())), []).append(snapshot.path(file))
        parts = []
        for number, (partition, paths) in enumerate(by_partition.items()):
            constants = dict(partition)
            columns = [
                f"{constants[each.name]} AS {each.name}"
                if each.name in constants
                else f"CAST({each.name} AS TIMESTAMPTZ) AS {each.name}"
                if pa.types.is_timestamp(each.type)
                else each.name
                for each in snapshot.table.columns
            ]
            parts.append(f"SELECT {', '.join(columns)} FROM {self._files(f'{name}_{number}', paths)}")
        if not parts:
            return f"FROM {self.registered(f'{name}_none', pa.Table.from_batches([], snapshot.table.arrow_schema()))}"
        return " UNION ALL ".join(parts)

    def _files(self, relation: str, paths: list[str]) -> str:
        """SQL of the rows of Parquet files."""
        if all("://" not in path and not _GLOB.search(path) for path in paths):
            self.paths += paths
            return f"read_parquet([{', '.join(map(quoted, paths))}], hive_partitioning = false)"
        from pyarrow import dataset  # noqa: PLC0415 - it imports pandas

        system = open_path(paths[0])[0]
        files = dataset.dataset([open_path(path)[1] for path in paths], filesystem=system, format="parquet")
        return self.registered(relation, files)

    def registered(self, relation: str, rows: object) -> str:
        """Make a relation of rows in memory; returns its name."""
        self._connection.register(relation, rows)
        self.made.add(relation)
        return relation

    def create(self, relation: str, query: str) -> str:
        """Make a relation of a query; returns its name. Raises as `select`: DuckDB reads the schema of the files."""
        with self._reading():
            self._connection.execute(f"CREATE TEMP VIEW {relation} AS {query}")
        self.made.add(relation)
        return relation

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except ERRORS as error:
            if not _is_of_reading(error):
                raise
            found = [explained(each.folder, error, each.stored()) for each in self._snapshots]
            raise next((each for each in found if isinstance(each, DamagedTable)), found[0]) from error

    def damage(self, error: Exception) -> DamagedTable | None:
        """Return what is wrong with a file that the relations read, if that may be the cause of an error."""
        if not _is_of_reading(error):
            return None
        return next(filter(None, (damage_of(each.folder, each.stored()) for each in self._snapshots)), None)
