from __future__ import annotations

import importlib
import inspect
import traceback
from doctest import DocTestParser

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

from offsets_pipeline import errors
from offsets_pipeline.common import foreign_errors
from offsets_pipeline.errors import OffsetsError

ALL = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, OffsetsError)]


@pytest.mark.parametrize("error", ALL)
def test_each_error_has_the_root_one_line_of_meaning_and_says_its_message(error: type[OffsetsError]) -> None:
    assert issubclass(error, OffsetsError)
    assert error.__doc__
    meaning = DocTestParser().parse(error.__doc__)[0]  # what stands before an example
    assert isinstance(meaning, str)
    assert "\n" not in meaning.strip()
    assert str(error("what, where")) == "what, where"


def test_retriable_errors() -> None:
    assert {each.kafka_name or each.__name__ for each in ALL if each.retriable} == {
        "WriteConflict",
        "StorageFailed",
        "BrokerUnreachable",
        "UNKNOWN_SERVER_ERROR",
        "NOT_COORDINATOR",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "REQUEST_TIMED_OUT",
        "UNSTABLE_OFFSET_COMMIT",
        "CONCURRENT_TRANSACTIONS",
    }


def test_a_group_that_is_not_there_has_kafkas_name() -> None:
    assert errors.NoSuchGroup.kafka_name == "GROUP_ID_NOT_FOUND"


def test_an_error_in_a_task_names_its_place_and_its_cause() -> None:
    with pytest.raises(errors.TaskFailed) as failed, foreign_errors.working_on(lambda: "byte position 7 of a.log"):
        raise KeyError("first line\nsecond line")
    assert str(failed.value) == "a task failed at byte position 7 of a.log: KeyError: 'first line\\nsecond line'"
    assert isinstance(failed.value.__cause__, KeyError)


def test_an_error_of_this_package_in_a_task_stays_what_it_is() -> None:
    with pytest.raises(errors.WriteConflict, match="others came first"), foreign_errors.working_on(lambda: "anywhere"):
        raise errors.WriteConflict("others came first")


def test_a_foreign_error_of_a_task_is_the_last_line_of_its_traceback() -> None:
    try:
        importlib.import_module("no_such_module")
    except ModuleNotFoundError:
        said = f"An exception was thrown from the Python worker:\n{traceback.format_exc()}"
        assert foreign_errors.in_one_line(RuntimeError(said)) == (
            "RuntimeError: An exception was thrown from the Python worker: "
            "ModuleNotFoundError: No module named 'no_such_module'"
        )


def test_the_error_of_a_task_is_found_in_what_spark_says_of_it() -> None:
    said: list[str] = []
    try:
        with foreign_errors.working_on(lambda: "log partition 3, record offsets 5 to 9"):
            raise ValueError("too large")
    except errors.TaskFailed:
        said.append(traceback.format_exc())
    ours = foreign_errors.raised_on_executor(
        RuntimeError(f"[PYTHON_EXCEPTION] An exception was thrown:\n{said[0]}\tat java")
    )
    assert isinstance(ours, errors.TaskFailed)
    assert str(ours) == "a task failed at log partition 3, record offsets 5 to 9: ValueError: too large"
    assert foreign_errors.raised_on_executor(ours) is ours


def test_an_error_without_a_message_is_told_by_its_class() -> None:
    assert foreign_errors.first_line(ValueError()) == foreign_errors.first_line(ValueError(" \n")) == "ValueError"
    assert foreign_errors.in_one_line(ValueError()) == "ValueError: "


def test_a_task_whose_process_was_killed_is_told_in_one_line_and_may_pass() -> None:
    said = """An error occurred while calling o7.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 10.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 10.0: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).
\tat org.apache.spark.api.python.BasePythonRunner"""
    told = "a Python process of a task has ended, killed or out of memory; another run may succeed"
    assert foreign_errors.in_one_line(RuntimeError(said)) == f"RuntimeError: {told}"
    assert foreign_errors.first_line(RuntimeError(said)) == told
    assert foreign_errors.may_pass(RuntimeError(said))


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "Connection refused"), Py4JNetworkError("no answer")])
def test_a_jvm_that_was_killed_is_told_in_one_line_and_does_not_pass(error: Exception) -> None:
    told = "the JVM of Spark has ended, killed or out of memory; run the command again"
    assert foreign_errors.in_one_line(error) == f"{type(error).__name__}: {told}"
    assert not foreign_errors.may_pass(error)
