"""Taking files that tasks wrote into a table: one commit of Delta's own, under the condition of `guarded.py`.

Delta's transaction has no name in Python. It is reached in the JVM, and commits by the log store that Spark is set up
with. Nobody checks the rows of such files again, as a write of a DataFrame would: who writes them sees to the table's
constraints (docs/adr/0007).
"""

from __future__ import annotations

import json
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyarrow import fs
from pyspark.sql.types import StructType

from offsets_pipeline.delta.data_file import APPLICATION
from offsets_pipeline.delta.filesystems import open_path
from offsets_pipeline.delta.protocol import COLUMN_MAPPING, CONSTRAINT
from offsets_pipeline.errors import WriteConflict
from offsets_pipeline.jvm import java_class, last_transaction, metadata_of, option, scala_seq
from offsets_pipeline.retry import CONFLICTS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pyspark.sql import DataFrame

    from offsets_pipeline.delta.data_file import WrittenFile
    from offsets_pipeline.delta.reader import StoredFile
    from offsets_pipeline.delta.schemas import Table
    from offsets_pipeline.store import Store

#: The application whose transactions append what lies before other rows of a log: a cleaning has to notice them.
PAST = "offsets-past"

_APPEND, _OVERWRITE = "Append", "Overwrite"


class FileCommit:
    """A transaction on one table, open while tasks write files for it; `begin` makes one.

    Delta refuses its commit where somebody else wrote to the table through such a transaction, or a `GuardedWriter`,
    or changed what the table is, since it began.
    """

    def __init__(self, store: Store, table: Table, *, guarded: bool = True) -> None:
        self._guarded = guarded
        self._store = store
        self._table = table
        self._there: Any = None  # the files of the table
        log = store.delta_log(table.name)
        self.folder = store.arrow_folder(table.name)
        in_catalog = option(store.spark)  # the catalog's entry of the table, if it has one
        if store.is_schema:
            plan: Any = store.read(table.name)._jdf.queryExecution().analyzed()
            in_catalog = plan.collectLeaves().head().catalogTable()
        self._transaction = log.startTransaction(in_catalog, option(store.spark))
        #: the number of the application's transaction that this commits
        self.number = last_transaction(self._transaction.snapshot(), APPLICATION) + 1
        if guarded:  # as if that had been asked of it: so Delta refuses the commit where another of these is first
            self._transaction.readTxn().addOne(APPLICATION)

    @classmethod
    def begin(cls, store: Store, table: Table, *, guarded: bool = True) -> FileCommit | None:
        """Begin; None where only a DataFrame can be written to the table. Not ``guarded``: for what brings no rows.

        That is so where Arrow does not reach the table's folder, the table is not as this program made it (its
        owner partitioned it, or wants other constraints to hold), or Spark runs with a Delta of other insides.
        """
        try:
            begun = cls(store, table, guarded=guarded)
            system, path = open_path(begun.folder)
            log = system.get_file_info(f"{path}/_delta_log")
            if log.type != fs.FileType.Directory or not begun._is_as_created():
                return None
            begun._operation(_APPEND)
        except (OSError, pa.ArrowException, Py4JError, TypeError):
            return None
        return begun

    @property
    def version(self) -> int:
        """The table's version that this began at."""
        return int(self._transaction.snapshot().version())

    def look(self) -> Any:  # noqa: ANN401 - of the JVM
        """The files of the table, of which Delta lets nobody else remove one before this commits.

        That takes a Spark job, so it may be called while tasks still write what is to replace them.
        """
        if self._there is None:
            self._there = self._transaction.filterFiles()
        return self._there

    def files(self) -> DataFrame:
        """The files of the table where this began, as `Store.files`."""
        return self._store.files_of(self._transaction.snapshot())

    def append(self, files: Sequence[WrittenFile], *, late: bool = False) -> int:
        """Append what the files hold, all of it or nothing; returns how many rows.

        ``late``: they hold rows that belong before others of the table; then whoever rewrites it meanwhile is somebody
        who wrote, too. Raises WriteConflict when somebody else wrote meanwhile: then the files belong to nobody, and
        VACUUM removes them.
        """
        if not late:
            return self._commit(files, [], _APPEND)
        self.look()
        return self._commit(files, [], _APPEND, {PAST: int(self._transaction.txnVersion(PAST)) + 1})

    def replace(self, files: Sequence[WrittenFile], there: Sequence[StoredFile] | None = None) -> int:
        """Put what the files hold in place of all that is there; else as `append`.

        ``there`` is that, for who knows it without a look.
        """
        if there is None:
            found = self.look()
            removed = self._looked_up([found.apply(index) for index in range(found.size())])
        else:
            removed = self._named(there)
        return self._commit(files, removed, _OVERWRITE)

    def rearrange(self, files: Sequence[WrittenFile], there: Sequence[StoredFile]) -> int:
        """Put what the files hold in place of what is ``there``, and says the same; returns how many rows.

        To streams this is no change, as OPTIMIZE is none. What others append meanwhile stays beside it. Raises
        WriteConflict when somebody else removed one of the files that are there: then nothing was written.
        """
        return self._commit(files, self._named(there, is_change=False), _OVERWRITE, is_change=False)

    def rewrite(self, paths: Collection[str], files: Sequence[WrittenFile]) -> int:
        """Put what the files hold, nothing new, in place of the files of these ``paths``, as `files` names them.

        As `rearrange`, but appends that are late are conflicts, and whoever rewrote other files. Raises WriteConflict
        there: then nothing was written.
        """
        self._transaction.readTxn().addOne(PAST)
        there = self.look()
        gone = [each for each in (there.apply(index) for index in range(there.size())) if each.path() in paths]
        return self._commit(files, self._looked_up(gone, is_change=False), _OVERWRITE, is_change=False)

    def _looked_up(self, there: Sequence[Any], *, is_change: bool = True) -> list[Any]:
        """The actions that remove files which `look` found."""
        now = int(time.time() * 1000)
        return [each.removeWithTimestamp(now, is_change) for each in there]

    def _named(self, there: Sequence[StoredFile], *, is_change: bool = True) -> list[Any]:
        """The actions that remove files which the caller names."""
        now = int(time.time() * 1000)
        return [
            self._action(
                "remove",
                {
                    "path": file.name,
                    "deletionTimestamp": now,
                    "dataChange": is_change,
                    "extendedFileMetadata": True,
                    "partitionValues": file.partition,
                    "size": file.size,
                },
            )
            for file in there
        ]

    def _action(self, kind: str, fields: Mapping[str, Any]) -> Any:  # noqa: ANN401 - of the JVM
        """An action of Delta's protocol."""
        action = java_class(self._store.spark, "org.apache.spark.sql.delta.actions.Action")
        return action.fromJson(json.dumps({kind: fields}))

    def _commit(
        self,
        files: Sequence[WrittenFile],
        removed: Sequence[Any],
        mode: str,
        more: Mapping[str, int] = MappingProxyType({}),
        *,
        is_change: bool = True,
    ) -> int:
        """Commit, with the application's transaction where this is guarded, and ``more`` of other applications."""
        spark = self._store.spark
        actions = [*removed, *(self._action("add", file.add_action(is_change=is_change)) for file in files)]
        now = option(spark, int(time.time() * 1000))
        transaction = java_class(spark, "org.apache.spark.sql.delta.actions.SetTransaction")
        numbers = {APPLICATION: self.number, **more} if self._guarded else more
        actions += [transaction(application, number, now) for application, number in numbers.items()]
        try:
            self._transaction.registerSQLMetrics(self._store.spark._jsparkSession, self._metrics(files))
            self._transaction.commit(scala_seq(spark, actions), self._operation(mode))
        except CONFLICTS as conflict:
            raise WriteConflict(f"another writer wrote to {self._store.table_name(self._table.name)}") from conflict
        return sum(file.rows for file in files)

    def _is_as_created(self) -> bool:
        """Whether nobody changed what the table asks of its rows and files."""
        metadata = metadata_of(self._transaction)
        properties = metadata["configuration"]
        constraints = {key: value for key, value in properties.items() if key.startswith(CONSTRAINT)}
        expected = {key: value for key, value in self._table.properties.items() if key.startswith(CONSTRAINT)}
        schema = StructType.fromJson(json.loads(metadata["schemaString"]))
        return (
            constraints == expected
            and properties.get(COLUMN_MAPPING, "none") == "none"
            and tuple(metadata["partitionColumns"]) == self._table.partitioned_by
            and [(each.name, each.dataType) for each in schema]
            == [(each.name, each.dataType) for each in self._table.schema()]
        )

    def _operation(self, mode: str) -> Any:  # noqa: ANN401 - of the JVM
        """What the table's history says of the commit."""
        spark = self._store.spark
        partitioned_by = option(spark, scala_seq(spark, self._table.partitioned_by))
        save_mode = java_class(spark, "org.apache.spark.sql.SaveMode").valueOf(mode)
        write = java_class(spark, "org.apache.spark.sql.delta.DeltaOperations$Write")
        return write(save_mode, partitioned_by, *[option(spark)] * 7)

    def _metrics(self, files: Sequence[WrittenFile]) -> Any:  # noqa: ANN401 - of the JVM
        spark = self._store.spark
        context = spark.sparkContext._jsc.sc()
        metrics = java_class(spark, "java.util.HashMap")()
        sql_metrics = java_class(spark, "org.apache.spark.sql.execution.metric.SQLMetrics")
        figures = {
            "numFiles": len(files),
            "numOutputRows": sum(file.rows for file in files),
            "numOutputBytes": sum(file.size for file in files),
        }
        for name, figure in figures.items():
            metric = sql_metrics.createMetric(context, name)
            metric.set(figure)
            metrics.put(name, metric)
        return java_class(spark, "org.apache.spark.api.python.PythonUtils").toScalaMap(metrics)
