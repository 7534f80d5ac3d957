"""Runs folds in the driver and in tasks, and shows the differences when a shared comparison fails."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.store.delta import retry

if TYPE_CHECKING:
    from tests.spark.stores import Workbench


@pytest.fixture
def many_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try a write that other writers overtake again more often than for users, and sooner."""
    monkeypatch.setattr(retry, "MAX_RETRIES", 50)
    monkeypatch.setattr(retry, "MAX_BACKOFF_MS", 500)


@pytest.fixture
def in_tasks(workbench: Workbench) -> Workbench:
    """Operations on stores for tests; no batch is folded in the driver."""
    fold = replace(workbench.settings.fold, driver_rows=0)
    return replace(workbench, settings=replace(workbench.settings, fold=fold))


@pytest.fixture(params=[pytest.param("in the driver", marks=pytest.mark.long), "in tasks"])
def either_way(request: pytest.FixtureRequest, workbench: Workbench, in_tasks: Workbench) -> Workbench:
    """The same for both ways in which a batch is folded.

    `make test` has the way by tasks. Folds in the driver are those of tests/unit/state, without Spark, and of all other
    tests of streams.
    """
    return workbench if request.param == "in the driver" else in_tasks
