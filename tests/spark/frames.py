"""DataFrames that are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chispa import assert_df_equality

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def assert_same_rows(found: DataFrame, expected: DataFrame) -> None:
    """Assert that both have the same columns, types and rows, in any order."""
    found, expected = found.repartition(1), expected.repartition(1)  # Spark runs others twice to sort them
    assert_df_equality(found, expected, ignore_row_order=True, ignore_nullable=True, ignore_metadata=True)
