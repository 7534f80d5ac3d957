"""A command that is stopped while Spark runs."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from offsets_pipeline.cli.stopping import Stopping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: Before a fixture of all tests replaces it.
SPARE_JVM = Stopping.spare_jvm


@pytest.fixture(autouse=True)
def _handlers_are_put_back(spark: SparkSession) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    misc: Any = spark._jvm.sun.misc  # type: ignore[union-attr]
    misc.Signal.handle(misc.Signal("TERM"), misc.SignalHandler.SIG_DFL)


def test_sigterm_of_spark_submit_stops_what_python_runs(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stopping, "spare_jvm", staticmethod(SPARE_JVM))
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "as under spark-submit")
    stopped = threading.Event()
    Stopping(stopped.set, spark)
    jvm: Any = spark._jvm
    os.kill(jvm.java.lang.ProcessHandle.current().pid(), signal.SIGTERM)
    assert stopped.wait(60)
    assert spark.range(1000).selectExpr("sum(id)").first() == (499500,)
