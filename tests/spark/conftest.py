"""Spark with the code that it generates for users, in place of the interpreter of the other tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_USERS = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}


@pytest.fixture(params=["interpreted", "compiled"])
def code_generation(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    """Runs a test with and without code generation, in the session of all tests and in sessions that the test makes."""
    before = {key: str(spark.conf.get(key)) for key in _USERS}
    is_compiled = request.param == "compiled"
    if is_compiled:
        _set(spark, _USERS)
    assert _generates_code(spark) == _generates_code(spark.newSession()) == is_compiled
    yield
    _set(spark, before)


def _set(spark: SparkSession, conf: dict[str, str]) -> None:
    of_new_sessions: Any = spark._jsc.sc().conf()
    for key, value in conf.items():
        spark.conf.set(key, value)
        of_new_sessions.set(key, value)


def _generates_code(spark: SparkSession) -> bool:
    execution: Any = spark.range(1).selectExpr("id + 1")._jdf.queryExecution()
    return "*(" in execution.executedPlan().toString()
