"""For every owned log, a run expires the forecast offsets, and both follow the rules (R18-R22)."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.questions.query.retention_forecast import HELD, LATER, NOW, forecast_rows
from tests.property.retention_rules import FIRST_MS, PARTITIONS, RETENTION_MS, SHAPE, SPAN_MS, STEPS, by_the_rules
from tests.random_logs import random_log
from tests.unit.coordinator.stores import append_rows, opened, references_of

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.coordinator.coordinator import Coordinator
    from offsets_pipeline.questions.query.retention_forecast import ForecastRow
    from tests.logs import Identity

Taken = tuple[set["Identity"], set[str]]
AT_MS = [FIRST_MS + RETENTION_MS + after for after in range(-1, SPAN_MS)]


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("owned") / "store"
    OwnedStore.create(folder, PARTITIONS)
    return folder


def forecast_of(coordinator: Coordinator, now_ms: int, until_ms: int) -> list[ForecastRow]:
    forecasts = [each for number in range(PARTITIONS) for each in coordinator.forecast_partition(number)]
    return forecast_rows(forecasts, now_ms, until_ms)


def taken(rows: list[ForecastRow], *when: str) -> Taken:
    chosen = [row for row in rows if row.when in when]
    return (
        {
            (row.group, row.topic, row.partition)
            for row in chosen
            if row.topic is not None and row.partition is not None
        },
        {row.group for row in chosen if row.topic is None},
    )


@pytest.mark.parametrize("seed", range(12))
def test_run_expires_the_forecast_offsets_by_the_rules(
    empty_store: Path, tmp_path: Path, seed: int, run_seed: int
) -> None:
    store = shutil.copytree(empty_store, tmp_path / "store")
    append_rows(store, random_log(random.Random(run_seed + seed), STEPS, SHAPE).rows(), PARTITIONS)
    some: tuple[set[Identity], set[str], set[Identity]] = (set(), set(), set())
    with opened(store, offsets_retention_minutes=RETENTION_MS // 60_000) as coordinator:
        for now_ms in AT_MS:
            rows = forecast_of(coordinator, now_ms, now_ms)
            said, states = taken(rows, NOW), references_of(store, PARTITIONS).values()
            rules = by_the_rules(states, now_ms)
            assert said == (rules.offsets, rules.groups)
            assert taken(rows, HELD)[0] == rules.held
            # the same of a look from before, as what comes until now
            assert said == taken(forecast_of(coordinator, AT_MS[0] - 1, now_ms), NOW, LATER)
            listed = {each.group_id for each in coordinator.list_groups()}

            reports = coordinator.expire_loaded(now_ms)
            groups = [group for report in reports for group in report.groups]
            assert said == (
                {(group.group_id, *each.where) for group in groups for each in group.expired},
                {group.group_id for group in groups if group.is_removed},
            )
            left = [identity for state in references_of(store, PARTITIONS).values() for identity in state.offsets]
            assert {identity for state in states for identity in state.offsets} - set(left) == said[0]
            assert listed - {each.group_id for each in coordinator.list_groups()} == said[1]
            assert taken(forecast_of(coordinator, now_ms, now_ms), NOW) == (set(), set())
            some = (some[0] | said[0], some[1] | said[1], some[2] | rules.held)
    assert len(some[0]) > 20
    assert len(some[1]) > 5
    assert some[2]
