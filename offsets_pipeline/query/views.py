"""The views in Spark. view_queries.py has their definitions, connect_views.py those of Kafka Connect's."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from offsets_pipeline.delta.properties import OWNED, require_different_clusters
from offsets_pipeline.delta.protocol import delta_type
from offsets_pipeline.delta.reader import quoted
from offsets_pipeline.delta.schemas import FOLD_PROGRESS, TABLES, TOPIC_OFFSETS, later_tables_of, published_tables_of
from offsets_pipeline.errors import NoSuchStore, QueryFailed
from offsets_pipeline.history.history_schemas import HISTORY_VIEWS
from offsets_pipeline.query.connect_views import connect_views
from offsets_pipeline.query.filters import Filters, filters_of
from offsets_pipeline.query.history_views import history_views
from offsets_pipeline.query.lag_view import CONSUMER_LAG, DATA_TIMES, STEPS
from offsets_pipeline.query.parse_tree import parsed
from offsets_pipeline.query.view_queries import VIEWS
from offsets_pipeline.semantics.answering import ANSWERS, HIDES_OFFSETS
from offsets_pipeline.state.merge_on_read import DESCRIBED, OFFSETS
from offsets_pipeline.store import Store, session_of, sql_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from pyspark.sql import DataFrame, SparkSession

    from offsets_pipeline.delta.schemas import Table
    from offsets_pipeline.store import SparkSource

#: A text with \ or '', and what is in "", mean one thing in Spark and another in DuckDB.
_OTHER_IN_DUCKDB = re.compile(r"""[\\"]|''""")


def register_views(spark: SparkSource, *stores: str, query: str = "") -> None:
    """Register the views and the tables of stores in this session; each is a folder or schema:NAME.

    Rows of all stores are together, with the column `cluster`. Raises NoSuchStore or NotAStore, StoreMismatch if two
    stores have one cluster name.

    ``query``: SQL. Registers only the views and tables that it names, or all if it names none: Spark analyzes each.
    The views of history then have only the groups and log partitions that its conditions allow, and read no others.
    """
    opened = open_stores(spark, stores)
    queries = _queries(opened) | _later_queries(opened)
    names = {name for store in opened for name in _read_as_tables(store)} | HISTORY_VIEWS.keys() | queries.keys()
    wanted = names & set(re.findall(r"\w+", query.lower())) or names
    filters = _filters(query, HISTORY_VIEWS.keys() & wanted)
    parts: dict[str, list[DataFrame]] = {}
    for store in opened:
        tables = _tables_and_history(store, wanted, filters)  # starts Spark, which `lit` needs
        cluster = F.lit(store.properties.cluster(store.location))
        for name, rows in tables.items():
            parts.setdefault(name, []).append(rows.withColumn("cluster", cluster))
    for name, of_stores in parts.items():
        together = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), of_stores)
        together.createOrReplaceTempView(name)
    for name in queries.keys() & wanted:
        session_of(spark).sql(queries[name]).createOrReplaceTempView(name)


def _filters(query: str, views: Iterable[str]) -> dict[str, Filters]:
    """What a query needs of each view of history; nothing is known of a query that DuckDB may read otherwise."""
    if _OTHER_IN_DUCKDB.search(query) is None:
        with suppress(QueryFailed):
            nodes = parsed(query)
            return {name: filters_of(nodes, [name]) for name in views}
    return {}


def _tables_and_history(store: Store, wanted: AbstractSet[str], filters: Mapping[str, Filters]) -> dict[str, DataFrame]:
    """The tables of a store and its views of history, by name."""
    found = {name: store.read(name) for name in _read_as_tables(store) if name in wanted}
    if not store.properties.topic_kind.is_connect and wanted & HISTORY_VIEWS.keys():
        found |= {name: rows for name, rows in history_views(store, filters=filters).items() if name in wanted}
    return found


def _read_as_tables(store: Store) -> list[str]:
    """The tables of a store that have no view of their name."""
    published = {table.name for table in published_tables_of(store.properties.topic_kind)}
    return [table.name for table in store.tables if table.name not in published]


def create_views(spark: SparkSession, stores: str | Sequence[str], schema: str) -> list[str]:
    """Create the views in a schema of the session's catalog, for every session that uses this catalog.

    Leaves out the views of history: Python computes them.

    Returns their names. The views contain the stores' folders or schemas: create them again after you move a store.

    Raises as `register_views`. Raises NoSuchStore also if ``schema`` is not a valid name.
    """
    if not re.fullmatch(r"\w+(\.\w+)*", schema):
        raise NoSuchStore(f"{schema!r} is not a valid name of a schema: use letters, digits, _ and dots")
    queries = _queries(open_stores(spark, [stores] if isinstance(stores, str) else stores))
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    for name, query in queries.items():
        spark.sql(f"CREATE OR REPLACE VIEW {schema}.{name} AS {query}")
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
        for name, query in _queries_of(store).items():
            parts.setdefault(name, []).append(_with_cluster(store, f"({query})"))
    return {name: " UNION ALL ".join(each) for name, each in parts.items()}


def _later_queries(stores: Sequence[Store]) -> dict[str, str]:
    """The queries of the tables that a store may lack, by name, over all stores that may have them."""
    parts: dict[str, list[str]] = {}
    for store in stores:
        for table in later_tables_of(store.properties.topic_kind):
            parts.setdefault(table.name, []).append(_with_cluster(store, _later(store, table)))
    return {name: " UNION ALL ".join(each) for name, each in parts.items()}


def _with_cluster(store: Store, source: str) -> str:
    cluster = quoted(store.properties.cluster(store.location).replace("\\", "\\\\"))  # as Spark reads literals
    return f"SELECT *, {cluster} AS cluster FROM {source} v"


def _queries_of(store: Store) -> dict[str, str]:
    if store.properties.topic_kind.is_connect:
        return connect_views(store)
    names = {table.name: store.table_name(table.name) for table in TABLES}
    progress = names[FOLD_PROGRESS.name]
    offsets = names[OFFSETS.names[0]], names[OFFSETS.names[1]], progress
    groups = names[DESCRIBED.names[0]], names[DESCRIBED.names[1]], progress
    names |= {
        "offsets": f"({OFFSETS.newest_in_spark(*offsets)})",
        "groups": f"({DESCRIBED.newest_in_spark(*groups)})",
        "hiding_groups": f"({DESCRIBED.facts_in_spark(*groups, HIDES_OFFSETS)})",
        "answers": ANSWERS,
        "hides_offsets": HIDES_OFFSETS,
    }
    queries = {name: query.format(**names) for name, query in VIEWS.items()}
    # each part once, after those that it names: a catalog limits the length of a view
    names |= {name: name for name in ("current_offsets", "groups", "group_members", "steps", "data_times")}
    names |= {"micros": "unix_micros", "is_mirrored": "FALSE" if store.properties.kind == OWNED else "TRUE"}
    parts = {
        "current_offsets": queries["current_offsets"],
        "groups": DESCRIBED.newest_in_spark(*groups),
        "group_members": VIEWS["group_members"].format(**names),
        "steps": STEPS.format(topic_offsets=_later(store, TOPIC_OFFSETS)),
        "data_times": DATA_TIMES.format(**names),
    }
    definitions = ", ".join(f"{name} AS ({part})" for name, part in parts.items())
    return queries | {"consumer_lag": f"WITH {definitions} {CONSUMER_LAG.format(**names)}"}


def _later(store: Store, table: Table) -> str:
    """A table that the store may lack in SQL; without it, an empty one."""
    if store.has_later(table):
        return sql_name(store.folder(), table.name)
    columns = ", ".join(f"cast(NULL AS {delta_type(each.type)}) AS {each.name}" for each in table.columns)
    return f"(SELECT {columns} WHERE FALSE)"
