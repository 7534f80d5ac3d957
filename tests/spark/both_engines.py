"""Queries that DuckDB and Spark answer alike."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row

from offsets_pipeline.cli.command import Command
from offsets_pipeline.cli.program import offsets
from offsets_pipeline.questions.query.local_sql import LocalSql
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.questions.query.views import register_views

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession


DOCUMENTED = re.compile(r"""offsets sql(?: --store \S+)+ (["'])(.+?)\1""")


def documented_queries(root: Path) -> list[str]:
    """The queries of README, docs and `offsets sql --help`."""
    pages = [page.read_text(encoding="utf-8") for page in (root / "README.md", *sorted((root / "docs").glob("*.md")))]
    command = offsets.commands["sql"]
    assert isinstance(command, Command)
    return [query for text in (*pages, *command.examples) for _, query in DOCUMENTED.findall(text)]


def comparable(value: Any) -> Any:  # noqa: ANN401 - any value of a query
    if isinstance(value, Row | dict):
        pairs = value.asDict().items() if isinstance(value, Row) else value.items()
        return {name: comparable(each) for name, each in pairs}
    if isinstance(value, list):
        return [comparable(each) for each in value]
    return bytes(value) if isinstance(value, bytearray) else value


def in_order(rows: Iterable[list[Any]]) -> list[str]:
    return sorted(str([comparable(value) for value in row]) for row in rows)


def assert_as_spark(
    spark: SparkSession, stores: list[str], queries: Sequence[str], *beside: str, over_rows: bool = False
) -> int:
    """Both engines have the same columns and rows; returns the number of rows.

    ``over_rows``: Spark finds the rows of each view once, and queries them: to plan a view takes a second.
    """
    count = 0
    register_views(spark, *stores, query=" ".join(queries))
    if over_rows:
        for name in [each.viewName for each in spark.sql("SHOW VIEWS").collect()]:
            if re.search(rf"\b{name}\b", " ".join(queries)):
                spark.createDataFrame(spark.table(name).toArrow()).createOrReplaceTempView(name)
    for query in queries:
        others = [[StateReader(each) for each in beside]] * len(stores)
        with closing(LocalSql([StateReader(each) for each in stores], others)) as local:
            columns, rows = local.run(query)
            found = list(rows)
        expected = spark.sql(query)
        assert columns == expected.columns, query
        assert in_order(found) == in_order(map(list, expected.collect())), query
        count += len(found)
    return count
