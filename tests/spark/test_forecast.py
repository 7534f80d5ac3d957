"""The forecast of a mirrored store: compared with its broker's expiration, and from state tables as from the log."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.common.config.sections import FoldSettings
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.questions.query.retention_forecast import ForecastRow, forecast_rows, retention_inputs
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics import partition_state
from offsets_pipeline.semantics.retention import forecast, holdings_of
from tests.logs import capture_partitions, capture_rows
from tests.property.retention_rules import FIRST_MS, PARTITIONS, RETENTION_MS, SHAPE, SPAN_MS
from tests.random_logs import random_log
from tests.spark.stores import versions
from tests.unit.coordinator.broker_expiry import PAIRS, RETENTION_MINUTES, assert_as_the_broker_did, wall_clock_ms
from tests.unit.coordinator.stores import append_rows, log_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from offsets_pipeline.semantics.log_row import LogRow
    from tests.spark.stores import Workbench

END_OF_TIME_MS = 253_402_300_000_000  # the year 9999


def by_tables(store: Path, now_ms: int, until_ms: int) -> list[ForecastRow]:
    held = retention_inputs(StateReader(str(store)))
    return forecast_rows((forecast(each, RETENTION_MS) for each in held), now_ms, until_ms)


def by_replay(rows: dict[int, list[LogRow]], partitions: int, now_ms: int, until_ms: int) -> list[ForecastRow]:
    states = [partition_state.replay(of_one, number, partitions) for number, of_one in rows.items()]
    held = (holdings_of(state, group_id) for state in states for group_id in state.groups)
    return forecast_rows((forecast(each, RETENTION_MS) for each in held if each is not None), now_ms, until_ms)


@pytest.mark.parametrize(("earlier", "later"), PAIRS)
def test_forecast_of_a_mirrored_store_matches_its_brokers_expiration(
    folded: Callable[[str], Path], capsys: pytest.CaptureFixture[str], earlier: str, later: str
) -> None:  # R18-R21
    store = folded(earlier)
    before = versions(store)
    capsys.readouterr()
    arguments = ["expire-offsets", "--store", str(store), "--dry-run", "--format", "json"]
    now = ["--at", str(wall_clock_ms(later)), "--retention-minutes", str(RETENTION_MINUTES)]
    assert main([*arguments, *now]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert_as_the_broker_did((ForecastRow(**json.loads(line)) for line in out.splitlines()), earlier, later)
    assert versions(store) == before


@pytest.mark.parametrize("capture", ["4.2.0-share", "4.2.0-txn-open", "4.2.0-kip848", "4.2.0-inject"])
def test_forecast_from_the_tables_of_a_capture_equals_the_forecast_from_its_log(
    folded: Callable[[str], Path], capture: str
) -> None:
    rows = by_tables(folded(capture), END_OF_TIME_MS, END_OF_TIME_MS)
    assert rows == by_replay(capture_rows(capture), capture_partitions(capture), END_OF_TIME_MS, END_OF_TIME_MS)
    assert rows


def test_forecast_from_the_tables_of_a_random_log_equals_the_forecast_from_the_log(
    workbench: Workbench, tmp_path: Path
) -> None:  # R18-R21
    OwnedStore.create(tmp_path, PARTITIONS)
    bench = replace(workbench, settings=replace(workbench.settings, fold=FoldSettings(expire_in_stream=False)))
    rows = random_log(random.Random(1), 3_000, SHAPE).rows()
    for part in halves(rows):  # the second fold's rows lie on top of the first one's
        append_rows(tmp_path, part, PARTITIONS)
        bench.fold(tmp_path)
    first_ms = FIRST_MS + RETENTION_MS
    found: set[tuple[str, str]] = set()
    for now_ms in range(first_ms - 1, first_ms + SPAN_MS):
        said = by_tables(tmp_path, now_ms, now_ms + 1)
        assert said == by_replay(log_of(tmp_path), PARTITIONS, now_ms, now_ms + 1)
        found |= {(row.when, row.rule) for row in said}
    assert found >= {("now", f"R18{case}") for case in "abcd"} | {("later", "R21"), ("held", "R20")}


def halves(rows: Iterable[LogRow]) -> tuple[list[LogRow], list[LogRow]]:
    rows = list(rows)
    ends = {number: sum(row.log_partition == number for row in rows) // 2 for number in range(PARTITIONS)}
    first = [row for row in rows if row.record_offset < ends[row.log_partition]]
    return first, [row for row in rows if row.record_offset >= ends[row.log_partition]]
