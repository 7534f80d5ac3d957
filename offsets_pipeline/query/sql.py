"""One SQL query over a store, in a session that knows its views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from offsets_pipeline.errors import QueryFailed
from offsets_pipeline.query.views import register_views

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


def run_query(spark: SparkSession, store: str, query: str) -> tuple[list[str], Iterator[list[Any]]]:
    """The columns and the rows of a query's result; rows come one Spark partition at a time.

    Raises NoSuchStore or NotAStore, QueryFailed with Spark's own reason in one line.
    """
    register_views(spark, store)
    try:
        result = spark.sql(query)
        return result.columns, _rows(result.toLocalIterator())
    except PySparkException as exception:
        raise _failed(exception) from None


def _rows(rows: Iterator[Any]) -> Iterator[list[Any]]:
    try:
        for row in rows:
            yield list(row)
    except (PySparkException, Py4JJavaError) as exception:
        raise _failed(exception) from None


def _failed(exception: PySparkException | Py4JJavaError) -> QueryFailed:
    reason = str(exception)
    if isinstance(exception, Py4JJavaError):  # a task failed: what it says itself stands innermost
        cause = exception.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        reason = cause.getMessage() or cause.toString()
    return QueryFailed(f"the query failed: {reason.strip().splitlines()[0]}")
