"""The comparison that the fold's tests share says what differs."""

import pytest

pytest.register_assert_rewrite("tests.unit.fold.state_tables")
