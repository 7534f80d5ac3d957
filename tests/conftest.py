"""What every test may use. Nothing here starts Spark until a test asks for the `spark` fixture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.config import Settings, SparkSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent
SPARK_FIXTURE = "spark"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses Spark, so that `-m "not spark"` leaves exactly that out."""
    for item in items:
        if SPARK_FIXTURE in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The developer's own settings file is not what the tests are about."""
    monkeypatch.delenv("OFFSETS_CONF", raising=False)


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's folder."""
    return ROOT


@pytest.fixture(scope="session")
def captures() -> Path:
    """The folder of recorded brokers' logs; its README says what each holds."""
    return ROOT / "tests" / "data" / "captures"


@pytest.fixture(scope="session")
def settings() -> Settings:
    """Small: two tasks at a time."""
    return Settings(spark=SparkSettings(master="local[2]", shuffle_partitions=2, driver_memory="2g"))


@pytest.fixture(scope="session")
def spark(settings: Settings) -> Iterator[SparkSession]:
    """The one Spark session of the run, started through the program's own build_session."""
    from offsets_pipeline.session import build_session  # noqa: PLC0415 (imports pyspark: not for unit tests)

    session = build_session(
        "tests",
        settings,
        # Many small jobs and none long: the second compiler never pays for itself (a fifth less time).
        {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"},
    )
    yield session
    session.stop()
