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


def test_only_a_lost_race_is_worth_trying_again() -> None:
    assert {each.__name__ for each in ALL if each.retriable} == {"WriteConflict"}


def test_a_group_that_is_not_there_has_kafkas_name() -> None:
    assert errors.NoSuchGroup.kafka_name == "GROUP_ID_NOT_FOUND"
