"""Appending to the table `log`: one writer at a time, noticed by the others."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyarrow import fs

from offsets_pipeline.errors import WriteConflict
from offsets_pipeline.filesystems import arrow_path, open_path
from offsets_pipeline.guarded import APPLICATION, GuardedWriter
from offsets_pipeline.log.file_writer import LogFilePlace
from offsets_pipeline.retry import CONFLICTS
from offsets_pipeline.tables import LOG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from offsets_pipeline.clock import Clock
    from offsets_pipeline.log.file_writer import WrittenFile
    from offsets_pipeline.store import Store

_CONSTRAINT = "delta.constraints."
_COLUMN_MAPPING = "delta.columnMapping.mode"


class LogAppender:
    """Appends on the condition that nobody else appended since it was made.

    Two that append the same records at once would write them twice: `GuardedWriter` refuses one of them, and what
    tasks wrote is added under the same condition.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._guarded = GuardedWriter(store, LOG.name)
        self._transaction: Any = None  # Delta's own, of the JVM

    def place(self, clock: Clock) -> LogFilePlace | None:
        """Where tasks may write files for `append_files`; None where only a DataFrame can be appended.

        That is so where Arrow does not reach the table's folder, the table is not as this program made it (its
        owner partitioned it, or wants other constraints to hold), or Spark runs with a Delta of other insides.
        """
        try:
            folder = _folder(self._store)
            system, path = open_path(folder)
            log = system.get_file_info(f"{path}/_delta_log")
            # open while the tasks write: then Delta refuses the commit also where somebody changes the table meanwhile
            self._transaction = _transaction(self._store)
            _append_operation(self._store)
        except (OSError, pa.ArrowException, Py4JError, TypeError):
            return None
        if log.type != fs.FileType.Directory or not _is_as_created(self._store):
            return None
        return LogFilePlace(folder, clock.now_ms())

    def append_files(self, files: Sequence[WrittenFile]) -> int:
        """Append what tasks wrote to files at `place`, all of it or nothing; returns how many records.

        Raises WriteConflict when somebody else appended meanwhile: then the files belong to nobody, and VACUUM
        removes them.
        """
        jvm: Any = self._store.spark._jvm
        delta = jvm.org.apache.spark.sql.delta
        actions = [delta.actions.Action.fromJson(file.add_action()) for file in files]
        now = jvm.scala.Option.apply(int(time.time() * 1000))
        actions.append(delta.actions.SetTransaction(APPLICATION, self._guarded.transaction, now))
        try:
            # to have asked makes Delta refuse the commit where another one of this application comes first
            if self._transaction.txnVersion(APPLICATION) >= self._guarded.transaction:
                raise WriteConflict("another writer appended to the log")
            self._transaction.registerSQLMetrics(self._store.spark._jsparkSession, _metrics(self._store, files))
            self._transaction.commit(_scala_seq(jvm, actions), _append_operation(self._store))
        except CONFLICTS as conflict:
            raise WriteConflict("another writer appended to the log") from conflict
        return sum(file.rows for file in files)

    def append(self, rows: DataFrame) -> int:
        """Append rows with the columns of the table `log`; returns how many.

        Raises WriteConflict when somebody else appended meanwhile: then nothing was written.
        """
        return self._guarded.append(rows.select(LOG.names()))


# --- Delta's own transaction, which has no name in Python: it commits by the log store that Spark is set up with


def _delta_log(store: Store) -> Any:  # noqa: ANN401 - of the JVM
    return store.delta(LOG.name)._jdt.deltaLog()


def _transaction(store: Store) -> Any:  # noqa: ANN401 - of the JVM
    jvm: Any = store.spark._jvm
    plan: Any = store.read(LOG.name)._jdf.queryExecution().analyzed()
    # the catalog's entry of the table, if it has one
    return _delta_log(store).startTransaction(plan.collectLeaves().head().catalogTable(), jvm.scala.Option.empty())


def _folder(store: Store) -> str:
    """The table's folder, as Arrow names it."""
    uri = _delta_log(store).dataPath().toUri()
    return arrow_path(uri.getScheme(), uri.getAuthority(), uri.getPath())


def _is_as_created(store: Store) -> bool:
    """Whether nobody changed what the table asks of its rows and files."""
    detail = store.delta(LOG.name).detail().first()
    if detail is None or detail["partitionColumns"]:
        return False
    properties: dict[str, str] = detail["properties"]
    constraints = {key: value for key, value in properties.items() if key.startswith(_CONSTRAINT)}
    expected = {key: value for key, value in LOG.properties.items() if key.startswith(_CONSTRAINT)}
    columns = [(each.name, each.dataType) for each in store.read(LOG.name).schema]
    return (
        constraints == expected
        and properties.get(_COLUMN_MAPPING, "none") == "none"
        and columns == [(each.name, each.type) for each in LOG.columns]
    )


def _append_operation(store: Store) -> Any:  # noqa: ANN401 - of the JVM
    """What the table's history says of the commit."""
    jvm: Any = store.spark._jvm
    some, none = jvm.scala.Option.apply, jvm.scala.Option.empty()
    mode, no_partitions = jvm.org.apache.spark.sql.SaveMode.Append, some(_scala_seq(jvm, []))
    return jvm.org.apache.spark.sql.delta.DeltaOperations.Write(mode, no_partitions, *[none] * 7)


def _metrics(store: Store, files: Sequence[WrittenFile]) -> Any:  # noqa: ANN401 - of the JVM
    jvm: Any = store.spark._jvm
    context = store.spark.sparkContext._jsc.sc()
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
