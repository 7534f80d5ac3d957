"""Comparisons that tests share say what differs."""

import pytest

pytest.register_assert_rewrite("tests.unit.fold.state_tables", "tests.spark.stores")
