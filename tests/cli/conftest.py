"""Shows the differences when a shared comparison fails."""

import pytest

pytest.register_assert_rewrite("tests.unit.fold.state_tables", "tests.spark.stores")
