"""Taking files that tasks wrote into a table: one commit of Delta's own, under the condition of `guarded.py`.

Delta's transaction has no name in Python. It is reached in the JVM, and commits by the log store that Spark is set up
with. Nobody checks the rows of such files again, as a write of a DataFrame would: who writes them sees to the table's
constraints (docs/adr/0007).
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyarrow import fs
from pyspark.sql.types import StructType

from offsets_pipeline.errors import WriteConflict
from offsets_pipeline.filesystems import arrow_path, open_path
from offsets_pipeline.retry import CONFLICTS
from offsets_pipeline.written_file import APPLICATION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offsets_pipeline.store import Store
    from offsets_pipeline.tables import Table
    from offsets_pipeline.written_file import WrittenFile

_CONSTRAINT = "delta.constraints."
_COLUMN_MAPPING = "delta.columnMapping.mode"
_APPEND, _OVERWRITE = "Append", "Overwrite"


class FileCommit:
    """A transaction on one table, open while tasks write files for it; `begin` makes one.

    Delta refuses its commit where somebody else wrote to the table through such a transaction, or a `GuardedWriter`,
    or changed what the table is, since it began.
    """

    def __init__(self, store: Store, table: Table) -> None:
        self._store = store
        self._table = table
        self._there: Any = None  # the files of the table
        log = store.delta(table.name)._jdt.deltaLog()
        uri = log.dataPath().toUri()
        self.folder = arrow_path(uri.getScheme(), uri.getAuthority(), uri.getPath())
        jvm: Any = store.spark._jvm
        in_catalog = jvm.scala.Option.empty()  # the catalog's entry of the table, if it has one
        if store.is_schema:
            plan: Any = store.read(table.name)._jdf.queryExecution().analyzed()
            in_catalog = plan.collectLeaves().head().catalogTable()
        self._transaction = log.startTransaction(in_catalog, jvm.scala.Option.empty())

    @classmethod
    def begin(cls, store: Store, table: Table) -> FileCommit | None:
        """Begin; None where only a DataFrame can be written to the table.

        That is so where Arrow does not reach the table's folder, the table is not as this program made it (its
        owner partitioned it, or wants other constraints to hold), or Spark runs with a Delta of other insides.
        """
        try:
            begun = cls(store, table)
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

    @property
    def number(self) -> int:
        """The number of the application's transaction that this commits."""
        # as of where this began; to have asked makes Delta refuse the commit where another of this application is first
        return int(self._transaction.txnVersion(APPLICATION)) + 1

    def look(self) -> Any:  # noqa: ANN401 - of the JVM
        """Find out what `replace` is to replace: takes a Spark job, so it may be called while the tasks still write."""
        if self._there is None:
            self._there = self._transaction.filterFiles()
        return self._there

    def append(self, files: Sequence[WrittenFile]) -> int:
        """Append what the files hold, all of it or nothing; returns how many rows.

        Raises WriteConflict when somebody else wrote meanwhile: then the files belong to nobody, and VACUUM removes
        them.
        """
        return self._commit(files, [], _APPEND)

    def replace(self, files: Sequence[WrittenFile]) -> int:
        """Put what the files hold in place of all that is there; else as `append`."""
        there = self.look()
        now, with_its_rows = int(time.time() * 1000), True
        removed = [there.apply(index).removeWithTimestamp(now, with_its_rows) for index in range(there.size())]
        return self._commit(files, removed, _OVERWRITE)

    def _commit(self, files: Sequence[WrittenFile], actions: list[Any], mode: str) -> int:
        jvm: Any = self._store.spark._jvm
        delta = jvm.org.apache.spark.sql.delta.actions
        actions = actions + [delta.Action.fromJson(file.add_action()) for file in files]
        actions.append(delta.SetTransaction(APPLICATION, self.number, jvm.scala.Option.apply(int(time.time() * 1000))))
        try:
            self._transaction.registerSQLMetrics(self._store.spark._jsparkSession, self._metrics(files))
            self._transaction.commit(_scala_seq(jvm, actions), self._operation(mode))
        except CONFLICTS as conflict:
            raise WriteConflict(f"another writer wrote to {self._store.table_name(self._table.name)}") from conflict
        return sum(file.rows for file in files)

    def _is_as_created(self) -> bool:
        """Whether nobody changed what the table asks of its rows and files."""
        metadata = self._transaction.metadata()
        jvm: Any = self._store.spark._jvm
        properties = dict(jvm.scala.jdk.javaapi.CollectionConverters.asJava(metadata.configuration()))
        constraints = {key: value for key, value in properties.items() if key.startswith(_CONSTRAINT)}
        expected = {key: value for key, value in self._table.properties.items() if key.startswith(_CONSTRAINT)}
        schema = StructType.fromJson(json.loads(metadata.schema().json()))
        return (
            constraints == expected
            and properties.get(_COLUMN_MAPPING, "none") == "none"
            and metadata.partitionColumns().mkString(",") == ",".join(self._table.partitioned_by)
            and [(each.name, each.dataType) for each in schema]
            == [(each.name, each.dataType) for each in self._table.schema()]
        )

    def _operation(self, mode: str) -> Any:  # noqa: ANN401 - of the JVM
        """What the table's history says of the commit."""
        jvm: Any = self._store.spark._jvm
        some, none = jvm.scala.Option.apply, jvm.scala.Option.empty()
        partitioned_by = some(_scala_seq(jvm, self._table.partitioned_by))
        save_mode = jvm.org.apache.spark.sql.SaveMode.valueOf(mode)
        return jvm.org.apache.spark.sql.delta.DeltaOperations.Write(save_mode, partitioned_by, *[none] * 7)

    def _metrics(self, files: Sequence[WrittenFile]) -> Any:  # noqa: ANN401 - of the JVM
        jvm: Any = self._store.spark._jvm
        context = self._store.spark.sparkContext._jsc.sc()
        metrics = jvm.java.util.HashMap()
        figures = {
            "numFiles": len(files),
            "numOutputRows": sum(file.rows for file in files),
            "numOutputBytes": sum(file.size for file in files),
        }
        for name, figure in figures.items():
            metric = jvm.org.apache.spark.sql.execution.metric.SQLMetrics.createMetric(context, name)
            metric.set(figure)
            metrics.put(name, metric)
        return jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(metrics)


def _scala_seq(jvm: Any, items: Sequence[Any]) -> Any:  # noqa: ANN401 - of the JVM
    array = jvm.java.util.ArrayList()
    for item in items:
        array.add(item)
    return jvm.org.apache.spark.api.python.PythonUtils.toSeq(array)
