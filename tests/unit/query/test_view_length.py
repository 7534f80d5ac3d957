"""A catalog limits the length of a view. Without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from offsets_pipeline.questions.query.views import _queries
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.delta.store_folder import create_tables
from offsets_pipeline.store.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

#: Characters of a view's text that Hive's metastore keeps in Derby, the smallest limit of its databases.
LONGEST = 32_700


def test_each_view_of_a_store_fits_into_the_metastore_of_hive(tmp_path: Path) -> None:
    properties = StoreProperties(MIRRORED, 50)
    location = tmp_path / ("a folder with a long name, " * 6)
    create_tables(str(location), properties)
    queries = _queries([Store(cast("SparkSession", None), str(location), properties)])
    assert "consumer_lag" in queries
    assert {name: len(query) for name, query in queries.items() if len(query) > LONGEST} == {}
