from __future__ import annotations

import inspect

import pytest

from offsets_pipeline import errors
from offsets_pipeline.errors import OffsetsError

ALL = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, OffsetsError)]


@pytest.mark.parametrize("error", ALL)
def test_each_error_has_the_root_one_line_of_meaning_and_says_its_message(error: type[OffsetsError]) -> None:
    assert issubclass(error, OffsetsError)
    assert error.__doc__
    assert "\n" not in error.__doc__
    assert str(error("what, where")) == "what, where"


def test_what_may_succeed_later_is_worth_trying_again() -> None:
    assert {each.kafka_name or each.__name__ for each in ALL if each.retriable} == {
        "WriteConflict",
        "BrokerUnreachable",
        "NOT_COORDINATOR",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "REQUEST_TIMED_OUT",
        "UNSTABLE_OFFSET_COMMIT",
        "CONCURRENT_TRANSACTIONS",
    }


def test_a_group_that_is_not_there_has_kafkas_name() -> None:
    assert errors.NoSuchGroup.kafka_name == "GROUP_ID_NOT_FOUND"
