"""A schema of the catalog; and the code that Spark generates for users, in place of its interpreter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from collections.abc import Iterator

_USERS = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
SCHEMA = "schema:offsets_tests"


@pytest.fixture
def schema(spark: SparkSession) -> Iterator[str]:
    """A store's location in the session's catalog that is gone after the test."""
    yield SCHEMA
    spark.sql(f"DROP SCHEMA IF EXISTS {SCHEMA.removeprefix('schema:')} CASCADE")


@pytest.fixture(params=["interpreted", pytest.param("compiled", marks=pytest.mark.slow)])
def code_generation(
    request: pytest.FixtureRequest, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Runs a test with and without code generation, in the session of all tests and in sessions that the test makes."""
    if request.param == "interpreted":
        assert not _generates_code(spark.newSession())
        yield
        return
    new_session = SparkSession.newSession
    monkeypatch.setattr(SparkSession, "newSession", lambda session: _set(new_session(session), _USERS))
    before = {key: str(spark.conf.get(key)) for key in _USERS}
    try:
        assert _generates_code(_set(spark, _USERS))
        assert _generates_code(spark.newSession())
        yield
    finally:
        _set(spark, before)


def _set(spark: SparkSession, conf: dict[str, str]) -> SparkSession:
    for key, value in conf.items():
        spark.conf.set(key, value)
    return spark


def _generates_code(spark: SparkSession) -> bool:
    execution: Any = spark.range(1).selectExpr("id + 1")._jdf.queryExecution()
    return "*(" in execution.executedPlan().toString()
