"""SQL over stores in Spark: run one query, or create the views in a catalog for every session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from offsets_pipeline.errors import CatalogMissing, QueryFailed
from offsets_pipeline.query.views import create_views, open_stores, register_views
from offsets_pipeline.store import session_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from offsets_pipeline.store import SparkSource


def run_query(spark: SparkSource, stores: str | Sequence[str], query: str) -> tuple[list[str], Iterator[list[Any]]]:
    """Return the columns and the rows of a query's result; rows are fetched one Spark partition at a time.

    Raises as `register_views`. Raises QueryFailed with Spark's reason in one line, also while rows are fetched.
    """
    register_views(spark, *([stores] if isinstance(stores, str) else stores), query=query)
    try:
        result = session_of(spark).sql(query)
        return result.columns, _rows(result.toLocalIterator())
    except PySparkException as exception:
        raise _failed(exception) from None


def create_lasting_views(spark: SparkSource, stores: str | Sequence[str], schema: str) -> list[str]:
    """Create the views in a schema of a catalog that outlives the session, and return their names.

    Raises as `create_views`, QueryFailed. Raises CatalogMissing if the catalog ends with the session.
    """
    locations = [stores] if isinstance(stores, str) else stores
    open_stores(spark, locations)
    session = session_of(spark)
    if not _outlives_session(session, schema):
        raise CatalogMissing(
            "cannot create views: this session's catalog ends with the session; configure a persistent one, such as "
            "spark.sql.catalogImplementation=hive in SPARK_CONF_DIR or for spark-submit"
        )
    try:
        return create_views(session, locations, schema)
    except PySparkException as exception:
        raise _failed(exception) from None


def _outlives_session(spark: SparkSession, schema: str) -> bool:
    """Return whether the catalog is kept outside of Spark's memory."""
    of_spark = "." not in schema or schema.startswith("spark_catalog.")
    return not of_spark or spark.conf.get("spark.sql.catalogImplementation") != "in-memory"


def _rows(rows: Iterator[Any]) -> Iterator[list[Any]]:
    try:
        for row in rows:
            yield list(row)
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
