"""SQL over stores in Spark: the views, for one session or in a catalog for every session, and queries.

fold/state/view_queries.py and connect/connector_views.py define the views, but those of history: log_records,
offset_history, group_history and deleted_offsets. Tasks make these from whole log partitions, with the functions of
`history`. So they are temporary views of a session: a catalog cannot keep them. Spark passes no conditions of a query
to the tasks, so `Filters` pass them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from offsets_pipeline.common.sql_dialects import SPARK
from offsets_pipeline.connect.connector_views import CONNECT_VIEWS, connect_conditions, stores_beside
from offsets_pipeline.errors import NoSuchStore, QueryFailed
from offsets_pipeline.fold.state.merge_on_read import CONNECT, DESCRIBED, OFFSETS, SHARES
from offsets_pipeline.fold.state.view_queries import CONDITIONS, SHARE_VIEWS, VIEWS, tables_without_view
from offsets_pipeline.questions.history.decoded_log import COPIED, decoded_log
from offsets_pipeline.questions.history.history_schemas import HISTORY_VIEWS, LOG_RECORDS
from offsets_pipeline.questions.history.history_tables import HistoryOptions, PartitionHistory, Shown
from offsets_pipeline.questions.history.log_history import COLUMNS, LogHistory
from offsets_pipeline.questions.query.lag_view import CONSUMER_LAG, DATA_TIMES, STEPS
from offsets_pipeline.questions.query.parse_tree import Filters, filters_of, parsed
from offsets_pipeline.semantics.answering import HIDES_OFFSETS
from offsets_pipeline.semantics.log_row import of_groups
from offsets_pipeline.store.delta.properties import OWNED, require_different_clusters
from offsets_pipeline.store.delta.protocol import delta_type
from offsets_pipeline.store.delta.reader import quoted
from offsets_pipeline.store.delta.schemas import (
    FOLD_PROGRESS,
    LATER_TABLES,
    LOG,
    LOG_INCARNATION,
    LOG_PARTITIONS,
    TABLES,
    TOPIC_OFFSETS,
    Table,
)
from offsets_pipeline.store.log.file_writer import log_partitions_of
from offsets_pipeline.store.session import require_lasting_catalog
from offsets_pipeline.store.store import Store, session_of, sql_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from offsets_pipeline.store.store import SparkSource

#: A text with \ or '', and what is in "", mean one thing in Spark and another in DuckDB.
_OTHER_IN_DUCKDB = re.compile(r"""[\\"]|''""")
_IN_ORDER = ("log_partition", "log_incarnation", "record_offset")
_TAKE_ROWS = 50_000  # rows of the log after which a task gives out what it found


def register_views(spark: SparkSource, *stores: str, query: str = "") -> None:
    """Register the views and the tables of stores in this session; each is a folder or schema:NAME.

    Rows of all stores are together, with the column `cluster`. Raises NoSuchStore or NotAStore, StoreMismatch if two
    stores have one cluster name.

    ``query``: SQL. Registers only the views and tables that it names, or all if it names none: Spark analyzes each.
    The views of history then have only the groups and log partitions that its conditions allow, and read no others.
    """
    opened = open_stores(spark, stores)
    queries = _queries(opened)
    tables = {table.name for store in opened for table in tables_without_view(store.properties.topic_kind)}
    names = tables | HISTORY_VIEWS.keys() | queries.keys()
    wanted = names & set(re.findall(r"\w+", query.lower())) or names
    filters = _filters(query, HISTORY_VIEWS.keys() & wanted)
    parts: dict[str, list[DataFrame]] = {}
    for store in opened:
        for name, rows in _tables_and_history(store, wanted, filters).items():
            cluster = F.lit(store.properties.cluster(store.location))
            parts.setdefault(name, []).append(rows.withColumn("cluster", cluster))
    for name, of_stores in parts.items():
        together = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), of_stores)
        together.createOrReplaceTempView(name)
    for name in queries.keys() & wanted:
        session_of(spark).sql(queries[name]).createOrReplaceTempView(name)


def run_query(spark: SparkSource, *stores: str, query: str) -> tuple[list[str], Iterator[list[Any]]]:
    """Return the columns and the rows of a query's result; rows are fetched one Spark partition at a time.

    Raises as `register_views`. Raises QueryFailed with Spark's reason in one line, also while rows are fetched.
    """
    register_views(spark, *stores, query=query)
    try:
        result = session_of(spark).sql(query)
        return result.columns, _rows(result.toLocalIterator())
    except PySparkException as exception:
        raise _failed(exception) from None


def _filters(query: str, views: Iterable[str]) -> dict[str, Filters]:
    """What a query needs of each view of history; nothing is known of a query that DuckDB may read otherwise."""
    if _OTHER_IN_DUCKDB.search(query) is None:
        with suppress(QueryFailed):
            nodes = parsed(query)
            return {name: filters_of(nodes, [name]) for name in views}
    return {}


def _tables_and_history(store: Store, wanted: AbstractSet[str], filters: Mapping[str, Filters]) -> dict[str, DataFrame]:
    """The tables of a store that have no view of their name, and its views of history, by name."""
    kind = store.properties.topic_kind
    found = {
        table.name: store.spark.sql(_later(store, table)) if table in LATER_TABLES else store.read(table.name)
        for table in tables_without_view(kind)
        if table.name in wanted
    }
    if kind.has_groups and wanted & HISTORY_VIEWS.keys():
        found |= {name: rows for name, rows in _history_views(store, filters).items() if name in wanted}
    return found


def create_views(spark: SparkSource, *stores: str, schema: str) -> list[str]:
    """Create the views in a schema of the session's catalog, for every session that uses this catalog.

    Leaves out the views of history: Python computes them.

    Returns their names. The views contain the stores' folders or schemas: create them again after you move a store.

    Raises as `register_views`, QueryFailed. Raises NoSuchStore also if ``schema`` is not a valid name, CatalogMissing
    if the catalog ends with the session.
    """
    if not re.fullmatch(r"\w+(\.\w+)*", schema):
        raise NoSuchStore(f"{schema!r} is not a valid name of a schema: use letters, digits, _ and dots")
    opened = open_stores(spark, stores)
    session = session_of(spark)
    require_lasting_catalog(session, schema, "create views")
    queries = _queries(opened)
    try:
        session.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        for name, query in queries.items():
            session.sql(f"CREATE OR REPLACE VIEW {schema}.{name} AS {query}")
    except PySparkException as exception:
        raise _failed(exception) from None
    return list(queries)


def open_stores(spark: SparkSource, locations: Sequence[str]) -> list[Store]:
    """Open stores, each once; starts Spark for schemas only.

    Raises NoSuchStore or NotAStore, StoreMismatch if two stores have one cluster name.
    """
    stores = [Store.open(spark, location) for location in dict.fromkeys(locations)]
    require_different_clusters({each.location: each.properties.cluster(each.location) for each in stores})
    return stores


def _queries(stores: Sequence[Store]) -> dict[str, str]:
    """The queries of the views by name, over all stores that have them."""
    parts: dict[str, list[str]] = {}
    for store in stores:
        cluster = quoted(store.properties.cluster(store.location).replace("\\", "\\\\"))  # as Spark reads literals
        for name, query in _queries_of(store).items():
            parts.setdefault(name, []).append(f"SELECT *, {cluster} AS cluster FROM ({query}) v")
    return {name: " UNION ALL ".join(each) for name, each in parts.items()}


def _queries_of(store: Store) -> dict[str, str]:
    kind = store.properties.topic_kind
    if kind.has_groups:
        return _group_queries(store)
    return _connect_queries(store) if kind.is_connect else _share_queries(store)


def _group_queries(store: Store) -> dict[str, str]:
    names = {table.name: store.table_name(table.name) for table in TABLES}
    progress = names[FOLD_PROGRESS.name]
    offsets = names[OFFSETS.names[0]], names[OFFSETS.names[1]], progress
    groups = names[DESCRIBED.names[0]], names[DESCRIBED.names[1]], progress
    names |= SPARK | CONDITIONS
    names |= {
        "offsets": f"({OFFSETS.newest_in_spark(*offsets)})",
        "groups": f"({DESCRIBED.newest_in_spark(*groups)})",
        "hiding_groups": f"({DESCRIBED.facts_in_spark(*groups, HIDES_OFFSETS)})",
        "is_mirrored": "FALSE" if store.properties.kind == OWNED else "TRUE",
    }
    queries = {name: query.format(**names) for name, query in VIEWS.items()}
    # each part once, after those that it names: a catalog limits the length of a view
    names |= {name: name for name in ("current_offsets", "groups", "group_members", "steps", "data_times")}
    parts = {
        "current_offsets": queries["current_offsets"],
        "groups": DESCRIBED.newest_in_spark(*groups),
        "group_members": VIEWS["group_members"].format(**names),
        "steps": STEPS.format(topic_offsets=f"({_later(store, TOPIC_OFFSETS)})"),
        "data_times": DATA_TIMES.format(**names),
    }
    definitions = ", ".join(f"{name} AS ({part})" for name, part in parts.items())
    return queries | {"consumer_lag": f"WITH {definitions} {CONSUMER_LAG.format(**names)}"}


def _connect_queries(store: Store) -> dict[str, str]:
    """R30: the views read the stores beside this one that exist now."""
    stores = [store, *stores_beside(store.location, store.properties, partial(Store.find, store.spark))]
    rows = [
        CONNECT.newest_in_spark(each.table_name(CONNECT.name), None, each.table_name(FOLD_PROGRESS.name))
        for each in stores
    ]
    names = {"own": f"({rows[0]})", "all": " UNION ALL ".join(rows)}
    names |= SPARK | connect_conditions([each.properties.topic_kind for each in stores])
    return {name: query.format(**names) for name, query in CONNECT_VIEWS.items()}


def _share_queries(store: Store) -> dict[str, str]:
    """R39: the share partitions as of the last fold."""
    facts = SHARES.newest_in_spark(store.table_name(SHARES.name), None, store.table_name(FOLD_PROGRESS.name))
    return {name: query.format(share_partitions=f"({facts})") for name, query in SHARE_VIEWS.items()}


def _later(store: Store, table: Table) -> str:
    """SQL of the rows of a table that the store may lack; without it, of none."""
    if store.table(table.name).exists():
        return f"SELECT * FROM {sql_name(store.folder(), table.name)}"
    columns = ", ".join(f"cast(NULL AS {delta_type(each.type)}) AS {each.name}" for each in table.columns)
    return f"SELECT {columns} WHERE FALSE"


def _rows(rows: Iterator[Any]) -> Iterator[list[Any]]:
    """Yield the values of rows. Structs in them are dictionaries, as DuckDB has them."""
    try:
        for row in rows:
            yield [
                Row(of=value).asDict(recursive=True)["of"] if isinstance(value, Row | list | dict) else value
                for value in row
            ]
    except (PySparkException, Py4JJavaError) as exception:
        raise _failed(exception) from None


def _failed(exception: PySparkException | Py4JJavaError) -> QueryFailed:
    reason = str(exception)
    if isinstance(exception, Py4JJavaError):  # a task failed: the innermost cause is the task's own error
        cause = exception.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        reason = cause.getMessage() or cause.toString()
    return QueryFailed(f"the query failed: {reason.strip().splitlines()[0]}")


def _history_views(store: Store, filters: Mapping[str, Filters]) -> dict[str, DataFrame]:
    """The views of history by name. Each action reads the newest log.

    ``filters``: by view, the groups and log partitions whose rows suffice.

    Raises DamagedTable, UnsupportedTable.
    """
    history = LogHistory(store.folder())
    options = HistoryOptions.of(history, history.retention)
    table, notes = store.table_name(LOG.name), store.table_name(LOG_PARTITIONS.name)
    newest = f"coalesce((SELECT max(log_incarnation) FROM {notes}), {LOG_INCARNATION})"  # that is complete
    views = {}
    for name, view in HISTORY_VIEWS.items():
        schema = from_arrow_schema(view.arrow_schema())
        wanted = filters.get(name, Filters())
        log = f"SELECT * FROM {table} WHERE log_incarnation <= {newest} AND ({_condition(history, wanted)})"
        if name == LOG_RECORDS.name:
            views[name] = store.spark.sql(_with_outcomes(log)).mapInArrow(partial(_decoded, wanted.group_ids), schema)
            continue
        rows = store.spark.sql(f"SELECT {', '.join([*COLUMNS, 'log_incarnation'])} FROM ({log}) l")
        # one task for each log partition: a replay needs all of its rows in order
        in_order = rows.repartition("log_partition").sortWithinPartitions(*_IN_ORDER)
        views[name] = in_order.mapInArrow(
            partial(_replayed, name, replace(options, group_ids=wanted.group_ids)), schema
        )
    return views


def _replayed(view: str, options: HistoryOptions, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Replay log partitions in a task, for one view."""
    at, shown = -1, Shown()
    parts = chain.from_iterable(log_partitions_of(each, _IN_ORDER[:2]) for each in batches if each.num_rows)
    for (log_partition, log_incarnation), batches_of_one in groupby(
        parts, lambda rows: (rows["log_partition"][0].as_py(), rows["log_incarnation"][0].as_py())
    ):
        at, shown = log_partition, shown if log_partition == at else Shown()
        replayed = PartitionHistory(options, log_partition, log_incarnation, shown)
        waiting_rows = 0
        for rows in batches_of_one:
            replayed.add(pa.Table.from_batches([rows]))
            waiting_rows += rows.num_rows
            if waiting_rows >= _TAKE_ROWS:
                waiting_rows = 0
                yield from replayed.take()[view].to_batches()
        replayed.finish()
        yield from replayed.take()[view].to_batches()


def _decoded(group_ids: Sequence[str] | None, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decode rows in a task. ``group_ids``: these groups only, and control records."""
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        yield from decoded_log(rows if group_ids is None else of_groups(rows, group_ids)).to_batches()


def _condition(history: LogHistory, filters: Filters) -> str:
    """SQL that holds for the log partitions which a view needs: Delta skips files by it."""
    found = []
    for each in history.incarnations:
        partitions = history.homes(filters.group_ids, each, filters.log_partitions)
        if partitions is None:
            return "TRUE"
        listed = ", ".join(map(str, sorted(partitions))) or "NULL"
        found.append(f"log_incarnation = {each.number} AND log_partition IN ({listed})")
    return " OR ".join(found)


def _with_outcomes(log: str) -> str:
    """SQL of all rows of the log with what became of a record of a transaction: the producer's next marker (R11)."""
    columns = ", ".join([*COPIED[:-1], "key", "value"])
    return f"""
        SELECT {columns}, CASE WHEN control_type IS NULL THEN
               CASE last_value(CASE WHEN control_type IN ('COMMIT', 'ABORT') THEN control_type END, TRUE) OVER (
                   PARTITION BY log_incarnation, log_partition, producer_id ORDER BY record_offset DESC
                   ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
               ) WHEN 'COMMIT' THEN 'committed' WHEN 'ABORT' THEN 'aborted' ELSE 'open' END END AS outcome
        FROM ({log}) t WHERE producer_id IS NOT NULL
        UNION ALL
        SELECT {columns}, CAST(NULL AS STRING) AS outcome FROM ({log}) p WHERE producer_id IS NULL
    """
